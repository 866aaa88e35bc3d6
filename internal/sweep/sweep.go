package sweep

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"k8s.io/utils/clock"

	"github.com/manx-dataplane/manx/qos"
)

// Kernel is what a Sweeper asks of the kernel. Methods and errors are those of
// *rtnl.Handle.
type Kernel interface {
	qos.ReadKernel
	LinkByIndex(index int) (netlink.Link, error)
	LinkSetName(link netlink.Link, name string) error
	LinkSetDown(link netlink.Link) error
	LinkSetUp(link netlink.Link) error
}

// DefaultGrace is the time between the two looks: far longer than an agent takes
// from making a device to redirecting to it.
const DefaultGrace = 5 * time.Second

// reason is what the reaper counts the deletions under.
const reason qos.Reason = "manual_sweep"

// Config configures a Sweeper. Kernel must be set, and OpenReaper unless DryRun is.
type Config struct {
	Kernel Kernel
	// OpenReaper opens a handle for the reaper's own use.
	OpenReaper func() (qos.ReaperKernel, error)
	// Prefix starts the names of the devices to look at, 3 to 15 bytes; empty means
	// DefaultPrefix.
	Prefix string
	// Grace is the time between the two looks; zero means DefaultGrace.
	Grace time.Duration
	// Max is how many orphans are deleted at most: where there are more, none is. Zero
	// means any number.
	Max int
	// DryRun only looks.
	DryRun bool
	// Progress, where set, is called with the number of orphans before they are
	// deleted; what it returns is called with how many are done.
	Progress func(total int) (done func(int))
	// StuckAfter is the reaper's; zero means its default.
	StuckAfter time.Duration
	// Clock; nil means the real one.
	Clock clock.Clock
	// Log is the reaper's; nil means none.
	Log logrus.FieldLogger
}

// Outcome is what became of an orphan.
type Outcome string

// The outcomes.
const (
	WouldDelete Outcome = "would-delete" // a dry run
	Deleted     Outcome = "deleted"
	Gone        Outcome = "gone"    // somebody else deleted it
	Spared      Outcome = "spared"  // it came into use, or its name did
	Kept        Outcome = "kept"    // refused, or interrupted
	Left        Outcome = "left"    // its deletion failed or does not come back
	unsettled   Outcome = "pending" // inside the package only
)

// Orphan is an orphan, and what became of it.
type Orphan struct {
	Device
	Reason string `json:"reason"`
	// FirstSeen is when this Sweeper first saw it as an orphan. When it was made is not
	// known: the kernel keeps no such time.
	FirstSeen      time.Time `json:"firstSeen"`
	SeenForSeconds float64   `json:"seenForSeconds"`
	Outcome        Outcome   `json:"outcome"`
	Error          string    `json:"error,omitempty"`
}

// Result is the outcome of one sweep.
type Result struct {
	Time    time.Time `json:"time"`
	Prefix  string    `json:"prefix"`
	Devices int       `json:"devices"` // with that prefix, at the second look
	Orphans []Orphan  `json:"orphans"`
	// DeletionSeconds is how long deleting took.
	DeletionSeconds float64 `json:"deletionSeconds"`
}

// Count returns how many orphans have that outcome.
func (r Result) Count(outcome Outcome) int {
	count := 0
	for _, orphan := range r.Orphans {
		if orphan.Outcome == outcome {
			count++
		}
	}
	return count
}

// ErrTooMany is returned where there are more orphans than Config.Max.
var ErrTooMany = errors.New("more orphans than allowed")

// Sweeper sweeps. Its methods are for one goroutine.
type Sweeper struct {
	config    Config
	reaper    *qos.Reaper
	firstSeen map[key]time.Time // of what was an orphan at the last look
}

// key tells a device from others of the same name or, later, index.
type key struct {
	name  string
	index int
}

// New returns a Sweeper.
func New(config Config) (*Sweeper, error) {
	config.Prefix = cmp.Or(config.Prefix, DefaultPrefix)
	config.Grace = cmp.Or(config.Grace, DefaultGrace)
	config.StuckAfter = cmp.Or(config.StuckAfter, qos.DefaultStuckAfter)
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	const shortest, longest = 3, 15 // IFNAMSIZ without the terminating zero
	switch {
	case len(config.Prefix) < shortest || len(config.Prefix) > longest:
		return nil, fmt.Errorf("prefix %q: must have %d to %d bytes", config.Prefix, shortest, longest)
	case config.Grace < 0:
		return nil, fmt.Errorf("grace %s: must not be negative", config.Grace)
	case config.Max < 0:
		return nil, fmt.Errorf("max %d: must not be negative", config.Max)
	}
	return &Sweeper{
		config: config,
		reaper: qos.NewReaper(qos.ReaperConfig{
			Open: config.OpenReaper, Clock: config.Clock, Log: config.Log, StuckAfter: config.StuckAfter,
		}),
		firstSeen: make(map[key]time.Time),
	}, nil
}

// Sweep looks twice and deletes what was an orphan both times. It returns
// ErrTooMany where it refused, the context's error where it was interrupted, and the
// kernel's where it could not look or may not change anything. The result says in
// any case what became of each orphan.
func (s *Sweeper) Sweep(ctx context.Context) (Result, error) {
	first, err := s.look()
	if err != nil {
		return Result{Prefix: s.config.Prefix}, err
	}
	if len(first.Orphans) == 0 {
		return first, nil
	}
	if err := s.wait(ctx, s.config.Grace); err != nil {
		first.Orphans = nil
		return first, err
	}
	result, err := s.look()
	if err != nil {
		return result, err
	}
	result.keepThoseOf(first)
	outcome := Kept
	if s.config.DryRun {
		outcome = WouldDelete
	}
	for i := range result.Orphans {
		result.Orphans[i].Outcome = outcome
	}
	switch total := len(result.Orphans); {
	case total == 0 || s.config.DryRun:
		return result, nil
	case s.config.Max > 0 && total > s.config.Max:
		return result, fmt.Errorf("%w: %d, allowed are %d; nothing was deleted", ErrTooMany, total, s.config.Max)
	}
	begin := s.config.Clock.Now()
	err = s.delete(ctx, result.Orphans)
	result.DeletionSeconds = s.config.Clock.Since(begin).Seconds()
	return result, err
}

// look looks once. The orphans are in order of their names.
func (s *Sweeper) look() (Result, error) {
	view, err := Look(s.config.Kernel)
	if err != nil {
		return Result{Prefix: s.config.Prefix}, err
	}
	now := s.config.Clock.Now()
	devices := view.Devices(s.config.Prefix)
	result := Result{Time: now.UTC(), Prefix: s.config.Prefix, Devices: len(devices), Orphans: []Orphan{}}
	before := s.firstSeen
	s.firstSeen = make(map[key]time.Time)
	for _, device := range devices {
		if !device.Orphan() {
			continue
		}
		k := key{device.Name, device.Index}
		since, known := before[k]
		if !known {
			since = now
		}
		s.firstSeen[k] = since
		result.Orphans = append(result.Orphans, Orphan{
			Device: device, Reason: device.Reason(), FirstSeen: since.UTC(), SeenForSeconds: now.Sub(since).Seconds(),
		})
	}
	return result, nil
}

// keepThoseOf drops the orphans that an earlier look did not find.
func (r *Result) keepThoseOf(earlier Result) {
	found := make(map[key]bool)
	for _, orphan := range earlier.Orphans {
		found[key{orphan.Name, orphan.Index}] = true
	}
	both := []Orphan{}
	for _, orphan := range r.Orphans {
		if found[key{orphan.Name, orphan.Index}] {
			both = append(both, orphan)
		}
	}
	r.Orphans = both
}

func (s *Sweeper) wait(ctx context.Context, d time.Duration) error {
	timer := s.config.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C():
		return nil
	}
}
