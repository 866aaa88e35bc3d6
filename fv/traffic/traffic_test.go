package traffic_test

import (
	"fmt"
	"os"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/manx-dataplane/manx/fv/infra"
)

const convergence = 5 * time.Second

var _ = Describe("Traffic", Ordered, ContinueOnFailure, func() {
	var node *infra.Node
	pods := 0
	serial := func() int {
		pods++
		return pods
	}
	var report report

	BeforeEach(func() {
		node = suite.NewNode(infra.PlainNamespace)
		node.StartAgent()
	})

	It("passes at the limit, and waits no longer than the limit's latency", func() {
		paths := make(map[kase]result)
		for _, k := range cases() {
			alone := kase{egress: k.egress, ipv6: k.ipv6, mtu: k.mtu, unknown: true}
			if _, known := paths[alone]; !known {
				paths[alone] = alone.measure(node, serial)
				report.paths = append(report.paths, paths[alone])
			}
			// A machine that stalls makes a result worse, never better.
			r := k.measure(node, serial)
			for attempt := 1; attempt < 3 && len(r.wrong(paths[alone])) > 0; attempt++ {
				r = k.measure(node, serial)
			}
			report.add(r, paths[alone])
			GinkgoWriter.Println(row(r, paths[alone]))
		}
		Expect(report.faults).To(BeEmpty())
	})

	It("loses nothing when a limit is changed under load", func() {
		for _, egress := range []bool{false, true} {
			for _, ipv6 := range []bool{false, true} {
				if campaign || egress != ipv6 {
					report.changes = append(report.changes, change(node, serial, egress, ipv6))
				}
			}
		}
		for _, c := range report.changes {
			Expect(c.result.Lost).To(BeZero(), c.String())
		}
	})

	AfterAll(func() {
		text := report.String()
		AddReportEntry("report", text)
		if file := os.Getenv("MANX_TRAFFIC_REPORT"); file != "" {
			Expect(os.WriteFile(file, []byte(text), 0o644)).To(Succeed())
		}
	})
})

// changed is what became of a flow while its limit was changed.
type changed struct {
	kase
	times  int
	result infra.UDPResult
}

// change changes a limit to and fro with a flow of nearly the lower one.
func change(node *infra.Node, serial func() int, egress, ipv6 bool) changed {
	GinkgoHelper()
	const frame = 200 + 8 + 40 + 14 // of the flow's packets, the larger ones
	low := kase{rate: 20e6, burst: tenMillis, egress: egress, ipv6: ipv6, mtu: 1500}
	high := low
	high.rate *= 2
	c := changed{kase: low, times: 10}
	if campaign {
		c.times = 100
	}
	low.onPod(node, serial, func(pod *infra.Pod) {
		from, to, dst := low.path(node, pod)
		flow := infra.StartUDP(from, to, dst, int(low.rate*8/10/(frame*8)))
		for n := range c.times {
			k := []kase{high, low}[n%2]
			annotations, limits := k.limit()
			pod.Publish(annotations)
			Eventually(node.CheckLimits).WithArguments(pod, limits).WithTimeout(convergence).Should(Succeed())
			flow.WaitForPackets(200)
		}
		c.result = flow.Finish()
	})
	return c
}

// onPod runs fn with a new pod that is limited as the case says, and ends it.
func (k kase) onPod(node *infra.Node, serial func() int, fn func(pod *infra.Pod)) {
	GinkgoHelper()
	pod := node.NewPod(fmt.Sprintf("traffic-%d", serial()))
	pod.MTU = k.mtu
	pod.Create()
	annotations, limits := k.limit()
	pod.Publish(annotations)
	Eventually(node.CheckLimits).WithArguments(pod, limits).WithTimeout(convergence).Should(Succeed())
	Eventually(node.CheckRoutes).WithArguments(pod).WithTimeout(convergence).Should(Succeed())
	fn(pod)
	pod.Unpublish()
	pod.Delete()
}
