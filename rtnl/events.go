package rtnl

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// DefaultReceiveBuffer is the receive buffer of an EventSocket where
// EventOptions leaves it at zero: room for several thousand link messages, which
// the kernel accounts with 1.5 to 4 KiB each.
const DefaultReceiveBuffer = 8 << 20

// datagramSize is the longest datagram that is received whole. The kernel fills
// dump datagrams up to 32 KiB (netlink_recvmsg's max_recvmsg_len); an event is one
// message, whose attributes are bounded by 64 KiB.
const datagramSize = 64 << 10

// EventOptions says where and how an EventSocket is opened. Of the embedded
// Options only Namespace matters: an event socket waits for as long as the kernel
// is silent, and never writes.
type EventOptions struct {
	Options

	// ReceiveBuffer is the size of the socket's receive buffer in bytes; zero means
	// DefaultReceiveBuffer. Without CAP_NET_ADMIN the kernel silently limits it to
	// net.core.rmem_max.
	ReceiveBuffer int
}

// EventSocket is the kernel's link and local-address events and dumps of the
// same on one socket, and therefore in one order.
//
// One goroutine at a time may be in Receive or Drain; RequestDump and Close may
// be called from any goroutine meanwhile. The opener owns it and must Close it.
type EventSocket struct {
	file *os.File
	conn syscall.RawConn

	receiving sync.Mutex // held while buffer is in use
	buffer    []byte

	mu      sync.Mutex // guards replies and lastSeq
	replies replies
	lastSeq uint32
}

// OpenEvents opens an EventSocket. Events are queued from then on. It needs no
// privilege.
func OpenEvents(options EventOptions) (*EventSocket, error) {
	var s *EventSocket
	open := func() (err error) {
		s, err = openEvents(options)
		return err
	}
	if options.Namespace == nil {
		err := open()
		return s, err
	}
	err := options.Namespace.Do(open)
	return s, err
}

// openEvents opens the socket in the calling thread's namespace. Filter and
// buffer are in place before bind joins the groups, so that nothing slips past
// them.
func openEvents(options EventOptions) (*EventSocket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink event socket: %w", err)
	}
	// A non-blocking descriptor makes the file pollable: Close then unblocks Receive.
	s := &EventSocket{file: os.NewFile(uintptr(fd), "netlink events"), buffer: make([]byte, datagramSize)}
	if err := s.configure(fd, options); err != nil {
		s.file.Close()
		return nil, fmt.Errorf("set up netlink event socket: %w", err)
	}
	return s, nil
}

func (s *EventSocket) configure(fd int, options EventOptions) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1); err != nil {
		return fmt.Errorf("NETLINK_GET_STRICT_CHK: %w", err)
	}
	if err := attachFilter(fd); err != nil {
		return fmt.Errorf("attach filter: %w", err)
	}
	size := options.ReceiveBuffer
	if size == 0 {
		size = DefaultReceiveBuffer
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, size); err != nil {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, size); err != nil {
			return fmt.Errorf("receive buffer of %d bytes: %w", size, err)
		}
	}
	groups := groupMask(unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		return fmt.Errorf("join multicast groups: %w", err)
	}
	address, err := unix.Getsockname(fd)
	if err != nil {
		return fmt.Errorf("get port ID: %w", err)
	}
	s.replies.portID = address.(*unix.SockaddrNetlink).Pid
	s.conn, err = s.file.SyscallConn()
	return err
}

func groupMask(groups ...uint) (mask uint32) {
	for _, group := range groups {
		mask |= 1 << (group - 1)
	}
	return mask
}

// RequestDump asks for a dump and returns the number that its messages will
// carry as DumpSeq; it is never zero. Everything that is received later and is
// not part of the dump happened after anything received before the call. EBUSY:
// the MessageDumpDone of an earlier request has not been received yet.
func (s *EventSocket) RequestDump(dump Dump) (seq uint32, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	op := "request dump of " + dump.String()
	if s.replies.seq != 0 {
		return 0, opError(op, "", unix.EBUSY)
	}
	s.lastSeq = max(1, s.lastSeq+1) // zero would mean an event
	request, err := dumpRequest(dump, s.lastSeq)
	if err != nil {
		return 0, opError(op, "", err)
	}
	// The kernel answers from within sendto: be ready for the reply before.
	s.replies.expect(dump, s.lastSeq)
	if err := s.send(request); err != nil {
		s.replies.seq = 0
		return 0, opError(op, "", err)
	}
	return s.lastSeq, nil
}

func (s *EventSocket) send(request []byte) error {
	var sendErr error
	err := s.conn.Write(func(fd uintptr) bool {
		sendErr = unix.Sendto(int(fd), request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		return sendErr != unix.EAGAIN
	})
	runtime.KeepAlive(request)
	if err != nil {
		return os.ErrClosed
	}
	return sendErr
}

// Receive waits for messages and returns them in the kernel's order. It returns
// ENOBUFS, and no messages, where some were lost: those still queued are from
// before the loss. It returns os.ErrClosed after Close, and other errors only
// where the socket is of no further use.
func (s *EventSocket) Receive() ([]Message, error) {
	s.receiving.Lock()
	defer s.receiving.Unlock()
	for {
		messages, err := s.read(nil, true)
		if err != nil || len(messages) > 0 {
			return messages, opError("receive events", "", err)
		}
	}
}

// Drain returns what is queued now, without waiting; it returns no messages and
// no error where nothing is. Of a dump in progress it returns all of the rest.
// ENOBUFS: messages were lost, but the queue was drained to its end all the same
// and what was in it is returned.
func (s *EventSocket) Drain() ([]Message, error) {
	s.receiving.Lock()
	defer s.receiving.Unlock()
	var messages []Message
	var lost error
	for {
		var err error
		messages, err = s.read(messages, false)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return messages, opError("drain events", "", lost)
		case errors.Is(err, unix.ENOBUFS):
			lost = err
		case err != nil:
			return messages, opError("drain events", "", err)
		}
	}
}

// Close closes the socket; a Receive in progress returns os.ErrClosed. A second
// Close does nothing.
func (s *EventSocket) Close() error {
	if err := s.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close netlink event socket: %w", err)
	}
	return nil
}

// read receives one datagram and appends its messages. It waits only if told to;
// else an empty queue is EAGAIN.
func (s *EventSocket) read(messages []Message, wait bool) ([]Message, error) {
	var (
		n, flags int
		from     unix.Sockaddr
		recvErr  error
	)
	err := s.conn.Read(func(fd uintptr) bool {
		for {
			n, _, flags, from, recvErr = unix.Recvmsg(int(fd), s.buffer, nil, 0)
			if recvErr != unix.EINTR {
				return !wait || recvErr != unix.EAGAIN
			}
		}
	})
	if err != nil {
		return messages, os.ErrClosed // the only way for polling without a deadline to fail
	}
	if recvErr != nil {
		return messages, recvErr
	}
	if flags&unix.MSG_TRUNC != 0 {
		return messages, unix.ENOBUFS
	}
	if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
		return messages, nil // not the kernel: another process may not tell us about links
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.replies.parse(messages, s.buffer[:n])
}
