package dataplane

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Report is the driver's health at one moment.
type Report struct {
	// Live: the loop came round within LivenessTimeout. If it did not, restarting the
	// process is worth a try.
	Live bool `json:"live"`
	// Ready: the datastore and the interface monitor are in sync and the first apply
	// is done. Items that keep failing are in Details and do not change it: one bad
	// endpoint must not take the node out of service.
	Ready bool `json:"ready"`
	// Details are lines for an operator: what is waited for, what fails, what hangs.
	Details []string `json:"details,omitempty"`
}

// health is what the loop tells those who ask for a Report.
type health struct {
	mu        sync.Mutex
	lastRound time.Time
	ready     bool
	stopped   bool
	details   []string
}

func (h *health) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopped = true
}

// Health reports on the driver. Any goroutine may call it.
func (d *Driver) Health() Report {
	d.health.mu.Lock()
	defer d.health.mu.Unlock()
	if d.health.stopped {
		return Report{Details: []string{"stopped"}}
	}
	r := Report{
		Live:    true,
		Ready:   d.health.ready,
		Details: slices.Clone(d.health.details),
	}
	if late := d.cfg.Clock.Since(d.health.lastRound); late > d.cfg.LivenessTimeout {
		r.Live = false
		r.Details = append(r.Details, fmt.Sprintf("the main loop last came round %s ago", late.Round(time.Second)))
		for _, name := range d.applying() {
			r.Details = append(r.Details, "still applying: "+name)
		}
	}
	return r
}

// HealthHandler serves /liveness and /readiness: 200 if so and 503 if not, with the
// Report as JSON either way.
func (d *Driver) HealthHandler() http.Handler {
	serve := func(ok func(Report) bool) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			report := d.Health()
			w.Header().Set("Content-Type", "application/json")
			if !ok(report) {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			_ = json.NewEncoder(w).Encode(report) // the client went away
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /liveness", serve(func(r Report) bool { return r.Live }))
	mux.HandleFunc("GET /readiness", serve(func(r Report) bool { return r.Ready }))
	return mux
}

// applying names the syncers whose Apply is running, with the time it has taken.
func (d *Driver) applying() (names []string) {
	for _, s := range d.syncers {
		if start := s.applyStart.Load(); start != 0 {
			names = append(names, fmt.Sprintf("%s (for %s)", s.name,
				d.cfg.Clock.Since(time.Unix(0, start)).Round(time.Millisecond)))
		}
	}
	return names
}

// reportHealth publishes what the loop knows.
func (l *loop) reportHealth() {
	details := l.healthDetails()
	l.metrics.inSync.WithLabelValues(sourceDatastore).Set(asNumber(l.datastoreInSync))
	l.metrics.inSync.WithLabelValues(sourceInterfaces).Set(asNumber(l.ifacesInSync))
	now := l.cfg.Clock.Now()
	l.metrics.lastRound.Set(unixSeconds(now))

	l.health.mu.Lock()
	defer l.health.mu.Unlock()
	l.health.lastRound = now
	l.health.ready = l.inSync() && l.applied
	l.health.details = details
}

func (l *loop) healthDetails() (details []string) {
	if !l.datastoreInSync {
		details = append(details, "the datastore is not in sync yet")
	}
	if !l.ifacesInSync {
		details = append(details, "the interface monitor is not in sync yet")
	}
	if l.inSync() && !l.applied {
		details = append(details, "the first apply is not done yet")
	}
	if l.lastErr != "" {
		for line := range strings.SplitSeq(l.lastErr, "\n") {
			details = append(details, "last apply: "+line)
		}
	}
	for _, m := range l.managers {
		if h, ok := m.(HealthDetailer); ok {
			details = append(details, h.HealthDetail()...)
		}
	}
	for _, s := range l.syncers {
		if h, ok := s.SyncerInterface.(HealthDetailer); ok {
			details = append(details, h.HealthDetail()...)
		}
	}
	return details
}

func asNumber(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
