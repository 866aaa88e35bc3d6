package stats_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/internal/cli"
	"github.com/manx-dataplane/manx/internal/nodetest"
	"github.com/manx-dataplane/manx/internal/stats"
	"github.com/manx-dataplane/manx/mocks"
	"github.com/manx-dataplane/manx/qos"
	"github.com/manx-dataplane/manx/rtnl"
)

var (
	_ qos.ReadKernel = (*rtnl.Handle)(nil)
	_ qos.ReadKernel = (*mocks.Handle)(nil)
)

func TestStats(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "stats")
}

const veth = "cali0027f0645a2"

var workloads = stats.Selection{Prefixes: []string{"cali"}}

var _ = Describe("On a node", func() {
	var node *nodetest.Node
	BeforeEach(func() { node = nodetest.New() })

	collect := func(selection stats.Selection) []stats.Row {
		GinkgoHelper()
		rows, err := stats.Collect(node.Kernel, selection)
		Expect(err).NotTo(HaveOccurred())
		return rows
	}

	It("shows a workload's egress, counted on its IFB, on the workload's row", func() {
		pod := node.Namespace()
		host, _ := node.AddWorkload(veth, pod)
		node.Limit(host, 10e6, 1<<20)
		before := collect(workloads)
		nodetest.SendFrames(pod, nodetest.Peer(veth), 20, 1000)
		nodetest.SendFrames(node.NS, veth, 10, 500)

		rows := collect(workloads)
		Expect(rows).To(HaveLen(2))
		ingress, egress := rows[0], rows[1]
		Expect(ingress.Interface).To(Equal(veth))
		Expect(ingress.Direction).To(Equal(stats.Ingress))
		Expect(ingress.Device).To(Equal(veth))
		Expect(ingress.Packets - before[0].Packets).To(BeNumerically(">=", 10))
		Expect(*ingress.Shaping).To(Equal(shaping(10e6)))

		Expect(egress.Interface).To(Equal(veth))
		Expect(egress.Index).To(Equal(host))
		Expect(egress.Direction).To(Equal(stats.Egress))
		Expect(egress.Device).To(Equal(nodetest.IFBName(veth)))
		Expect(egress.Packets - before[1].Packets).To(BeNumerically(">=", 20))
		Expect(egress.Bytes - before[1].Bytes).To(BeNumerically(">=", 20_000))
		Expect(egress.Qdisc).To(Equal("tbf"))
		Expect(*egress.Shaping).To(Equal(shaping(30e6)))
	})

	It("counts the packets that waited and those that were dropped", func() {
		pod := node.Namespace()
		host := node.AddVeth(veth, pod)
		ifb := node.AddIFB(nodetest.IFBName(veth))
		node.Limit(ifb, 80e3, 2000) // 10 kB/s: after 2 kB the queue fills up
		node.Redirect(host, ifb)
		nodetest.SendFrames(pod, nodetest.Peer(veth), 20, 1000)
		egress := collect(workloads)[1]
		Expect(egress.Drops).To(BeNumerically(">", 10))
		Expect(egress.Overlimits).To(BeNumerically(">", 0))
		Expect(egress.BacklogPackets).To(BeNumerically(">", 0))
		Expect(egress.BacklogBytes).To(BeNumerically(">=", 1000))
	})

	It("shows workloads without a limit only when asked, with the interface's own counters", func() {
		pod := node.Namespace()
		node.AddVeth(veth, pod)
		Expect(collect(workloads)).To(BeEmpty())
		nodetest.SendFrames(pod, nodetest.Peer(veth), 20, 1000)
		rows := collect(stats.Selection{Prefixes: workloads.Prefixes, All: true})
		Expect(rows).To(HaveLen(2))
		Expect(rows[1].Bytes).To(BeNumerically(">=", 20_000))
		Expect(rows[1].Shaping).To(BeNil())
		Expect(collect(stats.Selection{Interfaces: []string{veth}})).To(HaveLen(2))
	})

	It("says which named interface does not exist, and shows the others", func() {
		node.AddVeth(veth, nil)
		rows, err := stats.Collect(node.Kernel, stats.Selection{Interfaces: []string{"cali1", veth}})
		Expect(err).To(MatchError(unix.ENODEV))
		Expect(err).To(MatchError(ContainSubstring("cali1")))
		Expect(rows).To(HaveLen(2))
	})

	It("says where a workload's packets go to a device that is gone", func() {
		node.AddWorkload(veth, nil)
		node.Delete(nodetest.IFBName(veth))
		egress := collect(workloads)[1]
		Expect(egress.Device).To(BeEmpty())
		var out bytes.Buffer
		Expect(stats.Run(GinkgoT().Context(), stats.Options{Selection: workloads, Kernel: node.Kernel, Out: cli.NewOutput(&out), Format: cli.FormatTable})).To(Succeed())
		Expect(out.String()).To(ContainSubstring("GONE"))
	})

	It("counts on the device that packets meet first", func() {
		host, _ := node.AddWorkload(veth, nil)
		plugin := node.AddIFB("bwp0123456789ab")
		filter := nodetest.RedirectFilter(host, netlink.MakeHandle(0xffff, 0), plugin)
		filter.Attrs().Priority = 2
		Expect(node.Kernel.FilterAdd(filter)).To(Succeed())
		Expect(collect(workloads)[1].Device).To(Equal(nodetest.IFBName(veth)))
	})

	It("refreshes until it is stopped, with what passes now", func() {
		node.AddWorkload(veth, nil)
		ctx, cancel := contextOf()
		defer cancel()
		var out bytes.Buffer
		done := make(chan error)
		lines := &countingWriter{Buffer: &out, enough: cancel, stopAt: 3}
		go func() {
			done <- stats.Run(ctx, stats.Options{Selection: workloads, Kernel: node.Kernel,
				Out: cli.Output{Writer: lines, Terminal: true}, Format: cli.FormatTable, Watch: 10 * time.Millisecond})
		}()
		Eventually(done).WithTimeout(5 * time.Second).Should(Receive(BeNil()))
		Expect(strings.Count(out.String(), "\x1b[H\x1b[J")).To(BeNumerically(">=", 3))
		Expect(out.String()).To(ContainSubstring("0 bit/s"))
	})
})

var _ = Describe("The binary", func() {
	var node *nodetest.Node
	BeforeEach(func() { node = nodetest.New() })

	It("prints an aligned table with units", func() {
		host, _ := node.AddWorkload(veth, node.Namespace())
		node.Limit(host, 10e6, 1<<20)
		result := node.Manx("", "stats")
		Expect(result.Code).To(BeZero())
		Expect(result.Stderr).To(BeEmpty())
		const size = `[\d.]+ (?:B|KiB)`
		Expect(result.Stdout).To(MatchRegexp(`\A` +
			`INTERFACE +DIRECTION +RATE +BURST +LATENCY +BYTES +PACKETS +DROPS +OVERLIMITS +BACKLOG +COUNTED ON\n` +
			veth + ` +ingress +10 Mbit/s +1 MiB +864ms +` + size + ` +\d+ +0 +\d+ +` + size + ` +` + veth + ` \(tbf\)\n` +
			veth + ` +egress +30 Mbit/s +1 MiB +305ms +` + size + ` +\d+ +0 +\d+ +` + size + ` +bwcali6514ff3bb \(tbf\)\n\z`))
	})

	It("prints JSON in base units", func() {
		node.AddWorkload(veth, node.Namespace())
		result := node.Manx("", "stats", veth, "-o", "json")
		Expect(result.Code).To(BeZero())
		var rows []map[string]any
		Expect(json.Unmarshal([]byte(result.Stdout), &rows)).To(Succeed())
		Expect(rows).To(HaveLen(2))
		Expect(rows[1]).To(HaveKeyWithValue("device", "bwcali6514ff3bb"))
		Expect(rows[1]).To(HaveKeyWithValue("direction", "egress"))
		Expect(rows[1]["shaping"]).To(HaveKeyWithValue("rateBitsPerSecond", 30e6))
		Expect(rows[1]["shaping"]).To(HaveKeyWithValue("latencySeconds", shaping(30e6).LatencySeconds))
		Expect(rows[1]["shaping"]).To(HaveKeyWithValue("queueBytes", 93_750.0+1<<20))
	})

	DescribeTable("exits with 2 where it cannot look",
		func(says string, args ...string) {
			result := node.Manx("", append([]string{"stats"}, args...)...)
			Expect(result.Code).To(Equal(2))
			Expect(result.Stderr).To(ContainSubstring(says))
		},
		Entry("at an interface that does not exist", "no such interface: cali1", "cali1"),
		Entry("because a flag is unknown", "unknown flag", "--nonsense"),
		Entry("because names and --all contradict each other", "--all", veth, "--all"),
	)
})

// shaping is that of a TBF as Felix makes it, with a burst of 1 MiB.
func shaping(rate uint64) stats.Shaping {
	const burst = 1 << 20
	queue := rate/8/40 + burst
	return stats.Shaping{RateBits: rate, BurstBytes: burst, QueueBytes: queue, LatencySeconds: float64(queue) / float64(rate/8)}
}
