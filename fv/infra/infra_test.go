package infra_test

import (
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/fv/infra"
	"github.com/manx-dataplane/manx/rtnl"
)

// The meters are only worth what they show on state made by hand.

var _ = Describe("names", func() {
	It("are Calico's, by its published example", func() {
		Expect(infra.VethName("default", "ifb-repro")).To(Equal("cali0027f0645a2"))
		Expect(infra.IFBName("cali0027f0645a2")).To(Equal("bwcali6514ff3bb"))
	})
})

var _ = Describe("a node", func() {
	for _, kind := range infra.Kinds() {
		Context("in a "+string(kind), func() {
			It("outlives its agents, and reports their exit codes", func() {
				node := suite.NewNode(kind)
				pod := node.StartPod("survivor")
				for range 2 {
					agent := node.Run(infra.RunSpec{Binary: "pause", Args: []string{}})
					agent.Kill()
					Expect(agent.Wait(time.Second)).To(Equal(128 + int(unix.SIGKILL)))
				}
				agent := node.Run(infra.RunSpec{Binary: "pause", Args: []string{}})
				Eventually(agent.Log).WithTimeout(infra.StartTimeout).Should(ContainSubstring("pausing"))
				code, _ := agent.Terminate()
				Expect(code).To(Equal(0))
				Expect(node.LinkExists(pod.Veth)).To(BeTrue())
			})

			It("exchanges traffic with pods, and lets pods talk to each other", func() {
				node := suite.NewNode(kind)
				a, b := node.StartPod("a"), node.StartPod("b")
				a.RouteFromHost()
				b.RouteFromHost()
				for _, path := range []struct {
					from, to *rtnl.Namespace
					dst      netip.Addr
				}{
					{node.NS, a.NS, a.IPv4}, {node.NS, a.NS, a.IPv6},
					{a.NS, node.NS, node.IPv4}, {a.NS, node.NS, node.IPv6},
					{a.NS, b.NS, b.IPv4}, {a.NS, b.NS, b.IPv6},
				} {
					flow := infra.StartUDP(path.from, path.to, path.dst, 5000)
					flow.WaitForPackets(500)
					result := flow.Finish()
					Expect(result.Lost).To(BeZero(), "to %s: %s", path.dst, result)
				}
			})
		})
	}
})

var _ = Describe("the meters", func() {
	const rate, burst = 20_000_000, 64 << 10 // bits per second, bytes

	var node *infra.Node
	var pod *infra.Pod

	BeforeEach(func() {
		node = suite.NewNode(infra.PlainNamespace)
		pod = node.StartPod("measured")
		pod.RouteFromHost()
	})

	setTBF := func(ifindex int) {
		GinkgoHelper()
		Expect(node.RT.QdiscReplace(infra.TBF(ifindex, netlink.HANDLE_ROOT, netlink.MakeHandle(0xca11, 0), rate, burst))).To(Succeed())
		Expect(node.RT.QdiscReplace(&rtnl.Bfifo{
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: ifindex, Parent: netlink.MakeHandle(0xca11, 1)},
			Limit:      max(rate/8/40, burst),
		})).To(Succeed())
	}
	shapeIngress := func() {
		GinkgoHelper()
		setTBF(pod.Index)
	}
	shapeEgress := func() (ifb *netlink.Ifb, filter netlink.Filter) {
		GinkgoHelper()
		ifb = node.AddIFB(pod.IFB())
		setTBF(ifb.Index)
		Expect(node.RT.QdiscAdd(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: pod.Index, Parent: netlink.HANDLE_INGRESS, Handle: netlink.MakeHandle(0xffff, 0),
		}})).To(Succeed())
		filter = &netlink.U32{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: pod.Index, Parent: netlink.MakeHandle(0xffff, 0), Priority: 1, Protocol: unix.ETH_P_ALL},
			Actions: []netlink.Action{&netlink.MirredAction{
				ActionAttrs:  netlink.ActionAttrs{Action: netlink.TC_ACT_STOLEN},
				MirredAction: netlink.TCA_EGRESS_REDIR, Ifindex: ifb.Index,
			}},
		}
		Expect(node.RT.FilterAdd(filter)).To(Succeed())
		return ifb, filter
	}

	It("measure a limit made by hand within 10 %, both ways, IPv4 and IPv6", func() {
		shapeIngress()
		shapeEgress()
		for _, family := range []struct{ pod, node netip.Addr }{{pod.IPv4, node.IPv4}, {pod.IPv6, node.IPv6}} {
			infra.InParallel(2, func(i int) {
				from, to, dst := node.NS, pod.NS, family.pod
				if i == 1 {
					from, to, dst = pod.NS, node.NS, family.node
				}
				infra.ExpectTCP(from, to, dst, rate)
			})
		}
	})

	It("see a limit that is a fourth too high, or a fifth too low", func() {
		shape := func(wrong uint64) {
			Expect(node.RT.QdiscReplace(infra.TBF(pod.Index, netlink.HANDLE_ROOT, netlink.MakeHandle(0xca11, 0), wrong, burst))).To(Succeed())
		}
		shape(rate * 5 / 4)
		failures := InterceptGomegaFailures(func() { infra.ExpectTCP(node.NS, pod.NS, pod.IPv4, rate) })
		Expect(failures).NotTo(BeEmpty())
		shape(rate * 4 / 5)
		Expect(infra.MeasureTCP(node.NS, pod.NS, pod.IPv4, infra.Burst{Bytes: rate / 20}, time.Second)).To(BeNumerically("<", rate*9/10))
	})

	It("read back what was set", func() {
		shapeIngress()
		shapeEgress()
		limit := &infra.Limit{RateBits: rate, BurstBits: burst * 8}
		Expect(node.CheckLimits(pod, infra.Limits{Ingress: limit, Egress: limit})).To(Succeed())
		wrong := &infra.Limit{RateBits: rate, BurstBits: burst*8 + 800}
		Expect(node.CheckLimits(pod, infra.Limits{Ingress: wrong, Egress: limit})).To(MatchError(ContainSubstring("bytes, not 65636")))
		Expect(node.CheckLimits(pod, infra.Limits{})).NotTo(Succeed())
		Expect(node.RT.QdiscReplace(infra.TBF(pod.Index, netlink.HANDLE_ROOT, netlink.MakeHandle(0xca11, 0), rate, burst))).To(Succeed())
		Expect(node.CheckLimits(pod, infra.Limits{Ingress: limit, Egress: limit})).To(MatchError(ContainSubstring("queue is of")))
		Expect(node.CheckIFBs(pod)).To(Succeed())
		Expect(node.CheckIFBs()).To(MatchError(ContainSubstring("1 orphans: [" + pod.IFB() + "]")))
		Expect(node.CheckUnshaped(pod)).NotTo(Succeed())
	})

	It("see no loss where the filter goes before the IFB", func() {
		ifb, filter := shapeEgress()
		flow := infra.StartUDP(pod.NS, node.NS, node.IPv4, 2000)
		flow.WaitForPackets(500)
		Expect(node.RT.FilterDel(filter)).To(Succeed())
		Expect(node.RT.LinkDel(ifb)).To(Succeed())
		flow.WaitForPackets(500)
		result := flow.Finish()
		Expect(result.Lost).To(BeZero(), result.String())
	})

	It("see the loss where the IFB goes before the filter", func() {
		ifb, filter := shapeEgress()
		flow := infra.StartUDP(pod.NS, node.NS, node.IPv4, 2000)
		flow.WaitForPackets(500)
		Expect(node.RT.LinkDel(ifb)).To(Succeed())
		Expect(node.RT.FilterDel(filter)).To(Succeed())
		flow.WaitForPackets(500)
		result := flow.Finish()
		AddReportEntry("lost", result.String())
		Expect(result.Lost).To(BeNumerically(">", 0), result.String())
	})

	DescribeTable("see that a bandwidth plugin shapes, and when what it made is touched",
		func(qdisc infra.PluginQdisc) {
			ifb := node.RunBandwidthPlugin(pod, qdisc, rate)
			infra.InParallel(2, func(i int) {
				from, to, dst := node.NS, pod.NS, pod.IPv4
				if i == 1 {
					from, to, dst = pod.NS, node.NS, node.IPv4
				}
				infra.ExpectTCP(from, to, dst, rate)
			})
			before := node.Foreign()
			Expect(before).To(ContainElement(ContainSubstring("redirect to " + ifb)))
			flow := infra.StartUDP(node.NS, pod.NS, pod.IPv4, 1000)
			flow.WaitForPackets(50)
			flow.Finish()
			Expect(node.Foreign()).To(Equal(before), "traffic must not look like a change")
			Expect(node.RT.LinkSetMTU(node.Link(ifb), 1400)).To(Succeed())
			Expect(node.Foreign()).NotTo(Equal(before))
		},
		Entry("that uses TBF", infra.PluginTBF),
		Entry("that uses HTB", infra.PluginHTB),
	)

	It("see a monitor's filter count, and that replacing it is a change", func() {
		monitor := node.AttachMonitor(pod)
		before := node.Foreign()
		Expect(before).To(ContainElement(ContainSubstring("bpf")))
		flow := infra.StartUDP(node.NS, pod.NS, pod.IPv4, 1000)
		flow.WaitForPackets(50)
		flow.Finish()
		Expect(monitor.Packets()).To(BeNumerically(">=", 50))
		Expect(node.Foreign()).To(Equal(before))
		Expect(node.RT.QdiscDel(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: pod.Index, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0),
		}})).To(Succeed())
		node.AttachMonitor(pod)
		Expect(node.Foreign()).NotTo(Equal(before), "a filter with another program is not the same")
	})
})
