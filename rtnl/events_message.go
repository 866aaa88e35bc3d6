package rtnl

import (
	"fmt"
	"net/netip"
)

// Dump names one of the dumps that an EventSocket can be asked for.
type Dump uint8

// The dumps. The kernel runs one at a time on a socket: a second request before
// the first one's MessageDumpDone fails with EBUSY.
const (
	// DumpLinks dumps every link of the namespace.
	DumpLinks Dump = iota
	// DumpLocalIPv4 dumps the IPv4 routes of type local of the local table (255):
	// the addresses that this host answers to.
	DumpLocalIPv4
	// DumpLocalIPv6 is the same for IPv6.
	DumpLocalIPv6
)

// String returns what is dumped, in words.
func (d Dump) String() string {
	switch d {
	case DumpLinks:
		return "links"
	case DumpLocalIPv4:
		return "local IPv4 routes"
	case DumpLocalIPv6:
		return "local IPv6 routes"
	}
	return fmt.Sprintf("unknown kind %d", uint8(d))
}

// MessageType says what a Message tells.
type MessageType uint8

// The message types.
const (
	// MessageNewLink: the link exists and looks like this.
	MessageNewLink MessageType = iota
	// MessageDelLink: the link is gone from this namespace.
	MessageDelLink
	// MessageNewAddr: the local table has a route of type local to Addr by Index.
	MessageNewAddr
	// MessageDelAddr: it no longer has.
	MessageDelAddr
	// MessageDumpDone: the dump of DumpSeq has ended, with Err where it failed.
	MessageDumpDone
)

// Message is one thing that the kernel said, parsed.
type Message struct {
	Type MessageType

	// DumpSeq is the number that RequestDump returned, where the message belongs to
	// the answer to that request; zero means an event.
	DumpSeq uint32

	// Index is the interface index. Unset in MessageDumpDone.
	Index int

	// Name, Flags (IFF_*), MTU (bytes; zero where the message does not tell, as
	// wireless events do not) and Kind ("veth", "ifb", …; empty for physical devices
	// and loopback) are set in link messages.
	Name  string
	Flags uint32
	MTU   int
	Kind  string

	// Addr is set in address messages.
	Addr netip.Addr

	// Err is set in MessageDumpDone: EINTR where the kernel said that what it
	// dumped had changed meanwhile (NLM_F_DUMP_INTR), else the errno it ended the
	// dump with; nil where the dump is complete.
	Err error
}
