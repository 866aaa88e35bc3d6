package qos_test

import (
	"fmt"
	"net"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/mocks"
	"github.com/manx-dataplane/manx/qos"
	"github.com/manx-dataplane/manx/rtnl"
)

// States that devices are in when something else has been at work on them.
var _ = Describe("Odd states", func() {
	onBoth(func(newBackend func() *backend) {
		var b *backend
		var a *agent
		BeforeEach(func() {
			b = newBackend()
		})
		egress := qos.Limits{Egress: mbit(30)}
		expectShaped := func() {
			GinkgoHelper()
			s := b.observe()
			veth, ifb := s.ByName(vethName), s.ByName(ifbName)
			Expect(ifb).NotTo(BeNil())
			Expect(ifb.Up).To(BeTrue())
			Expect(ifb.MTU).To(Equal(veth.MTU))
			Expect(ifb.Root.(*netlink.Tbf).Rate).To(BeEquivalentTo(30e6 / 8))
			Expect(veth.Filters).To(HaveLen(1))
			Expect(veth.RedirectsTo(ifb.Index)).To(BeTrue())
		}

		It("does not give an interface that has an earlier one's index that one's root qdisc", func() {
			remove := b.addPod(vethName)
			index := b.index(vethName)
			b.setRoot(vethName, 0x10000, 7e6)
			a = startAgent(b)
			a.SetLimits(vethName, qos.Limits{Ingress: mbit(20)})
			a.settle()
			remove()
			b.addPodAt(vethName, index)
			a.gone(vethName, index)
			a.up(b, vethName)
			a.SetLimits(vethName, qos.Limits{})
			a.settle()
			Expect(b.rate(vethName)).To(BeZero())
		})

		It("does not make a TBF with a handle that tells nobody that it is ours", func() {
			remove := b.addPod(vethName)
			index := b.index(vethName)
			b.setRoot(vethName, 0x10000, 7e6)
			a = startAgent(b)
			a.SetLimits(vethName, qos.Limits{Ingress: mbit(20)})
			a.settle()
			remove()
			b.addPodAt(vethName, index)
			a.SetLimits(vethName, qos.Limits{Ingress: mbit(30)}) // before anyone has said so
			a.settle()
			Expect(b.rate(vethName)).To(BeEquivalentTo(30e6))
			a.SetLimits(vethName, qos.Limits{})
			a.settle()
			Expect(b.rate(vethName)).To(BeZero())
		})

		It("does not give back a TBF that someone else has removed since, though nobody said so", func() {
			b.addPod(vethName)
			b.setRoot(vethName, 0x10000, 7e6)
			a = startAgent(b)
			a.SetLimits(vethName, qos.Limits{Ingress: mbit(20)})
			a.settle()
			Expect(b.outside.QdiscDel(b.observe().ByName(vethName).Root)).To(Succeed())
			a.SetLimits(vethName, qos.Limits{})
			a.settle()
			Expect(b.rate(vethName)).To(BeZero())
		})

		It("does not give back a root qdisc that someone else has removed since", func() {
			b.addPod(vethName)
			b.setRoot(vethName, 0x10000, 7e6)
			a = startAgent(b)
			a.SetLimits(vethName, qos.Limits{Ingress: mbit(20)})
			a.settle()
			Expect(b.outside.QdiscDel(b.observe().ByName(vethName).Root)).To(Succeed())
			a.SetLimits(vethName, qos.Limits{})
			a.QueueResync()
			a.settle()
			Expect(b.rate(vethName)).To(BeZero())
		})

		It("replaces the device of a life before when the interface has the same index", func() {
			remove := b.addPod(vethName)
			index := b.index(vethName)
			a = startAgent(b)
			a.SetLimits(vethName, egress)
			a.settle()
			ifb := b.index(ifbName)
			remove()
			b.addPodAt(vethName, index)
			a.gone(vethName, index)
			a.up(b, vethName)
			a.settle()
			Expect(b.index(ifbName)).NotTo(Equal(ifb))
			expectShaped()
		})

		It("adopts a device that is down, has no TBF, or another's root qdisc, in place", func() {
			b.addPod(vethName)
			a = startAgent(b)
			a.SetLimits(vethName, egress)
			a.settle()
			ifb := b.index(ifbName)
			link := &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Index: ifb}}
			root := func() netlink.Qdisc { return b.observe().ByName(ifbName).Root }
			for _, spoil := range []func(){
				func() { Expect(b.outside.LinkSetDown(link)).To(Succeed()) },
				func() { Expect(b.outside.QdiscDel(root())).To(Succeed()) },
				func() {
					Expect(b.outside.QdiscReplace(netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: ifb, Parent: netlink.HANDLE_ROOT, Handle: 0x10000}))).To(Succeed())
				},
				func() { b.setRoot(ifbName, 0x77770000, 1e6) },
				func() { Expect(b.outside.LinkSetMTU(link, 600)).To(Succeed()) },
				func() { Expect(b.outside.LinkSetGroup(link, 0x6d616e78)).To(Succeed()) },
			} {
				spoil()
				a.QueueResync()
				a.settle()
				Expect(b.index(ifbName)).To(Equal(ifb))
				expectShaped()
			}
			a.SetLimits(vethName, qos.Limits{})
			a.settle()
			Expect(b.ifbs()).To(BeEmpty())
		})

		It("copes with devices that a crash left in the group to delete", func() {
			b.addPod(vethName)
			a = startAgent(b)
			a.SetLimits(vethName, egress)
			a.settle()
			foreign := b.addIFB("foreign", 1500)
			Expect(b.outside.LinkSetGroup(foreign, 0x6d616e78)).To(Succeed())
			for n := range 5 {
				orphan := b.addIFB(fmt.Sprintf("bwcali%09x", n), 1500)
				Expect(b.outside.LinkSetGroup(orphan, 0x6d616e78)).To(Succeed())
			}
			wanted := &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Index: b.index(ifbName)}}
			Expect(b.outside.LinkSetGroup(wanted, 0x6d616e78)).To(Succeed())
			a.stop()
			a = startAgent(b)
			a.SetLimits(vethName, egress)
			a.settle()
			Expect(b.ifbs()).To(ConsistOf(ifbName))
			Expect(b.index("foreign")).NotTo(BeZero())
		})

		It("is set when the interface appears long after its endpoint", func() {
			a = startAgent(b)
			a.SetLimits(vethName, egress)
			a.settle()
			Expect(a.Pending(vethName)).To(BeFalse(), "there is nothing to wait for")
			for range 3 {
				a.clockStep(5 * 60e9)
				a.QueueResync()
				a.settle()
			}
			b.addPod(vethName)
			a.up(b, vethName)
			Expect(a.Apply()).To(Succeed())
			expectShaped()
		})
	})

	It("does not take one interface's shared filter block for a kernel without u32", func() {
		b := newReal()
		b.addPod(vethName)
		b.addPod("cali2")
		block := uint32(7)
		Expect(b.outside.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: b.index(vethName), Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0), IngressBlock: &block,
		}})).To(Succeed())
		a := startAgent(b)
		a.SetLimits(vethName, qos.Limits{Egress: mbit(30)})
		Expect(a.Apply()).To(MatchError(And(ContainSubstring(vethName), ContainSubstring("filter"))))
		a.SetLimits("cali2", qos.Limits{Egress: mbit(30)})
		Expect(a.Apply()).To(MatchError(ContainSubstring(vethName)))
		Expect(b.rate(qos.IFBName("cali2"))).To(BeEquivalentTo(30e6))
		Expect(strings.Join(a.log.all(), "")).NotTo(ContainSubstring("lacks"))
	})

	It("has room in the queue for the packets of an interface with BIG TCP", func() {
		b := newReal()
		b.addPod(vethName)
		const size = 200_000
		Expect(b.ns.Do(func() error {
			veth, err := netlink.LinkByName(vethName)
			if err != nil {
				return err
			}
			return netlink.LinkSetGSOMaxSize(veth, size)
		})).To(Succeed())
		a := startAgent(b)
		a.SetLimits(vethName, qos.Limits{Ingress: mbit(10), Egress: mbit(10)})
		a.settle()
		Expect(b.queue(vethName)).To(BeEquivalentTo(size * 5 / 4))
		Expect(b.queue(ifbName)).To(BeEquivalentTo(size * 5 / 4))
	})

	It("follows an interface that moves into another namespace and back", func() {
		b := newReal()
		b.addPod(vethName)
		a := startAgent(b)
		a.SetLimits(vethName, qos.Limits{Ingress: mbit(20), Egress: mbit(30)})
		a.settle()
		elsewhere, err := rtnl.NewNamespace()
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(elsewhere.Close)
		here, there := b.outside.(*rtnl.Handle), must1(rtnl.Open(rtnl.Options{Namespace: elsewhere}))
		DeferCleanup(there.Close)

		for _, late := range []bool{false, true} { // whether we only hear of it when it is back
			veth, err := here.LinkByName(vethName)
			Expect(err).NotTo(HaveOccurred())
			ifb := b.index(ifbName)
			Expect(here.LinkSetNamespace(veth, elsewhere)).To(Succeed())
			if !late {
				a.gone(vethName, veth.Attrs().Index)
				a.settle()
				Expect(b.ifbs()).To(BeEmpty())
			}
			Expect(there.LinkSetNamespace(veth, b.ns)).To(Succeed())
			back, err := here.LinkByName(vethName)
			Expect(err).NotTo(HaveOccurred())
			Expect(here.LinkSetUp(back)).To(Succeed())
			if late {
				a.gone(vethName, veth.Attrs().Index)
			}
			a.OnIfaceStateChanged(vethName, back.Attrs().Index, ifacemonitor.StateUp)
			a.settle()
			Expect(b.index(ifbName)).NotTo(BeElementOf(0, ifb))
			Expect(b.rate(vethName)).To(BeEquivalentTo(20e6))
			Expect(b.observe().ByName(vethName).RedirectsTo(b.index(ifbName))).To(BeTrue())
		}
	})

	It("goes on from where a failure stopped it, without a new device each time", func() {
		b := newMock()
		b.addPod(vethName)
		a := startAgent(b)
		b.setFault(func(c mocks.Call) error {
			if c.Op == mocks.OpFilterAdd {
				return unix.EPERM
			}
			return nil
		})
		a.SetLimits(vethName, qos.Limits{Egress: mbit(30)})
		for range 5 {
			Expect(a.Apply()).To(MatchError(unix.EPERM))
			Expect(a.Pending(vethName)).To(BeTrue())
			a.QueueResync()
		}
		Expect(b.mock.Count(mocks.OpLinkAdd)).To(Equal(1))
		Expect(a.reaper.Pending()).To(BeZero())
		Expect(a.log.all()).To(BeEmpty())
		b.setFault(nil)
		a.settle()
		Expect(b.observe().ByName(vethName).RedirectsTo(b.index(ifbName))).To(BeTrue())
		Expect(b.mock.Count(mocks.OpLinkAdd)).To(Equal(1))
	})

	It("does not take a filter that somebody else deleted first for a kernel without filters", func() {
		b := newMock()
		b.addPod(vethName)
		b.addPod("cali2")
		ifb := b.addIFB(ifbName, 1500)
		Expect(b.outside.LinkSetUp(ifb)).To(Succeed())
		b.addHook("ingress", vethName)
		b.redirect(vethName, 1, ifb.Index)
		a := startAgent(b)
		b.setFault(func(c mocks.Call) error {
			if c.Op == mocks.OpFilterDel {
				b.setFault(nil)
				b.deletePriority(vethName, 1)
			}
			return nil
		})
		a.SetLimits(vethName, qos.Limits{Egress: mbit(30)})
		Expect(a.Apply()).To(MatchError(unix.ENOENT))
		a.SetLimits("cali2", qos.Limits{Egress: mbit(20)})
		a.settle()
		Expect(b.fault.Load()).To(BeNil(), "the race was not lost")
		Expect(b.rate(ifbName)).To(BeEquivalentTo(30e6))
		Expect(b.rate(qos.IFBName("cali2"))).To(BeEquivalentTo(20e6))
	})

	It("turns IPv6 off on its IFB before that is up, and shapes all the same where it cannot", func() {
		b := newMock()
		b.addPod(vethName)
		b.addPod("cali2")
		sysctls := b.mock.Sysctls()
		a := startAgent(b, func(c *qos.Config) { c.Sysctls = sysctls })
		a.SetLimits(vethName, qos.Limits{Egress: mbit(30)})
		a.settle()
		Expect(sysctls.ReadSysctl("net/ipv6/conf/" + ifbName + "/disable_ipv6")).To(Equal("1"))
		Expect(sysctls.ReadSysctl("net/ipv6/conf/" + vethName + "/disable_ipv6")).To(Equal("0"))
		var order []mocks.Op
		for _, c := range b.writes() {
			if c.Op == mocks.OpWriteSysctl || c.Op == mocks.OpLinkSetUp {
				order = append(order, c.Op)
			}
		}
		Expect(order).To(Equal([]mocks.Op{mocks.OpWriteSysctl, mocks.OpLinkSetUp}))

		b.setFault(func(c mocks.Call) error {
			if c.Op == mocks.OpWriteSysctl {
				return unix.EROFS
			}
			return nil
		})
		a.SetLimits("cali2", qos.Limits{Egress: mbit(20)})
		Expect(a.Apply()).To(Succeed())
		Expect(b.rate(qos.IFBName("cali2"))).To(BeEquivalentTo(20e6))
	})

	It("is not pending for ever because a device went while its removal failed", func() {
		b := newMock()
		b.addPod(vethName)
		b.addPod("cali2")
		stale := b.addIFB(ifbName, 1500)
		b.addHook("ingress", "cali2")
		b.redirect("cali2", 1, stale.Index)
		a := startAgent(b)
		b.setFault(func(c mocks.Call) error {
			if c.Op == mocks.OpFilterDel {
				return unix.EPERM
			}
			return nil
		})
		a.SetLimits(vethName, qos.Limits{Egress: mbit(30)})
		Expect(a.Apply()).To(MatchError(unix.EPERM))
		Expect(a.Pending(vethName)).To(BeTrue())
		b.setFault(nil)
		Expect(b.outside.LinkDel(stale)).To(Succeed())
		a.QueueResync()
		a.settle()
		Expect(b.rate(ifbName)).To(BeEquivalentTo(30e6))
		Expect(a.Pending(vethName)).To(BeFalse())
	})
})

// addPodAt is addPod with an ifindex.
func (b *backend) addPodAt(veth string, index int) {
	GinkgoHelper()
	link := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "peer"}
	link.Name, link.Index, link.Flags = veth, index, net.FlagUp
	Expect(b.outside.LinkAdd(link)).To(Succeed())
	Expect(b.index(veth)).To(Equal(index))
}

func must1[T any](value T, err error) T {
	GinkgoHelper()
	Expect(err).NotTo(HaveOccurred())
	return value
}
