package rtnl

import (
	"encoding/binary"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func attribute(kind uint16, value ...byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	return append(b, make([]byte, align(len(b))-len(b))...)
}

func u32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func linkBody(family byte, index int32, flags uint32, attributes ...[]byte) []byte {
	b := []byte{family, 0, 0, 0}
	b = append(b, u32(uint32(index))...)
	b = append(b, u32(flags)...)
	b = append(b, u32(0)...)
	return append(b, slices.Concat(attributes...)...)
}

func routeBody(family, length, table, kind byte, attributes ...[]byte) []byte {
	b := []byte{family, length, 0, 0, table, 0, 0, kind, 0, 0, 0, 0}
	return append(b, slices.Concat(attributes...)...)
}

func message(messageType, flags uint16, seq, pid uint32, body []byte) []byte {
	b := u32(uint32(16 + len(body)))
	b = binary.NativeEndian.AppendUint16(b, messageType)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = append(b, u32(seq)...)
	b = append(b, u32(pid)...)
	b = append(b, body...)
	return append(b, make([]byte, align(len(b))-len(b))...)
}

func name(s string) []byte { return attribute(unix.IFLA_IFNAME, append([]byte(s), 0)...) }

var (
	v4 = []byte{10, 0, 0, 1}
	v6 = netip.MustParseAddr("fd00::1").AsSlice()
)

type parseCase struct {
	rule string
	kind uint16
	body []byte
	want Message
	ok   bool
}

func parseCases() []parseCase {
	linkInfo := attribute(unix.IFLA_LINKINFO, attribute(unix.IFLA_INFO_KIND, 'i', 'f', 'b', 0)...)
	local := func(attributes ...[]byte) []byte {
		return routeBody(unix.AF_INET, 32, unix.RT_TABLE_LOCAL, unix.RTN_LOCAL, attributes...)
	}
	dst, oif := attribute(unix.RTA_DST, v4...), attribute(unix.RTA_OIF, u32(7)...)
	return []parseCase{
		{"a link with all we want", unix.RTM_NEWLINK,
			linkBody(0, 5, unix.IFF_UP, name("eth0"), attribute(unix.IFLA_MTU, u32(1500)...), linkInfo),
			Message{Type: MessageNewLink, Index: 5, Name: "eth0", Flags: unix.IFF_UP, MTU: 1500, Kind: "ifb"}, true},
		{"a new link needs a name", unix.RTM_NEWLINK, linkBody(0, 5, 0), Message{}, false},
		{"a deleted link does not", unix.RTM_DELLINK, linkBody(0, 5, 0), Message{Type: MessageDelLink, Index: 5}, true},
		{"a bridge port's end is not the link's", unix.RTM_DELLINK, linkBody(unix.AF_BRIDGE, 5, 0, name("eth0")), Message{}, false},
		{"a bridge port is not a link", unix.RTM_NEWLINK, linkBody(unix.AF_BRIDGE, 5, 0, name("eth0")), Message{}, false},
		{"no link has index 0", unix.RTM_NEWLINK, linkBody(0, 0, 0, name("eth0")), Message{}, false},
		{"no link has a negative index", unix.RTM_NEWLINK, linkBody(0, -1, 0, name("eth0")), Message{}, false},
		{"names have at most 15 bytes", unix.RTM_NEWLINK, linkBody(0, 5, 0, name("0123456789abcdef")), Message{}, false},
		{"a truncated attribute spoils the message", unix.RTM_NEWLINK, linkBody(0, 5, 0, name("eth0"), []byte{200, 0, 3, 0}), Message{}, false},
		{"a header cut short", unix.RTM_NEWLINK, linkBody(0, 5, 0)[:10], Message{}, false},
		{"an IPv4 address", unix.RTM_NEWROUTE, local(dst, oif), Message{Type: MessageNewAddr, Index: 7, Addr: netip.MustParseAddr("10.0.0.1")}, true},
		{"an IPv6 address going", unix.RTM_DELROUTE,
			routeBody(unix.AF_INET6, 128, unix.RT_TABLE_LOCAL, unix.RTN_LOCAL, attribute(unix.RTA_DST, v6...), oif),
			Message{Type: MessageDelAddr, Index: 7, Addr: netip.MustParseAddr("fd00::1")}, true},
		{"a local prefix is no address", unix.RTM_NEWROUTE, routeBody(unix.AF_INET, 8, unix.RT_TABLE_LOCAL, unix.RTN_LOCAL, dst, oif), Message{}, false},
		{"a broadcast route is no address", unix.RTM_NEWROUTE, routeBody(unix.AF_INET, 32, unix.RT_TABLE_LOCAL, unix.RTN_BROADCAST, dst, oif), Message{}, false},
		{"another table", unix.RTM_NEWROUTE, routeBody(unix.AF_INET, 32, 254, unix.RTN_LOCAL, dst, oif), Message{}, false},
		{"RTA_TABLE overrides the header's", unix.RTM_NEWROUTE, local(dst, oif, attribute(unix.RTA_TABLE, u32(1000)...)), Message{}, false},
		{"a route without interface", unix.RTM_NEWROUTE, local(dst), Message{}, false},
		{"an address of the other family", unix.RTM_NEWROUTE, local(attribute(unix.RTA_DST, v6...), oif), Message{}, false},
		{"an address of odd length", unix.RTM_NEWROUTE, local(attribute(unix.RTA_DST, 1, 2, 3), oif), Message{}, false},
		{"another type of message", unix.RTM_NEWNEIGH, linkBody(0, 5, 0, name("eth0")), Message{}, false},
	}
}

func TestParseMessage(t *testing.T) {
	for _, c := range parseCases() {
		t.Run(c.rule, func(t *testing.T) {
			got, ok := ParseMessage(c.kind, c.body)
			if ok != c.ok || ok && got != c.want {
				t.Errorf("got %+v, %v; want %+v, %v", got, ok, c.want, c.ok)
			}
		})
	}
}

func TestRepliesAreToldFromEventsByPortAndSequence(t *testing.T) {
	link := linkBody(0, 5, 0, name("eth0"))
	r := replies{portID: 100}
	r.expect(DumpLinks, 3)
	datagram := slices.Concat(
		message(unix.RTM_NEWLINK, 0, 0, 0, link),
		message(unix.RTM_NEWLINK, 0, 3, 999, link), // caused by another socket's request number 3
		message(unix.NLMSG_DONE, 0, 3, 999, u32(0)),
		message(unix.RTM_NEWLINK, unix.NLM_F_MULTI, 2, 100, link), // of an earlier dump: skipped
		message(unix.RTM_NEWLINK, unix.NLM_F_MULTI, 3, 100, link),
		message(unix.NLMSG_DONE, unix.NLM_F_MULTI, 3, 100, u32(0)),
		message(unix.RTM_NEWLINK, 0, 3, 100, link), // after the end: skipped
		message(unix.RTM_DELLINK, 0, 3, 101, link),
	)
	messages, err := r.parse(nil, datagram)
	if err != nil {
		t.Fatal(err)
	}
	var seqs []uint32
	for _, msg := range messages {
		seqs = append(seqs, msg.DumpSeq)
	}
	if want := []uint32{0, 0, 3, 3, 0}; !slices.Equal(seqs, want) {
		t.Errorf("sequence numbers %v, want %v", seqs, want)
	}
	if done := messages[3]; done.Type != MessageDumpDone || done.Err != nil {
		t.Errorf("got %+v, want the end of a complete dump", done)
	}
}

func TestDumpDoneSaysHowTheDumpEnded(t *testing.T) {
	errno := func(e unix.Errno) []byte { return u32(uint32(-int32(e))) }
	link := linkBody(0, 5, 0, name("eth0"))
	for _, c := range []struct {
		rule     string
		dump     Dump
		datagram []byte
		want     error
	}{
		{"complete", DumpLinks, message(unix.NLMSG_DONE, 0, 1, 9, u32(0)), nil},
		{"NLM_F_DUMP_INTR on an entry is EINTR", DumpLinks, slices.Concat(
			message(unix.RTM_NEWLINK, unix.NLM_F_DUMP_INTR, 1, 9, link), message(unix.NLMSG_DONE, 0, 1, 9, u32(0))), unix.EINTR},
		{"NLM_F_DUMP_INTR on an entry that we skip is EINTR", DumpLinks, slices.Concat(
			message(unix.RTM_NEWNEIGH, unix.NLM_F_DUMP_INTR, 1, 9, nil), message(unix.NLMSG_DONE, 0, 1, 9, u32(0))), unix.EINTR},
		{"NLM_F_DUMP_INTR on the end is EINTR", DumpLinks, message(unix.NLMSG_DONE, unix.NLM_F_DUMP_INTR, 1, 9, u32(0)), unix.EINTR},
		{"an errno at the end", DumpLinks, message(unix.NLMSG_DONE, 0, 1, 9, errno(unix.ENOMEM)), unix.ENOMEM},
		{"an error reply", DumpLinks, message(unix.NLMSG_ERROR, 0, 1, 9, errno(unix.EPERM)), unix.EPERM},
		{"ENOENT is an error of a link dump", DumpLinks, message(unix.NLMSG_DONE, 0, 1, 9, errno(unix.ENOENT)), unix.ENOENT},
		{"ENOENT is an empty table", DumpLocalIPv4, message(unix.NLMSG_DONE, 0, 1, 9, errno(unix.ENOENT)), nil},
		{"a kernel without IPv6 has no IPv6 addresses", DumpLocalIPv6, message(unix.NLMSG_ERROR, 0, 1, 9, errno(unix.EOPNOTSUPP)), nil},
	} {
		t.Run(c.rule, func(t *testing.T) {
			r := replies{portID: 9}
			r.expect(c.dump, 1)
			messages, err := r.parse(nil, c.datagram)
			if err != nil || len(messages) == 0 {
				t.Fatalf("got %v, %v", messages, err)
			}
			done := messages[len(messages)-1]
			if done.Type != MessageDumpDone || done.DumpSeq != 1 {
				t.Errorf("got %+v, want the dump's end", done)
			}
			if c.want == nil && done.Err != nil || c.want != nil && !isAny(done.Err, c.want.(unix.Errno)) {
				t.Errorf("got error %v, want %v", done.Err, c.want)
			}
			if r.seq != 0 {
				t.Error("the dump is still outstanding")
			}
		})
	}
}

func TestADatagramThatBreaksOffIsALoss(t *testing.T) {
	whole := message(unix.RTM_NEWLINK, 0, 0, 0, linkBody(0, 5, 0, name("eth0")))
	for _, tail := range [][]byte{{1}, make([]byte, 16), whole[:len(whole)-1]} {
		r := replies{}
		messages, err := r.parse(nil, slices.Concat(whole, tail))
		if err != unix.ENOBUFS || len(messages) != 1 {
			t.Errorf("tail %x: got %d messages, %v; want 1, ENOBUFS", tail, len(messages), err)
		}
	}
}

// FuzzParseMessage: whatever bytes come, parsing ends without a panic, and what
// it accepts is what the layers above rely on. testdata holds messages as a
// kernel sent them.
func FuzzParseMessage(f *testing.F) {
	for _, c := range parseCases() {
		f.Add(message(c.kind, 0, 0, 0, c.body))
	}
	f.Add(message(unix.NLMSG_DONE, unix.NLM_F_DUMP_INTR, 1, 9, u32(0)))
	f.Add(message(unix.NLMSG_ERROR, 0, 1, 9, nil))
	f.Fuzz(func(t *testing.T, datagram []byte) {
		r := replies{portID: 9}
		r.expect(DumpLinks, 1)
		original := slices.Clone(datagram)
		messages, err := r.parse(nil, datagram)
		if err != nil && err != unix.ENOBUFS {
			t.Errorf("unexpected error %v", err)
		}
		if !reflect.DeepEqual(original, datagram) {
			t.Error("the input was changed")
		}
		for _, msg := range messages {
			checkMessage(t, msg)
		}
	})
}

func checkMessage(t *testing.T, msg Message) {
	switch msg.Type {
	case MessageNewLink, MessageDelLink:
		if msg.Index <= 0 || len(msg.Name) >= unix.IFNAMSIZ || msg.MTU < 0 {
			t.Errorf("impossible link %+v", msg)
		}
		if msg.Type == MessageNewLink && msg.Name == "" {
			t.Errorf("link without a name: %+v", msg)
		}
	case MessageNewAddr, MessageDelAddr:
		if msg.Index <= 0 || !msg.Addr.IsValid() || msg.Addr.Zone() != "" {
			t.Errorf("impossible address %+v", msg)
		}
	case MessageDumpDone:
		if msg.DumpSeq == 0 {
			t.Errorf("an end of no dump: %+v", msg)
		}
	default:
		t.Errorf("unknown type: %+v", msg)
	}
}
