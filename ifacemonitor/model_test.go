package ifacemonitor_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/rtnl"
)

// kernel is a small model of what a kernel has and says about interfaces. The
// test decides how many datagrams the monitor may receive, so that anything can
// happen in the middle of a dump.
type kernel struct {
	mu      sync.Mutex
	arrived *sync.Cond
	links   map[int]*modelLink
	history map[string][]string // by name: what a monitor that misses nothing reports
	socket  *modelSocket        // the open one
	credit  int                 // datagrams that may be received

	// Faults.
	capacity  int                                 // datagrams in the queue; 0: unlimited
	overtake  int                                 // multicasts that get ahead of the next chunk
	interrupt bool                                // the running dump is interrupted
	noOpen    bool                                // Open fails
	deliver   func(rtnl.Message) [][]rtnl.Message // an embedder's disorder
	requests  []rtnl.Dump
}

type modelLink struct {
	index int
	name  string
	up    bool
	mtu   int
	addrs map[netip.Addr]bool
}

// modelSocket behaves like the kernel's: what overruns is lost until the queue
// has been emptied, and is reported once, ahead of what is queued; a dump goes on
// as it is received, and a chunk that was filled may be queued later.
type modelSocket struct {
	k         *kernel
	queue     [][]rtnl.Message
	lost      bool
	congested bool
	dead      error
	seq       uint32
	dump      *modelDump
}

type modelDump struct {
	seq     uint32
	what    rtnl.Dump
	after   int // entries of greater indexes are to come
	held    []rtnl.Message
	holding int // multicasts that have to get ahead of held
	done    bool
}

const chunkSize = 2

func newModelKernel() *kernel {
	k := &kernel{links: map[int]*modelLink{}, history: map[string][]string{}}
	k.arrived = sync.NewCond(&k.mu)
	return k
}

// open is a Config's Open.
func (k *kernel) open() (ifacemonitor.EventSocket, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.noOpen {
		return nil, unix.EMFILE
	}
	k.socket = &modelSocket{k: k}
	return k.socket, nil
}

// do changes the model under its lock and wakes the receiver.
func (k *kernel) do(fn func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	fn()
	k.arrived.Broadcast()
}

// What can happen. All are called within do.

func (k *kernel) add(index int, name string, up bool) {
	k.links[index] = &modelLink{index: index, name: name, up: up, mtu: 1500, addrs: map[netip.Addr]bool{}}
	k.changed(k.links[index])
}

func (k *kernel) del(index int) {
	l := k.links[index]
	for _, addr := range slices.SortedFunc(maps.Keys(l.addrs), netip.Addr.Compare) {
		k.delAddr(index, addr)
	}
	delete(k.links, index)
	k.record(l.name, "absent", index)
	k.multicast(rtnl.Message{Type: rtnl.MessageDelLink, Index: index, Name: l.name})
}

func (k *kernel) rename(index int, name string) {
	k.record(k.links[index].name, "absent", index)
	k.links[index].name = name
	k.changed(k.links[index])
}

func (k *kernel) setUp(index int, up bool) {
	k.links[index].up = up
	k.changed(k.links[index])
}

func (k *kernel) setMTU(index, mtu int) {
	k.links[index].mtu = mtu
	k.changed(k.links[index])
}

func (k *kernel) addAddr(index int, addr netip.Addr) {
	k.links[index].addrs[addr] = true
	k.multicast(rtnl.Message{Type: rtnl.MessageNewAddr, Index: index, Addr: addr})
}

func (k *kernel) delAddr(index int, addr netip.Addr) {
	delete(k.links[index].addrs, addr)
	k.multicast(rtnl.Message{Type: rtnl.MessageDelAddr, Index: index, Addr: addr})
}

func (k *kernel) changed(l *modelLink) {
	state := "down"
	if l.up {
		state = "up"
	}
	k.record(l.name, state, l.index)
	k.multicast(l.message())
}

func (k *kernel) record(name, state string, index int) {
	line := fmt.Sprintf("%s %d", state, index)
	if h := k.history[name]; len(h) == 0 || h[len(h)-1] != line {
		k.history[name] = append(h, line)
	}
}

func (l *modelLink) message() rtnl.Message {
	msg := rtnl.Message{Type: rtnl.MessageNewLink, Index: l.index, Name: l.name, MTU: l.mtu, Kind: "veth"}
	if l.up {
		msg.Flags = unix.IFF_UP | unix.IFF_RUNNING
	}
	return msg
}

// present is what a monitor should report, in the recorder's words.
func (k *kernel) present(excluded func(string) bool) map[string]string {
	k.mu.Lock()
	defer k.mu.Unlock()
	present := map[string]string{}
	for _, l := range k.links {
		state, addrs := "down", slices.SortedFunc(maps.Keys(l.addrs), netip.Addr.Compare)
		if l.up {
			state = "up"
		}
		text := fmt.Sprint(addrs)
		if excluded(l.name) {
			text = "nil"
		}
		present[l.name] = fmt.Sprintf("%d %s %d %s", l.index, state, l.mtu, text)
	}
	return present
}

func (k *kernel) indexes() []int { return slices.Sorted(maps.Keys(k.links)) }

func (k *kernel) owner(name string) int {
	for _, l := range k.links {
		if l.name == name {
			return l.index
		}
	}
	return 0
}

// multicast queues an event, or what an embedder's source makes of it.
func (k *kernel) multicast(msg rtnl.Message) {
	datagrams := [][]rtnl.Message{{msg}}
	if k.deliver != nil {
		datagrams = k.deliver(msg)
	}
	for _, datagram := range datagrams {
		k.queue(datagram)
	}
}

func (k *kernel) queue(datagram []rtnl.Message) {
	s := k.socket
	switch {
	case s == nil || s.dead != nil:
		return
	case s.congested || k.capacity > 0 && len(s.queue) >= k.capacity:
		s.lost = s.lost || !s.congested
		s.congested = true
		return
	}
	s.queue = append(s.queue, datagram)
	if d := s.dump; d != nil && d.held != nil {
		if d.holding--; d.holding <= 0 {
			s.release()
		}
	}
}

// interruptDump makes the running dump miss a link, and say that it was
// interrupted.
func (k *kernel) interruptDump() {
	if k.socket == nil || k.socket.dump == nil || k.socket.dump.done {
		return
	}
	k.interrupt = true
	d := k.socket.dump
	for _, index := range k.indexes() {
		if index > d.after {
			d.after = index
			return
		}
	}
}

// receive lets the monitor receive some datagrams, a chunk that was held back
// among them.
func (k *kernel) receive(datagrams int) {
	k.credit += datagrams
	if s := k.socket; s != nil && s.dump != nil && s.dump.held != nil {
		s.release()
	}
}

// die makes the open socket useless.
func (k *kernel) die() {
	if k.socket != nil {
		k.socket.dead = unix.EIO
	}
}

func (s *modelSocket) RequestDump(what rtnl.Dump) (uint32, error) {
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	defer s.k.arrived.Broadcast()
	switch {
	case s.dead != nil:
		return 0, s.dead
	case s.dump != nil:
		return 0, unix.EBUSY
	}
	s.k.requests = append(s.k.requests, what)
	s.seq++
	s.k.interrupt = false
	s.dump = &modelDump{seq: s.seq, what: what}
	s.fill()
	return s.seq, nil
}

func (s *modelSocket) Receive() ([]rtnl.Message, error) {
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	for {
		switch {
		case s.dead != nil:
			return nil, s.dead
		case s.k.credit > 0:
			if datagram, err := s.next(false); datagram != nil || err != nil {
				s.k.credit--
				return datagram, err
			}
		}
		s.k.arrived.Wait()
	}
}

func (s *modelSocket) Drain() (messages []rtnl.Message, lost error) {
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	for {
		datagram, err := s.next(true)
		switch {
		case errors.Is(err, unix.ENOBUFS):
			lost = err
		case err != nil:
			return messages, err
		case datagram == nil:
			return messages, lost
		}
		messages = append(messages, datagram...)
	}
}

func (s *modelSocket) Close() error {
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	s.dead = os.ErrClosed
	s.k.arrived.Broadcast()
	return nil
}

// next takes the next datagram off the queue, after giving a dump in progress the
// chance to go on. Drain does not wait for events to get ahead of a chunk.
func (s *modelSocket) next(drain bool) ([]rtnl.Message, error) {
	if s.dead != nil {
		return nil, s.dead
	}
	if s.lost {
		s.lost = false
		return nil, unix.ENOBUFS
	}
	if len(s.queue) == 0 && s.dump != nil && (drain || s.dump.holding <= 0) {
		s.release()
	}
	if len(s.queue) == 0 {
		return nil, nil
	}
	datagram := s.queue[0]
	s.queue = s.queue[1:]
	if len(s.queue) == 0 {
		s.congested = false
	}
	if s.dump != nil && s.dump.held == nil {
		s.fill()
	}
	return datagram, nil
}

// fill fills a chunk of the dump with how things are now.
func (s *modelSocket) fill() {
	d := s.dump
	d.holding = s.k.overtake
	for _, index := range s.k.indexes() {
		if index <= d.after {
			continue
		}
		if len(d.held) >= chunkSize {
			return
		}
		d.after = index
		d.held = append(d.held, s.entries(s.k.links[index])...)
	}
	if d.done = len(d.held) < chunkSize; d.done {
		done := rtnl.Message{Type: rtnl.MessageDumpDone, DumpSeq: d.seq}
		if s.k.interrupt {
			done.Err = unix.EINTR
		}
		d.held = append(d.held, done)
	}
	if d.holding == 0 {
		s.release()
	}
}

func (s *modelSocket) entries(l *modelLink) []rtnl.Message {
	if s.dump.what == rtnl.DumpLinks {
		msg := l.message()
		msg.DumpSeq = s.dump.seq
		return []rtnl.Message{msg}
	}
	var entries []rtnl.Message
	for _, addr := range slices.SortedFunc(maps.Keys(l.addrs), netip.Addr.Compare) {
		if addr.Is4() == (s.dump.what == rtnl.DumpLocalIPv4) {
			entries = append(entries, rtnl.Message{Type: rtnl.MessageNewAddr, DumpSeq: s.dump.seq, Index: l.index, Addr: addr})
		}
	}
	return entries
}

// release queues the chunk that was filled, whatever the capacity: the kernel
// loses no dump.
func (s *modelSocket) release() {
	d := s.dump
	s.queue = append(s.queue, d.held)
	d.held = nil
	if d.done {
		s.dump = nil
	}
}
