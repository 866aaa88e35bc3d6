package ifacemonitor

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/rtnl"
)

// EventSocket is what the monitor needs from its source of events.
// *rtnl.EventSocket is the real one. An embedder's own may deliver events late,
// twice or out of order; what it must do is answer dumps.
type EventSocket interface {
	// RequestDump asks for a dump. Its messages come through Receive or Drain with
	// DumpSeq set to the number returned, which is not zero and not one returned
	// before, and end with a MessageDumpDone. EBUSY: an earlier dump is still in
	// progress. Other errors mean that the socket is dead.
	RequestDump(what rtnl.Dump) (seq uint32, err error)
	// Receive waits for messages. ENOBUFS: messages were lost. Other errors mean
	// that the socket is dead.
	Receive() ([]rtnl.Message, error)
	// Drain returns what is queued without waiting. ENOBUFS: messages were lost, but
	// the queue was drained all the same and what was in it is returned.
	Drain() ([]rtnl.Message, error)
	// Close releases the socket and makes a Receive in progress return.
	Close() error
}

// batch is what one Receive brought.
type batch struct {
	messages []rtnl.Message
	lost     bool  // messages were lost; those here are from before
	err      error // the socket is dead
}

// stream receives from one socket on a goroutine of its own. The order of
// batches is the order of the socket.
type stream struct {
	socket  EventSocket
	batches chan batch
	stop    chan struct{}
	stopped chan struct{}
}

func newStream(socket EventSocket) *stream {
	s := &stream{
		socket:  socket,
		batches: make(chan batch),
		stop:    make(chan struct{}),
		stopped: make(chan struct{}),
	}
	go s.run()
	return s
}

// close closes the socket and waits for the goroutine.
func (s *stream) close() error {
	close(s.stop)
	err := s.socket.Close()
	<-s.stopped
	return err
}

func (s *stream) run() {
	defer close(s.stopped)
	for {
		b := s.receive()
		select {
		case s.batches <- b:
		case <-s.stop:
			return
		}
		if b.err != nil {
			return
		}
	}
}

// receive receives a batch. After a loss it drains the queue first: what is still
// in it is from before the loss, and must not count as having happened since a
// dump that is requested because of the loss.
func (s *stream) receive() batch {
	messages, err := s.socket.Receive()
	b := batch{messages: messages}
	if errors.Is(err, unix.ENOBUFS) {
		b.lost = true
		messages, err = s.socket.Drain()
		b.messages = append(b.messages, messages...)
	}
	if err != nil && !errors.Is(err, unix.ENOBUFS) {
		b.err = err
	}
	return b
}
