package rtnl

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// RouteFilter narrows a dump of routes. The kernel does the filtering.
type RouteFilter struct {
	// Family is unix.AF_INET or unix.AF_INET6.
	Family int
	// Table is the routing table's number; it must be set.
	Table int
	// IfIndex, where not zero, keeps only routes through that interface.
	IfIndex int
}

// RouteOp is one change to a routing table.
//
// Of Route these fields go to the kernel: Family, Table, Dst (nil is the default
// route), Tos, Priority, Type (zero is unicast), Scope, Protocol, Flags (of the
// next hop), LinkIndex, Gw, Src, MTU and MultiPath (of which LinkIndex, Gw, Flags
// and Hops, the weight less one). Others must be zero.
type RouteOp struct {
	// Delete removes the route instead of adding or replacing it: the first one
	// that agrees in Dst, Tos, Type and Scope, and in whatever is set of Priority,
	// Protocol, LinkIndex, Gw, Src and MTU; IPv6 ignores Type, Scope, Src and MTU.
	// MultiPath is not consulted. ESRCH: there is no such route.
	Delete bool
	// Exclusive adds the route only where the table has none of the same
	// destination, TOS and priority, and fails with EEXIST where it has. Without
	// it the route replaces that one, whatever it is.
	Exclusive bool
	// Route is what to add or delete. Table and Family must be set.
	Route netlink.Route
}

// routeBatchMessages bounds the messages of one system call. The kernel answers
// each failed one with a message of its own while the call lasts, and those take
// about 1.3 KiB each of a receive buffer that by default has 208 KiB.
const routeBatchMessages = 128

// routeBatchBytes bounds the size of one system call: multi-path routes can be
// long, and the send buffer has 208 KiB as well.
const routeBatchBytes = 64 << 10

// RouteEach dumps the routes that pass the filter and calls fn for each, but for
// IPv6 routes of certain sources only (ip-route(8) from), which a Route cannot
// say. The route and all it points to belong to RouteEach and are valid only during the
// call; fn must not use the Handle.
//
// The first error that fn returns ends the calls and is returned as it is. A
// table that does not exist has no routes, and neither has an interface that does
// not exist, nor a family that the kernel lacks: no error. EINTR says that the table changed during the dump, so that
// fn may have missed routes or seen some twice; EBUSY that another dump runs on
// this Handle.
func (h *Handle) RouteEach(filter RouteFilter, fn func(*netlink.Route) error) error {
	h.raw.Socket.Lock()
	defer h.raw.Socket.Unlock()
	seq := atomic.AddUint32(&h.raw.Seq, 1)
	h.routeIO.init()
	h.routeIO.send = appendRouteDump(h.routeIO.send[:0], seq, filter)
	err := h.routeIO.transmit(h)
	if err == nil {
		err = h.receiveRoutes(seq, filter, fn)
	}
	var fromCallback callbackError
	switch {
	case errors.As(err, &fromCallback):
		return fromCallback.error
	case isAny(err, unix.ENOENT, unix.ENODEV):
		return nil
	}
	return opError("list routes", fmt.Sprintf("table %d", filter.Table), err)
}

// callbackError marks an error of RouteEach's caller.
type callbackError struct{ error }

func (h *Handle) receiveRoutes(seq uint32, filter RouteFilter, fn func(*netlink.Route) error) error {
	return h.receiveDump(seq, func(kind uint16, body []byte) error {
		if kind != unix.RTM_NEWROUTE || forSource(body) {
			return nil
		}
		route, err := h.routeIO.decoder.decode(body)
		// Asked for a family that it does not have, the kernel lists those of all others
		// (rtnetlink_rcv_msg falls back to rtnl_dump_all).
		if err != nil || route.Family != filter.Family || route.Table != filter.Table || route.Flags&unix.RTM_F_CLONED != 0 {
			return err
		}
		if err := fn(route); err != nil {
			return callbackError{err}
		}
		return nil
	})
}

// receiveDump reads the answer to the dump request of that number and calls fn
// for each message, until fn fails. It returns fn's error, else the kernel's, else
// EINTR where the dump was interrupted. The answer is always read to its end: the
// kernel runs one dump at a time on a socket.
func (h *Handle) receiveDump(seq uint32, fn func(kind uint16, body []byte) error) error {
	var failed error
	interrupted, done := false, false
	take := func(m *netlinkMessage) {
		if m.seq != seq || done {
			return
		}
		interrupted = interrupted || m.flags&unix.NLM_F_DUMP_INTR != 0
		if done = m.kind == unix.NLMSG_DONE || m.kind == unix.NLMSG_ERROR; done {
			failed = cmp.Or(failed, m.errno())
		} else if failed == nil {
			failed = fn(m.kind, m.data)
		}
	}
	for !done {
		if err := h.routeIO.receive(h, take); err != nil {
			return err
		}
	}
	if failed == nil && interrupted {
		return unix.EINTR
	}
	return failed
}

// RouteBatch makes the changes in order, many per system call. It returns nil
// where all succeeded, else one entry per operation: its own error, or nil. One
// operation's failure stops no other.
//
// An error of the socket itself (a timeout, ENOBUFS) is given to every operation
// whose outcome it leaves unknown; the kernel may have carried it out.
func (h *Handle) RouteBatch(ops []RouteOp) []error {
	h.raw.Socket.Lock()
	defer h.raw.Socket.Unlock()
	h.routeIO.init()
	var errs []error
	fail := func(i int, err error) {
		if errs == nil {
			errs = make([]error, len(ops))
		}
		errs[i] = opError(routeVerb(ops[i].Delete), routeObject(&ops[i].Route), err)
	}
	for start := 0; start < len(ops); {
		end := h.encodeChunk(ops, start, fail)
		h.sendChunk(ops, start, end, fail)
		start = end
	}
	return errs
}

// encodeChunk fills the send buffer with as many operations as fit, and returns
// the index behind the last of them. The sequence numbers are consecutive.
func (h *Handle) encodeChunk(ops []RouteOp, start int, fail func(int, error)) int {
	io := &h.routeIO
	io.send, io.indexes = io.send[:0], io.indexes[:0]
	io.firstSeq = atomic.LoadUint32(&h.raw.Seq) + 1
	end := start
	for ; end < len(ops) && len(io.indexes) < routeBatchMessages && len(io.send) < routeBatchBytes; end++ {
		before := len(io.send)
		message, err := appendRouteOp(io.send, io.firstSeq+uint32(len(io.indexes)), &ops[end])
		if err != nil {
			fail(end, err)
			continue
		}
		io.send = message
		io.lastMessage = before
		io.indexes = append(io.indexes, end)
	}
	if len(io.indexes) > 0 {
		// The kernel always answers a message that fails, in order: asking for an
		// acknowledgement of the last one is enough to know about all.
		flags := io.send[io.lastMessage+6:]
		binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|unix.NLM_F_ACK)
	}
	atomic.AddUint32(&h.raw.Seq, uint32(len(io.indexes)))
	return end
}

func (h *Handle) sendChunk(ops []RouteOp, start, end int, fail func(int, error)) {
	io := &h.routeIO
	count := uint32(len(io.indexes))
	if count == 0 {
		return
	}
	if count == 1 {
		op := &ops[io.indexes[0]]
		h.beforeWrite(routeVerb(op.Delete) + " " + routeObject(&op.Route))
	} else {
		h.beforeWrite(fmt.Sprintf("change %d routes", count))
	}
	next := uint32(0) // every operation before it is known to be done
	err := io.transmit(h)
	for err == nil && next < count {
		err = io.receive(h, func(m *netlinkMessage) {
			n := m.seq - io.firstSeq
			if m.kind != unix.NLMSG_ERROR || n < next || n >= count {
				return
			}
			if errno := m.errno(); errno != nil {
				fail(io.indexes[n], errno)
			}
			next = n + 1
		})
	}
	for ; err != nil && next < count; next++ {
		fail(io.indexes[next], err)
	}
}

func routeVerb(del bool) string {
	if del {
		return "delete route"
	}
	return "set route"
}

func routeObject(r *netlink.Route) string {
	dst := "default"
	if r.Dst != nil {
		dst = r.Dst.String()
	}
	if r.LinkIndex == 0 {
		return fmt.Sprintf("%s (table %d)", dst, r.Table)
	}
	return fmt.Sprintf("%s (ifindex %d, table %d)", dst, r.LinkIndex, r.Table)
}

// routeIO is what RouteEach and RouteBatch keep between calls so as not to
// allocate. The lock of the socket guards it.
type routeIO struct {
	decoder routeDecoder
	buffer  []byte // what was received
	message netlinkMessage

	// The messages to send. indexes[i] is the operation of sequence number
	// firstSeq+i, lastMessage where the last one starts.
	send        []byte
	indexes     []int
	firstSeq    uint32
	lastMessage int
}

func (io *routeIO) init() {
	if io.buffer == nil {
		// The kernel fills dump messages up to 32 KiB (netlink_dump), where the
		// receiver has shown that it takes as much.
		io.buffer = make([]byte, 64<<10)
	}
}

// transmit sends the send buffer.
func (io *routeIO) transmit(h *Handle) error {
	timeout, _ := h.raw.Socket.GetTimeouts()
	return retryIO(h.raw.Socket.GetFd(), unix.POLLOUT, timeout, func(fd int) error {
		return unix.Sendto(fd, io.send, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	})
}

// receive waits for one datagram and calls fn for each message in it.
func (io *routeIO) receive(h *Handle, fn func(*netlinkMessage)) error {
	_, timeout := h.raw.Socket.GetTimeouts()
	var size int
	err := retryIO(h.raw.Socket.GetFd(), unix.POLLIN, timeout, func(fd int) (err error) {
		size, _, err = unix.Recvfrom(fd, io.buffer, 0)
		return err
	})
	if err != nil {
		return err
	}
	for rest := io.buffer[:size]; len(rest) >= unix.NLMSG_HDRLEN; {
		length := int(binary.NativeEndian.Uint32(rest))
		if length < unix.NLMSG_HDRLEN || length > len(rest) {
			return unix.EBADMSG
		}
		io.message = netlinkMessage{
			kind:  binary.NativeEndian.Uint16(rest[4:]),
			flags: binary.NativeEndian.Uint16(rest[6:]),
			seq:   binary.NativeEndian.Uint32(rest[8:]),
			data:  rest[unix.NLMSG_HDRLEN:length],
		}
		fn(&io.message)
		rest = rest[min(align4(length), len(rest)):]
	}
	return nil
}

// retryIO makes a system call on a non-blocking descriptor until it does not ask
// to be made again, waiting at most timeout (zero: for ever) for readiness. Past
// that it fails with EAGAIN, as the netlink library does.
func retryIO(fd int, events int16, timeout time.Duration, call func(fd int) error) error {
	milliseconds := -1
	if timeout > 0 {
		milliseconds = int(timeout.Milliseconds())
	}
	for {
		err := call(fd)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EAGAIN):
			return err
		}
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, milliseconds)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if err == nil && ready == 0 {
			return unix.EAGAIN
		}
	}
}

// netlinkMessage is a received message; data is valid until the next receive.
type netlinkMessage struct {
	kind, flags uint16
	seq         uint32
	data        []byte
}

// errno returns what a DONE or ERROR message says, with the kernel's explanation
// where there is one; nil is success.
func (m *netlinkMessage) errno() error {
	if len(m.data) < 4 {
		return nil // an old-style DONE
	}
	code := -int32(binary.NativeEndian.Uint32(m.data))
	if code == 0 {
		return nil
	}
	errno := syscall.Errno(code)
	if text := m.extendedAck(); text != "" {
		return fmt.Errorf("%w: %s", errno, text)
	}
	return errno
}

// extendedAck returns NLMSGERR_ATTR_MSG. In an ERROR message the attributes come
// after the errno and the request (of which only the header is there where the
// kernel says that it capped it), in a DONE message after the errno.
func (m *netlinkMessage) extendedAck() string {
	const nlmsgErrAttrMsg = 1
	if m.flags&unix.NLM_F_ACK_TLVS == 0 {
		return ""
	}
	rest := m.data[4:]
	if m.kind == unix.NLMSG_ERROR {
		if len(rest) < unix.NLMSG_HDRLEN {
			return ""
		}
		echoed := unix.NLMSG_HDRLEN
		if m.flags&unix.NLM_F_CAPPED == 0 {
			echoed = int(min(binary.NativeEndian.Uint32(rest), uint32(len(rest))))
		}
		rest = rest[min(align4(echoed), len(rest)):]
	}
	for kind, value := range attributes(rest) {
		if kind == nlmsgErrAttrMsg {
			return unix.ByteSliceToString(value)
		}
	}
	return ""
}
