package infra

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"
)

// Object is a manifest as a user would write it, of no type that the agent knows.
type Object = map[string]any

// Spec holds fields of a FelixConfiguration's spec.
type Spec map[string]any

// FelixConfiguration returns the manifest that the agent is started with: health
// and status files on, and the given fields over that.
func (n *Node) FelixConfiguration(fields Spec) Object {
	spec := Spec{
		"healthEnabled":            true,
		"healthHost":               "127.0.0.1",
		"healthPort":               9099,
		"endpointStatusPathPrefix": n.StatusDir,
	}
	maps.Copy(spec, fields)
	return Object{
		"apiVersion": "projectcalico.org/v3",
		"kind":       "FelixConfiguration",
		"metadata":   Object{"name": "default"},
		"spec":       spec,
	}
}

// WriteConfig replaces the agent's configuration file, atomically.
func (n *Node) WriteConfig(fields Spec) {
	GinkgoHelper()
	WriteManifest(n.ConfigFile, n.FelixConfiguration(fields))
}

// Manifest returns the pod's WorkloadEndpoint manifest, as calicoctl prints it.
func (p *Pod) Manifest(annotations map[string]string) Object {
	metadata := Object{"name": "node1-k8s-" + p.Name + "-eth0", "namespace": p.Namespace}
	if len(annotations) > 0 {
		metadata["annotations"] = annotations
	}
	return Object{
		"apiVersion": "projectcalico.org/v3",
		"kind":       "WorkloadEndpoint",
		"metadata":   metadata,
		"spec": Object{
			"orchestrator":  "k8s",
			"node":          "node1",
			"pod":           p.Name,
			"endpoint":      "eth0",
			"interfaceName": p.Veth,
			"mac":           p.MAC.String(),
			"ipNetworks":    []string{p.IPv4.String() + "/32", p.IPv6.String() + "/128"},
		},
	}
}

// File returns where the pod's manifest goes.
func (p *Pod) File() string { return filepath.Join(p.node.EndpointsDir, p.Name+".yaml") }

// StatusFile returns where the agent reports that the pod's endpoint is up.
func (p *Pod) StatusFile() string {
	return filepath.Join(p.node.StatusDir, "endpoint-status", "k8s "+p.Namespace+"%2F"+p.Name+" eth0")
}

// Publish writes the pod's manifest, as the datastore would hold it.
func (p *Pod) Publish(annotations map[string]string) {
	GinkgoHelper()
	WriteManifest(p.File(), p.Manifest(annotations))
}

// Unpublish removes it.
func (p *Pod) Unpublish() {
	GinkgoHelper()
	Expect(os.Remove(p.File())).To(Succeed())
}

// WriteManifest writes objects as YAML documents of one file, which appears by a
// rename.
func WriteManifest(path string, objects ...Object) {
	GinkgoHelper()
	var data []byte
	for _, object := range objects {
		doc, err := yaml.Marshal(object)
		Expect(err).NotTo(HaveOccurred())
		data = append(append(data, "---\n"...), doc...)
	}
	WriteFile(path, data)
}

// WriteFile replaces a file by a rename from another directory, so that no watcher
// sees it half-written or by another name.
func WriteFile(path string, data []byte) {
	GinkgoHelper()
	temporary, err := os.CreateTemp("", fmt.Sprintf("%s%d-", rootPrefix, os.Getpid()))
	Expect(err).NotTo(HaveOccurred())
	_, err = temporary.Write(data)
	Expect(errors.Join(err, temporary.Chmod(0o644), temporary.Close())).To(Succeed())
	Expect(os.Rename(temporary.Name(), path)).To(Succeed())
}

// KubernetesAnnotations limits both directions by the kubernetes.io annotations;
// empty values are left out.
func KubernetesAnnotations(ingress, egress string) map[string]string {
	return withoutEmpty(map[string]string{
		"kubernetes.io/ingress-bandwidth": ingress,
		"kubernetes.io/egress-bandwidth":  egress,
	})
}

// CalicoAnnotations limits both directions by the qos.projectcalico.org
// annotations, each with the given burst in bits; empty values are left out.
func CalicoAnnotations(ingress, egress, burst string) map[string]string {
	annotations := withoutEmpty(map[string]string{
		"qos.projectcalico.org/ingressBandwidth": ingress,
		"qos.projectcalico.org/egressBandwidth":  egress,
	})
	if burst != "" && ingress != "" {
		annotations["qos.projectcalico.org/ingressBurst"] = burst
	}
	if burst != "" && egress != "" {
		annotations["qos.projectcalico.org/egressBurst"] = burst
	}
	return annotations
}

func withoutEmpty(m map[string]string) map[string]string {
	maps.DeleteFunc(m, func(_, value string) bool { return value == "" })
	return m
}
