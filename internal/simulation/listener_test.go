package simulation

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/mocks"
)

// listener is a second interface monitor, on a socket of its own with the same faults.
// It checks the monitor's contract at every callback.
type listener struct {
	w       *world
	cancel  context.CancelFunc
	done    chan error
	known   map[string]heard
	inSync  bool
	sockets atomic.Int32 // open
}

// heard is what was last reported about a name.
type heard struct {
	state ifacemonitor.State
	index int
	mtu   int
	addrs []netip.Addr
}

func (w *world) listen() {
	l := &listener{w: w, done: make(chan error, 1), known: map[string]heard{}}
	w.listener = l
	monitor := ifacemonitor.New(ifacemonitor.Config{
		Open: func() (ifacemonitor.EventSocket, error) {
			socket, err := w.kernel.NewEventSocket(w.eventOptions("listener"))
			if err != nil {
				return nil, err
			}
			l.sockets.Add(1)
			return listenerSocket{socket, l}, nil
		},
		StateCallback:   l.onState,
		MTUCallback:     l.onMTU,
		AddrCallback:    l.onAddrs,
		InSyncCallback:  l.onInSync,
		RefreshInterval: w.cfg.InterfaceRefreshInterval,
	})
	var ctx context.Context
	ctx, l.cancel = context.WithCancel(context.Background())
	go func() { l.done <- monitor.Run(ctx) }()
}

// listenerSocket counts as open until it is closed.
type listenerSocket struct {
	*mocks.EventSocket
	l *listener
}

func (s listenerSocket) Close() error {
	s.l.sockets.Add(-1)
	return s.EventSocket.Close()
}

// handles is how many sockets it has open.
func (l *listener) handles() int {
	if l == nil {
		return 0
	}
	return int(l.sockets.Load())
}

func (l *listener) stop() {
	l.cancel()
	l.w.gate.run(stopBound, func() bool { return len(l.done) > 0 })
	select {
	case err := <-l.done:
		if err != nil {
			l.w.problem("the second monitor ended with: %v", err)
		}
	default:
		l.w.problem("the second monitor does not stop")
	}
}

func (l *listener) wrong(format string, args ...any) {
	l.w.problem("monitor's contract: %s", fmt.Sprintf(format, args...))
}

func (l *listener) onState(name string, state ifacemonitor.State, index int) {
	old := l.known[name]
	switch {
	case old.state == state:
		l.wrong("rule 1: %s repeated as %q", name, state)
	case old.state != ifacemonitor.StateNotPresent && old.index != index:
		l.wrong("rule 1: ifindex %d speaks for %s, which %d has not given up", index, name, old.index)
	case old.state == ifacemonitor.StateNotPresent && old.addrs != nil:
		l.wrong("rule 5: %s is back, and its addresses were never reported nil", name)
	}
	if state == ifacemonitor.StateNotPresent {
		l.known[name] = heard{addrs: old.addrs}
		return
	}
	old.state, old.index = state, index
	l.known[name] = old
}

func (l *listener) onMTU(name string, index, mtu int) {
	old := l.known[name]
	if old.state == ifacemonitor.StateNotPresent || old.index != index || old.mtu == mtu {
		l.wrong("MTU %d of %s (ifindex %d), of which is known: %+v", mtu, name, index, old)
	}
	old.mtu = mtu
	l.known[name] = old
}

func (l *listener) onAddrs(name string, addrs []netip.Addr) {
	old := l.known[name]
	switch present := old.state != ifacemonitor.StateNotPresent; {
	case present != (addrs != nil):
		l.wrong("rule 5: addresses %v of %s, of which is known: %+v", addrs, name, old)
	case addrs != nil && old.addrs != nil && slices.Equal(addrs, old.addrs):
		l.wrong("addresses %v of %s repeated", addrs, name)
	}
	old.addrs = addrs
	l.known[name] = old
}

func (l *listener) onInSync() {
	if l.inSync {
		l.wrong("in sync twice")
	}
	l.inSync = true
}

// compare checks rule 3: what was reported is what the kernel has.
func (l *listener) compare() {
	links, err := l.w.outside.LinkList()
	l.w.must(err)
	left := map[string]heard{}
	for name, h := range l.known {
		if h.state != ifacemonitor.StateNotPresent {
			left[name] = h
		}
	}
	for _, link := range links {
		attrs := link.Attrs()
		state := ifacemonitor.StateDown
		if attrs.RawFlags&unix.IFF_RUNNING != 0 {
			state = ifacemonitor.StateUp
		}
		if h := left[attrs.Name]; h.state != state || h.index != attrs.Index || h.mtu != attrs.MTU {
			l.w.problem("monitor's contract: rule 3: %s is %s, ifindex %d, MTU %d, and was reported as %+v", attrs.Name, state, attrs.Index, attrs.MTU, h)
		}
		delete(left, attrs.Name)
	}
	for name, h := range left {
		l.w.problem("monitor's contract: rule 3: %s does not exist, and was reported as %+v", name, h)
	}
}
