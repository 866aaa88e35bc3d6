package dataplane

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// loop is the state of Run's goroutine.
type loop struct {
	*Driver

	datastoreInSync bool
	ifacesInSync    bool
	applied         bool // at least once

	// dirty asks for an apply, as soon as the throttle lets it through; fresh says
	// that this is so because of something new, not because of a failure.
	dirty bool
	fresh bool

	throttle  throttle
	backoff   time.Duration // before the retry that is due at retryAt
	retryAt   time.Time     // zero: the last apply succeeded
	recheckAt time.Time     // zero: nobody asked
	routes    refreshTimer
	qos       refreshTimer
	lost      lostEvents
	// lastErr is what the last apply failed with, as it was logged and is shown.
	lastErr string
}

// maxErrorLines is how many of the errors of one apply are logged and shown: when
// everything fails, the first few say why.
const maxErrorLines = 10

// lostInterval is the least time between two refreshes for lost events: a node where
// events are lost all the time has better things to do than to read the kernel all the
// time.
const lostInterval = time.Second

// lostEvents has everything read anew after interface events were lost.
type lostEvents struct {
	pending bool
	last    time.Time // when everything was read anew for the last time
}

// due returns when everything is to be read anew; the zero time means never.
func (e lostEvents) due() time.Time {
	if !e.pending {
		return time.Time{}
	}
	return e.last.Add(lostInterval)
}

// refreshTimer falls due every interval, counted from when it last did.
type refreshTimer struct {
	interval time.Duration // 0: never
	last     time.Time
}

// due returns when the timer falls due next; the zero time means never.
func (r refreshTimer) due() time.Time {
	if r.interval <= 0 {
		return time.Time{}
	}
	return r.last.Add(r.interval)
}

func newLoop(d *Driver) *loop {
	now := d.cfg.Clock.Now()
	l := &loop{
		Driver:   d,
		throttle: newThrottle(d.cfg.ApplyInterval, d.cfg.ApplyBurst, now),
	}
	l.setRefresh(d.cfg.RouteRefreshInterval, d.cfg.QoSRefreshInterval)
	for _, s := range d.syncers {
		l.metrics.applyErrors.WithLabelValues(s.name)
	}
	return l
}

func (l *loop) run(ctx context.Context) {
	for {
		now := l.cfg.Clock.Now()
		timer := l.cfg.Clock.NewTimer(l.nextRound(now).Sub(now))
		select {
		case <-ctx.Done():
		case msg := <-l.queue:
			l.handleBatch(msg)
		case <-l.wake:
			l.dirty, l.fresh = true, true
		case <-timer.C():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
		l.round()
	}
}

// handleBatch handles a message and all that were queued behind it when it came.
// What arrives meanwhile is left for the next batch, so that a flood of messages
// cannot put off the apply for ever.
func (l *loop) handleBatch(msg any) {
	waiting := len(l.queue)
	l.handle(msg)
	for range waiting {
		l.handle(<-l.queue)
	}
	l.metrics.batchMessages.Observe(float64(waiting + 1))
}

func (l *loop) handle(msg any) {
	l.metrics.messages.WithLabelValues(messageType(msg)).Inc()
	switch msg := msg.(type) {
	case InSync:
		l.datastoreInSync = true
	case IfacesInSync:
		l.ifacesInSync = true
	case IfaceEventsLost:
		l.lost.pending = true
	case ConfigUpdate:
		if msg.Config != nil {
			l.setRefresh(msg.Config.RouteRefreshInterval, msg.Config.QoSRefreshInterval)
		}
	case IfaceStateUpdate:
		for _, s := range l.syncers {
			s.OnIfaceStateChanged(msg.Name, msg.Index, msg.State)
		}
	case IfaceMTUUpdate:
		for _, s := range l.syncers {
			if listener, ok := s.SyncerInterface.(MTUListener); ok {
				listener.OnIfaceMTUChanged(msg.Name, msg.Index, msg.MTU)
			}
		}
	}
	for _, m := range l.managers {
		m.OnUpdate(msg)
	}
	l.dirty, l.fresh = true, true
}

// setRefresh takes over how often to refresh, from the start or a configuration.
func (l *loop) setRefresh(routes, qos time.Duration) {
	l.routes.interval, l.qos.interval = routes, qos
	l.metrics.refresh.WithLabelValues(refreshRoutes).Set(routes.Seconds())
	l.metrics.refresh.WithLabelValues(refreshShapers).Set(qos.Seconds())
}

func (l *loop) inSync() bool {
	return l.datastoreInSync && l.ifacesInSync
}

// nextRound returns when the loop has something to do if nothing arrives before.
func (l *loop) nextRound(now time.Time) time.Time {
	// Often enough that one late round does not look like a dead loop.
	next := now.Add(l.cfg.LivenessTimeout / 4)
	if !l.inSync() {
		return next
	}
	ready := l.throttle.readyAt(now)
	if l.dirty {
		next = earlier(next, ready)
	}
	if !l.retryAt.IsZero() {
		next = earlier(next, later(l.retryAt, ready))
	}
	for _, at := range []time.Time{l.recheckAt, l.routes.due(), l.qos.due(), l.lost.due()} {
		if !at.IsZero() {
			next = earlier(next, later(at, ready))
		}
	}
	return later(next, now)
}

// round does what is due.
func (l *loop) round() {
	now := l.cfg.Clock.Now()
	if l.inSync() {
		l.checkTimers(now)
		if l.dirty && l.throttle.take(now) {
			if !l.applied {
				l.reportHealth() // the first apply may take a while
			}
			l.apply(now)
		}
	}
	l.reportHealth()
}

// checkTimers notes what has fallen due.
func (l *loop) checkTimers(now time.Time) {
	if !l.applied {
		// Everyone reads the kernel at their first apply; refreshes count from there.
		l.routes.last, l.qos.last = now, now
	}
	lost := reached(l.lost.due(), now)
	if lost {
		l.lost = lostEvents{last: now}
	}
	if lost || reached(l.routes.due(), now) {
		l.routes.last = now
		for _, m := range l.managers {
			if r, ok := m.(Resyncer); ok {
				r.QueueResync()
			}
		}
		l.queueResync(true)
	}
	if lost || reached(l.qos.due(), now) {
		l.qos.last = now
		l.queueResync(false)
	}
	if reached(l.retryAt, now) || reached(l.recheckAt, now) {
		l.dirty = true
	}
}

func (l *loop) queueResync(tables bool) {
	for _, s := range l.syncers {
		if s.isTable == tables {
			s.QueueResync()
		}
	}
	l.dirty = true
}

// apply brings the kernel to the desired state.
func (l *loop) apply(start time.Time) {
	fresh := l.fresh
	if !fresh && reached(l.retryAt, start) {
		l.metrics.retries.Inc()
	}
	l.dirty, l.fresh = false, false

	var errs []error
	errs = append(errs, l.completeManagers()...)
	applyErr := l.applySyncers()
	errs = append(errs, applyErr)
	for _, m := range l.managers {
		if completer, ok := m.(ApplyCompleter); ok {
			errs = append(errs, l.count(partStatus, completer.OnApplied(applyErr)))
		}
	}
	l.applied = true
	l.scheduleRetry(errors.Join(errs...), fresh)
	if l.recheckAt = l.earliestRecheck(); !l.retryAt.IsZero() && reached(l.recheckAt, l.cfg.Clock.Now()) {
		l.recheckAt = time.Time{} // what is still due is what failed: it waits for the retry
	}
	l.metrics.applies.Inc()
	end := l.cfg.Clock.Now()
	l.metrics.applySeconds.Observe(end.Sub(start).Seconds())
	l.metrics.lastApply.Set(unixSeconds(end))
	if l.lastErr == "" {
		l.metrics.lastSuccess.Set(unixSeconds(end))
	}
}

// completeManagers lets all managers act, whether or not others fail.
func (l *loop) completeManagers() (errs []error) {
	for _, m := range l.managers {
		if resolver, ok := m.(UpdateBatchResolver); ok {
			errs = append(errs, l.count(partResolve, resolver.ResolveUpdateBatch()))
		}
	}
	for _, m := range l.managers {
		errs = append(errs, l.count(partManagers, m.CompleteDeferredWork()))
	}
	return errs
}

// applySyncers applies all syncers in parallel, waits for them and joins their
// errors.
func (l *loop) applySyncers() error {
	errs := make([]error, len(l.syncers))
	var running sync.WaitGroup
	for i, s := range l.syncers {
		s.applyStart.Store(l.cfg.Clock.Now().UnixNano())
		running.Go(func() {
			defer s.applyStart.Store(0)
			if err := s.Apply(); err != nil {
				errs[i] = l.count(s.name, fmt.Errorf("%s: %w", s.name, err))
			}
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

// count counts a part's error and returns it.
func (l *loop) count(part string, err error) error {
	if err != nil {
		l.metrics.applyErrors.WithLabelValues(part).Inc()
	}
	return err
}

// scheduleRetry notes when to try again. What is new starts anew at the shortest
// time, lest it wait long for its second attempt because of something old that
// keeps failing.
func (l *loop) scheduleRetry(err error, fresh bool) {
	if err == nil {
		if l.lastErr != "" {
			l.log.Info("Applied without error again")
		}
		l.lastErr, l.backoff, l.retryAt = "", 0, time.Time{}
		return
	}
	if fresh || l.backoff == 0 {
		l.backoff = l.cfg.RetryMin
	} else {
		l.backoff = min(2*l.backoff, l.cfg.RetryMax)
	}
	l.retryAt = l.cfg.Clock.Now().Add(l.backoff)
	text := shortened(err)
	log := l.log.WithFields(logrus.Fields{"error": text, "retryIn": l.backoff.String()})
	if text != l.lastErr {
		log.Warn("Apply failed in part; the rest is applied, and this will be retried")
	} else {
		log.Debug("Apply failed in part again")
	}
	l.lastErr = text
}

// shortened returns the text of joined errors, which is one line each, without the
// lines beyond maxErrorLines.
func shortened(err error) string {
	lines := strings.Split(err.Error(), "\n")
	if more := len(lines) - maxErrorLines; more > 0 {
		lines = append(lines[:maxErrorLines], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, "\n")
}

func (l *loop) earliestRecheck() time.Time {
	var earliest time.Time
	ask := func(r Rechecker) {
		if at, ok := r.NextRecheck(); ok && (earliest.IsZero() || at.Before(earliest)) {
			earliest = at
		}
	}
	for _, m := range l.managers {
		if r, ok := m.(Rechecker); ok {
			ask(r)
		}
	}
	for _, s := range l.syncers {
		ask(s)
	}
	return earliest
}

// unixSeconds is a time as metrics have it.
func unixSeconds(t time.Time) float64 {
	return float64(t.UnixNano()) / float64(time.Second)
}

func reached(at, now time.Time) bool {
	return !at.IsZero() && !at.After(now)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
