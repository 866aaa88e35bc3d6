package fv_test

import (
	"fmt"
	"path/filepath"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"

	"github.com/manx-dataplane/manx/fv/infra"
)

// The production case that manx exists for: a shaper that outlives its pod.
var _ = onEachKind("case A: leaked shapers", func(kind infra.Kind) {
	var node *infra.Node
	var pod *infra.Pod
	thirty := egress(mbit(30))

	BeforeEach(func() {
		node = suite.NewNode(kind)
		pod = node.NewPod("ifb-repro")
		Expect(pod.IFB()).To(Equal("bwcali6514ff3bb"))
	})

	// limitedPod starts an agent and the pod, and returns once it is limited.
	limitedPod := func(annotations map[string]string) *infra.Agent {
		GinkgoHelper()
		agent := node.StartAgent()
		pod.Create()
		pod.Publish(annotations)
		eventuallyLimited(node, pod, thirty)
		eventuallyRouted(node, pod)
		return agent
	}

	DescribeTable("A1: the IFB of a pod that was deleted while the agent was down goes at the next start",
		func(annotations map[string]string, stop func(*infra.Agent)) {
			agent := limitedPod(annotations)
			stop(agent)
			pod.Delete()
			pod.Unpublish()
			Expect(node.CheckIFBs(pod)).To(Succeed(), "nothing has removed it yet")

			node.StartAgent()
			eventuallyIFBs(node)
			Expect(node.CheckNoRoutes(pod)).To(Succeed())
		},
		Entry("kubernetes.io annotation, agent killed", infra.KubernetesAnnotations("", "30M"), (*infra.Agent).Kill),
		Entry("qos.projectcalico.org annotation, agent stopped", infra.CalicoAnnotations("", "30M", ""),
			func(a *infra.Agent) { a.Terminate() }),
	)

	It("A2: the IFB goes with a veth that goes 1.3 s after the start, unnamed by any endpoint", func() {
		limitedPod(infra.KubernetesAnnotations("", "30M")).Kill()
		pod.Unpublish()
		node.StartAgent()
		Consistently(node.CheckLimits).WithArguments(pod, thirty).WithTimeout(1300*time.Millisecond).
			Should(Succeed(), "the datastore may lag behind the runtime: not before the grace period is over")
		pod.SetDown()
		time.Sleep(3 * time.Millisecond) // the production log's own interval
		pod.Delete()
		eventuallyIFBs(node)
	})

	It("A4: a pod of the same name gets a fresh device, made while the agent runs", func() {
		pod.MTU = 1400
		limitedPod(infra.KubernetesAnnotations("", "30M"))
		old := ifindexOf(node, pod.IFB())
		pod.Unpublish()
		pod.Delete()
		eventuallyIFBs(node)

		pod.MTU = 1500
		pod.Create()
		pod.Publish(infra.KubernetesAnnotations("", "20M"))
		eventuallyLimited(node, pod, egress(mbit(20))) // and the IFB's MTU is the veth's
		Expect(ifindexOf(node, pod.IFB())).NotTo(Equal(old))
	})

	It("A4: a pod of the same name gets a fresh device, made while the agent was down, with the old one there", func() {
		pod.MTU = 1400
		limitedPod(infra.KubernetesAnnotations("", "30M")).Kill()
		old := ifindexOf(node, pod.IFB())
		pod.Delete()
		pod.MTU = 1500
		pod.Create()
		Expect(node.CheckIFBs(pod)).To(Succeed(), "the old device is still there")

		node.StartAgent()
		eventuallyLimited(node, pod, thirty)
		Expect(ifindexOf(node, pod.IFB())).NotTo(Equal(old), "the old device was adopted, tokens and backlog with it")
		eventuallyIFBs(node, pod)
	})

	It("A4: a pod re-created at once, its endpoint never removed, gets a fresh device", func() {
		limitedPod(infra.KubernetesAnnotations("", "30M"))
		old := ifindexOf(node, pod.IFB())
		pod.Delete()
		pod.Create()
		Eventually(func(g Gomega) {
			g.Expect(node.CheckLimits(pod, thirty)).To(Succeed())
			link, err := node.RT.LinkByName(pod.IFB())
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(link.Attrs().Index).NotTo(Equal(old))
		}).Should(Succeed())
		eventuallyRouted(node, pod)
	})
})

var _ = onEachKind("case A3: 1,558 orphans", func(kind infra.Kind) {
	It("are gone within seconds of the first start, running pods' limits never lifted, new pods served meanwhile", func() {
		node := suite.NewNode(kind)
		limits := both(mbit(30))
		agent := node.StartAgent()
		running := make([]*infra.Pod, 4)
		for i := range running {
			running[i] = node.StartPod(fmt.Sprintf("running-%d", i))
			running[i].Publish(infra.KubernetesAnnotations("30M", "30M"))
		}
		for _, pod := range running {
			eventuallyLimited(node, pod, limits)
		}
		agent.Kill()
		node.AddIFBs(infra.IFBPrefix, 1558, 30e6)

		watch := watchLimits(node, running, limits)
		start := time.Now()
		node.StartAgent()
		pods := append(running, node.StartPod("new"))
		newcomer := pods[len(pods)-1]
		newcomer.Publish(infra.KubernetesAnnotations("30M", "30M"))
		published := time.Now()
		eventuallyLimited(node, newcomer, limits)
		AddReportEntry("new pod limited after", time.Since(published).String())
		Eventually(func() error { return node.CheckIFBs(pods...) }).WithTimeout(10 * time.Second).Should(Succeed())
		AddReportEntry("no orphan left after", time.Since(start).String())
		Expect(watch()).To(BeEmpty(), "limits of running pods were lifted")
	})
})

// watchLimits looks at the pods' limits over and over until the function it returns
// is called, which returns what was wrong.
func watchLimits(node *infra.Node, pods []*infra.Pod, limits infra.Limits) (stop func() []string) {
	GinkgoHelper()
	kernel := infra.OpenKernel(node.NS) // sockets of its own, so that it waits for nobody
	indexes := make(map[*infra.Pod]int)
	for _, pod := range pods {
		indexes[pod] = ifindexOf(node, pod.IFB())
	}
	done := make(chan struct{})
	finish := sync.OnceFunc(func() { close(done) })
	var wrong []string
	var group sync.WaitGroup
	group.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			case <-time.After(5 * time.Millisecond):
			}
			pod := pods[i%len(pods)]
			if err := kernel.CheckLimits(pod, limits); err != nil {
				wrong = append(wrong, err.Error())
			}
			if link, err := kernel.RT.LinkByName(pod.IFB()); err != nil || link.Attrs().Index != indexes[pod] {
				wrong = append(wrong, pod.String()+": its IFB was replaced")
			}
		}
	})
	DeferCleanup(func() { finish(); group.Wait() }) // also where the spec fails, before the kernel's sockets close
	return func() []string {
		finish()
		group.Wait()
		return wrong
	}
}

var _ = onEachKind("case A5: one more shaper than wanted", func(kind infra.Kind) {
	var node *infra.Node
	var pod *infra.Pod
	annotations := infra.KubernetesAnnotations("30M", "30M")

	BeforeEach(func() {
		node = suite.NewNode(kind)
		pod = node.StartPod("both")
	})

	for _, plugin := range []infra.PluginQdisc{infra.PluginTBF, infra.PluginHTB} {
		for _, field := range []string{"qosKubernetesAnnotations", "qosControls"} {
			It(fmt.Sprintf("with %s Disabled the plugin's state (%s) is untouched and ours is absent", field, plugin), func() {
				node.RunBandwidthPlugin(pod, plugin, 10e6)
				node.WriteConfig(infra.Spec{field: "Disabled"})
				pod.Publish(annotations)
				before := node.Foreign()

				node.StartAgent()
				eventuallyRouted(node, pod) // so the endpoint has been dealt with
				Consistently(func(g Gomega) {
					g.Expect(node.Foreign()).To(Equal(before))
					g.Expect(node.CheckIFBs()).To(Succeed())
				}).WithTimeout(500 * time.Millisecond).Should(Succeed())
			})
		}

		It(fmt.Sprintf("a limit of ours takes the veth over from the plugin (%s): one shaper, ours", plugin), func() {
			node.RunBandwidthPlugin(pod, plugin, 5e6)
			limit := infra.Limit{RateBits: 20e6, BurstBits: 1 << 20}
			pod.Publish(infra.CalicoAnnotations("20M", "20M", "1Mi"))
			node.StartAgent()
			eventuallyLimited(node, pod, both(limit))
			for _, path := range paths[1:3] { // one each way
				from, to, dst := path.of(node, pod)
				infra.ExpectTCP(from, to, dst, limit.RateBits)
			}
		})
	}

	It("ours and the plugin's, as found in production: QoS disabled at the start removes ours and only ours", func() {
		agent := node.StartAgent()
		pod.Publish(annotations)
		eventuallyLimited(node, pod, both(mbit(30)))
		agent.Kill()
		other := node.StartPod("plugin-only")
		bwp := node.RunBandwidthPlugin(other, infra.PluginTBF, 10e6)
		before := node.Foreign()
		node.WriteConfig(infra.Spec{"qosControls": "Disabled"})

		node.StartAgent()
		Eventually(node.CheckUnshaped).WithArguments(pod).Should(Succeed())
		Expect(node.CheckIFBs()).To(Succeed())
		Expect(node.Foreign()).To(Equal(before))
		Expect(node.LinkExists(bwp)).To(BeTrue())
	})
})

var _ = Describe("a veth that no endpoint claims", func() {
	It("keeps limits, and after a restart its route, for the grace period of 10 s, and then loses them", func() {
		node := suite.NewNode(infra.PlainNamespace)
		annotations := infra.KubernetesAnnotations("30M", "30M")
		agent := node.StartAgent()
		before := node.StartPod("removed-while-down")
		before.Publish(annotations)
		eventuallyServed(node, before)
		agent.Kill()
		before.Unpublish()
		node.StartAgent()
		after := node.StartPod("removed-while-up")
		after.Publish(annotations)
		eventuallyServed(node, after)
		after.Unpublish()
		Eventually(node.CheckNoRoutes).WithArguments(after).Should(Succeed(), "the endpoint is known to be gone")

		Consistently(func(g Gomega) {
			g.Expect(node.CheckLimits(before, both(mbit(30)))).To(Succeed())
			g.Expect(node.CheckRoutes(before)).To(Succeed())
		}).WithTimeout(6 * time.Second).WithPolling(50 * time.Millisecond).Should(Succeed())
		for _, pod := range []*infra.Pod{before, after} {
			Eventually(node.CheckUnshaped).WithArguments(pod).WithTimeout(15 * time.Second).Should(Succeed())
			Eventually(node.CheckNoRoutes).WithArguments(pod).Should(Succeed())
			Expect(node.LinkExists(pod.Veth)).To(BeTrue(), "host veths are never ours to delete")
		}
		eventuallyIFBs(node)
	})
})

var _ = Describe("an IFB that is ours in name only", func() {
	It("is left alone where it is no IFB, and other IFBs are", func() {
		node := suite.NewNode(infra.PlainNamespace)
		attrs := netlink.NewLinkAttrs()
		attrs.Name = infra.IFBPrefix + "bridge000"
		Expect(node.RT.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})).To(Succeed())
		node.AddIFB("ifb-other")
		node.AddIFBs(infra.IFBPrefix, 3, 30e6)
		node.StartAgent()
		eventuallyIFBs(node)
		Expect(node.LinkExists(attrs.Name)).To(BeTrue())
		Expect(node.LinkExists("ifb-other")).To(BeTrue())
		Expect(filepath.Glob(filepath.Join(node.StatusDir, "endpoint-status", "*"))).To(BeEmpty())
	})
})
