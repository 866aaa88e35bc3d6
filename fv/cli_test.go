package fv_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/manx-dataplane/manx/fv/infra"
)

var _ = onEachKind("manx run", func(kind infra.Kind) {
	var node *infra.Node
	thirty := both(mbit(30))

	BeforeEach(func() { node = suite.NewNode(kind) })

	publishedPod := func(name string) *infra.Pod {
		GinkgoHelper()
		pod := node.StartPod(name)
		pod.Publish(infra.KubernetesAnnotations("30M", "30M"))
		return pod
	}

	for _, signal := range []unix.Signal{unix.SIGTERM, unix.SIGINT} {
		It("on "+unix.SignalName(signal)+" exits with 0 within 2 s and leaves the kernel's state", func() {
			agent := node.StartAgent()
			pod := publishedPod("left")
			eventuallyServed(node, pod)
			ifb := ifindexOf(node, pod.IFB())
			start := time.Now()
			Expect(agent.Signal(signal)).To(Succeed())
			Expect(agent.Wait(infra.StartTimeout)).To(Equal(0), agent.Log())
			Expect(time.Since(start)).To(BeNumerically("<", 2*time.Second))
			Expect(served(node, pod)).To(Succeed())

			node.StartAgent() // which finds everything as it should be and changes nothing
			Consistently(served).WithArguments(node, pod).WithTimeout(300 * time.Millisecond).Should(Succeed())
			Expect(ifindexOf(node, pod.IFB())).To(Equal(ifb))
		})
	}

	It("ends at once on SIGTERM even while it sweeps 1,000 orphans", func() {
		node.AddIFBs(infra.IFBPrefix, 1000, 30e6)
		agent := node.StartAgent()
		code, took := agent.Terminate()
		Expect(code).To(Equal(0))
		Expect(took).To(BeNumerically("<", 2*time.Second))
		node.StartAgent()
		Eventually(func() error { return node.CheckIFBs() }).WithTimeout(10 * time.Second).Should(Succeed())
	})

	It("refuses to run beside another one in its network namespace, says so, and does no harm", func() {
		first := node.StartAgent()
		pod := publishedPod("served")
		eventuallyServed(node, pod)
		second := node.Run(infra.RunSpec{})
		Expect(second.Wait(convergence)).NotTo(Equal(0))
		Expect(second.Log()).To(ContainSubstring("another manx agent is running"))
		Expect(first.Exited()).To(BeFalse())
		Expect(served(node, pod)).To(Succeed())

		first.Kill() // frees the namespace at once
		node.StartAgent()
	})

	It("reports status as Felix does: a file while the endpoint is up, never half-written", func() {
		node.StartAgent()
		pod := node.NewPod("reported")
		pod.Publish(nil)
		Consistently(pod.StatusFile).WithTimeout(200 * time.Millisecond).ShouldNot(BeAnExistingFile())
		pod.Create()

		done := make(chan struct{})
		stop := sync.OnceFunc(func() { close(done) })
		DeferCleanup(stop) // also where the spec fails
		var halfWritten []string
		var group sync.WaitGroup
		group.Go(func() {
			for {
				select {
				case <-done:
					return
				case <-time.After(100 * time.Microsecond):
				}
				data, err := os.ReadFile(pod.StatusFile())
				if err == nil && !json.Valid(data) {
					halfWritten = append(halfWritten, string(data))
				}
			}
		})
		for range 5 {
			Eventually(func() error { return checkStatus(pod) }).Should(Succeed())
			pod.SetDown()
			Eventually(pod.StatusFile).ShouldNot(BeAnExistingFile())
			Expect(node.RT.LinkSetUp(node.Link(pod.Veth))).To(Succeed())
		}
		Eventually(func() error { return checkStatus(pod) }).Should(Succeed())
		stop()
		group.Wait()
		Expect(halfWritten).To(BeEmpty())

		pod.Delete()
		Eventually(pod.StatusFile).ShouldNot(BeAnExistingFile())
		pod.Create()
		Eventually(func() error { return checkStatus(pod) }).Should(Succeed())
		pod.Unpublish()
		Eventually(func() ([]os.DirEntry, error) { return os.ReadDir(filepath.Dir(pod.StatusFile())) }).Should(BeEmpty())
	})

	It("removes status files that an earlier run left for endpoints that are gone", func() {
		agent := node.StartAgent()
		pod := publishedPod("gone")
		eventuallyServed(node, pod)
		agent.Kill()
		pod.Delete()
		pod.Unpublish()
		Expect(pod.StatusFile()).To(BeAnExistingFile())
		node.StartAgent()
		Eventually(pod.StatusFile).ShouldNot(BeAnExistingFile())
	})

	It("follows endpoints that are replaced by a rename or through a symlink, as a ConfigMap's are", func() {
		pod := node.StartPod("swapped")
		swap := func(version string, annotations map[string]string) {
			GinkgoHelper()
			dir := filepath.Join(node.EndpointsDir, ".."+version)
			Expect(os.Mkdir(dir, 0o755)).To(Succeed())
			infra.WriteManifest(filepath.Join(dir, "pod.yaml"), pod.Manifest(annotations))
			swapSymlink(filepath.Join(node.EndpointsDir, "..data"), ".."+version)
		}
		swap("v1", infra.KubernetesAnnotations("30M", "30M"))
		Expect(os.Symlink("..data/pod.yaml", filepath.Join(node.EndpointsDir, "pod.yaml"))).To(Succeed())
		node.StartAgent()
		eventuallyServed(node, pod)
		swap("v2", infra.KubernetesAnnotations("20M", "20M"))
		eventuallyLimited(node, pod, both(mbit(20)))
		Expect(os.RemoveAll(filepath.Join(node.EndpointsDir, "..v1"))).To(Succeed())
		swap("v3", infra.KubernetesAnnotations("10M", "10M"))
		eventuallyLimited(node, pod, both(mbit(10)))

		other := node.StartPod("renamed")
		for _, rate := range []uint64{10, 20} { // Publish replaces by a rename
			other.Publish(infra.KubernetesAnnotations(quantity(rate), quantity(rate)))
			eventuallyLimited(node, other, both(mbit(rate)))
		}
	})

	It("follows a configuration that is replaced through a symlink", func() {
		dir := filepath.Dir(node.ConfigFile)
		Expect(os.Remove(node.ConfigFile)).To(Succeed())
		swap := func(version string, fields infra.Spec) {
			GinkgoHelper()
			Expect(os.Mkdir(filepath.Join(dir, ".."+version), 0o755)).To(Succeed())
			infra.WriteManifest(filepath.Join(dir, ".."+version, "felix.yaml"), node.FelixConfiguration(fields))
			swapSymlink(filepath.Join(dir, "..data"), ".."+version)
		}
		swap("v1", nil)
		Expect(os.Symlink("..data/felix.yaml", node.ConfigFile)).To(Succeed())
		pod := publishedPod("configured")
		node.StartAgent()
		eventuallyServed(node, pod)
		swap("v2", infra.Spec{"qosControls": "Disabled"})
		Eventually(node.CheckUnshaped).WithArguments(pod).Should(Succeed())
		swap("v3", nil)
		eventuallyLimited(node, pod, thirty)
	})

	It("reads several documents of a file, and JSON", func() {
		a, b, c := node.StartPod("first"), node.StartPod("second"), node.StartPod("third")
		annotations := infra.KubernetesAnnotations("30M", "30M")
		infra.WriteManifest(filepath.Join(node.EndpointsDir, "two.yml"), a.Manifest(annotations), b.Manifest(annotations))
		data, err := json.Marshal(c.Manifest(annotations))
		Expect(err).NotTo(HaveOccurred())
		infra.WriteFile(filepath.Join(node.EndpointsDir, "third.json"), data)
		infra.WriteFile(filepath.Join(node.EndpointsDir, "README.txt"), []byte("not a manifest"))
		node.StartAgent()
		for _, pod := range []*infra.Pod{a, b, c} {
			eventuallyServed(node, pod)
		}
	})

	It("obeys FELIX_ environment variables over the configuration file", func() {
		node.WriteConfig(infra.Spec{"qosControls": "Enabled"})
		pod := publishedPod("overridden")
		agent := node.Run(infra.RunSpec{Env: []string{"FELIX_QOSCONTROLS=Disabled"}})
		agent.WaitReady()
		eventuallyRouted(node, pod)
		Expect(node.CheckIFBs()).To(Succeed())
	})

	It("repairs what others break, at the refresh interval", func() {
		node.WriteConfig(infra.Spec{"qosRefreshInterval": "1s", "routeRefreshInterval": "1s"})
		pod := publishedPod("repaired")
		node.StartAgent()
		eventuallyServed(node, pod)
		Expect(node.RT.LinkDel(node.Link(pod.IFB()))).To(Succeed())
		node.DeleteRoutes(pod)
		eventuallyServed(node, pod)
	})

	It("without CAP_NET_ADMIN says what it lacks and exits with an error", func() {
		agent := node.Run(infra.RunSpec{WithoutNetAdmin: true})
		Expect(agent.Wait(infra.StartTimeout)).To(Equal(1))
		Expect(agent.Log()).To(ContainSubstring("CAP_NET_ADMIN"))
	})
})

// swapSymlink makes link point to target by a rename, as the kubelet does.
func swapSymlink(link, target string) {
	GinkgoHelper()
	temporary := link + ".tmp"
	Expect(os.Symlink(target, temporary)).To(Succeed())
	Expect(os.Rename(temporary, link)).To(Succeed())
}

// These do not depend on how the node is made.
var _ = Describe("the manx command", func() {
	var node *infra.Node

	BeforeEach(func() { node = suite.NewNode(infra.PlainNamespace) })

	run := func(args ...string) (code int, output string) {
		GinkgoHelper()
		process := node.Run(infra.RunSpec{Args: args})
		return process.Wait(convergence), process.Log()
	}

	It("--help says how to use it and exits with 0", func() {
		for _, args := range [][]string{{"--help"}, {"run", "--help"}} {
			code, output := run(args...)
			Expect(code).To(Equal(0))
			Expect(output).To(And(ContainSubstring("Usage:"), ContainSubstring("manx")))
		}
		_, output := run("run", "--help")
		Expect(output).To(And(ContainSubstring("--config"), ContainSubstring("--endpoints")))
	})

	DescribeTable("exits with an error that names what is wrong",
		func(args func() []string, mentions ...string) {
			code, output := run(args()...)
			Expect(code).NotTo(Equal(0))
			for _, mention := range mentions {
				Expect(output).To(ContainSubstring(mention))
			}
		},
		Entry("an unknown command", func() []string { return []string{"rum"} }, "rum"),
		Entry("an unknown flag", func() []string { return []string{"run", "--endpoint", "x"} }, "--endpoint"),
		Entry("no endpoints", func() []string { return []string{"run"} }, "endpoints"),
		Entry("a missing endpoints directory",
			func() []string { return []string{"run", "--endpoints", "/nonexistent"} }, "/nonexistent", "no such file or directory"),
		Entry("a file as endpoints directory",
			func() []string { return []string{"run", "--endpoints", node.ConfigFile} }, "felix.yaml", "not a directory"),
		Entry("a missing configuration file",
			func() []string { return []string{"run", "--config", "/nonexistent", "--endpoints", node.EndpointsDir} }, "/nonexistent"),
	)

	DescribeTable("refuses to start with a bad configuration, naming field, value and what is allowed",
		func(field string, value any, mentions ...string) {
			node.WriteConfig(infra.Spec{field: value})
			code, output := run("run", "--config", node.ConfigFile, "--endpoints", node.EndpointsDir)
			Expect(code).NotTo(Equal(0))
			for _, mention := range append(mentions, field) {
				Expect(output).To(ContainSubstring(mention))
			}
		},
		Entry("a switch", "qosControls", "Maybe", "Maybe", "Enabled", "Disabled"),
		Entry("a duration", "qosRefreshInterval", "soon", "soon"),
		Entry("a negative interval", "routeRefreshInterval", "-5s", "-5s"),
		Entry("a quantity out of range", "qosDefaultBurst", "1", "1k"),
		Entry("a regular expression", "interfaceExclude", "/kube-(/", "kube-("),
		Entry("an address", "deviceRouteSourceAddress", "10.0.0.300", "10.0.0.300"),
	)

	It("refuses to start with a malformed configuration, and keeps the last good one while it runs", func() {
		good, err := yaml.Marshal(node.FelixConfiguration(nil))
		Expect(err).NotTo(HaveOccurred())
		bad := append(good[:len(good):len(good)], "  nonsense: [unclosed\n"...)
		infra.WriteFile(node.ConfigFile, bad)
		code, output := run("run", "--config", node.ConfigFile, "--endpoints", node.EndpointsDir)
		Expect(code).NotTo(Equal(0))
		Expect(output).To(ContainSubstring("felix.yaml"))

		infra.WriteFile(node.ConfigFile, good)
		agent := node.StartAgent()
		pod := node.StartPod("good")
		pod.Publish(infra.KubernetesAnnotations("30M", "30M"))
		eventuallyServed(node, pod)
		infra.WriteFile(node.ConfigFile, bad)
		Eventually(agent.Log).Should(ContainSubstring("felix.yaml"))
		node.WriteConfig(infra.Spec{"qosControls": "Perhaps"})
		Eventually(agent.Log).Should(ContainSubstring("Perhaps"))
		Expect(served(node, pod)).To(Succeed())
		Expect(agent.Exited()).To(BeFalse())
		node.WriteConfig(infra.Spec{"qosControls": "Disabled"})
		Eventually(node.CheckUnshaped).WithArguments(pod).Should(Succeed())
	})

	It("loads a configuration with fields that it does not use, and lists them in one line", func() {
		node.WriteConfig(infra.Spec{"bpfEnabled": false, "ipipMTU": 1440})
		agent := node.StartAgent()
		Expect(agent.Log()).To(MatchRegexp(`(?m)^.*bpfEnabled.*ipipMTU.*$`))
	})
})
