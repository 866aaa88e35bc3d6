package rtnl_test

import (
	"net/netip"

	"github.com/mdlayher/netlink"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/ti-mo/conntrack"

	"github.com/manx-dataplane/manx/rtnl"
)

// flowsOf lists a namespace's flows by their original source and destination.
func flowsOf(c *conntrack.Conn) map[string]bool {
	GinkgoHelper()
	flows, err := c.Dump(nil)
	Expect(err).NotTo(HaveOccurred())
	found := map[string]bool{}
	for _, flow := range flows {
		found[flow.TupleOrig.IP.SourceAddress.String()+" "+flow.TupleOrig.IP.DestinationAddress.String()] = true
	}
	return found
}

var _ = Describe("Conntrack", func() {
	It("deletes every flow of an address, translated ones too, and no other", func() {
		ns := newNamespace()
		c, err := conntrack.Dial(&netlink.Config{NetNS: ns.FD()})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(c.Close)
		ip := netip.MustParseAddr
		for i, flow := range [][4]string{
			{"10.65.0.1", "8.8.8.8", "8.8.8.8", "10.65.0.1"},           // from the pod
			{"10.65.0.1", "8.8.4.4", "8.8.4.4", "192.168.1.1"},         // from the pod, masqueraded
			{"10.65.0.9", "10.65.0.1", "10.65.0.1", "10.65.0.9"},       // to the pod
			{"10.65.0.9", "10.96.0.10", "10.65.0.1", "10.65.0.9"},      // to the pod by a service
			{"10.65.0.9", "10.65.0.10", "10.65.0.10", "10.65.0.9"},     // others'
			{"10.65.0.11", "10.65.0.100", "10.65.0.100", "10.65.0.11"}, // others'
			{"fd00::1", "fd00::2", "fd00::2", "fd00::1"},
			{"fd00::3", "fd00::2", "fd00::2", "fd00::3"},
		} {
			f := conntrack.NewFlow(17, 0, ip(flow[0]), ip(flow[1]), uint16(1000+i), 53, 600, 0)
			f.TupleReply.IP.SourceAddress, f.TupleReply.IP.DestinationAddress = ip(flow[2]), ip(flow[3])
			Expect(c.Create(f)).To(Succeed(), "%v", flow)
		}
		Expect(flowsOf(c)).To(HaveLen(8))

		ct, err := rtnl.OpenConntrack(rtnl.Options{Namespace: ns})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(ct.Close)
		for _, addr := range []string{"10.65.0.1", "fd00::1", "10.65.0.77"} {
			Expect(ct.ConntrackDelete(ip(addr))).To(Succeed())
		}
		Expect(flowsOf(c)).To(Equal(map[string]bool{
			"10.65.0.9 10.65.0.10": true, "10.65.0.11 10.65.0.100": true, "fd00::3 fd00::2": true,
		}))
	})

	It("deletes flows of other zones", func() {
		ns := newNamespace()
		c, err := conntrack.Dial(&netlink.Config{NetNS: ns.FD()})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(c.Close)
		f := conntrack.NewFlow(17, 0, netip.MustParseAddr("10.65.0.1"), netip.MustParseAddr("10.65.0.2"), 1000, 53, 600, 0)
		f.Zone = 7
		Expect(c.Create(f)).To(Succeed())
		ct, err := rtnl.OpenConntrack(rtnl.Options{Namespace: ns})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(ct.Close)
		Expect(ct.ConntrackDelete(netip.MustParseAddr("10.65.0.2"))).To(Succeed())
		Expect(flowsOf(c)).To(BeEmpty())
	})
})
