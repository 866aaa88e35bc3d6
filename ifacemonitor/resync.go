package ifacemonitor

import (
	"time"

	"github.com/manx-dataplane/manx/rtnl"
)

// reason is why a generation of dumps was started, or a dump repeated.
type reason string

const (
	reasonStart       reason = "start"       // of Run
	reasonOverrun     reason = "overrun"     // messages were lost
	reasonInterrupted reason = "interrupted" // the kernel changed while it was dumped, or a dump failed
	reasonTimer       reason = "timer"       // RefreshInterval has passed
	reasonConflict    reason = "conflict"    // two links claimed one name
	reasonReopened    reason = "reopened"    // the socket was dead
)

// allReasons is every reason, for metrics that are there from the start.
func allReasons() []reason {
	return []reason{reasonStart, reasonOverrun, reasonInterrupted, reasonTimer, reasonConflict, reasonReopened}
}

const (
	// A dump is repeated after minPause, which doubles up to maxPause until a
	// generation succeeds.
	minPause = 10 * time.Millisecond
	maxPause = time.Second

	// conflictGap is the least time between the end of one generation and the
	// start of one for a conflict: a source that repeats stale messages cannot keep
	// the kernel dumping.
	conflictGap = 100 * time.Millisecond

	// dumpTimeout is how long a dump may be waited for without a message of it
	// before the socket is taken for dead. The kernel itself never loses one.
	dumpTimeout = 10 * time.Second
)

// A generation's dumps, by position.
const lastDump = 2

func dumpAt(position int) rtnl.Dump {
	return [...]rtnl.Dump{rtnl.DumpLocalIPv4, rtnl.DumpLocalIPv6, lastDump: rtnl.DumpLinks}[position]
}

// resync decides which dump is requested when. It does no I/O.
type resync struct {
	active bool   // a generation is in progress
	next   int    // which of its dumps is outstanding or comes next
	seq    uint32 // of the outstanding dump; zero: none is
	lost   bool   // messages were lost since the outstanding dump was requested
	again  bool   // another generation is wanted after this one

	notBefore time.Time     // when the next dump may be requested
	waited    time.Duration // for the next message of the outstanding dump
	pause     time.Duration // before the next repetition
	endedAt   time.Time     // of the last complete generation
}

// want asks for a generation and reports whether that was news.
func (r *resync) want(why reason, now time.Time) bool {
	switch {
	case !r.active:
		*r = resync{active: true, notBefore: now, endedAt: r.endedAt}
		if gap := r.endedAt.Add(conflictGap); why == reasonConflict && gap.After(now) && !r.endedAt.IsZero() {
			r.notBefore = gap
		}
		return true
	case why != reasonOverrun:
		news := !r.again
		r.again = true
		return news
	case r.seq == 0: // between two dumps
		r.restart(now)
		return true
	}
	news := !r.lost
	r.lost = true
	return news
}

// reset forgets what was going on: the socket is gone.
func (r *resync) reset() { *r = resync{endedAt: r.endedAt} }

// due returns the dump to request now, if any.
func (r *resync) due(now time.Time) (rtnl.Dump, bool) {
	if !r.active || r.seq != 0 || r.notBefore.After(now) {
		return 0, false
	}
	return dumpAt(r.next), true
}

// requested says that the dump that was due was requested.
func (r *resync) requested(seq uint32) { r.seq, r.lost, r.waited = seq, false, 0 }

// refused says that it could not be requested right now.
func (r *resync) refused(now time.Time) { r.backOff(now) }

// progress says that a message of the outstanding dump came in.
func (r *resync) progress() { r.waited = 0 }

// wait says that the next batch was waited for. Time spent in callbacks is not
// part of it: messages of the dump may be there all the while.
func (r *resync) wait(d time.Duration) { r.waited += d }

// silent reports whether the outstanding dump was waited for too long.
func (r *resync) silent() bool { return r.seq != 0 && r.waited >= dumpTimeout }

// ended says that the outstanding dump has ended; failed, that the kernel says it
// is not complete. It reports whether the dump counts, and whether the generation
// is complete with it.
func (r *resync) ended(failed bool, now time.Time) (counts, complete bool) {
	r.seq = 0
	switch {
	case r.lost:
		r.restart(now)
		return false, false
	case failed:
		r.backOff(now)
		return false, false
	case r.next < lastDump:
		r.next++
		return true, false
	}
	again := r.again
	*r = resync{endedAt: now}
	if again {
		*r = resync{active: true, endedAt: now, notBefore: now.Add(conflictGap)}
	}
	return true, true
}

// restart begins the generation anew, after a pause.
func (r *resync) restart(now time.Time) {
	r.next, r.lost = 0, false
	r.backOff(now)
}

func (r *resync) backOff(now time.Time) {
	r.pause = min(max(minPause, 2*r.pause), maxPause)
	r.notBefore = now.Add(r.pause)
}

// deadline returns when due or silent changes by time alone, if ever.
func (r *resync) deadline(now time.Time) (time.Time, bool) {
	if r.seq != 0 {
		return now.Add(dumpTimeout - r.waited), true
	}
	return r.notBefore, r.active
}
