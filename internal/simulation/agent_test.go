package simulation

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/agent"
	"github.com/manx-dataplane/manx/dataplane"
	"github.com/manx-dataplane/manx/endpointmgr"
	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/mocks"
	"github.com/manx-dataplane/manx/rtnl"
)

// incarnation is the agent from one start to its end.
type incarnation struct {
	w         *world
	dataplane *agent.Dataplane
	conntrack *mocks.Conntrack
	cancel    context.CancelFunc
	done      chan error

	inSyncSent bool
	dumps      int // complete ones that its monitor received
	crashAt    int // which of its kernel writes is the last one; 0: none
	crashAfter bool
	writes     int
	crashed    bool // all its calls fail
	ending     bool
}

// The agent may take stopBound to stop, whatever hangs for ever in the reaper, and
// slowStopBound where its other kernel calls may take long.
const (
	stopBound     = 2 * time.Second
	slowStopBound = 40 * time.Second
)

// start starts an agent that knows nothing.
func (w *world) start(inSync bool) {
	if w.agent != nil {
		return
	}
	cfg := w.cfg
	a := &incarnation{w: w, conntrack: w.kernel.NewConntrack(), done: make(chan error, 1)}
	w.agent = a
	dp, err := agent.NewDataplane(agent.DataplaneOptions{
		Config: &cfg, Kernel: kernel{w, a}, Conntrack: a.conntrack, Log: w.logger(),
	})
	if err != nil {
		w.problem("build the dataplane: %v", err)
		return
	}
	a.dataplane = dp
	var ctx context.Context
	ctx, a.cancel = context.WithCancel(context.Background())
	go func() { a.done <- dp.Run(ctx) }()
	for id := range maxEndpoints {
		if e, ok := w.endpoints[id]; ok {
			a.send(e.message(id))
		}
	}
	if inSync {
		w.datastoreInSync()
	}
}

func (w *world) datastoreInSync() {
	if w.agent != nil && !w.agent.inSyncSent {
		w.agent.inSyncSent = true
		w.agent.send(dataplane.InSync{})
	}
}

func (a *incarnation) send(message any) {
	if err := a.dataplane.Send(context.Background(), message); err != nil {
		a.w.problem("send %T: %v", message, err)
	}
}

// stop ends the agent: it must come to its end soon, whatever hangs, and leave no
// handle open but those of deletes that hang. Its end then ends those, too.
func (w *world) stop() {
	a := w.agent
	if a == nil {
		return
	}
	a.ending = true
	a.cancel()
	var err error
	ended := false
	bound := stopBound
	if w.wasSlow {
		bound = slowStopBound
	}
	w.gate.run(bound, func() bool {
		select {
		case err = <-a.done:
			ended = true
		default:
		}
		return ended
	})
	switch {
	case !ended:
		w.problem("the agent does not stop")
	case err != nil:
		w.problem("the agent stopped with: %v", err)
	}
	a.conntrack.Close()
	a.crashed = true
	close(w.hang.release)
	w.hang = hangOrder{release: make(chan struct{})}
	w.hung = map[int]string{}
	for w.gate.grant() { // what outlives Run: hanging deletes and conntrack clean-ups
	}
	w.gate.run(4*time.Second, nil) // and calls that take long
	w.agent = nil
	if open := w.kernel.OpenHandles() - w.listener.handles(); open != 0 {
		w.problem("%d handles or event sockets left open", open)
	}
}

// reap ends an agent that has crashed.
func (w *world) reap() {
	if a := w.agent; a != nil && a.crashed {
		w.note("the agent is gone: it crashed at its write %d", a.writes)
		w.stop()
	}
}

// logger logs into the trace.
func (w *world) logger() logrus.FieldLogger {
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	if w.trace != nil {
		logger.SetOutput(traceWriter{w})
		logger.SetLevel(logrus.DebugLevel)
		logger.SetFormatter(&logrus.TextFormatter{DisableTimestamp: true, DisableColors: true})
	}
	return logger
}

type traceWriter struct{ w *world }

func (t traceWriter) Write(p []byte) (int, error) {
	t.w.note("log  %s", strings.TrimSpace(string(p)))
	return len(p), nil
}

// kernel is the world's kernel in the shape that the agent wants.
type kernel struct {
	w *world
	a *incarnation
}

func (k kernel) Handle(rtnl.Options) (agent.Handle, error) { return k.w.kernel.NewHandle(), nil }
func (k kernel) Sysctls() endpointmgr.Sysctls              { return k.w.kernel.Sysctls() }
func (k kernel) Lock() (io.Closer, error)                  { return nil, unix.ENOSYS }
func (k kernel) Conntrack(rtnl.Options) (agent.Conntrack, error) {
	return nil, unix.ENOSYS
}

func (k kernel) Events(rtnl.EventOptions) (ifacemonitor.EventSocket, error) {
	socket, err := k.w.kernel.NewEventSocket(k.w.eventOptions("agent"))
	if err != nil {
		return nil, err
	}
	return countingSocket{socket, k.a}, nil
}

// countingSocket counts the complete dumps that an agent's monitor was given.
type countingSocket struct {
	*mocks.EventSocket
	a *incarnation
}

func (s countingSocket) Receive() ([]rtnl.Message, error) {
	messages, err := s.EventSocket.Receive()
	s.count(messages)
	return messages, err
}

func (s countingSocket) Drain() ([]rtnl.Message, error) {
	messages, err := s.EventSocket.Drain()
	s.count(messages)
	return messages, err
}

func (s countingSocket) count(messages []rtnl.Message) {
	for _, m := range messages {
		if m.Type == rtnl.MessageDumpDone && m.Err == nil {
			s.a.dumps++
		}
	}
}

// eventOptions are how event sockets behave, by the seed and the order of what
// happens on them.
func (w *world) eventOptions(who string) mocks.EventOptions {
	name := fmt.Sprintf("%s %d", who, w.sockets.Add(1))
	drawn := 0
	draw := func(what string, n int) int {
		drawn++
		return int(hash(w.options.seed, fmt.Sprint(name, what, drawn)) % uint64(n))
	}
	var late []rtnl.Message
	o := mocks.EventOptions{Capacity: w.options.capacity, ChunkSize: w.options.chunk}
	if w.options.overtakes {
		o.Overtake = func() int { return max(0, draw("overtake", 6)-2) }
	}
	if w.options.interrupts > 0 {
		o.Interrupt = func() bool { return w.faults.perMille > 0 && draw("interrupt", 100) < w.options.interrupts }
	}
	o.Deliver = func(m rtnl.Message) []rtnl.Message {
		if !w.reordering {
			return []rtnl.Message{m}
		}
		out := []rtnl.Message{m}
		switch draw("deliver", 6) {
		case 0: // comes late
			late = append(late, m)
			return nil
		case 1: // comes twice
			out = append(out, m)
		case 2: // what was late comes now, before or after
			out = append(out, late...)
			late = nil
		case 3:
			out = append(late, out...)
			late = nil
		}
		return out
	}
	return o
}
