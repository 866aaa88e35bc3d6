package rtnl

import (
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// DefaultTimeout bounds one send or receive on a netlink socket where Options
// leaves Timeout at zero: Felix's default for netlinkTimeout.
const DefaultTimeout = 10 * time.Second

// Options says where and how a Handle or an EventSocket talks to the kernel. The
// zero value is the caller's network namespace with default settings.
type Options struct {
	// Namespace to open the socket in; nil means the calling thread's. It is only
	// used while opening and may be closed afterwards.
	Namespace *Namespace

	// Timeout bounds one send or receive; zero means DefaultTimeout. A request
	// that the kernel itself does not return from is not bounded by it.
	Timeout time.Duration

	// BeforeWrite, where set, is called just before every request that changes
	// kernel state, with the request in words, such as "add link bwcali6514ff3bb".
	// It is called on the goroutine that makes the request. It exists for tracing
	// and for tests that stop a process between two writes.
	BeforeWrite func(op string)
}

// Handle makes requests to the kernel over NETLINK_ROUTE sockets of its own.
//
// It is safe for concurrent use, but requests are serialised: where one must not
// wait for another, open two Handles. The opener owns it and must Close it.
type Handle struct {
	nl          *netlink.Handle
	raw         *nl.SocketHandle // for requests that netlink.Handle has no method for
	beforeWrite func(op string)
	routeIO     routeIO // buffers; the lock of raw's socket guards them
}

// Open opens a Handle. It fails with EPERM-like errors only later, at the first
// write, where the caller lacks CAP_NET_ADMIN: reading needs no privilege.
func Open(options Options) (*Handle, error) {
	ns := netns.None()
	if options.Namespace != nil {
		ns = netns.NsHandle(options.Namespace.FD())
	}
	timeout := options.Timeout
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	h := &Handle{beforeWrite: options.BeforeWrite}
	if h.beforeWrite == nil {
		h.beforeWrite = func(string) {}
	}
	var err error
	if h.nl, err = netlink.NewHandleAt(ns, unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("open netlink route socket: %w", err)
	}
	if err := h.nl.SetSocketTimeout(timeout); err != nil {
		h.nl.Close()
		return nil, fmt.Errorf("set netlink timeout %s: %w", timeout, err)
	}
	if err := h.nl.SetStrictCheck(true); err != nil {
		h.nl.Close()
		return nil, fmt.Errorf("set NETLINK_GET_STRICT_CHK: %w", err)
	}
	if h.raw, err = openRaw(ns, timeout); err != nil {
		h.nl.Close()
		return nil, err
	}
	return h, nil
}

func openRaw(ns netns.NsHandle, timeout time.Duration) (*nl.SocketHandle, error) {
	socket, err := nl.GetNetlinkSocketAt(ns, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink route socket: %w", err)
	}
	timeval := unix.NsecToTimeval(timeout.Nanoseconds())
	err = errors.Join(
		socket.SetSendTimeout(&timeval),
		socket.SetReceiveTimeout(&timeval),
		socket.SetExtAck(true),
		unix.SetsockoptInt(socket.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1),
	)
	if err != nil {
		socket.Close()
		return nil, fmt.Errorf("set options of netlink route socket: %w", err)
	}
	return &nl.SocketHandle{Socket: socket}, nil
}

// Close closes the sockets. Nothing may be called during or after it.
func (h *Handle) Close() {
	h.nl.Close()
	h.raw.Close()
}

// write announces a change to BeforeWrite, makes it, and wraps its error.
func (h *Handle) write(op, object string, request func() error) error {
	h.beforeWrite(op + " " + object)
	return opError(op, object, request())
}

// execute sends a request of our own making and waits for its acknowledgement.
func (h *Handle) execute(req *nl.NetlinkRequest) error {
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: h.raw}
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}
