package rtnl_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/rtnl"
)

var _ = Describe("EventSocket", func() {
	var (
		ns     *rtnl.Namespace
		handle *rtnl.Handle
		socket *rtnl.EventSocket
	)

	open := func(options rtnl.EventOptions) *rtnl.EventSocket {
		GinkgoHelper()
		options.Namespace = ns
		socket, err := rtnl.OpenEvents(options)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(socket.Close)
		return socket
	}
	ip := func(arguments ...string) {
		GinkgoHelper()
		Expect(ns.Do(func() error {
			output, err := exec.Command("ip", arguments...).CombinedOutput()
			if err != nil {
				return errors.New(string(output))
			}
			return nil
		})).To(Succeed())
	}
	drain := func() []rtnl.Message {
		GinkgoHelper()
		messages, err := socket.Drain()
		Expect(err).NotTo(HaveOccurred())
		return messages
	}
	// dump returns the entries of a dump; other messages are dropped.
	dump := func(what rtnl.Dump) []rtnl.Message {
		GinkgoHelper()
		seq, err := socket.RequestDump(what)
		Expect(err).NotTo(HaveOccurred())
		Expect(seq).NotTo(BeZero())
		var entries []rtnl.Message
		for {
			messages, err := socket.Receive()
			Expect(err).NotTo(HaveOccurred())
			for _, msg := range messages {
				switch {
				case msg.DumpSeq != seq:
				case msg.Type == rtnl.MessageDumpDone:
					Expect(msg.Err).NotTo(HaveOccurred())
					return entries
				default:
					entries = append(entries, msg)
				}
			}
		}
	}
	addVeth := func(name, peer string) int {
		GinkgoHelper()
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: 1400}, PeerName: peer}
		Expect(handle.LinkAdd(veth)).To(Succeed())
		return veth.Index
	}

	BeforeEach(func() {
		ns = newNamespace()
		handle = newHandle(ns)
		socket = open(rtnl.EventOptions{})
	})

	It("reports a link's life in the kernel's order, as events", func() {
		index := addVeth("cali0", "peer0")
		link, err := handle.LinkByIndex(index)
		Expect(err).NotTo(HaveOccurred())
		Expect(handle.LinkDel(link)).To(Succeed())

		messages := slices.DeleteFunc(drain(), func(m rtnl.Message) bool { return m.Index != index })
		Expect(messages).NotTo(BeEmpty())
		for _, msg := range messages {
			Expect(msg.DumpSeq).To(BeZero(), "a notification that our own request caused is an event")
			Expect(msg.Name).To(Equal("cali0"))
		}
		first, last := messages[0], messages[len(messages)-1]
		Expect(first.Type).To(Equal(rtnl.MessageNewLink))
		Expect(first.MTU).To(Equal(1400))
		Expect(first.Kind).To(Equal("veth"))
		Expect(last.Type).To(Equal(rtnl.MessageDelLink))
	})

	It("dumps links, and local addresses with their interface", func() {
		index := addVeth("cali0", "peer0")
		ip("addr", "add", "10.1.0.1/24", "dev", "cali0")
		ip("-6", "addr", "add", "fd00::1/64", "dev", "cali0", "nodad")
		ip("link", "set", "cali0", "up")
		// The kernel adds the local route of an IPv6 address from a work queue.
		Eventually(drain).Should(ContainElement(HaveField("Addr", netip.MustParseAddr("fd00::1"))))

		names := map[string]int{}
		for _, msg := range dump(rtnl.DumpLinks) {
			Expect(msg.Type).To(Equal(rtnl.MessageNewLink))
			names[msg.Name] = msg.Index
		}
		Expect(names).To(And(HaveLen(3), HaveKeyWithValue("cali0", index), HaveKey("lo"), HaveKey("peer0")))
		Expect(dump(rtnl.DumpLocalIPv4)).To(ConsistOf(HaveField("Addr", netip.MustParseAddr("10.1.0.1"))))
		Expect(dump(rtnl.DumpLocalIPv6)).To(ContainElement(And(
			HaveField("Addr", netip.MustParseAddr("fd00::1")),
			HaveField("Type", rtnl.MessageNewAddr),
			HaveField("Index", index),
		)))
	})

	It("dumps no addresses, without an error, where no route has created the local table yet", func() {
		Expect(dump(rtnl.DumpLocalIPv4)).To(BeEmpty())
		Expect(dump(rtnl.DumpLocalIPv6)).To(BeEmpty())
	})

	It("reports addresses coming and going, IPv4 and IPv6", func() {
		index := addVeth("cali0", "peer0")
		ip("link", "set", "cali0", "up")
		drain()
		for _, addr := range []string{"10.1.0.1", "fd00::1"} {
			msg := rtnl.Message{Type: rtnl.MessageNewAddr, Index: index, Addr: netip.MustParseAddr(addr)}
			ip("addr", "add", addr, "dev", "cali0", "nodad")
			Eventually(drain).Should(ContainElement(msg))
			ip("addr", "del", addr, "dev", "cali0")
			msg.Type = rtnl.MessageDelAddr
			Eventually(drain).Should(ContainElement(msg))
		}
	})

	It("takes an address from the local routing table even where no interface has it", func() {
		addVeth("cali0", "peer0")
		ip("link", "set", "cali0", "up")
		ip("route", "add", "local", "192.0.2.7", "dev", "lo")
		Expect(dump(rtnl.DumpLocalIPv4)).To(ContainElement(
			rtnl.Message{Type: rtnl.MessageNewAddr, DumpSeq: 1, Index: 1, Addr: netip.MustParseAddr("192.0.2.7")}))
	})

	It("does not take a port that leaves its bridge for a link that is deleted", func() {
		index := addVeth("cali0", "peer0")
		ip("link", "add", "br0", "type", "bridge")
		ip("link", "set", "cali0", "master", "br0")
		ip("link", "set", "cali0", "nomaster")
		Expect(drain()).NotTo(ContainElement(And(
			HaveField("Type", rtnl.MessageDelLink), HaveField("Index", index))))
	})

	It("never sees routes of other tables, however many: the kernel drops them", func() {
		addVeth("cali0", "peer0")
		ip("link", "set", "cali0", "up")
		ip("link", "set", "peer0", "up")
		// Room for the few events that may still come, and far from enough for the routes.
		small := open(rtnl.EventOptions{ReceiveBuffer: 64 << 10})
		drain()
		var batch []byte
		for i := range 5000 {
			batch = append(batch, routeLine(i, "254")...)
			batch = append(batch, routeLine(i, "100")...)
		}
		file, err := os.CreateTemp("", "routes")
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(os.Remove, file.Name())
		Expect(os.WriteFile(file.Name(), batch, 0o600)).To(Succeed())
		ip("-batch", file.Name())
		Expect(len(drain())).To(BeNumerically("<", 20), "the link's carrier and its own IPv6 address may still come")
		_, err = small.Drain()
		Expect(err).NotTo(HaveOccurred(), "not one of 10,000 messages took room")
	})

	It("says ENOBUFS when the receive buffer overran, and goes on", func() {
		socket = open(rtnl.EventOptions{ReceiveBuffer: 1})
		for range 5 {
			addVeth("cali0", "peer0")
			link, err := handle.LinkByName("cali0")
			Expect(err).NotTo(HaveOccurred())
			Expect(handle.LinkDel(link)).To(Succeed())
		}
		messages, err := socket.Receive()
		Expect(err).To(MatchError(unix.ENOBUFS))
		Expect(messages).To(BeEmpty())
		before, err := socket.Drain()
		Expect(err).NotTo(HaveOccurred())
		Expect(before).NotTo(BeEmpty(), "what was queued before the loss")
		Expect(dump(rtnl.DumpLinks)).To(ConsistOf(HaveField("Name", "lo")))
	})

	It("drains to the end even when the loss is noticed while draining", func() {
		socket = open(rtnl.EventOptions{ReceiveBuffer: 1})
		for range 5 {
			addVeth("cali0", "peer0")
			link, err := handle.LinkByName("cali0")
			Expect(err).NotTo(HaveOccurred())
			Expect(handle.LinkDel(link)).To(Succeed())
		}
		messages, err := socket.Drain()
		Expect(err).To(MatchError(unix.ENOBUFS))
		Expect(messages).NotTo(BeEmpty())
		Expect(socket.Drain()).To(BeEmpty())
	})

	It("refuses a second dump with EBUSY until the first one's end was received", func() {
		_, err := socket.RequestDump(rtnl.DumpLinks)
		Expect(err).NotTo(HaveOccurred())
		_, err = socket.RequestDump(rtnl.DumpLocalIPv4)
		Expect(err).To(MatchError(unix.EBUSY))
		drain()
		Expect(dump(rtnl.DumpLocalIPv4)).To(BeEmpty())
	})

	It("refuses a dump that it does not know", func() {
		_, err := socket.RequestDump(rtnl.Dump(99))
		Expect(err).To(MatchError(unix.EINVAL))
	})

	It("unblocks Receive on Close", func() {
		result := make(chan error, 1)
		go func() {
			_, err := socket.Receive()
			result <- err
		}()
		Consistently(result, 20*time.Millisecond).ShouldNot(Receive())
		Expect(socket.Close()).To(Succeed())
		Eventually(result).Should(Receive(MatchError(os.ErrClosed)))
		_, err := socket.RequestDump(rtnl.DumpLinks)
		Expect(err).To(MatchError(os.ErrClosed))
		_, err = socket.Drain()
		Expect(err).To(MatchError(os.ErrClosed))
		Expect(socket.Close()).To(Succeed())
	})
})

// routeLine is a line for ip -batch that adds the i-th of many routes.
func routeLine(i int, table string) string {
	return fmt.Sprintf("route add 10.%d.%d.0/24 dev cali0 table %s\n", i>>8, i&255, table)
}
