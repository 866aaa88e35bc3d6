package ifacemonitor

import (
	"context"
	"errors"
	"net/netip"
	"regexp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/manx-dataplane/manx/internal/logging"
	"github.com/manx-dataplane/manx/rtnl"
)

// DefaultAddrRemovalDelay is how long the removal of an address is held back
// where Config leaves AddrRemovalDelay at zero: Felix's flap damping delay.
const DefaultAddrRemovalDelay = 100 * time.Millisecond

// A dead socket is reopened after minReopenPause, which doubles up to
// maxReopenPause until a generation completes.
const (
	minReopenPause = 100 * time.Millisecond
	maxReopenPause = 10 * time.Second
)

// Config is what a Monitor is made from. Open is required; the callbacks may be
// nil where nobody listens.
type Config struct {
	// Open opens the source of events: at the start, and again whenever the source
	// failed. The monitor owns what it returns and closes it.
	Open func() (EventSocket, error)

	// StateCallback reports that the interface of that name and index is up, down or
	// absent (StateNotPresent, with the index that it had).
	StateCallback func(name string, state State, ifindex int)
	// MTUCallback reports the MTU in bytes of an interface that has just become
	// present, or whose MTU changed.
	MTUCallback func(name string, ifindex, mtu int)
	// AddrCallback reports all local addresses of an interface, sorted: empty but not
	// nil where it is present without any, nil where it is not present. The callee may
	// keep the slice.
	AddrCallback func(name string, addrs []netip.Addr)
	// InSyncCallback is called once, after the first complete generation: every
	// interface that existed at the start has been reported.
	InSyncCallback func()
	// LostCallback is called, once in sync, after the generation that makes up for
	// lost events. The interfaces are right again by then, but a flap, or one that came
	// and went, may have been among what was lost: what the kernel removed along with
	// it, such as routes, has to be read anew by whoever relies on it.
	LostCallback func()

	// Exclude are the names whose addresses are not reported.
	Exclude []*regexp.Regexp
	// RefreshInterval is the time from the end of one generation to the start of the
	// next. Zero or less: no generation is started by time alone.
	RefreshInterval time.Duration
	// AddrRemovalDelay is how long the removal of an address is held back, in case it
	// comes back. Zero: DefaultAddrRemovalDelay. Negative: not at all.
	AddrRemovalDelay time.Duration

	Clock      clock.Clock           // nil: the real one
	Log        logrus.FieldLogger    // nil: none
	Registerer prometheus.Registerer // for metrics; nil: none
}

// Monitor follows the interfaces of one network namespace. See the package's
// documentation for what it promises.
type Monitor struct {
	config  Config
	metrics metrics
	started atomic.Bool

	// The rest belongs to the goroutine in Run.
	table     *table
	resync    resync
	inSync    bool
	lost      bool      // events, since the last complete generation
	refreshAt time.Time // zero: not planned

	stream      *stream // nil while there is no socket
	openedOnce  bool
	reopenAt    time.Time
	reopenPause time.Duration
}

// New makes a Monitor, which does nothing until Run.
func New(config Config) *Monitor {
	if config.StateCallback == nil {
		config.StateCallback = func(string, State, int) {}
	}
	if config.MTUCallback == nil {
		config.MTUCallback = func(string, int, int) {}
	}
	if config.AddrCallback == nil {
		config.AddrCallback = func(string, []netip.Addr) {}
	}
	if config.InSyncCallback == nil {
		config.InSyncCallback = func() {}
	}
	if config.LostCallback == nil {
		config.LostCallback = func() {}
	}
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	config.Log = logging.OrDiscard(config.Log)
	switch {
	case config.AddrRemovalDelay == 0:
		config.AddrRemovalDelay = DefaultAddrRemovalDelay
	case config.AddrRemovalDelay < 0:
		config.AddrRemovalDelay = 0
	}
	excluded := func(name string) bool {
		return slices.ContainsFunc(config.Exclude, func(re *regexp.Regexp) bool { return re.MatchString(name) })
	}
	report := reports{state: config.StateCallback, mtu: config.MTUCallback, addrs: config.AddrCallback}
	return &Monitor{
		config:  config,
		metrics: newMetrics(config.Registerer),
		table:   newTable(report, excluded, config.AddrRemovalDelay),
	}
}

// Run follows the interfaces until ctx is done, and then returns nil. All
// callbacks are called from this goroutine, which waits for them. A source that
// cannot be opened, or fails, is opened again after a while. Run may be called
// once; another call is an error.
func (m *Monitor) Run(ctx context.Context) error {
	if m.started.Swap(true) {
		return errors.New("run interface monitor: it was run before")
	}
	defer m.closeStream()
	timer := m.config.Clock.NewTimer(0)
	defer func() { timer.Stop() }()
	for ctx.Err() == nil {
		m.work()
		start := m.config.Clock.Now()
		wake := m.wakeAt(start)
		timer.Stop()
		timer = m.config.Clock.NewTimer(wake.Sub(start))
		if !m.config.Clock.Now().Before(wake) {
			continue // due already, or time went on while the timer was set
		}
		select {
		case <-ctx.Done():
		case <-timer.C():
			m.resync.wait(m.config.Clock.Since(start))
		case b := <-m.batches():
			m.resync.wait(m.config.Clock.Since(start))
			m.handle(b)
		}
	}
	return nil
}

// work does what is due now.
func (m *Monitor) work() {
	now := m.config.Clock.Now()
	if m.stream != nil && m.resync.silent() {
		m.fail(errors.New("a dump got no answer"))
	}
	if m.stream == nil && !m.reopenAt.After(now) {
		m.open()
	}
	if !m.refreshAt.IsZero() && !m.refreshAt.After(now) {
		m.refreshAt = time.Time{}
		m.want(reasonTimer)
	}
	if m.stream != nil {
		m.requestDump(now)
	}
	m.table.flush(now)
}

// wakeAt returns when work has to be done next.
func (m *Monitor) wakeAt(now time.Time) time.Time {
	earliest := now.Add(time.Hour)
	consider := func(at time.Time, planned bool) {
		if planned && at.Before(earliest) {
			earliest = at
		}
	}
	consider(m.table.nextRemoval())
	consider(m.refreshAt, !m.refreshAt.IsZero())
	if m.stream == nil {
		consider(m.reopenAt, true)
	} else {
		consider(m.resync.deadline(now))
	}
	return earliest
}

// batches is where the next batch comes from; nil while there is no socket.
func (m *Monitor) batches() <-chan batch {
	if m.stream == nil {
		return nil
	}
	return m.stream.batches
}

// handle takes in a batch.
func (m *Monitor) handle(b batch) {
	if b.lost {
		// Before the messages: one of them may end the dump that the loss has spoilt.
		m.metrics.overruns.Inc()
		m.want(reasonOverrun)
	}
	now := m.config.Clock.Now()
	for _, msg := range b.messages {
		switch {
		case msg.DumpSeq == 0:
			if msg.Type != rtnl.MessageDumpDone {
				m.metrics.events.Inc()
				m.table.event(msg, now)
			}
		case msg.DumpSeq != m.resync.seq:
			// Of a dump that nobody waits for any more.
		case msg.Type == rtnl.MessageDumpDone:
			m.dumpDone(msg.Err, now)
		default:
			m.resync.progress()
			m.table.entry(msg, now)
		}
	}
	if m.table.conflict {
		m.table.conflict = false
		m.want(reasonConflict)
	}
	if b.err != nil {
		m.fail(b.err)
	}
}

// requestDump requests the dump that is due, if one is.
func (m *Monitor) requestDump(now time.Time) {
	what, ok := m.resync.due(now)
	if !ok {
		return
	}
	seq, err := m.stream.socket.RequestDump(what)
	switch {
	case errors.Is(err, unix.EBUSY):
		m.resync.refused(now)
	case err != nil:
		m.fail(err)
	default:
		m.resync.requested(seq)
		m.table.beginDump(what)
	}
}

// dumpDone ends the outstanding dump.
func (m *Monitor) dumpDone(err error, now time.Time) {
	counts, complete := m.resync.ended(err != nil, now)
	m.table.endDump(counts, now)
	if err != nil {
		m.metrics.resyncs.WithLabelValues(string(reasonInterrupted)).Inc()
		if errors.Is(err, unix.EINTR) {
			m.config.Log.WithError(err).Debug("A dump was interrupted; repeating it.")
		} else {
			m.config.Log.WithError(err).Warn("A dump failed; repeating it")
		}
	}
	if !complete {
		return
	}
	m.reopenPause = 0
	if m.config.RefreshInterval > 0 {
		m.refreshAt = now.Add(m.config.RefreshInterval)
	}
	if !m.inSync {
		m.inSync = true
		m.table.flush(now)
		m.config.InSyncCallback()
	} else if m.lost {
		m.config.LostCallback()
	}
	m.lost = false
}

// want asks for a generation and counts it, by reason.
func (m *Monitor) want(why reason) {
	m.lost = m.lost || why == reasonOverrun || why == reasonReopened
	if !m.resync.want(why, m.config.Clock.Now()) {
		return
	}
	m.metrics.resyncs.WithLabelValues(string(why)).Inc()
	log := m.config.Log.WithField("reason", string(why))
	if why == reasonOverrun {
		log.Info("Interface events were lost; dumping interfaces and addresses. If this goes on, a larger receive buffer helps")
	} else {
		log.Debug("Dumping interfaces and addresses.")
	}
}

// open opens the socket and asks for a generation: what happened while there was
// none is not known.
func (m *Monitor) open() {
	socket, err := m.config.Open()
	if err != nil {
		m.retryOpen(err)
		return
	}
	m.stream = newStream(socket)
	if m.openedOnce {
		m.want(reasonReopened)
	} else {
		m.want(reasonStart)
	}
	m.openedOnce = true
}

// fail gives up the socket.
func (m *Monitor) fail(err error) {
	m.closeStream()
	m.resync.reset()
	m.refreshAt = time.Time{}
	if m.table.dump != nil {
		m.table.endDump(false, m.config.Clock.Now())
	}
	m.retryOpen(err)
}

func (m *Monitor) retryOpen(err error) {
	m.reopenPause = min(max(minReopenPause, 2*m.reopenPause), maxReopenPause)
	m.reopenAt = m.config.Clock.Now().Add(m.reopenPause)
	m.config.Log.WithError(err).WithField("retryIn", m.reopenPause).
		Warn("There is no source of interface events; interfaces and addresses are not followed meanwhile")
}

func (m *Monitor) closeStream() {
	if m.stream == nil {
		return
	}
	if err := m.stream.close(); err != nil {
		m.config.Log.WithError(err).Debug("Could not close the source of interface events.")
	}
	m.stream = nil
}
