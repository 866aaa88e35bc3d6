package ifacemonitor_test

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/rtnl"
)

// script is an embedder's event source: it says what a test tells it to, in that
// order, and answers dumps with what the test says the kernel holds.
type script struct {
	mu       sync.Mutex
	arrived  *sync.Cond
	queue    []rtnl.Message
	err      error // what the next Receive returns
	closed   bool
	holds    []rtnl.Message // the kernel's links and addresses, as of now
	seq      uint32
	requests []rtnl.Dump
	refuse   error // what RequestDump returns
	dumpErr  error // how dumps end
	mute     bool  // dumps are not answered
	opened   int
}

func newScript(holds ...rtnl.Message) *script {
	s := &script{holds: holds}
	s.arrived = sync.NewCond(&s.mu)
	return s
}

// open is a Config's Open.
func (s *script) open() (ifacemonitor.EventSocket, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened++
	s.closed, s.queue = false, nil
	return s, nil
}

// do changes the script under its lock.
func (s *script) do(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn()
	s.arrived.Broadcast()
}

// say queues messages.
func (s *script) say(messages ...rtnl.Message) {
	s.do(func() { s.queue = append(s.queue, messages...) })
}

// fail makes the next Receive fail, once.
func (s *script) fail(err error) { s.do(func() { s.err = err }) }

func (s *script) RequestDump(what rtnl.Dump) (uint32, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, what)
	if s.refuse != nil {
		return 0, s.refuse
	}
	s.seq++
	if s.mute {
		return s.seq, nil
	}
	for _, msg := range s.holds {
		if msg.Type == rtnl.MessageNewLink == (what == rtnl.DumpLinks) {
			msg.DumpSeq = s.seq
			s.queue = append(s.queue, msg)
		}
	}
	s.queue = append(s.queue, rtnl.Message{Type: rtnl.MessageDumpDone, DumpSeq: s.seq, Err: s.dumpErr})
	s.arrived.Broadcast()
	return s.seq, nil
}

func (s *script) Receive() ([]rtnl.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.closed:
			return nil, os.ErrClosed
		case s.err != nil:
			err := s.err
			s.err = nil
			return nil, err
		case len(s.queue) > 0:
			messages := s.queue
			s.queue = nil
			return messages, nil
		}
		s.arrived.Wait()
	}
}

func (s *script) Drain() ([]rtnl.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	messages := s.queue
	s.queue = nil
	return messages, nil
}

func (s *script) Close() error {
	s.do(func() { s.closed = true })
	return nil
}

// dumps returns how many dumps were requested.
func (s *script) dumps() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests)
}

// opens returns how many times the script was opened.
func (s *script) opens() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened
}

func newLink(index int, name string, up bool) rtnl.Message {
	msg := rtnl.Message{Type: rtnl.MessageNewLink, Index: index, Name: name}
	if up {
		msg.Flags = unix.IFF_UP | unix.IFF_RUNNING
	}
	return msg
}

func delLink(index int, name string) rtnl.Message {
	return rtnl.Message{Type: rtnl.MessageDelLink, Index: index, Name: name}
}
