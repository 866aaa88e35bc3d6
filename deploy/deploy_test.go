// Package deploy_test checks the image and the manifests without a cluster.
package deploy_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/manx-dataplane/manx/config"
	"github.com/manx-dataplane/manx/internal/nodetest"
	"github.com/manx-dataplane/manx/rtnl"
)

func TestDeploy(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "deploy")
}

var _ = AfterSuite(nodetest.CleanUp)

// objects are what a file holds.
type objects struct {
	accounts   []corev1.ServiceAccount
	configMaps []corev1.ConfigMap
	daemonSets []appsv1.DaemonSet
}

// read reads a file strictly: unknown fields and kinds fail.
func read(path string) objects {
	GinkgoHelper()
	data, err := os.ReadFile(path)
	Expect(err).NotTo(HaveOccurred())
	var found objects
	for _, document := range bytes.Split(data, []byte("\n---\n")) {
		var meta metav1.TypeMeta
		Expect(yaml.Unmarshal(document, &meta)).To(Succeed())
		switch meta.APIVersion + " " + meta.Kind {
		case "v1 ServiceAccount":
			found.accounts = append(found.accounts, decode[corev1.ServiceAccount](document))
		case "v1 ConfigMap":
			found.configMaps = append(found.configMaps, decode[corev1.ConfigMap](document))
		case "apps/v1 DaemonSet":
			found.daemonSets = append(found.daemonSets, decode[appsv1.DaemonSet](document))
		default:
			Fail("unknown object " + meta.String())
		}
	}
	return found
}

func decode[T any](document []byte) (object T) {
	GinkgoHelper()
	Expect(yaml.UnmarshalStrict(document, &object)).To(Succeed())
	return object
}

var manifests = []string{"sweeper-daemonset.yaml", "agent-daemonset.yaml"}

var _ = Describe("The manifests", func() {
	It("are all that there are", func() {
		Expect(filepath.Glob("*.yaml")).To(ConsistOf(manifests))
	})
	for _, file := range manifests {
		Describe(file, func() {
			var found objects
			var set appsv1.DaemonSet
			var pod corev1.PodSpec
			BeforeEach(func() {
				found = read(file)
				Expect(found.daemonSets).To(HaveLen(1))
				set = found.daemonSets[0]
				pod = set.Spec.Template.Spec
			})
			It("select their own pods, on every Linux node", func() {
				selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
				Expect(err).NotTo(HaveOccurred())
				Expect(selector.Matches(labels.Set(set.Spec.Template.Labels))).To(BeTrue())
				Expect(pod.NodeSelector).To(HaveKeyWithValue("kubernetes.io/os", "linux"))
				Expect(pod.Tolerations).To(ConsistOf(corev1.Toleration{Operator: corev1.TolerationOpExists}))
			})
			It("work on the node's network, and have no access to the API", func() {
				Expect(pod.HostNetwork).To(BeTrue())
				Expect(pod.HostPID).To(BeFalse())
				Expect(found.accounts).To(HaveLen(1))
				Expect(found.accounts[0].Name).To(Equal(pod.ServiceAccountName))
				Expect(*found.accounts[0].AutomountServiceAccountToken).To(BeFalse())
				Expect(*pod.AutomountServiceAccountToken).To(BeFalse())
			})
			It("mount what they declare, bound their memory and write to nothing of the image", func() {
				for _, container := range pod.Containers {
					for _, mount := range container.VolumeMounts {
						Expect(slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name })).To(BeTrue(), mount.Name)
					}
					Expect(container.Resources.Limits).To(HaveKey(corev1.ResourceMemory))
					Expect(*container.SecurityContext.ReadOnlyRootFilesystem).To(BeTrue())
				}
			})
			It("give arguments that the binary knows", func() {
				for _, container := range pod.Containers {
					result := nodetest.New().Manx("", append(slices.Clone(container.Args), "--help")...)
					Expect(result.Code).To(BeZero(), result.Stderr)
					for _, arg := range container.Args {
						if flag, isFlag := strings.CutPrefix(arg, "--"); isFlag {
							Expect(result.Stdout).To(ContainSubstring("--" + flag))
						}
					}
				}
			})
		})
	}
	It("leave the sweeper no capability but the one it needs", func() {
		context := read("sweeper-daemonset.yaml").daemonSets[0].Spec.Template.Spec.Containers[0].SecurityContext
		Expect(context.Capabilities).To(Equal(&corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}, Drop: []corev1.Capability{"ALL"}}))
		Expect(*context.AllowPrivilegeEscalation).To(BeFalse())
		Expect(context.Privileged).To(BeNil())
	})
	It("configure the agent with what it knows, and probe what it serves", func() {
		found := read("agent-daemonset.yaml")
		loaded, unused, err := config.Load([]byte(found.configMaps[0].Data["felix.yaml"]), nil)
		Expect(err).NotTo(HaveOccurred())
		Expect(unused).To(BeEmpty())
		Expect(loaded.HealthEnabled).To(BeTrue())
		container := found.daemonSets[0].Spec.Template.Spec.Containers[0]
		for _, probe := range []*corev1.Probe{container.LivenessProbe, container.ReadinessProbe} {
			Expect(probe.HTTPGet.Port.IntValue()).To(Equal(loaded.HealthPort))
			Expect(probe.HTTPGet.Host).To(Equal(loaded.HealthHost))
		}
		mounted := func(path string) bool {
			return slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == path })
		}
		Expect(mounted(loaded.EndpointStatusPathPrefix)).To(BeTrue())
		Expect(mounted("/etc/manx/endpoints")).To(BeTrue())
	})
})

var _ = Describe("The image", func() {
	const image = "manx-deploy-test"
	BeforeEach(func() {
		if out, err := exec.Command("docker", "version").CombinedOutput(); err != nil {
			Skip("SKIPPED: needs a container engine: " + string(out))
		}
		dir := GinkgoT().TempDir()
		Expect(os.Mkdir(filepath.Join(dir, "bin"), 0o755)).To(Succeed())
		binary, err := os.ReadFile(nodetest.Binary())
		Expect(err).NotTo(HaveOccurred())
		Expect(os.WriteFile(filepath.Join(dir, "bin", "manx"), binary, 0o755)).To(Succeed())
		dockerfile, err := filepath.Abs("Dockerfile")
		Expect(err).NotTo(HaveOccurred())
		out, err := exec.Command("docker", "build", "--quiet", "--file", dockerfile, "--tag", image, dir).CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), string(out))
		DeferCleanup(func() { _ = exec.Command("docker", "image", "rm", "--force", image).Run() })
	})
	run := func(options []string, args ...string) (string, error) {
		command := append([]string{"run", "--rm", "--network", "none", "--read-only"}, options...)
		out, err := exec.Command("docker", append(append(command, image), args...)...).CombinedOutput()
		return string(out), err
	}

	It("reads without root and without any capability", func() {
		out, err := run([]string{"--cap-drop", "ALL", "--security-opt", "no-new-privileges"}, "stats")
		Expect(err).NotTo(HaveOccurred(), out)
		Expect(out).To(ContainSubstring("No workload interface"))
	})
	It("sweeps with CAP_NET_ADMIN alone, as the manifest gives it", func() {
		out, err := run([]string{"--detach", "--user", "0:0", "--cap-drop", "ALL", "--cap-add", "NET_ADMIN", "--security-opt", "no-new-privileges"},
			"sweep", "--grace", "100ms", "--interval", "100ms")
		Expect(err).NotTo(HaveOccurred(), out)
		id := strings.TrimSpace(out)
		DeferCleanup(func() { _ = exec.Command("docker", "rm", "--force", id).Run() })
		pid, err := exec.Command("docker", "inspect", "--format", "{{.State.Pid}}", id).Output()
		Expect(err).NotTo(HaveOccurred())
		ns, err := rtnl.OpenNamespace("/proc/" + strings.TrimSpace(string(pid)) + "/ns/net")
		Expect(err).NotTo(HaveOccurred())
		defer ns.Close()
		kernel, err := rtnl.Open(rtnl.Options{Namespace: ns})
		Expect(err).NotTo(HaveOccurred())
		defer kernel.Close()
		Expect(kernel.LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "bwcali000000001"}})).To(Succeed())
		Eventually(func() error {
			_, err := kernel.LinkByName("bwcali000000001")
			return err
		}).WithTimeout(10 * time.Second).Should(MatchError(unix.ENODEV))
	})
})
