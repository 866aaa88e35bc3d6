package mocks_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"testing/synctest"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/mocks"
	"github.com/manx-dataplane/manx/rtnl"
)

var _ = Describe("Faults", func() {
	var k *mocks.Kernel
	var agent *mocks.Handle
	BeforeEach(func() {
		k = mocks.NewKernel()
		agent = k.NewHandle()
		DeferCleanup(func() {
			agent.Close()
			Expect(k.OpenHandles()).To(BeZero())
		})
	})

	It("fail a call without effect, wrapped as rtnl wraps errors", func() {
		k.OnCall(func(c mocks.Call) error {
			if c.Op == mocks.OpLinkAdd {
				return unix.ENOMEM
			}
			return nil
		})
		err := agent.LinkAdd(ifb("a"))
		Expect(err).To(MatchError(unix.ENOMEM))
		var op *rtnl.OpError
		Expect(errors.As(err, &op)).To(BeTrue())
		Expect(op.Op + " " + op.Object).To(Equal("add link a"))
		Expect(linkNames(outsideWorld(k))).To(BeEmpty())
	})
	It("fail a call that took effect", func() {
		k.AfterCall(func(c mocks.Call, err error) error {
			if c.Op == mocks.OpLinkAdd {
				return unix.EAGAIN
			}
			return err
		})
		Expect(agent.LinkAdd(ifb("a"))).To(MatchError(unix.EAGAIN))
		_, err := k.Outside().LinkByName("a")
		Expect(err).NotTo(HaveOccurred())
	})
	It("never meet calls from outside, which are not counted either", func() {
		k.OnCall(func(mocks.Call) error { return unix.EPERM })
		outside := k.Outside()
		Expect(outside.LinkAdd(ifb("a"))).To(Succeed())
		Expect(k.Calls()).To(BeZero())
		Expect(agent.LinkDel(byNameOutside(k, "a"))).To(MatchError(unix.EPERM))
		Expect(k.Count(mocks.OpLinkDel)).To(Equal(1))
	})
	It("let the world change between two calls of the agent", func() {
		Expect(k.Outside().LinkAdd(ifb("a"))).To(Succeed())
		gone := byNameOutside(k, "a")
		k.OnCall(func(c mocks.Call) error {
			if c.Op == mocks.OpLinkSetUp {
				return k.Outside().LinkDel(gone)
			}
			return nil
		})
		Expect(agent.LinkSetUp(gone)).To(MatchError(unix.ENODEV))
	})
	It("fail one route of a batch and let the others pass", func() {
		_, err := k.AddPod("a")
		Expect(err).NotTo(HaveOccurred())
		index := byNameOutside(k, "a").Attrs().Index
		k.OnCall(func(c mocks.Call) error {
			if c.Op == mocks.OpRouteSet && c.Name == "10.65.0.2/32" {
				return unix.ENOMEM
			}
			return nil
		})
		errs := agent.RouteBatch([]rtnl.RouteOp{set(route(index, "10.65.0.1/32")), set(route(index, "10.65.0.2/32")), set(route(index, "10.65.0.3/32"))})
		Expect(errs).To(HaveExactElements(BeNil(), MatchError(unix.ENOMEM), BeNil()))
		Expect(routesOf(outsideWorld(k), unix.AF_INET, 254)).To(HaveLen(2))
		Expect(k.Count(mocks.OpRouteBatch)).To(Equal(1))
		Expect(k.Writes()).To(HaveLen(3))
	})
	It("are a kernel's lack of a kind of link, qdisc or filter", func() {
		_, err := k.AddPod("a")
		Expect(err).NotTo(HaveOccurred())
		index := byNameOutside(k, "a").Attrs().Index
		Expect(agent.QdiscAdd(ingress(index))).To(Succeed())
		k.Lack("ifb", "tbf", "u32")
		Expect(agent.LinkAdd(ifb("b"))).To(MatchError(unix.EOPNOTSUPP))
		Expect(agent.QdiscReplace(tbf(index, netlink.MakeHandle(1, 0), 1_000_000))).To(MatchError(unix.ENOENT))
		Expect(agent.FilterAdd(redirect(index, 0, 1))).To(MatchError(unix.ENOENT))
	})
	It("record the writes in order, in words", func() {
		a := ifb("a")
		Expect(agent.LinkAdd(a)).To(Succeed())
		Expect(agent.QdiscReplace(tbf(a.Index, netlink.MakeHandle(0xca11, 0), 1_000_000))).To(Succeed())
		_, err := agent.LinkList()
		Expect(err).NotTo(HaveOccurred())
		Expect(agent.LinkDel(a)).To(Succeed())
		var words []string
		for _, c := range k.Writes() {
			words = append(words, c.String())
		}
		Expect(words).To(Equal([]string{"add link a", "replace qdisc tbf ca11:0 (ifindex 2)", "delete link a (ifindex 2)"}))
		k.ResetWrites()
		Expect(k.Writes()).To(BeEmpty())
	})
	It("refuse calls on a closed handle", func() {
		h := k.NewHandle()
		h.Close()
		_, err := h.LinkList()
		Expect(err).To(MatchError(unix.EBADF))
	})
	It("leave flows of other addresses alone", func() {
		one, two := netip.MustParseAddr("10.65.0.1"), netip.MustParseAddr("10.65.0.2")
		k.SetFlows(one, 3)
		k.SetFlows(two, 5)
		c := k.NewConntrack()
		Expect(c.ConntrackDelete(one)).To(Succeed())
		Expect(k.Flows(one)).To(BeZero())
		Expect(k.Flows(two)).To(Equal(5))
		Expect(c.Close()).To(Succeed())
	})
})

func byNameOutside(k *mocks.Kernel, name string) netlink.Link {
	GinkgoHelper()
	l, err := k.Outside().LinkByName(name)
	Expect(err).NotTo(HaveOccurred())
	return l
}

var _ = Describe("Event faults", func() {
	open := func(options mocks.EventOptions) (*mocks.Kernel, *mocks.EventSocket) {
		GinkgoHelper()
		k := mocks.NewKernel()
		s, err := k.NewEventSocket(options)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(s.Close)
		return k, s
	}
	add := func(k *mocks.Kernel, name string) {
		GinkgoHelper()
		Expect(k.Outside().LinkAdd(ifb(name))).To(Succeed())
	}
	names := func(messages []rtnl.Message) (names []string) {
		for _, m := range messages {
			names = append(names, fmt.Sprintf("%d %s", m.DumpSeq, m.Name))
		}
		return names
	}

	It("let a multicast overtake a chunk that was filled before it", func() {
		k, s := open(mocks.EventOptions{Overtake: func() int { return 1 }})
		add(k, "a")
		_, err := s.Drain()
		Expect(err).NotTo(HaveOccurred())
		_, err = s.RequestDump(rtnl.DumpLinks)
		Expect(err).NotTo(HaveOccurred())
		Expect(k.Outside().LinkDel(byNameOutside(k, "a"))).To(Succeed())
		first, err := s.Receive()
		Expect(err).NotTo(HaveOccurred())
		Expect(first).To(HaveLen(1))
		Expect(first[0].Type).To(Equal(rtnl.MessageDelLink))
		second, err := s.Receive()
		Expect(err).NotTo(HaveOccurred())
		Expect(names(second)).To(Equal([]string{"1 lo", "1 a", "1 "}))
	})
	It("do not hold a chunk back from one who has nothing else to read", func() {
		_, s := open(mocks.EventOptions{Overtake: func() int { return 100 }})
		_, err := s.RequestDump(rtnl.DumpLinks)
		Expect(err).NotTo(HaveOccurred())
		Expect(s.Receive()).To(HaveLen(2))
	})
	It("interrupt a dump during which links came or went", func() {
		k, s := open(mocks.EventOptions{ChunkSize: 2})
		for i := range 5 {
			add(k, fmt.Sprint("a", i))
		}
		_, err := s.Drain()
		Expect(err).NotTo(HaveOccurred())
		_, err = s.RequestDump(rtnl.DumpLinks)
		Expect(err).NotTo(HaveOccurred())
		Expect(s.Receive()).To(HaveLen(2)) // and with it the next chunk is filled
		Expect(k.Outside().LinkDel(byNameOutside(k, "a0"))).To(Succeed())
		rest, err := s.Drain()
		Expect(err).NotTo(HaveOccurred())
		Expect(rest[len(rest)-1].Type).To(Equal(rtnl.MessageDumpDone))
		Expect(rest[len(rest)-1].Err).To(MatchError(unix.EINTR))
	})
	It("interrupt a dump on demand", func() {
		_, s := open(mocks.EventOptions{Interrupt: func() bool { return true }})
		_, err := s.RequestDump(rtnl.DumpLocalIPv4)
		Expect(err).NotTo(HaveOccurred())
		messages, err := s.Receive()
		Expect(err).NotTo(HaveOccurred())
		Expect(messages[0].Err).To(MatchError(unix.EINTR))
	})
	It("lose, repeat and delay multicasts on demand", func() {
		var kept []rtnl.Message
		k, s := open(mocks.EventOptions{Deliver: func(m rtnl.Message) []rtnl.Message {
			switch m.Name {
			case "lost":
				return nil
			case "twice":
				return []rtnl.Message{m, m}
			case "late":
				kept = append(kept, m)
				return nil
			}
			return append([]rtnl.Message{m}, kept...)
		}})
		for _, name := range []string{"lost", "twice", "late", "last"} {
			add(k, name)
		}
		messages, err := s.Drain()
		Expect(err).NotTo(HaveOccurred())
		Expect(names(messages)).To(Equal([]string{"0 twice", "0 twice", "0 last", "0 late"}))
	})
	It("make a dump wait for room instead of losing it", func() {
		k, s := open(mocks.EventOptions{Capacity: 4, ChunkSize: 2})
		for i := range 9 {
			add(k, fmt.Sprint("a", i))
		}
		_, err := s.Drain()
		Expect(err).To(MatchError(unix.ENOBUFS))
		_, err = s.RequestDump(rtnl.DumpLinks)
		Expect(err).NotTo(HaveOccurred())
		Expect(s.Drain()).To(HaveLen(11))
	})
	It("break the socket, fail its opening and its requests", func() {
		k, s := open(mocks.EventOptions{})
		k.FailEvents(unix.EIO)
		_, err := s.Receive()
		Expect(err).To(MatchError(unix.EIO))
		k.FailEvents(unix.ENOBUFS)
		_, err = s.Drain()
		Expect(err).To(MatchError(unix.ENOBUFS))
		k.OnCall(func(mocks.Call) error { return unix.ENOMEM })
		_, err = s.RequestDump(rtnl.DumpLinks)
		Expect(err).To(MatchError(unix.ENOMEM))
		_, err = k.NewEventSocket(mocks.EventOptions{})
		Expect(err).To(MatchError(unix.ENOMEM))
		Expect(k.OpenHandles()).To(Equal(1))
	})
})

// A deletion hangs as one does in "waiting for X to become free", for ever in terms
// of the bubble's time, and others go on; a Receive with nothing to receive blocks
// durably.
func TestHungDeleteHoldsNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := mocks.NewKernel()
		for _, name := range []string{"stuck", "free"} {
			if err := k.Outside().LinkAdd(ifb(name)); err != nil {
				t.Fatal(err)
			}
		}
		stuck, _ := k.Outside().LinkByName("stuck")
		free, _ := k.Outside().LinkByName("free")
		release := k.Hang(mocks.AfterEffect, func(c mocks.Call) bool {
			return c.Op == mocks.OpLinkDel && c.Index == stuck.Attrs().Index
		})
		events, err := k.NewEventSocket(mocks.EventOptions{})
		if err != nil {
			t.Fatal(err)
		}
		deleted, received := make(chan error, 1), make(chan error, 1)
		go func() { deleted <- k.NewHandle().LinkDel(stuck) }()
		synctest.Wait()
		if k.Hung() != 1 || len(deleted) != 0 {
			t.Fatal("the delete does not hang")
		}
		if err := k.NewHandle().LinkDel(free); err != nil {
			t.Fatal(err)
		}
		if links, _ := k.Outside().LinkList(); len(links) != 1 {
			t.Fatal("the hanging delete's link is still listed")
		}
		if _, err := events.Drain(); err != nil {
			t.Fatal(err)
		}
		go func() {
			_, err := events.Receive()
			received <- err
		}()
		synctest.Wait()
		release()
		release()
		if err := <-deleted; err != nil {
			t.Fatal(err)
		}
		events.Close()
		if err := <-received; !errors.Is(err, os.ErrClosed) {
			t.Fatal(err)
		}
	})
}

// BenchmarkScenario is the kernel's part in one small simulated scenario: ten pods
// with limits and routes come and go.
func BenchmarkScenario(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		k := mocks.NewKernel()
		events, err := k.NewEventSocket(mocks.EventOptions{})
		if err != nil {
			b.Fatal(err)
		}
		agent := k.NewHandle()
		var pods []*mocks.Kernel
		for i := range 10 {
			pod, err := k.AddPod(fmt.Sprint("cali", i))
			if err != nil {
				b.Fatal(err)
			}
			pods = append(pods, pod)
			l, err := agent.LinkByName(fmt.Sprint("cali", i))
			if err != nil {
				b.Fatal(err)
			}
			index, shaper := l.Attrs().Index, ifb(fmt.Sprint("bwcali", i))
			errs := []error{
				agent.LinkAdd(shaper), agent.LinkSetUp(shaper),
				agent.QdiscReplace(tbf(shaper.Index, netlink.MakeHandle(0xca11, 0), 1_000_000)),
				agent.QdiscAdd(ingress(index)), agent.FilterAdd(redirect(index, shaper.Index, 1)),
			}
			errs = append(errs, agent.RouteBatch([]rtnl.RouteOp{set(route(index, fmt.Sprintf("10.65.0.%d/32", i)))})...)
			if err := errors.Join(errs...); err != nil {
				b.Fatal(err)
			}
		}
		for _, pod := range pods {
			pod.Destroy()
		}
		if _, err := events.Drain(); err != nil {
			b.Fatal(err)
		}
	}
}
