package rtnl

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// replies tells the answers to our dump requests from events.
type replies struct {
	portID uint32 // of our socket

	dump        Dump
	seq         uint32 // of the outstanding request; zero: none
	interrupted bool   // a message of the dump had NLM_F_DUMP_INTR
}

// expect takes note of a request that is about to be sent.
func (r *replies) expect(dump Dump, seq uint32) {
	r.dump, r.seq, r.interrupted = dump, seq, false
}

// parse appends the messages of one datagram. Messages of other types, and those
// that make no sense, are skipped; ENOBUFS means that the datagram broke off in
// the middle, so that messages are missing.
func (r *replies) parse(messages []Message, datagram []byte) ([]Message, error) {
	for len(datagram) > 0 {
		header, body, rest, ok := splitMessage(datagram)
		if !ok {
			return messages, unix.ENOBUFS
		}
		datagram = rest
		// A notification may carry port ID and sequence number of the request that
		// caused it. Port IDs are unique and nothing but dumps is requested on this
		// socket, so our port ID marks replies, and only those.
		ours := header.Pid == r.portID && r.portID != 0
		if ours && (header.Seq != r.seq || r.seq == 0) {
			// Of a dump that is over for us: the kernel refuses one with ENOBUFS when the
			// receive buffer is full, but begins it all the same (__netlink_dump_start).
			continue
		}
		if ours && header.Flags&unix.NLM_F_DUMP_INTR != 0 {
			r.interrupted = true
		}
		switch header.Type {
		case unix.NLMSG_DONE, unix.NLMSG_ERROR:
			if ours {
				messages = append(messages, r.done(body))
			}
			continue
		}
		msg, ok := ParseMessage(header.Type, body)
		if !ok {
			continue
		}
		if ours {
			msg.DumpSeq = r.seq
		}
		messages = append(messages, msg)
	}
	return messages, nil
}

// done ends the outstanding dump. Both NLMSG_DONE and NLMSG_ERROR begin with a
// negative errno, or zero.
func (r *replies) done(body []byte) Message {
	msg := Message{Type: MessageDumpDone, DumpSeq: r.seq}
	if len(body) >= 4 {
		if errno := int32(binary.NativeEndian.Uint32(body)); errno < 0 {
			msg.Err = opError("dump "+r.dump.String(), "", unix.Errno(-errno))
		}
	}
	// In strict mode a table that no route has created yet is ENOENT; a kernel
	// without IPv6 has no routes of that family either.
	if r.dump != DumpLinks && isAny(msg.Err, unix.ENOENT, unix.EAFNOSUPPORT, unix.EOPNOTSUPP) {
		msg.Err = nil
	}
	if r.interrupted {
		msg.Err = opError("dump "+r.dump.String(), "", unix.EINTR)
	}
	r.seq = 0
	return msg
}

// splitMessage cuts the first message off a datagram.
func splitMessage(b []byte) (header unix.NlMsghdr, body, rest []byte, ok bool) {
	if len(b) < unix.SizeofNlMsghdr {
		return header, nil, nil, false
	}
	header = unix.NlMsghdr{
		Len:   binary.NativeEndian.Uint32(b[0:]),
		Type:  binary.NativeEndian.Uint16(b[4:]),
		Flags: binary.NativeEndian.Uint16(b[6:]),
		Seq:   binary.NativeEndian.Uint32(b[8:]),
		Pid:   binary.NativeEndian.Uint32(b[12:]),
	}
	if header.Len < unix.SizeofNlMsghdr || uint64(header.Len) > uint64(len(b)) {
		return header, nil, nil, false
	}
	length := int(header.Len)
	return header, b[unix.SizeofNlMsghdr:length], b[min(align(length), len(b)):], true
}

// align rounds up to the four bytes that netlink messages and attributes are
// aligned to.
func align(length int) int { return (length + 3) &^ 3 }

// ParseMessage parses one rtnetlink message, given its type (nlmsg_type) and
// what follows the netlink header. It reports false for messages that tell
// nothing about links or local addresses, and for malformed ones; it is safe on
// any input. The result's DumpSeq is zero.
func ParseMessage(messageType uint16, body []byte) (Message, bool) {
	switch messageType {
	case unix.RTM_NEWLINK:
		msg, ok := parseLink(body)
		msg.Type = MessageNewLink
		return msg, ok && msg.Name != ""
	case unix.RTM_DELLINK:
		msg, ok := parseLink(body)
		msg.Type = MessageDelLink
		return msg, ok
	case unix.RTM_NEWROUTE:
		msg, ok := parseLocalRoute(body)
		msg.Type = MessageNewAddr
		return msg, ok
	case unix.RTM_DELROUTE:
		msg, ok := parseLocalRoute(body)
		msg.Type = MessageDelAddr
		return msg, ok
	}
	return Message{}, false
}

// parseLink parses a struct ifinfomsg and its attributes.
func parseLink(body []byte) (msg Message, ok bool) {
	if len(body) < unix.SizeofIfInfomsg {
		return msg, false
	}
	// Other families speak about a link's part in a protocol: AF_BRIDGE sends
	// RTM_DELLINK for a port that leaves its bridge and lives on.
	if body[0] != unix.AF_UNSPEC {
		return msg, false
	}
	msg.Index = int(int32(binary.NativeEndian.Uint32(body[4:])))
	msg.Flags = binary.NativeEndian.Uint32(body[8:])
	ok = eachAttribute(body[unix.SizeofIfInfomsg:], func(kind uint16, value []byte) {
		switch kind {
		case unix.IFLA_IFNAME:
			msg.Name = zeroTerminated(value)
		case unix.IFLA_MTU:
			if len(value) == 4 {
				msg.MTU = int(int32(binary.NativeEndian.Uint32(value)))
			}
		case unix.IFLA_LINKINFO:
			eachAttribute(value, func(kind uint16, value []byte) {
				if kind == unix.IFLA_INFO_KIND {
					msg.Kind = zeroTerminated(value)
				}
			})
		}
	})
	return msg, ok && msg.Index > 0 && len(msg.Name) < unix.IFNAMSIZ && msg.MTU >= 0
}

// parseLocalRoute parses a struct rtmsg and its attributes. It reports false
// unless they describe a route of type local in the local table to one address.
func parseLocalRoute(body []byte) (msg Message, ok bool) {
	if len(body) < unix.SizeofRtMsg {
		return msg, false
	}
	family, length, table, kind := body[0], body[1], uint32(body[4]), body[7]
	ok = eachAttribute(body[unix.SizeofRtMsg:], func(kind uint16, value []byte) {
		switch kind {
		case unix.RTA_DST:
			msg.Addr, _ = netip.AddrFromSlice(value)
		case unix.RTA_OIF:
			if len(value) == 4 {
				msg.Index = int(int32(binary.NativeEndian.Uint32(value)))
			}
		case unix.RTA_TABLE:
			if len(value) == 4 {
				table = binary.NativeEndian.Uint32(value)
			}
		}
	})
	switch {
	case !ok || msg.Index <= 0 || table != unix.RT_TABLE_LOCAL || kind != unix.RTN_LOCAL:
		return msg, false
	case family == unix.AF_INET:
		return msg, msg.Addr.Is4() && length == 32
	case family == unix.AF_INET6:
		return msg, msg.Addr.Is6() && length == 128
	}
	return msg, false
}

// attributeTypeMask removes NLA_F_NESTED and NLA_F_NET_BYTEORDER from nla_type.
const attributeTypeMask = 0x3fff

// eachAttribute calls fn for each attribute of b and reports whether b was well
// formed.
func eachAttribute(b []byte, fn func(kind uint16, value []byte)) bool {
	for len(b) >= unix.SizeofRtAttr {
		length := int(binary.NativeEndian.Uint16(b))
		if length < unix.SizeofRtAttr || length > len(b) {
			return false
		}
		fn(binary.NativeEndian.Uint16(b[2:])&attributeTypeMask, b[unix.SizeofRtAttr:length])
		b = b[min(align(length), len(b)):]
	}
	return true
}

func zeroTerminated(b []byte) string {
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(text)
}

// extFilterSkipStats is RTEXT_FILTER_SKIP_STATS of linux/rtnetlink.h: leave out
// IFLA_STATS and IFLA_STATS64.
const extFilterSkipStats = 1 << 3

// dumpRequest builds the request for a dump, in strict form.
func dumpRequest(dump Dump, seq uint32) ([]byte, error) {
	switch dump {
	case DumpLinks:
		// struct ifinfomsg, all zero, then IFLA_EXT_MASK.
		b := requestHeader(unix.RTM_GETLINK, seq, unix.SizeofIfInfomsg+8)
		b = append(b, make([]byte, unix.SizeofIfInfomsg)...)
		b = binary.NativeEndian.AppendUint16(b, 8)
		b = binary.NativeEndian.AppendUint16(b, unix.IFLA_EXT_MASK)
		return binary.NativeEndian.AppendUint32(b, extFilterSkipStats), nil
	case DumpLocalIPv4, DumpLocalIPv6:
		route := [unix.SizeofRtMsg]byte{0: unix.AF_INET, 4: unix.RT_TABLE_LOCAL, 7: unix.RTN_LOCAL}
		if dump == DumpLocalIPv6 {
			route[0] = unix.AF_INET6
		}
		return append(requestHeader(unix.RTM_GETROUTE, seq, len(route)), route[:]...), nil
	}
	return nil, unix.EINVAL
}

func requestHeader(messageType uint16, seq uint32, length int) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+length))
	b = binary.NativeEndian.AppendUint16(b, messageType)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	b = binary.NativeEndian.AppendUint32(b, seq)
	return binary.NativeEndian.AppendUint32(b, 0) // port ID: the kernel fills it in
}
