package fv_test

import (
	"fmt"
	"maps"
	"math"
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"

	"github.com/manx-dataplane/manx/fv/infra"
	"github.com/manx-dataplane/manx/rtnl"
)

// packetRate is that of counted packets, in packets per second: 200 bytes each, far
// below every limit here.
const packetRate = 3000

var _ = onEachKind("limits", func(kind infra.Kind) {
	var node *infra.Node
	var pod *infra.Pod

	BeforeEach(func() {
		node = suite.NewNode(kind)
		node.StartAgent()
		pod = node.StartPod("limited")
	})

	DescribeTable("come from either family of annotations",
		func(annotations map[string]string, want infra.Limits) {
			pod.Publish(annotations)
			eventuallyLimited(node, pod, want)
			eventuallyRouted(node, pod)
		},
		Entry("kubernetes.io, both ways", infra.KubernetesAnnotations("10M", "30M"),
			infra.Limits{Ingress: &infra.Limit{RateBits: 10e6}, Egress: &infra.Limit{RateBits: 30e6}}),
		Entry("kubernetes.io, ingress only", infra.KubernetesAnnotations("10M", ""), ingress(mbit(10))),
		Entry("qos.projectcalico.org, both ways, with burst", infra.CalicoAnnotations("10M", "30M", "1Mi"),
			infra.Limits{Ingress: &infra.Limit{RateBits: 10e6, BurstBits: 1 << 20}, Egress: &infra.Limit{RateBits: 30e6, BurstBits: 1 << 20}}),
		Entry("qos.projectcalico.org, with peakrate", map[string]string{
			"qos.projectcalico.org/egressBandwidth": "30M", "qos.projectcalico.org/egressPeakrate": "60M",
		}, egress(infra.Limit{RateBits: 30e6, PeakBits: 60e6})),
		Entry("both, Calico's override", merged(infra.KubernetesAnnotations("10M", "10M"), infra.CalicoAnnotations("", "40M", "")),
			infra.Limits{Ingress: &infra.Limit{RateBits: 10e6}, Egress: &infra.Limit{RateBits: 40e6}}),
	)

	It("come from an endpoint's explicit controls, which override annotations", func() {
		manifest := pod.Manifest(infra.KubernetesAnnotations("10M", "10M"))
		manifest["spec"].(infra.Object)["qosControls"] = infra.Object{"egressBandwidth": 20000000, "egressBurst": 2000000}
		infra.WriteManifest(pod.File(), manifest)
		eventuallyLimited(node, pod, infra.Limits{
			Ingress: &infra.Limit{RateBits: 10e6}, Egress: &infra.Limit{RateBits: 20e6, BurstBits: 2e6},
		})
	})

	It("follow the veth's MTU", func() {
		pod.Publish(infra.KubernetesAnnotations("", "30M"))
		eventuallyLimited(node, pod, egress(mbit(30)))
		Expect(node.RT.LinkSetMTU(node.Link(pod.Veth), 1400)).To(Succeed())
		Eventually(node.CheckLimits).WithArguments(pod, egress(mbit(30))).Should(Succeed())
	})

	It("no egress packet is lost when a limit is set, changed or removed", func() {
		pod.Publish(nil)
		eventuallyRouted(node, pod)
		flows := []*infra.UDPFlow{
			infra.StartUDP(pod.NS, node.NS, node.IPv4, packetRate),
			infra.StartUDP(pod.NS, node.NS, node.IPv6, packetRate),
		}
		for range 8 {
			for _, rate := range []uint64{200, 300, 250, 0} {
				limits := infra.Limits{}
				if rate != 0 {
					limits = egress(mbit(rate))
				}
				pod.Publish(infra.KubernetesAnnotations("", quantity(rate)))
				eventuallyLimited(node, pod, limits)
				flows[0].WaitForPackets(packetRate / 50)
			}
		}
		Expect(node.CheckUnshaped(pod)).To(Succeed())
		for _, flow := range flows {
			result := flow.Finish()
			AddReportEntry("egress", result.String())
			Expect(result.Lost).To(BeZero(), result.String())
			Expect(result.Sent).To(BeNumerically(">", 3000), result.String())
		}
	})

	It("no ingress packet is lost when a limit is changed", func() {
		pod.Publish(infra.KubernetesAnnotations("200M", ""))
		eventuallyLimited(node, pod, ingress(mbit(200)))
		eventuallyRouted(node, pod)
		flows := []*infra.UDPFlow{
			infra.StartUDP(node.NS, pod.NS, pod.IPv4, packetRate),
			infra.StartUDP(node.NS, pod.NS, pod.IPv6, packetRate),
		}
		for i := range 20 {
			rate := uint64(200 + 10*(i%2+1))
			pod.Publish(infra.KubernetesAnnotations(quantity(rate), ""))
			eventuallyLimited(node, pod, ingress(mbit(rate)))
			flows[0].WaitForPackets(packetRate / 50)
		}
		for _, flow := range flows {
			result := flow.Finish()
			AddReportEntry("ingress", result.String())
			Expect(result.Lost).To(BeZero(), result.String())
		}
	})

	It("setting and clearing an ingress limit loses no more than the kernel's own graft, measured beside it", func() {
		pod.Publish(nil)
		eventuallyRouted(node, pod)
		beside := node.StartPod("beside")
		beside.RouteFromHost()
		var ours, kernels infra.UDPResult
		// Both counts are small and random, so they are compared as such: ours must be
		// within three standard deviations of the kernel's own. Rounds are added up
		// until that is so, five at most: what one graft loses varies much.
		for round := 1; ; round++ {
			o, k := graftLosses(node, pod, beside, 15)
			ours.Sent, ours.Lost = ours.Sent+o.Sent, ours.Lost+o.Lost
			kernels.Sent, kernels.Lost = kernels.Sent+k.Sent, kernels.Lost+k.Lost
			allowed := float64(kernels.Lost) + 3*math.Sqrt(float64(kernels.Lost)+1)
			if float64(ours.Lost) <= allowed {
				break
			}
			Expect(round).To(BeNumerically("<", 5), "agent: %s; kernel alone: %s", ours, kernels)
		}
		AddReportEntry("agent", ours.String())
		AddReportEntry("kernel alone", kernels.String())
	})
})

// graftLosses sets and clears an ingress limit on one pod through the agent, and
// by hand on another, in turn, with packets flowing to both.
func graftLosses(node *infra.Node, pod, beside *infra.Pod, times int) (ours, kernels infra.UDPResult) {
	GinkgoHelper()
	byAgent := infra.StartUDP(node.NS, pod.NS, pod.IPv4, packetRate)
	byHand := infra.StartUDP(node.NS, beside.NS, beside.IPv4, packetRate)
	root := infra.TBF(beside.Index, netlink.HANDLE_ROOT, netlink.MakeHandle(1, 0), 200e6, 1<<20)
	for range times {
		pod.Publish(infra.KubernetesAnnotations("200M", ""))
		eventuallyLimited(node, pod, ingress(mbit(200)))
		Expect(node.RT.QdiscReplace(root)).To(Succeed())
		byAgent.WaitForPackets(packetRate / 50)
		pod.Publish(nil)
		eventuallyLimited(node, pod, infra.Limits{})
		Expect(node.RT.QdiscDel(root)).To(Succeed())
		byAgent.WaitForPackets(packetRate / 50)
	}
	return byAgent.Finish(), byHand.Finish()
}

var _ = onEachKind("throughput", func(kind infra.Kind) {
	It("is within 10 % of the limit after the burst, both ways, IPv4 and IPv6, also after a change", func() {
		node := suite.NewNode(kind)
		node.StartAgent()
		pods := make([]*infra.Pod, len(paths)) // one for each path, so that all are measured at once
		for i := range pods {
			pods[i] = node.StartPod(fmt.Sprintf("measured-%d", i))
		}
		for _, rate := range []uint64{20, 50} {
			limit := infra.Limit{RateBits: rate * 1e6, BurstBits: 512e3}
			for _, pod := range pods {
				pod.Publish(infra.CalicoAnnotations(quantity(rate), quantity(rate), "512k"))
				eventuallyLimited(node, pod, both(limit))
				eventuallyRouted(node, pod)
			}
			infra.InParallel(len(paths), func(i int) {
				from, to, dst := paths[i].of(node, pods[i])
				infra.ExpectTCP(from, to, dst, limit.RateBits)
			})
		}
	})
})

// paths are the ways of a pod's traffic.
var paths = []struct {
	name string
	of   func(node *infra.Node, pod *infra.Pod) (from, to *rtnl.Namespace, dst netip.Addr)
}{
	{"ingress IPv4", func(n *infra.Node, p *infra.Pod) (*rtnl.Namespace, *rtnl.Namespace, netip.Addr) {
		return n.NS, p.NS, p.IPv4
	}},
	{"ingress IPv6", func(n *infra.Node, p *infra.Pod) (*rtnl.Namespace, *rtnl.Namespace, netip.Addr) {
		return n.NS, p.NS, p.IPv6
	}},
	{"egress IPv4", func(n *infra.Node, p *infra.Pod) (*rtnl.Namespace, *rtnl.Namespace, netip.Addr) {
		return p.NS, n.NS, n.IPv4
	}},
	{"egress IPv6", func(n *infra.Node, p *infra.Pod) (*rtnl.Namespace, *rtnl.Namespace, netip.Addr) {
		return p.NS, n.NS, n.IPv6
	}},
}

// quantity writes Mbit/s as a user does; zero is no limit.
func quantity(mbit uint64) string {
	if mbit == 0 {
		return ""
	}
	return fmt.Sprintf("%dM", mbit)
}

func merged(a, b map[string]string) map[string]string {
	maps.Copy(a, b)
	return a
}
