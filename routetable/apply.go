package routetable

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/rtnl"
)

const (
	// maxFailures is how often one Apply tries what fails, each time on a fresh
	// socket.
	maxFailures = 3
	// maxRounds bounds the rounds of one Apply that failed in nothing but found out,
	// while writing, that interfaces had changed.
	maxRounds = 8
	// opsPerBatch is how many operations are made up at a time.
	opsPerBatch = 512
)

// Apply brings the kernel's table to the desired state, with as few writes as
// that takes. It returns nil where it succeeded as far as it can for now: routes
// that wait for an interface, for a grace period or for a conntrack deletion are
// no error. What fails is retried twice, then joined into the returned error; it
// stays dirty and is tried again by the next Apply.
func (t *RouteTable) Apply() error {
	now := t.config.Clock.Now()
	errs := t.flows.collect(now, t.markDirty)
	t.metrics.conntrack.Add(float64(len(errs)))
	t.grace.expire(now, t.markDirty)
	t.resync.begin()
	failed := 0
	for round := 1; len(t.dirty) > 0 || t.resync.queued(); round++ {
		failures := t.round()
		if len(failures) > 0 {
			t.closeKernel()
			if failed++; failed == maxFailures {
				errs = append(errs, failures...)
				break
			}
		} else if round >= maxRounds {
			errs = append(errs, ErrInterfacesFlapping)
			break
		}
	}
	t.metrics.wanted.Set(float64(len(t.desired.candidates)))
	t.metrics.routes.Set(float64(len(t.observed)))
	t.metrics.conflicts.Set(float64(len(t.rejected)))
	if len(errs) == 0 && len(t.rejected) == 0 {
		return nil
	}
	// In order: who compares an error with the last one finds them alike.
	for _, key := range slices.SortedFunc(maps.Keys(t.rejected), routeKey.compare) {
		errs = append(errs, t.rejected[key])
	}
	return join(errs)
}

// plan is what one round writes. It keeps its memory between rounds.
type plan struct {
	deletes    []change
	adds       []change
	neighbours []neighbourChange
	cleanups   []routeKey
	ops        []rtnl.RouteOp
	failures   []error
	// refused are the additions that the kernel refused in a way that may be due to
	// their interface.
	refused []refusal
	// unsettled are the keys that stay dirty whatever becomes of their route.
	unsettled []routeKey
}

// refusal is an addition that may have failed because of its interfaces.
type refusal struct {
	indexes []int
	err     error
}

type changeKind uint8

const (
	changeDelete  changeKind = iota // the key's route goes
	changeExtra                     // another route of the same key goes
	changeAdd                       // nothing should be there
	changeReplace                   // something may be there, and may be replaced
)

// change is one write.
type change struct {
	key  routeKey
	kind changeKind
	// final says that the key needs nothing more once this has succeeded.
	final bool
	// cleanup says that the address's flows go once this has succeeded.
	cleanup bool
	route   kernelRoute
}

// round reads what must be read, and writes the difference once.
func (t *RouteTable) round() []error {
	if err := t.openKernel(); err != nil {
		return []error{err}
	}
	p := &t.plan
	p.failures = nil
	if err := t.runResyncs(); err != nil {
		p.failures = append(p.failures, err)
	}
	if !t.resync.synced {
		return p.failures
	}
	p.deletes = append(p.deletes[:0], t.resync.extras...)
	t.resync.extras = t.resync.extras[:0]
	p.adds, p.neighbours, p.cleanups = p.adds[:0], p.neighbours[:0], p.cleanups[:0]
	p.refused, p.unsettled = p.refused[:0], p.unsettled[:0]
	for key := range t.dirty {
		t.planKey(key)
	}
	p.sort()
	t.removeNeighbours()
	t.write(p.deletes, t.deleted)
	t.write(p.adds, t.added)
	t.setNeighbours()
	t.judgeRefusals()
	for _, key := range p.unsettled {
		t.markDirty(key)
	}
	for _, key := range p.cleanups {
		t.flows.start(key)
	}
	return p.failures
}

// sort puts the writes into an order that does not depend on chance, with routes
// through a gateway behind those that may make the gateway reachable.
func (p *plan) sort() {
	// Backwards, so that priority 0 comes last, see [RouteTable.mistaken]; of one key
	// the first route first, which is the one that the kernel finds first.
	slices.SortStableFunc(p.deletes, func(a, b change) int {
		return cmp.Or(b.key.compare(a.key), cmp.Compare(a.kind, b.kind))
	})
	slices.SortFunc(p.neighbours, func(a, b neighbourChange) int { return a.key.compare(b.key) })
	slices.SortFunc(p.cleanups, routeKey.compare)
	slices.SortFunc(p.adds, func(a, b change) int {
		if aFirst, bFirst := a.route.isLocal(), b.route.isLocal(); aFirst != bFirst {
			if aFirst {
				return -1
			}
			return 1
		}
		return a.key.compare(b.key)
	})
}

func (t *RouteTable) planKey(key routeKey) {
	delete(t.rejected, key)
	have, exists := t.observed[key]
	if exists && t.mayReplace(key, &have) {
		t.flows.track(key, &have.route)
	}
	target, index := t.desired.winner(key, t.ifaces)
	var want kernelRoute
	if target != nil {
		var err error
		if want, err = t.routeFromTarget(target, index); err != nil {
			t.rejected[key] = fmt.Errorf("route to %s: %w", key.cidr, err)
			target = nil
		}
	}
	if target == nil && exists && t.spare(key, &have) {
		return
	}
	t.planNeighbour(key, target, &want)
	if target == nil {
		t.planRemoval(key, &have, exists)
	} else {
		t.planWanted(key, &have, exists, &want)
	}
}

// spare reports whether a route that nobody wants is in its grace period, at whose
// end it is looked at again.
func (t *RouteTable) spare(key routeKey, have *observedRoute) bool {
	end, ok := t.graceEnd(have)
	if !ok || !t.isOurs(key, have) {
		return false
	}
	t.grace.add(key, end)
	delete(t.dirty, key)
	return true
}

// mayReplace reports whether a wanted route may take an observed one's place.
func (t *RouteTable) mayReplace(key routeKey, have *observedRoute) bool {
	if t.isOurs(key, have) {
		return true
	}
	name := t.ifaces.byIndex[int(have.route.index)]
	return name != "" && t.config.Ownership.IfaceIsOurs(name)
}

func (t *RouteTable) planRemoval(key routeKey, have *observedRoute, exists bool) {
	goes := !t.desired.has(key) || t.ifaces.byIndex[t.flows.owner(key)] == ""
	switch {
	case !exists:
		if goes && t.flows.owner(key) != 0 {
			t.plan.cleanups = append(t.plan.cleanups, key)
		}
		delete(t.dirty, key)
	case !t.isOurs(key, have):
		delete(t.observed, key)
		delete(t.dirty, key)
	default:
		t.plan.deletes = append(t.plan.deletes, change{
			key: key, route: have.route, kind: changeDelete, final: true, cleanup: goes && t.flows.owner(key) != 0,
		})
	}
}

func (t *RouteTable) planWanted(key routeKey, have *observedRoute, exists bool, want *kernelRoute) {
	certain := exists && !have.suspect
	switch {
	case certain && have.route == *want:
		if !have.adopted {
			have.adopted = true
			t.observed[key] = *have
		}
		t.flows.settle(key, want)
		delete(t.dirty, key)
		return
	case certain && !t.mayReplace(key, have):
		t.reject(key, have)
		return
	}
	there := certain && have.route.index == want.index && have.route.isLocal()
	if t.flows.moves(key, want) {
		if !there {
			if exists {
				t.plan.deletes = append(t.plan.deletes, change{key: key, route: have.route, kind: changeDelete, cleanup: true})
				return
			}
			t.flows.start(key)
		} else {
			t.plan.cleanups = append(t.plan.cleanups, key)
		}
	}
	if !there && t.flows.hold(key) {
		delete(t.dirty, key)
		return
	}
	add := change{key: key, route: *want, kind: changeAdd, final: true}
	switch {
	case certain, exists && (have.route.hops != "" || want.hops != ""):
		// The kernel keeps a multi-path route while one of its links is left.
		add.kind = changeReplace
	case exists && have.route.index != want.index:
		t.plan.deletes = append(t.plan.deletes, change{key: key, route: have.route, kind: changeDelete})
	}
	t.plan.adds = append(t.plan.adds, add)
}

// reject leaves a wanted route out because another's is in its place.
func (t *RouteTable) reject(key routeKey, have *observedRoute) {
	through := t.ifaces.byIndex[int(have.route.index)]
	t.rejected[key] = fmt.Errorf("route to %s (priority %d, TOS %d): %w (protocol %d, through %q)",
		key.cidr, key.priority, key.tos, ErrConflict, have.route.protocol, through)
	t.log.WithFields(logrus.Fields{"cidr": key.cidr, "protocol": have.route.protocol, "iface": through}).
		Warn("A wanted route's place is taken by a route that is not ours; leaving both as they are")
	delete(t.dirty, key)
}

// write makes the changes, many at a time, and hands each one's outcome to done.
func (t *RouteTable) write(changes []change, done func(*change, error)) {
	if t.plan.ops == nil {
		t.plan.ops = make([]rtnl.RouteOp, 0, min(opsPerBatch, len(changes)))
	}
	for chunk := range slices.Chunk(changes, opsPerBatch) {
		ops := slices.Grow(t.plan.ops[:0], len(chunk))[:len(chunk)]
		for i := range chunk {
			ops[i].Delete = chunk[i].kind == changeDelete || chunk[i].kind == changeExtra
			ops[i].Exclusive = chunk[i].kind == changeAdd
			t.fill(&ops[i], chunk[i].key, &chunk[i].route)
		}
		t.plan.ops = ops
		errs := t.kernel.RouteBatch(ops)
		for i := range chunk {
			var err error
			if errs != nil {
				err = errs[i]
			}
			done(&chunk[i], err)
		}
		clear(ops)
	}
}

// deleted takes in the outcome of a removal.
func (t *RouteTable) deleted(c *change, err error) {
	if err != nil && !rtnl.IsAbsent(err) {
		t.fail(fmt.Errorf("route to %s: %w", c.key.cidr, err))
		if c.kind == changeExtra {
			t.resync.extras = append(t.resync.extras, *c)
		} else {
			t.doubt(c)
		}
		return
	}
	t.metrics.deletes.Inc()
	t.mistaken(c)
	if c.kind == changeExtra {
		return
	}
	delete(t.observed, c.key)
	if c.final {
		delete(t.dirty, c.key)
	}
	if c.cleanup {
		t.plan.cleanups = append(t.plan.cleanups, c.key)
	}
}

// mistaken finds out what else a removal may have removed: the kernel takes the
// first route that agrees with the request, in which what is zero agrees with all.
func (t *RouteTable) mistaken(c *change) {
	if have, exists := t.observed[c.key]; exists && c.kind == changeExtra && c.route.agrees(&have.route) {
		// It took the first one, and the extra one has its place.
		have.route = c.route
		t.observed[c.key] = have
		t.markDirty(c.key)
	}
	if t.family != 4 || c.key.priority != 0 {
		return
	}
	// In IPv4 priority 0 agrees with any (fib_nh_match): where its own route was
	// gone, another priority's is now.
	for variant := range t.desired.variants {
		if variant.priority == 0 || variant.tos != c.key.tos {
			continue
		}
		key := routeKey{cidr: c.key.cidr, tos: variant.tos, priority: variant.priority}
		if have, exists := t.observed[key]; exists && c.route.agrees(&have.route) {
			have.suspect = true
			t.observed[key] = have
			t.markDirty(key)
		}
	}
}

// added takes in the outcome of an addition or replacement.
func (t *RouteTable) added(c *change, err error) {
	switch {
	case err == nil:
		t.metrics.sets.Inc()
		t.observed[c.key] = observedRoute{route: c.route, generation: t.resync.generation, adopted: true}
		t.flows.settle(c.key, &c.route)
		delete(t.dirty, c.key)
	case errors.Is(err, unix.EEXIST) && t.readAgain(&c.route):
	case isAny(err, unix.ENODEV, unix.ENETDOWN, unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EINVAL, unix.ENOENT):
		t.doubt(c)
		t.plan.refused = append(t.plan.refused, refusal{c.route.indexes(), fmt.Errorf("route to %s: %w", c.key.cidr, err)})
	default:
		t.doubt(c)
		t.fail(fmt.Errorf("route to %s: %w", c.key.cidr, err))
	}
}

// doubt notes that after a failed write the kernel may hold the new route or no
// longer the old one: the answer may have been lost, and IPv6 replaces multi-path
// routes in steps.
func (t *RouteTable) doubt(c *change) {
	have, exists := t.observed[c.key]
	if !exists {
		have = observedRoute{route: c.route, generation: t.resync.generation, adopted: true}
	}
	have.suspect = true
	t.observed[c.key] = have
}

// readAgain has the kernel's table read because something was in a route's place
// that was not known of: first the routes of the route's own interface, where
// another program such as a CNI plugin is most likely to have put it, then all.
// It returns false where that has been tried often enough.
func (t *RouteTable) readAgain(route *kernelRoute) bool {
	name := t.ifaces.byIndex[int(route.index)]
	_, read := t.resync.readNames[name]
	switch {
	case t.resync.fullReads >= maxFullReads:
		return false
	case name != "" && !read:
		t.QueueResyncIface(name)
	default:
		t.QueueResync()
	}
	return true
}

// judgeRefusals asks the kernel about the interfaces of refused additions. Where
// one is down or gone, or another has its name, there is no error: the routes
// wait for what comes next.
func (t *RouteTable) judgeRefusals() {
	asked := map[int]bool{}
	for i := range t.plan.refused {
		refused := &t.plan.refused[i]
		excused := false
		for _, index := range refused.indexes {
			gone, ok := asked[index]
			if !ok {
				gone = t.isGone(index)
				asked[index] = gone
			}
			excused = excused || gone
		}
		if !excused {
			t.fail(refused.err)
		}
	}
}

// isGone asks the kernel whether an interface that is believed to be up is not,
// and takes the answer in.
func (t *RouteTable) isGone(index int) bool {
	name := t.ifaces.byIndex[index]
	if name == "" {
		return true
	}
	link, err := t.linkByName(name)
	if err != nil {
		t.fail(err)
		return false
	}
	t.confirmLink(name, link)
	current, up := t.ifaces.upIndex(name)
	if up && current == index {
		return false
	}
	t.log.WithFields(logrus.Fields{"iface": name, "ifindex": index}).Debug("interface went while its routes were written")
	return true
}

func (t *RouteTable) fail(err error) {
	t.metrics.failures.Inc()
	t.plan.failures = append(t.plan.failures, err)
}

// indexes returns the interfaces that the route goes through.
func (r *kernelRoute) indexes() []int {
	var indexes []int
	r.uses(func(index int) bool {
		indexes = append(indexes, index)
		return false
	})
	return indexes
}
