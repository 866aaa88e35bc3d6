package mocks_test

import (
	"fmt"
	"net/netip"
	"os"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/rtnl"
)

// story collects what an event socket tells, in words, without repetitions: the
// kernel may announce a link more than once in the same state.
type story struct {
	s     eventSocket
	lines []string
}

func listen(w world) *story {
	GinkgoHelper()
	s, err := w.events()
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(s.Close)
	return &story{s: s}
}

func (s *story) soFar() []string {
	GinkgoHelper()
	messages, err := s.s.Drain()
	Expect(err).NotTo(HaveOccurred())
	for _, m := range messages {
		line := describe(m)
		if len(s.lines) == 0 || s.lines[len(s.lines)-1] != line {
			s.lines = append(s.lines, line)
		}
	}
	return s.lines
}

func describe(m rtnl.Message) string {
	state := "down"
	switch {
	case m.Flags&unix.IFF_RUNNING != 0:
		state = "running"
	case m.Flags&unix.IFF_UP != 0:
		state = "up"
	}
	switch m.Type {
	case rtnl.MessageNewLink:
		return fmt.Sprintf("new %s %s %s mtu %d", m.Name, m.Kind, state, m.MTU)
	case rtnl.MessageDelLink:
		return fmt.Sprintf("del %s", m.Name)
	case rtnl.MessageNewAddr:
		return fmt.Sprintf("addr %s on %d", m.Addr, m.Index)
	case rtnl.MessageDelAddr:
		return fmt.Sprintf("no addr %s on %d", m.Addr, m.Index)
	}
	return fmt.Sprintf("done %v", m.Err)
}

func (s *story) shouldBe(lines ...string) {
	GinkgoHelper()
	Eventually(s.soFar).Within(5 * time.Second).Should(Equal(lines))
	s.lines = nil
}

// dump returns a whole dump, in words; what comes between its messages is an error.
func (s *story) dump(d rtnl.Dump) (lines []string) {
	GinkgoHelper()
	seq, err := s.s.RequestDump(d)
	Expect(err).NotTo(HaveOccurred())
	for {
		messages, err := s.s.Receive()
		Expect(err).NotTo(HaveOccurred())
		for _, m := range messages {
			Expect(m.DumpSeq).To(Equal(seq))
			if m.Type == rtnl.MessageDumpDone {
				Expect(m.Err).NotTo(HaveOccurred())
				return lines
			}
			lines = append(lines, describe(m))
		}
	}
}

func eventBehaviour(w *world) {
	It("tells of the peer first when a veth pair is created, and of carrier once both are up", func() {
		s := listen(*w)
		addPair(*w, "a", "b")
		s.shouldBe("new b veth down mtu 1500", "new a veth down mtu 1500",
			"new b veth up mtu 1500", "new a veth up mtu 1500",
			"new a veth running mtu 1500", "new b veth running mtu 1500")
	})
	It("tells of the old link's end before the new one when a name is re-used", func() {
		runningPair(*w, "a", "b")
		s := listen(*w)
		Expect((*w).LinkDel(byName(*w, "a"))).To(Succeed())
		addLink(*w, veth("a", "b"))
		s.shouldBe("new a veth down mtu 1500", "new b veth down mtu 1500", "del a", "del b",
			"new b veth down mtu 1500", "new a veth down mtu 1500")
	})
	It("tells of a rename and of an MTU", func() {
		index := addLink(*w, ifb("a"))
		s := listen(*w)
		Expect((*w).LinkSetName(ofIndex(index), "c")).To(Succeed())
		Expect((*w).LinkSetMTU(ofIndex(index), 1400)).To(Succeed())
		Expect((*w).LinkSetUp(ofIndex(index))).To(Succeed())
		s.shouldBe("new c ifb down mtu 1500", "new c ifb down mtu 1400", "new c ifb running mtu 1400")
	})
	It("tells of all ends before any of them when a group is deleted", func() {
		for _, name := range []string{"a", "b"} {
			index := addLink(*w, ifb(name))
			Expect((*w).LinkSetUp(ofIndex(index))).To(Succeed())
			Expect((*w).LinkSetGroup(ofIndex(index), 5)).To(Succeed())
		}
		s := listen(*w)
		Expect((*w).LinkDelGroup(5)).To(Succeed())
		s.shouldBe("new a ifb down mtu 1500", "new b ifb down mtu 1500", "del a", "del b")
	})
	It("tells only the namespace that a link leaves of its end", func() {
		other, err := (*w).newNamespace()
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(other.destroy)
		addLink(*w, ifb("a"))
		here, there := listen(*w), listen(other)
		Expect((*w).moveLink(byName(*w, "a"), other)).To(Succeed())
		here.shouldBe("del a")
		there.shouldBe("new a ifb down mtu 1500")
	})
	It("keeps IPv4 addresses over a down, and tells of their end before their link's", func() {
		index := runningPair(*w, "a", "b")
		s := listen(*w)
		Expect((*w).addAddress(index, netip.MustParsePrefix("10.1.0.1/24"))).To(Succeed())
		Expect((*w).LinkDel(ofIndex(index))).To(Succeed())
		s.shouldBe(fmt.Sprintf("addr 10.1.0.1 on %d", index),
			"new a veth down mtu 1500", "new b veth down mtu 1500",
			fmt.Sprintf("no addr 10.1.0.1 on %d", index), "del a", "del b")
	})
	It("gives an interface without a carrier its IPv4 address at once, also while it is down", func() {
		index := addLink(*w, ifb("a"))
		s := listen(*w)
		Expect((*w).addAddress(index, netip.MustParsePrefix("10.1.0.1/32"))).To(Succeed())
		s.shouldBe(fmt.Sprintf("addr 10.1.0.1 on %d", index))
		Expect((*w).delAddress(index, netip.MustParsePrefix("10.1.0.1/32"))).To(Succeed())
		s.shouldBe(fmt.Sprintf("no addr 10.1.0.1 on %d", index))
		Expect(errno((*w).delAddress(index, netip.MustParsePrefix("10.1.0.1/32")))).To(Equal(unix.EADDRNOTAVAIL))
	})
	It("takes an interface's IPv6 addresses away when it goes down", func() {
		index := runningPair(*w, "a", "b")
		s := listen(*w)
		Expect((*w).addAddress(index, netip.MustParsePrefix("2001:db8::1/64"))).To(Succeed())
		s.shouldBe(fmt.Sprintf("addr 2001:db8::1 on %d", index))
		Expect((*w).LinkSetDown(ofIndex(index))).To(Succeed())
		s.shouldBe("new a veth down mtu 1500", fmt.Sprintf("no addr 2001:db8::1 on %d", index), "new b veth up mtu 1500")
	})
	It("gives an interface with a carrier a link-local address", func() {
		Expect((*w).writeSysctl("/proc/sys/net/ipv6/conf/default/addr_gen_mode", "0")).To(Succeed())
		s := listen(*w)
		index := addPair(*w, "a", "b")
		mac := byName(*w, "a").Attrs().HardwareAddr
		addr := netip.AddrFrom16([16]byte{0xfe, 0x80, 8: mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]})
		Eventually(s.soFar).Within(10 * time.Second).Should(ContainElement(fmt.Sprintf("addr %s on %d", addr, index)))
	})
	It("dumps links and local addresses on the event socket", func() {
		index := runningPair(*w, "a", "b")
		Expect((*w).addAddress(index, netip.MustParsePrefix("10.1.0.1/24"))).To(Succeed())
		Expect((*w).LinkSetUp(ofIndex(1))).To(Succeed())
		s := listen(*w)
		Expect(s.dump(rtnl.DumpLinks)).To(ConsistOf("new lo  running mtu 65536", "new a veth running mtu 1500", "new b veth running mtu 1500"))
		Expect(s.dump(rtnl.DumpLocalIPv4)).To(ConsistOf("addr 127.0.0.1 on 1", fmt.Sprintf("addr 10.1.0.1 on %d", index)))
		Expect(s.dump(rtnl.DumpLocalIPv6)).To(ConsistOf("addr ::1 on 1"))
	})
	It("dumps nothing where there is no address", func() {
		s := listen(*w)
		Expect(s.dump(rtnl.DumpLocalIPv4)).To(BeEmpty())
		Expect(s.dump(rtnl.DumpLocalIPv6)).To(BeEmpty())
	})
	It("runs one dump at a time", func() {
		s := listen(*w)
		_, err := s.s.RequestDump(rtnl.DumpLinks)
		Expect(err).NotTo(HaveOccurred())
		_, err = s.s.RequestDump(rtnl.DumpLinks)
		Expect(errno(err)).To(Equal(unix.EBUSY))
		Expect(s.soFar()).To(HaveLen(2))
		Expect(s.dump(rtnl.DumpLinks)).To(HaveLen(1))
	})
	It("reports an overrun once, before what was queued, and loses all else until it has been read empty", func() {
		index := addLink(*w, ifb("a"))
		socket, err := (*w).smallEvents()
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(socket.Close)
		toggle := func(times int) {
			for range times {
				Expect((*w).LinkSetMTU(ofIndex(index), 1400)).To(Succeed())
				Expect((*w).LinkSetMTU(ofIndex(index), 1500)).To(Succeed())
			}
		}
		toggle(50)
		_, err = socket.Receive()
		Expect(errno(err)).To(Equal(unix.ENOBUFS))
		first, err := socket.Receive()
		Expect(err).NotTo(HaveOccurred())
		Expect(first).To(HaveLen(1))
		Expect((*w).LinkSetName(ofIndex(index), "lost")).To(Succeed()) // there is room for it by now
		rest, err := socket.Drain()
		Expect(err).NotTo(HaveOccurred())
		Expect(rest).NotTo(BeEmpty())
		for _, m := range rest {
			Expect(m.Name).To(Equal("a"))
		}
		Expect((*w).LinkSetName(ofIndex(index), "seen")).To(Succeed())
		again, err := socket.Drain()
		Expect(err).NotTo(HaveOccurred())
		Expect(again).To(HaveLen(1))
		Expect(again[0].Name).To(Equal("seen"))
	})
	It("ends a waiting Receive when the socket is closed", func() {
		s := listen(*w)
		result := make(chan error)
		go func() {
			_, err := s.s.Receive()
			result <- err
		}()
		Expect(s.s.Close()).To(Succeed())
		Eventually(result).Within(5 * time.Second).Should(Receive(MatchError(os.ErrClosed)))
		_, err := s.s.Drain()
		Expect(err).To(MatchError(os.ErrClosed))
	})
}
