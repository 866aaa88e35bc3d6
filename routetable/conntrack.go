package routetable

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// conntrackAttempts is how often the deletion of an address's flows is tried
// before it counts as failed.
const conntrackAttempts = 3

// flowCleaner deletes the flows of addresses whose route moved or went, each on a
// goroutine of its own, which ends with the deletion.
//
// An address's life: its route to a local interface is tracked, with that
// interface as the owner; when the route is to go elsewhere or for good, the old
// one is removed, then the deletion starts; until it has ended, or taken too
// long, routes to the address are held.
type flowCleaner struct {
	conntrack Conntrack // nil: nothing is ever tracked
	timeout   time.Duration
	now       func() time.Time
	wake      func()
	log       logrus.FieldLogger

	owners   map[routeKey]int
	cleanups map[netip.Addr]*cleanup

	mutex sync.Mutex
	ended []cleanupResult // guarded by mutex; all else belongs to Apply
}

// cleanup is one address's deletion under way.
type cleanup struct {
	deadline time.Time
	// again says that the address moved once more meanwhile.
	again bool
	// overdue says that it was given up waiting for.
	overdue bool
	held    []routeKey
}

type cleanupResult struct {
	addr netip.Addr
	err  error
}

func newFlowCleaner(config Config) *flowCleaner {
	return &flowCleaner{
		conntrack: config.Conntrack,
		timeout:   config.ConntrackTimeout,
		now:       config.Clock.Now,
		wake:      config.Wake,
		log:       config.Log,
		owners:    map[routeKey]int{},
		cleanups:  map[netip.Addr]*cleanup{},
	}
}

// track notes the owner of an address that the kernel routes locally, where none
// is known.
func (f *flowCleaner) track(key routeKey, route *kernelRoute) {
	if f.conntrack != nil && route.isLocal() && key.cidr.IsSingleIP() && f.owners[key] == 0 {
		f.owners[key] = int(route.index)
	}
}

// settle notes that the kernel now has that route.
func (f *flowCleaner) settle(key routeKey, route *kernelRoute) {
	if f.conntrack == nil {
		return
	}
	delete(f.owners, key)
	f.track(key, route)
}

// owner returns the index of the interface that the address was last routed to;
// zero where that is not known.
func (f *flowCleaner) owner(key routeKey) int { return f.owners[key] }

// moves reports whether the route takes the address away from its owner.
func (f *flowCleaner) moves(key routeKey, route *kernelRoute) bool {
	owner := f.owners[key]
	return owner != 0 && !(route.isLocal() && int(route.index) == owner)
}

// hold reports whether a route to the key's address must wait, and remembers to
// hand the key back.
func (f *flowCleaner) hold(key routeKey) bool {
	addr, single := key.addr()
	c := f.cleanups[addr]
	if !single || c == nil || c.overdue {
		return false
	}
	if !slices.Contains(c.held, key) {
		c.held = append(c.held, key)
	}
	return true
}

// start begins to delete the flows of a key's address, which has no owner from
// now on.
func (f *flowCleaner) start(key routeKey) {
	delete(f.owners, key)
	addr, _ := key.addr()
	if c := f.cleanups[addr]; c != nil {
		c.again = true
		return
	}
	f.cleanups[addr] = &cleanup{deadline: f.now().Add(f.timeout)}
	go f.run(addr)
}

// run deletes an address's flows. It is the only method on another goroutine.
func (f *flowCleaner) run(addr netip.Addr) {
	var err error
	for range conntrackAttempts {
		if err = f.conntrack.ConntrackDelete(addr); err == nil {
			break
		}
	}
	f.mutex.Lock()
	f.ended = append(f.ended, cleanupResult{addr, err})
	f.mutex.Unlock()
	f.wake()
}

// collect takes in the deletions that have ended or take too long. It hands back
// the keys that were held for them, and returns what failed.
func (f *flowCleaner) collect(now time.Time, release func(routeKey)) []error {
	if len(f.cleanups) == 0 {
		return nil
	}
	f.mutex.Lock()
	ended := f.ended
	f.ended = nil
	f.mutex.Unlock()
	var errs []error
	for _, result := range ended {
		c := f.cleanups[result.addr]
		if c.again {
			c.again = false
			go f.run(result.addr)
			continue
		}
		delete(f.cleanups, result.addr)
		c.release(release)
		if result.err != nil && !c.overdue {
			errs = append(errs, f.failed(result))
		}
	}
	for addr, c := range f.cleanups {
		if !c.overdue && !now.Before(c.deadline) {
			c.overdue = true
			c.release(release)
			errs = append(errs, f.failed(cleanupResult{addr, context.DeadlineExceeded}))
		}
	}
	return errs
}

func (c *cleanup) release(release func(routeKey)) {
	for _, key := range c.held {
		release(key)
	}
	c.held = nil
}

func (f *flowCleaner) failed(result cleanupResult) error {
	f.log.WithField("addr", result.addr).WithError(result.err).Warn("Could not delete the old flows of an address; its route goes in all the same")
	return &ConntrackError{Addr: result.addr, Err: result.err}
}

// nextDeadline returns when the first wait ends; zero where there is none.
func (f *flowCleaner) nextDeadline() time.Time {
	var next time.Time
	for _, c := range f.cleanups {
		if !c.overdue && (next.IsZero() || c.deadline.Before(next)) {
			next = c.deadline
		}
	}
	return next
}
