package simulation

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// options are what holds for a whole scenario.
type options struct {
	seed uint64
	// noRefresh turns all refresh intervals off: then everything must come right by
	// events and retries alone, and no step does what only a refresh can find.
	noRefresh    bool
	liesReads    bool // reads, too, say that objects are not there
	floatingIPs  bool
	noIPv6       bool
	keepExternal bool
	keepsHanging bool // what hangs does so to the end
	listens      bool // a second monitor does
	capacity     int  // of event sockets, in messages; 0: unlimited
	chunk        int  // of dumps
	overtakes    bool // multicasts overtake chunks of a dump
	// lossless is whether no event is ever lost. Only then are pods re-created with
	// their former index, which nothing but events shows.
	lossless   bool
	interrupts int // per cent of dumps, while calls fail
	statusDir  string
}

// scenario is what a seed stands for.
type scenario struct {
	options options
	steps   []step
}

// step is one thing that happens, and what passes before it.
type step struct {
	number int // in the scenario as it was generated
	calls  int // up to that many kernel calls, or
	wait   time.Duration
	text   string
	do     func(*world)
}

// String says the step in words.
func (s step) String() string {
	when := "at once"
	switch {
	case s.wait > 0:
		when = "after " + s.wait.String()
	case s.calls == 1:
		when = "after 1 kernel call"
	case s.calls > 0:
		when = fmt.Sprintf("after %d kernel calls", s.calls)
	}
	return fmt.Sprintf("%3d. %s: %s", s.number, when, s.text)
}

// keep returns the scenario with only these steps.
func (s scenario) keep(numbers []int) scenario {
	kept := s
	kept.steps = nil
	for _, st := range s.steps {
		if slices.Contains(numbers, st.number) {
			kept.steps = append(kept.steps, st)
		}
	}
	return kept
}

func (s scenario) numbers() (numbers []int) {
	for _, st := range s.steps {
		numbers = append(numbers, st.number)
	}
	return numbers
}

// calmBound is how long after the faults everything must be right, without a refresh
// and with two.
const (
	calmBound    = 100 * time.Second
	refreshBound = 250 * time.Second
)

// run plays a scenario and returns what went wrong.
func (s scenario) run(t *testing.T, trace *strings.Builder) (problems []string) {
	if s.options.statusDir != "" {
		s.options.statusDir = filepath.Join(t.TempDir(), fmt.Sprint(s.options.seed))
		defer os.RemoveAll(s.options.statusDir)
	}
	var w *world
	defer func() {
		if failure := recover(); failure != nil {
			problems = append(w.problems, fmt.Sprint("panic: ", failure))
		}
	}()
	synctest.Test(t, func(*testing.T) {
		w = newWorld(s.options, trace)
		s.play(w)
	})
	return w.problems
}

func (s scenario) play(w *world) {
	if s.options.listens {
		w.listen()
	}
	for _, st := range s.steps {
		if st.wait > 0 {
			w.gate.run(st.wait, nil)
		} else if st.calls > 0 { // else not even the events of the last step have been read
			w.gate.calls(st.calls)
		}
		w.reap()
		w.arm()
		w.note("STEP %s", st)
		st.do(w)
		if len(w.problems) > 0 && w.trace == nil {
			break // the rest may be a consequence
		}
	}
	s.calm(w)
}

// calm ends all faults, lets time pass, and compares.
func (s scenario) calm(w *world) {
	w.note("CALM")
	w.faults, w.reordering, w.hang.armed = faults{}, false, false
	w.gate.run(0, nil)
	w.reap()
	if w.agent != nil {
		w.agent.crashAt = 0
	}
	if len(w.hung) > 0 && !s.options.keepsHanging {
		w.stop()
	}
	w.start(true)
	w.datastoreInSync()
	if s.options.noRefresh {
		w.gate.run(calmBound, nil)
	} else {
		w.gate.run(refreshBound, nil)
	}
	w.excused = w.hung
	w.compare("in the end")
	w.checkHealth()
	if w.listener != nil {
		w.listener.compare()
	}
	w.stop()
	w.compare("after the agent stopped")
	if w.listener != nil {
		w.listener.stop()
	}
}

// checkHealth checks the report in the end: nothing to tell but endpoints that another
// one shadows, and the devices that hang.
func (w *world) checkHealth() {
	report := w.agent.dataplane.Health()
	named := len(w.hung) == 0
	well := report.Live && report.Ready
	for _, detail := range report.Details {
		mentions := func(name string) bool { return strings.Contains(detail, name) }
		named = named || slices.ContainsFunc(slices.Collect(maps.Values(w.hung)), mentions)
		// What was deleted together with a device that hangs is named, too.
		hangs := len(w.hung) > 0 && strings.Contains(detail, "has not come back")
		well = well && (strings.HasPrefix(detail, "endpoint ") || hangs)
	}
	if !named || !well {
		w.problem("health in the end: %+v, with deletes of %v hanging", report, w.hung)
	}
}

// rngOf is what a scenario is generated from.
func rngOf(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }
