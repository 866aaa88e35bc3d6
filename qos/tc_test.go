package qos_test

import (
	"os/exec"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"

	"github.com/manx-dataplane/manx/qos"
	"github.com/manx-dataplane/manx/rtnl"
)

// What an operator sees, of the limit of case A and others.
var _ = DescribeTable("tc shows what was asked, with 25 ms of latency",
	func(limit qos.Limit, mtu int, want string) {
		b := newReal()
		b.addPod(vethName)
		veth, err := b.outside.LinkByName(vethName)
		Expect(err).NotTo(HaveOccurred())
		Expect(b.outside.LinkSetMTU(veth, mtu)).To(Succeed())
		a := startAgent(b)
		a.SetLimits(vethName, qos.Limits{Egress: &limit, Ingress: &limit})
		a.settle()

		for _, iface := range []string{vethName, ifbName} {
			tbf := b.observe().ByName(iface).Root.(*netlink.Tbf)
			seconds := float64(tbf.Limit)/float64(tbf.Rate) - float64(tbf.Buffer)*rtnl.PschedTick.Seconds()
			if tbf.Peakrate > 0 {
				seconds = max(seconds, (float64(tbf.Limit)-float64(tbf.Minburst))/float64(tbf.Peakrate))
			}
			Expect(seconds).To(BeNumerically("~", 0.025, 2/float64(tbf.Rate)+1e-6), "as tc works it out")

			tc, err := exec.LookPath("tc")
			if err != nil {
				GinkgoWriter.Println("NO tc HERE: only the kernel's numbers were checked")
				continue
			}
			var out []byte
			Expect(b.ns.Do(func() error {
				out, err = exec.Command(tc, "-s", "qdisc", "show", "dev", iface, "root").CombinedOutput()
				return err
			})).To(Succeed())
			Expect(string(out)).To(ContainSubstring(want))
		}

		By("looking again: nothing differs")
		log := len(a.log.all())
		before := b.observe()
		a.QueueResync()
		a.settle()
		Expect(b.observe()).To(Equal(before))
		Expect(a.log.all()).To(HaveLen(log))
	},
	Entry("30M", qos.Limit{RateBits: 30e6, BurstBits: qos.DefaultBurst}, 1500, "rate 30Mbit burst 512Mb lat 25ms"),
	Entry("1G, small burst", qos.Limit{RateBits: 1e9, BurstBits: 8 * 125_000}, 1500, "rate 1Gbit burst 125000b lat 25ms"),
	Entry("with a peak rate", qos.Limit{RateBits: 10e6, BurstBits: 8 * 100_000, PeakRateBits: 20e6, MinBurstBytes: 10_000}, 1500,
		"rate 10Mbit burst 100000b peakrate 20Mbit minburst 10000b lat 25ms"),
	Entry("a burst below one frame, raised", qos.Limit{RateBits: 10e6, BurstBits: 1000}, 9000, "rate 10Mbit burst 9013b lat 25ms"),
	Entry("100G", qos.Limit{RateBits: 100e9, BurstBits: qos.DefaultBurst}, 1500, "rate 100Gbit burst 536862500b lat 25ms"),
	Entry("1k, a bucket cut to what 32 bits of ticks hold", qos.Limit{RateBits: 1000, BurstBits: qos.DefaultBurst}, 1500, "rate 1Kbit burst 34359b lat 2"),
)
