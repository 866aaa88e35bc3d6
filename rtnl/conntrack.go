package rtnl

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Conntrack deletes connection-tracking entries of one network namespace. It is
// safe for concurrent use; each call has a socket of its own, so that none waits
// for another. The opener owns it and must Close it.
type Conntrack struct {
	ns          *Namespace
	timeout     time.Duration
	beforeWrite func(op string)
}

// OpenConntrack opens a Conntrack. A kernel without connection tracking shows
// only in the first call's error.
func OpenConntrack(options Options) (*Conntrack, error) {
	c := &Conntrack{timeout: options.Timeout, beforeWrite: options.BeforeWrite}
	if c.timeout == 0 {
		c.timeout = DefaultTimeout
	}
	if c.beforeWrite == nil {
		c.beforeWrite = func(string) {}
	}
	var err error
	if options.Namespace == nil {
		c.ns, err = CurrentNamespace()
	} else {
		c.ns, err = OpenNamespace(options.Namespace.Path())
	}
	return c, err
}

// Close releases the namespace. Nothing may be called during or after it.
func (c *Conntrack) Close() error { return c.ns.Close() }

// From linux/netfilter/nfnetlink_conntrack.h and, for the filter's flags, the
// kernel's nf_internals.h.
const (
	ctMessageGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	ctMessageDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2

	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaID         = 12
	ctaZone       = 18
	ctaFilter     = 25

	ctaTupleIP = 1
	ctaIPv4Src = 1

	ctaFilterOrigFlags = 1
)

// ConntrackDelete deletes every flow that has the address as source or
// destination in either direction, translated ones included. None is no error.
func (c *Conntrack) ConntrackDelete(addr netip.Addr) error {
	addr = addr.Unmap()
	socket, err := nl.GetNetlinkSocketAt(netns.NsHandle(c.ns.FD()), netns.None(), unix.NETLINK_NETFILTER)
	if err != nil {
		return opError("open netfilter socket for", addr.String(), err)
	}
	defer socket.Close()
	timeout := unix.NsecToTimeval(c.timeout.Nanoseconds())
	if err := errors.Join(socket.SetSendTimeout(&timeout), socket.SetReceiveTimeout(&timeout)); err != nil {
		return opError("set timeout of netfilter socket for", addr.String(), err)
	}
	handle := &nl.SocketHandle{Socket: socket}
	for _, dump := range flowDumps(addr) {
		flows, err := findFlows(handle, addr, dump)
		if err != nil {
			return opError("list conntrack entries of", addr.String(), err)
		}
		for _, flow := range flows {
			c.beforeWrite(fmt.Sprintf("delete conntrack entry of %s", addr))
			err := conntrackRequest(ctMessageDelete, unix.NLM_F_ACK, flow).execute(handle, nil)
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return opError("delete conntrack entry of", addr.String(), err)
			}
		}
	}
	return nil
}

// flowDumps returns the bodies of the dumps that together show every flow of an
// address.
//
// For IPv4 the kernel does the looking, one side of the flow at a time (since
// 5.8; an older one disregards the filter). Its filter for IPv6 lets through
// what differs from the address and holds back what equals it
// (ctnetlink_filter_match_tuple, in 6.18 still): there one dump shows all.
func flowDumps(addr netip.Addr) [][]byte {
	if addr.Is6() {
		return [][]byte{nfGenMsg(unix.AF_INET6)}
	}
	var dumps [][]byte
	for _, tuple := range []uint16{ctaTupleOrig, ctaTupleReply} {
		for end := range uint16(2) { // source, destination
			body, tupleDone := openAttribute(nfGenMsg(unix.AF_INET), tuple|unix.NLA_F_NESTED)
			body, ipDone := openAttribute(body, ctaTupleIP|unix.NLA_F_NESTED)
			body = tupleDone(ipDone(appendAttribute(body, ctaIPv4Src+end, addr.AsSlice())))
			body, filterDone := openAttribute(body, ctaFilter|unix.NLA_F_NESTED)
			dumps = append(dumps, filterDone(appendUint32(body, ctaFilterOrigFlags+tuple-ctaTupleOrig, 1<<end)))
		}
	}
	return dumps
}

// findFlows makes a dump and returns the body of a delete request for each flow
// of the address.
func findFlows(handle *nl.SocketHandle, addr netip.Addr, dump []byte) ([][]byte, error) {
	var flows [][]byte
	err := conntrackRequest(ctMessageGet, unix.NLM_F_DUMP, dump).execute(handle, func(message []byte) bool {
		if flow, ok := matchFlow(message, dump[0], addr); ok {
			flows = append(flows, flow)
		}
		return true
	})
	if errors.Is(err, unix.EINTR) {
		err = nil // flows came and went, as they do; what was there all the time is not missed
	}
	return flows, err
}

func matchFlow(message []byte, family byte, addr netip.Addr) (deleteBody []byte, ok bool) {
	if len(message) < nl.SizeofNfgenmsg || message[0] != family {
		return nil, false
	}
	for kind, value := range attributes(message[nl.SizeofNfgenmsg:]) {
		if (kind == ctaTupleOrig || kind == ctaTupleReply) && tupleHas(value, addr) {
			ok = true
		}
	}
	if !ok {
		return nil, false
	}
	deleteBody = nfGenMsg(family)
	for kind, value := range attributes(message[nl.SizeofNfgenmsg:]) {
		switch kind {
		case ctaTupleOrig:
			deleteBody = appendAttribute(deleteBody, kind|unix.NLA_F_NESTED, value)
		case ctaID:
			deleteBody = appendAttribute(deleteBody, kind, value)
		case ctaZone: // two bytes, and two of padding
			body, done := openAttribute(deleteBody, kind)
			deleteBody = append(done(append(body, value...)), 0, 0)
		}
	}
	return deleteBody, true
}

// tupleHas reports whether the address is the tuple's source or destination.
func tupleHas(tuple []byte, addr netip.Addr) bool {
	for kind, value := range attributes(tuple) {
		if kind != ctaTupleIP {
			continue
		}
		for _, value := range attributes(value) {
			if found, ok := netip.AddrFromSlice(value); ok && found == addr {
				return true
			}
		}
	}
	return false
}

func nfGenMsg(family byte) []byte { return []byte{family, unix.NFNETLINK_V0, 0, 0} }

// rawRequest is a request whose body is ready.
type rawRequest struct{ *nl.NetlinkRequest }

func conntrackRequest(kind, flags int, body []byte) rawRequest {
	req := nl.NewNetlinkRequest(kind, flags)
	req.AddRawData(body)
	return rawRequest{req}
}

func (r rawRequest) execute(handle *nl.SocketHandle, fn func(message []byte) bool) error {
	if fn == nil {
		fn = func([]byte) bool { return true }
	}
	r.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: handle}
	return r.ExecuteIter(unix.NETLINK_NETFILTER, 0, fn)
}
