package mocks

import (
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/rtnl"
)

// EventOptions says how an event socket behaves. The zero value is a socket whose
// buffer never overflows and whose messages come in the order of what they tell.
type EventOptions struct {
	// Capacity is the size of the receive buffer in messages; zero is unlimited. A
	// multicast that finds the buffer full is lost: the next receive then fails with
	// ENOBUFS, once, and every further multicast is lost in silence until the buffer has
	// been read empty. That is what the kernel does (netlink_overrun); it is why a
	// listener must drain the socket before it requests a new dump. A dump is never lost:
	// it waits for room.
	Capacity int

	// ChunkSize is how many entries of a dump go into one message chunk; zero means 20,
	// about what fits into the kernel's 32 KiB. The first chunk is filled by the request,
	// each other one by a receive that leaves the buffer at most half full.
	ChunkSize int

	// Overtake, where set, is asked for every chunk of a dump how many multicasts get
	// ahead of it: the kernel fills a chunk under a lock, lets go, then queues it. The chunk
	// is queued after that many multicasts, or when a receiver has nothing else to read.
	// It is called under the Kernel's lock and must not call back.
	Overtake func() int

	// Deliver, where set, is given every multicast and returns what is delivered in its
	// place: nothing loses it in silence, more than one repeats it, and what was kept
	// back from an earlier call comes late. It is called under the Kernel's lock and must
	// not call back.
	Deliver func(rtnl.Message) []rtnl.Message

	// Interrupt, where set, is asked at the end of every dump whether it was interrupted;
	// a dump of links that were added or deleted meanwhile is so in any case. It is called
	// under the Kernel's lock and must not call back.
	Interrupt func() bool
}

// EventSocket delivers a Kernel's link and local-address events, and dumps of the
// same, in one queue. Any goroutine may call its methods, but only one at a time may
// wait in Receive.
type EventSocket struct {
	k       *Kernel
	options EventOptions
	arrived *sync.Cond

	queue     [][]rtnl.Message // one element is one datagram
	size      int              // messages in queue
	congested bool
	failure   error // what the next receive returns
	closed    bool

	dumping      bool  // a request's MessageDumpDone has not been received
	dump         *dump // what is still to be filled
	lastSeq      uint32
	held         []heldChunk
	linksChanged bool // since the running dump began
}

type dump struct {
	seq   uint32
	kind  rtnl.Dump
	next  int          // of links: entries of a higher index are still to come
	addr  rtnl.Message // of addresses: the last one dumped
	begun bool
}

// heldChunk is a chunk that has been filled and not yet queued.
type heldChunk struct {
	messages []rtnl.Message
	ahead    int // multicasts that are still to overtake it
}

// NewEventSocket opens an event socket. Opening, RequestDump and Receive are an
// agent's calls: the hook of OnCall can make the first two fail, and FailEvents the
// last.
func (k *Kernel) NewEventSocket(options EventOptions) (*EventSocket, error) {
	s := &EventSocket{k: k, options: options, arrived: sync.NewCond(&k.machine.mu)}
	if s.options.ChunkSize == 0 {
		s.options.ChunkSize = 20
	}
	err := k.call(false, Call{Op: OpOpenEvents}, func() error {
		k.sockets = append(k.sockets, s)
		k.handles++
		return nil
	})
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// FailEvents makes the next receive on each open event socket of the namespace
// return err. ENOBUFS does not merely return an error: it overruns the sockets as a
// full buffer does.
func (k *Kernel) FailEvents(err error) {
	k.lock()
	defer k.unlock()
	for _, s := range k.sockets {
		if err == unix.ENOBUFS {
			s.overrun()
		} else {
			s.failure = err
		}
		s.arrived.Broadcast()
	}
}

// RequestDump asks for a dump and returns the number that its messages carry as
// DumpSeq. EBUSY: the MessageDumpDone of an earlier request has not been received.
func (s *EventSocket) RequestDump(d rtnl.Dump) (seq uint32, err error) {
	err = s.k.call(false, Call{Op: OpRequestDump, Detail: d.String()}, func() error {
		switch {
		case s.closed:
			return os.ErrClosed
		case s.dumping:
			return unix.EBUSY
		}
		s.lastSeq++
		s.dumping, s.linksChanged = true, false
		s.dump = &dump{seq: s.lastSeq, kind: d}
		seq = s.lastSeq
		s.fill()
		return nil
	})
	return seq, err
}

// Receive waits for the next datagram and returns its messages. ENOBUFS: messages
// were lost. os.ErrClosed: the socket is closed.
func (s *EventSocket) Receive() ([]rtnl.Message, error) {
	s.k.lock()
	defer s.k.unlock()
	for {
		messages, err := s.read()
		if err != nil {
			return nil, &rtnl.OpError{Op: "receive events", Err: err}
		}
		if messages != nil {
			return messages, nil
		}
		s.arrived.Wait()
	}
}

// Drain returns what is queued, without waiting. An overrun that it comes across is
// reported as ENOBUFS beside the messages.
func (s *EventSocket) Drain() ([]rtnl.Message, error) {
	s.k.lock()
	defer s.k.unlock()
	var all []rtnl.Message
	var overrun error
	for {
		messages, err := s.read()
		switch {
		case err == unix.ENOBUFS:
			overrun = &rtnl.OpError{Op: "drain events", Err: err}
		case err != nil:
			return all, &rtnl.OpError{Op: "drain events", Err: err}
		case messages == nil:
			return all, overrun
		}
		all = append(all, messages...)
	}
}

// Queued returns how many messages wait to be received.
func (s *EventSocket) Queued() int {
	s.k.lock()
	defer s.k.unlock()
	size := s.size
	for _, chunk := range s.held {
		size += len(chunk.messages)
	}
	return size
}

// Close closes the socket and ends a Receive that waits.
func (s *EventSocket) Close() error {
	s.k.lock()
	defer s.k.unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	if i := slices.Index(s.k.sockets, s); i >= 0 {
		s.k.sockets = slices.Delete(slices.Clone(s.k.sockets), i, i+1)
		s.k.handles--
	}
	s.arrived.Broadcast()
	return nil
}

// read is one recvmsg without waiting; nil, nil means that nothing is there.
func (s *EventSocket) read() ([]rtnl.Message, error) {
	if s.closed {
		return nil, os.ErrClosed
	}
	if err := s.failure; err != nil { // an error comes before what is queued (sock_error)
		s.failure = nil
		return nil, err
	}
	if len(s.queue) == 0 {
		if len(s.held) == 0 {
			return nil, nil
		}
		s.release()
	}
	messages := s.queue[0]
	s.queue = s.queue[1:]
	s.size -= len(messages)
	if messages[len(messages)-1].Type == rtnl.MessageDumpDone {
		s.dumping = false
	}
	if s.size == 0 {
		s.congested = false // netlink_rcv_wake
	}
	if s.dump != nil && (s.options.Capacity == 0 || s.size <= s.options.Capacity/2) {
		s.fill()
	}
	return messages, nil
}

// deliver queues a multicast.
func (s *EventSocket) deliver(m rtnl.Message) {
	if s.options.Deliver == nil {
		s.enqueueEvent(m)
		return
	}
	for _, m := range s.options.Deliver(m) {
		s.enqueueEvent(m)
	}
}

func (s *EventSocket) enqueueEvent(m rtnl.Message) {
	if s.congested || s.options.Capacity > 0 && s.size >= s.options.Capacity {
		s.overrun()
	} else {
		s.enqueue([]rtnl.Message{m})
	}
	for i := range s.held {
		s.held[i].ahead--
	}
	for len(s.held) > 0 && s.held[0].ahead <= 0 {
		s.release()
	}
}

func (s *EventSocket) overrun() {
	if !s.congested {
		s.congested = true
		s.failure = unix.ENOBUFS
		s.arrived.Broadcast()
	}
}

func (s *EventSocket) enqueue(datagram []rtnl.Message) {
	s.queue = append(s.queue, datagram)
	s.size += len(datagram)
	s.arrived.Broadcast()
}

// release queues the oldest chunk that is held back.
func (s *EventSocket) release() {
	chunk := s.held[0]
	s.held = s.held[1:]
	s.enqueue(chunk.messages)
}

// fill makes the next chunk of the running dump from the kernel's state as it is
// now. Its last chunk ends with the DONE message, and with it the dump.
func (s *EventSocket) fill() {
	d := s.dump
	var chunk []rtnl.Message
	more := false
	if d.kind == rtnl.DumpLinks {
		chunk, more = s.k.dumpLinks(d, s.options.ChunkSize)
	} else {
		chunk, more = s.k.dumpLocal(d, s.options.ChunkSize)
	}
	for i := range chunk {
		chunk[i].DumpSeq = d.seq
	}
	if !more {
		done := rtnl.Message{Type: rtnl.MessageDumpDone, DumpSeq: d.seq}
		interrupted := d.kind == rtnl.DumpLinks && s.linksChanged
		if s.options.Interrupt != nil && s.options.Interrupt() || interrupted {
			done.Err = unix.EINTR
		}
		chunk = append(chunk, done)
		s.dump = nil
	}
	ahead := 0
	if s.options.Overtake != nil {
		ahead = s.options.Overtake()
	}
	s.held = append(s.held, heldChunk{messages: chunk, ahead: ahead})
	s.arrived.Broadcast() // a receiver that waits has nothing else to read
	for len(s.held) > 0 && s.held[0].ahead <= 0 {
		s.release()
	}
}

// dumpLinks returns the next links of a dump, by index.
func (k *Kernel) dumpLinks(d *dump, size int) (chunk []rtnl.Message, more bool) {
	links := k.sortedLinks()
	start, _ := slices.BinarySearchFunc(links, d.next+1, func(l *link, index int) int { return l.index - index })
	rest := links[start:]
	for _, l := range rest[:min(size, len(rest))] {
		chunk = append(chunk, l.message(rtnl.MessageNewLink))
		d.next = l.index
	}
	return chunk, len(rest) > size
}

// dumpLocal returns the next local addresses of a dump.
func (k *Kernel) dumpLocal(d *dump, size int) (chunk []rtnl.Message, more bool) {
	for _, m := range k.fib.localAddrs(d.kind == rtnl.DumpLocalIPv6) {
		if d.begun && compareAddrs(m, d.addr) <= 0 {
			continue
		}
		if len(chunk) == size {
			return chunk, true
		}
		chunk = append(chunk, m)
		d.addr, d.begun = m, true
	}
	return chunk, false
}

func compareAddrs(a, b rtnl.Message) int {
	if c := a.Addr.Compare(b.Addr); c != 0 {
		return c
	}
	return a.Index - b.Index
}
