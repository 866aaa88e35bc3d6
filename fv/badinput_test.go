package fv_test

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/manx-dataplane/manx/fv/infra"
)

// What a bad endpoint manifest may do is to be named in the log. Everything good
// goes on.
var _ = Describe("a bad endpoint manifest", func() {
	var node *infra.Node
	var good *infra.Pod

	BeforeEach(func() {
		node = suite.NewNode(infra.PlainNamespace)
		good = node.StartPod("good")
		good.Publish(infra.KubernetesAnnotations("30M", "30M"))
	})

	// withSpec is the manifest of a pod with some fields of its spec replaced.
	withSpec := func(pod *infra.Pod, fields infra.Object) infra.Object {
		manifest := pod.Manifest(nil)
		for field, value := range fields {
			manifest["spec"].(infra.Object)[field] = value
		}
		return manifest
	}

	// Each entry makes a file "bad.yaml", and says what the log must mention.
	entries := []TableEntry{
		Entry("no YAML", func(*infra.Pod) any { return "metadata: {name: [unclosed" }, "bad.yaml"),
		Entry("of unknown kind", func(p *infra.Pod) any {
			m := p.Manifest(nil)
			m["kind"] = "HostEndpoint"
			return m
		}, "HostEndpoint", "WorkloadEndpoint"),
		Entry("of another API version", func(p *infra.Pod) any {
			m := p.Manifest(nil)
			m["apiVersion"] = "projectcalico.org/v9"
			return m
		}, "projectcalico.org/v9", "projectcalico.org/v3"),
		Entry("with a bad prefix", func(p *infra.Pod) any { return withSpec(p, infra.Object{"ipNetworks": []string{"10.65.0.300/32"}}) },
			"ipNetworks", "10.65.0.300/32"),
		Entry("with a bad MAC", func(p *infra.Pod) any { return withSpec(p, infra.Object{"mac": "02:00:00"}) }, "mac", "02:00:00"),
		Entry("with too long an interface name", func(p *infra.Pod) any {
			return withSpec(p, infra.Object{"interfaceName": "cali0123456789abcdef"})
		}, "interfaceName", "cali0123456789abcdef", "15"),
		Entry("with a slash in an interface name", func(p *infra.Pod) any {
			return withSpec(p, infra.Object{"interfaceName": "cali/../eth0"})
		}, "interfaceName", "cali/../eth0"),
	}

	DescribeTable("is named in the log with field, value and what is allowed, and harms nothing else",
		func(bad func(*infra.Pod) any, mentions ...string) {
			agent := node.StartAgent()
			eventuallyServed(node, good)
			file := filepath.Join(node.EndpointsDir, "bad.yaml")
			pod := node.StartPod("bad")
			switch content := bad(pod).(type) {
			case string:
				infra.WriteFile(file, []byte(content))
			case infra.Object:
				infra.WriteManifest(file, content)
			}
			for _, mention := range append(mentions, "bad.yaml") {
				Eventually(agent.Log).Should(ContainSubstring(mention))
			}
			Expect(served(node, good)).To(Succeed())

			infra.WriteManifest(file, pod.Manifest(infra.KubernetesAnnotations("30M", "30M")))
			eventuallyServed(node, pod) // once it is repaired

			// The same, found at the start.
			agent.Kill()
			if content, ok := bad(pod).(infra.Object); ok {
				infra.WriteManifest(file, content)
			} else {
				infra.WriteFile(file, []byte(bad(pod).(string)))
			}
			again := node.StartAgent()
			eventuallyServed(node, good)
			Eventually(again.Log).Should(ContainSubstring("bad.yaml"))
		}, entries)

	DescribeTable("with a bad limit: the endpoint is served, its valid limits apply, and the log names the rest",
		func(annotations map[string]string, want infra.Limits, mentions ...string) {
			agent := node.StartAgent()
			pod := node.StartPod("bad")
			pod.Publish(annotations)
			eventuallyRouted(node, pod)
			eventuallyLimited(node, pod, want)
			for _, mention := range mentions {
				Eventually(agent.Log).Should(ContainSubstring(mention))
			}
			eventuallyServed(node, good)
		},
		Entry("out of range", infra.KubernetesAnnotations("10M", "1"), ingress(mbit(10)), "kubernetes.io/egress-bandwidth", "1k"),
		Entry("no quantity", infra.KubernetesAnnotations("10M", "fast"), ingress(mbit(10)), "kubernetes.io/egress-bandwidth", "fast"),
		Entry("burst without bandwidth",
			map[string]string{"qos.projectcalico.org/egressBurst": "1M", "qos.projectcalico.org/ingressBandwidth": "10M"},
			ingress(mbit(10)), "qos.projectcalico.org/egressBurst"),
		Entry("peakrate not above bandwidth",
			map[string]string{"qos.projectcalico.org/egressPeakrate": "10M", "qos.projectcalico.org/egressBandwidth": "10M"},
			egress(mbit(10)), "qos.projectcalico.org/egressPeakrate"),
	)

	It("half-written over a good one: the last good state stays until it is whole", func() {
		agent := node.StartAgent()
		eventuallyServed(node, good)
		data, err := yaml.Marshal(good.Manifest(infra.KubernetesAnnotations("20M", "20M")))
		Expect(err).NotTo(HaveOccurred())
		half := data[:strings.Index(string(data), "ipNetworks")+len("ipNetw")]
		Expect(os.WriteFile(good.File(), half, 0o644)).To(Succeed())
		Eventually(agent.Log).Should(ContainSubstring(filepath.Base(good.File())))
		Consistently(served).WithArguments(node, good).WithTimeout(500 * time.Millisecond).Should(Succeed())
		Expect(os.WriteFile(good.File(), data, 0o644)).To(Succeed())
		eventuallyLimited(node, good, both(mbit(20)))
	})

	It("for an endpoint that another file has too: said, and one of the two serves", func() {
		agent := node.StartAgent()
		eventuallyServed(node, good)
		infra.WriteManifest(filepath.Join(node.EndpointsDir, "zz-duplicate.yaml"), good.Manifest(infra.KubernetesAnnotations("10M", "10M")))
		Eventually(agent.Log).Should(ContainSubstring("zz-duplicate.yaml"))
		Consistently(served).WithArguments(node, good).WithTimeout(300 * time.Millisecond).Should(Succeed())
		good.Unpublish()
		eventuallyLimited(node, good, both(mbit(10)))
		eventuallyRouted(node, good)
	})

	It("for an interface that another endpoint has: said, the lower ID serves, the other takes over when it goes", func() {
		agent := node.StartAgent()
		eventuallyServed(node, good)
		rival := node.NewPod("rival") // sorts after "good"
		rival.Veth, rival.Index, rival.MAC = good.Veth, good.Index, good.MAC
		rival.Publish(infra.KubernetesAnnotations("10M", "10M"))
		Eventually(agent.Log).Should(MatchRegexp(`(?m)^.*` + good.Veth + `.*rival.*$|^.*rival.*` + good.Veth + `.*$`))
		Consistently(served).WithArguments(node, good).WithTimeout(300 * time.Millisecond).Should(Succeed())
		Expect(node.CheckNoRoutes(rival)).To(Succeed())
		good.Unpublish()
		eventuallyLimited(node, rival, both(mbit(10)))
		eventuallyRouted(node, rival)
	})
})
