package simulation

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/manx-dataplane/manx/mocks"
)

// gate is where every kernel call waits for the scheduler.
type gate struct {
	rng    *rand.Rand // of the scheduler's choices
	signal chan struct{}

	mu     sync.Mutex
	parked []parked
}

type parked struct {
	key string
	let chan struct{}
}

func newGate(seed uint64) *gate {
	return &gate{rng: rand.New(rand.NewPCG(seed, 1)), signal: make(chan struct{}, 1)}
}

// pass waits until the call is granted.
func (g *gate) pass(call mocks.Call) {
	p := parked{key: call.String(), let: make(chan struct{})}
	g.mu.Lock()
	g.parked = append(g.parked, p)
	g.mu.Unlock()
	select {
	case g.signal <- struct{}{}:
	default:
	}
	<-p.let
}

// grant lets one waiting call go on, once everyone waits. It returns false where none
// does.
func (g *gate) grant() bool {
	synctest.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.parked) == 0 {
		return false
	}
	slices.SortStableFunc(g.parked, func(a, b parked) int { return strings.Compare(a.key, b.key) })
	n := g.rng.IntN(len(g.parked))
	close(g.parked[n].let)
	g.parked = slices.Delete(g.parked, n, n+1)
	return true
}

// calls grants up to n waiting calls, and lets the last one happen.
func (g *gate) calls(n int) {
	for range n {
		if !g.grant() {
			return
		}
	}
	synctest.Wait()
}

// run grants everything for that long, or until done says so.
func (g *gate) run(d time.Duration, done func() bool) {
	deadline := time.Now().Add(d)
	for {
		if g.grant() {
			continue
		}
		left := time.Until(deadline)
		if left <= 0 || done != nil && done() {
			return
		}
		timer := time.NewTimer(left)
		select {
		case <-g.signal:
		case <-timer.C:
		}
		timer.Stop()
	}
}
