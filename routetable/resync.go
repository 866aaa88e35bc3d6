package routetable

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/rtnl"
)

// observedRoute is one route that the kernel is believed to hold: one of ours, or
// one in the place of a wanted one.
type observedRoute struct {
	route kernelRoute
	// generation is that of the dump that showed it last.
	generation uint32
	// adopted says that it was wanted in this form: we wrote it, or found it.
	adopted bool
	// suspect says that the kernel may have removed it since.
	suspect bool
}

// resyncState is what has to be read from the kernel before the next write.
type resyncState struct {
	all    bool
	synced bool // the whole table has been read once
	names  map[string]struct{}
	// lost holds the indexes of links that went down or away: the kernel may have
	// removed their routes.
	lost       map[int]struct{}
	generation uint32
	// before is the generation at the start of this Apply, fullReads and readNames
	// what it has read since.
	before    uint32
	fullReads int
	readNames map[string]struct{}
	// extras are routes of ours whose key has another route before them, as IPv4
	// allows and ip-route(8) append makes.
	extras []change
}

func newResyncState() resyncState {
	return resyncState{all: true, names: map[string]struct{}{}, lost: map[int]struct{}{}, readNames: map[string]struct{}{}}
}

func (r *resyncState) queued() bool {
	return r.all || len(r.names) > 0 || len(r.lost) > 0 || len(r.extras) > 0
}

const (
	// maxInterrupted is how often an interrupted dump is begun anew before it counts
	// as failed.
	maxInterrupted = 10
	// maxIfaceReads is how many interfaces are read one by one. The kernel walks the
	// whole table for each, so that beyond a few one dump is cheaper.
	maxIfaceReads = 4
	// maxFullReads is how often one Apply reads the whole table, at most.
	maxFullReads = 4
)

// begin starts an Apply.
func (r *resyncState) begin() {
	r.before, r.fullReads = r.generation, 0
	clear(r.readNames)
}

// runResyncs reads what is queued to be read. What fails stays queued.
func (t *RouteTable) runResyncs() error {
	t.doubtLost() // whether or not the kernel can be read
	if len(t.resync.names) > maxIfaceReads {
		t.resync.all = true
	}
	if t.resync.all {
		if err := t.resyncAll(); err != nil {
			return err
		}
		t.resync.all, t.resync.synced = false, true
		t.resync.fullReads++
		clear(t.resync.names)
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(t.resync.names)) {
		if err := t.resyncIface(name); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(t.resync.names, name)
		t.resync.readNames[name] = struct{}{}
	}
	t.doubtLost()
	return errors.Join(errs...)
}

func (t *RouteTable) resyncAll() error {
	if err := t.readLinks(); err != nil {
		return err
	}
	t.doubtLost()
	started := t.config.Clock.Now()
	err := t.readRoutes(0)
	if err != nil {
		return err
	}
	if err := t.readNeighbours(); err != nil {
		return err
	}
	t.metrics.resyncs.WithLabelValues(scopeTable).Inc()
	t.log.WithFields(logrus.Fields{"routes": len(t.observed), "took": t.config.Clock.Since(started)}).Debug("read the routing table")
	return nil
}

func (t *RouteTable) resyncIface(name string) error {
	link, err := t.linkByName(name)
	if err != nil {
		return err
	}
	t.confirmLink(name, link)
	t.doubtLost()
	if link == nil {
		return nil
	}
	if err := t.readRoutes(link.Attrs().Index); err != nil {
		return err
	}
	t.metrics.resyncs.WithLabelValues(scopeInterface).Inc()
	return nil
}

// linkByName asks the kernel for the name's owner: nil where it has none.
func (t *RouteTable) linkByName(name string) (netlink.Link, error) {
	link, err := t.kernel.LinkByName(name)
	if isAny(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up interface %s: %w", name, err)
	}
	return link, nil
}

// confirmLink takes in linkByName's answer.
func (t *RouteTable) confirmLink(name string, link netlink.Link) {
	if link == nil || link.Attrs().Name != name {
		t.ifaces.remove(name)
	} else {
		t.ifaces.confirm(link, t.config.Clock.Now())
	}
}

func (t *RouteTable) readLinks() error {
	var links []netlink.Link
	err := retryInterrupted(func() (err error) {
		links, err = t.kernel.LinkList()
		return err
	})
	if err != nil {
		return fmt.Errorf("list interfaces for table %d: %w", t.config.Table, err)
	}
	now := t.config.Clock.Now()
	present := make(map[string]struct{}, len(links))
	for _, link := range links {
		present[link.Attrs().Name] = struct{}{}
		t.ifaces.confirm(link, now)
	}
	for name := range t.ifaces.byName {
		if _, ok := present[name]; !ok {
			t.ifaces.remove(name)
		}
	}
	return nil
}

// doubtLost marks as suspect what is believed to go through links that went down
// or away since it was last looked at.
func (t *RouteTable) doubtLost() {
	if len(t.resync.lost) == 0 {
		return
	}
	isLost := func(index int) bool { _, ok := t.resync.lost[index]; return ok }
	for key, have := range t.observed {
		if have.route.uses(isLost) {
			have.suspect = true
			t.observed[key] = have
			t.markDirty(key)
		}
	}
	t.neighbours.doubt(isLost, t.markDirty)
	clear(t.resync.lost)
}

// readRoutes dumps the routes through one interface, or all where ifindex is
// zero. Afterwards what is observed there is what the kernel has.
//
// Where others change the table meanwhile, a dump can miss routes that are there
// all the time, and does not say so: that of IPv6 starts over and skips as many as
// it has shown (fib6_dump_table). The addition of such a route then finds it there
// and has the table read again, so that one dump of an Apply must do for each
// route: another one misses others.
func (t *RouteTable) readRoutes(ifindex int) error {
	filter := rtnl.RouteFilter{Family: t.family.af(), Table: t.config.Table, IfIndex: ifindex}
	extras := len(t.resync.extras)
	if ifindex == 0 {
		extras = 0
	}
	err := retryInterrupted(func() error {
		t.resync.generation++
		t.resync.extras = t.resync.extras[:extras]
		return t.kernel.RouteEach(filter, func(r *netlink.Route) error {
			if key, route, ok := t.family.routeFromKernel(r); ok {
				t.observe(key, &route, ifindex)
			}
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("read the routes of table %d (ifindex %d): %w", t.config.Table, ifindex, err)
	}
	covered := func(index int) bool { return index == ifindex }
	for key, have := range t.observed {
		if have.generation <= t.resync.before && (ifindex == 0 || have.route.uses(covered)) {
			delete(t.observed, key)
			t.markDirty(key)
		}
	}
	return nil
}

// observe takes in a route that a dump shows.
func (t *RouteTable) observe(key routeKey, route *kernelRoute, ifindex int) {
	have, known := t.observed[key]
	same := known && have.route == *route
	switch {
	case same && have.generation == t.resync.generation:
		return // the dump shows it twice
	case same:
		if have.suspect {
			t.markDirty(key)
		}
		have.generation, have.suspect = t.resync.generation, false
		t.observed[key] = have
		return
	case known && have.generation == t.resync.generation:
		if second := (observedRoute{route: *route}); t.isOurs(key, &second) {
			t.resync.extras = append(t.resync.extras, change{key: key, route: *route, kind: changeExtra})
		}
		return
	case known && ifindex != 0 && !have.suspect && !have.route.uses(func(index int) bool { return index == ifindex }):
		// Either it replaced the known one or both are there: the whole table tells.
		t.resync.all = true
		return
	}
	seen := observedRoute{route: *route, generation: t.resync.generation}
	// Of our multi-path routes IPv6 takes out what leads over links that go.
	seen.adopted = known && have.adopted && have.route.hops != "" && have.route.protocol == route.protocol
	if t.desired.has(key) || t.isOurs(key, &seen) {
		t.observed[key] = seen
		t.markDirty(key)
	} else if known {
		delete(t.observed, key)
		t.markDirty(key)
	}
}

// retryInterrupted repeats a dump for as long as the kernel says that what it
// dumped changed meanwhile.
func retryInterrupted(dump func() error) error {
	var err error
	for range maxInterrupted {
		if err = dump(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return err
}

// graceQueue holds the keys of routes that wait out a grace period.
type graceQueue struct {
	keys map[routeKey]struct{}
	next time.Time // when the first one's ends; zero where there is none
}

func (g *graceQueue) add(key routeKey, until time.Time) {
	g.keys[key] = struct{}{}
	if g.next.IsZero() || until.Before(g.next) {
		g.next = until
	}
}

// release hands all keys back, to be looked at again.
func (g *graceQueue) release(mark func(routeKey)) {
	for key := range g.keys {
		mark(key)
	}
	clear(g.keys)
	g.next = time.Time{}
}

func (g *graceQueue) expire(now time.Time, mark func(routeKey)) {
	if !g.next.IsZero() && !now.Before(g.next) {
		g.release(mark)
	}
}

// graceEnd returns the end of the grace period that covers a route of ours which
// nobody wants; ok is false where none does.
func (t *RouteTable) graceEnd(have *observedRoute) (end time.Time, ok bool) {
	name := t.ifaces.byIndex[int(have.route.index)]
	if have.adopted || t.config.GracePeriod < 0 || name == "" || t.desired.claimed(name) || !t.config.Ownership.IfaceIsOurs(name) {
		return time.Time{}, false
	}
	end = t.ifaces.byName[name].firstSeen.Add(t.config.GracePeriod)
	return end, t.config.Clock.Now().Before(end)
}
