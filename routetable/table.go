package routetable

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/internal/logging"
)

// Defaults of Config.
const (
	DefaultProtocol         = 80 // Felix's deviceRouteProtocol
	DefaultGracePeriod      = 10 * time.Second
	DefaultConntrackTimeout = 10 * time.Second
)

// Config is what a RouteTable is made of. Open and Ownership must be set.
type Config struct {
	// Open opens a handle on the kernel. Apply calls it when it first needs one, and
	// again after an error, so that what is retried is retried on a fresh socket. The
	// RouteTable closes what it opened.
	Open func() (Kernel, error)
	// IPVersion is 4 or 6; zero means 4.
	IPVersion int
	// Table is the number of the kernel's table; zero means the main one (254).
	Table int
	// Ownership says which of the table's routes are ours.
	Ownership OwnershipPolicy
	// Protocol marks our routes (1 to 255); zero means DefaultProtocol.
	Protocol int
	// SourceAddress, where valid, is the preferred source of unicast and local
	// routes whose target names none.
	SourceAddress netip.Addr
	// GracePeriod is how long routes on an interface of ours that nobody claims are
	// left alone after the interface was first seen; zero means DefaultGracePeriod,
	// less than zero none.
	GracePeriod time.Duration
	// StaticARP makes a permanent neighbour entry of every winning target with a
	// DestMAC, once its route is in. A permanent entry for an address that a route
	// of ours leads to, through the same interface, counts as made by us.
	StaticARP bool

	// Conntrack, where set, deletes an address's old flows when its route moves to
	// another interface or goes.
	Conntrack Conntrack
	// ConntrackTimeout is how long an address's new route waits for that; zero means
	// DefaultConntrackTimeout.
	ConntrackTimeout time.Duration
	// Wake, where set, is called when Apply has something to do that nobody told
	// the table: such a deletion has ended. From any goroutine; it must not block.
	Wake func()

	// Clock is the time; nil means the real one.
	Clock clock.PassiveClock
	// Log is where to log; nil means nowhere.
	Log logrus.FieldLogger
	// Registerer is where to register metrics; nil means nowhere.
	Registerer prometheus.Registerer
}

// RouteTable keeps one kernel routing table at a desired state; see the package's
// documentation.
//
// It is not safe for concurrent use: one goroutine calls all methods. Two
// RouteTables, of different tables or address families, are independent of each
// other.
type RouteTable struct {
	config  Config
	family  family
	log     logrus.FieldLogger
	metrics *metrics
	kernel  Kernel // nil: to be opened

	ifaces   *interfaces
	desired  *desired
	observed map[routeKey]observedRoute
	dirty    map[routeKey]struct{}
	// rejected holds what never gets to the kernel: impossible targets, and wanted
	// routes whose place is taken.
	rejected   map[routeKey]error
	grace      graceQueue
	resync     resyncState
	neighbours neighbours
	flows      *flowCleaner
	plan       plan
}

// New returns a RouteTable. It does no I/O. It panics where the configuration
// lacks Open or Ownership or names another IP version: those are no user's input.
func New(config Config) *RouteTable {
	config.IPVersion = cmp.Or(config.IPVersion, 4)
	config.Table = cmp.Or(config.Table, unix.RT_TABLE_MAIN)
	config.Protocol = cmp.Or(config.Protocol, DefaultProtocol)
	config.GracePeriod = cmp.Or(config.GracePeriod, DefaultGracePeriod)
	config.ConntrackTimeout = cmp.Or(config.ConntrackTimeout, DefaultConntrackTimeout)
	switch {
	case config.Open == nil || config.Ownership == nil:
		panic("routetable: Config.Open and Config.Ownership must be set")
	case config.IPVersion != 4 && config.IPVersion != 6:
		panic(fmt.Sprintf("routetable: IP version %d", config.IPVersion))
	}
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	if config.Wake == nil {
		config.Wake = func() {}
	}
	config.Log = logging.OrDiscard(config.Log)
	t := &RouteTable{
		config:     config,
		family:     family(config.IPVersion),
		log:        config.Log.WithFields(logrus.Fields{"table": config.Table, "ipVersion": config.IPVersion}),
		metrics:    newMetrics(config.Registerer, config.Table, config.IPVersion),
		observed:   map[routeKey]observedRoute{},
		dirty:      map[routeKey]struct{}{},
		rejected:   map[routeKey]error{},
		grace:      graceQueue{keys: map[routeKey]struct{}{}},
		resync:     newResyncState(),
		neighbours: neighbours{},
		flows:      newFlowCleaner(config),
	}
	t.ifaces = newInterfaces(t.ifaceChanged)
	t.desired = newDesired(t.family, t.markDirty)
	return t
}

// SetRoutes makes targets the only routes of that class through that interface.
// The interface need not exist. An interface counts as claimed while any class
// has a target on it.
func (t *RouteTable) SetRoutes(class RouteClass, iface string, targets []Target) {
	t.claiming(iface, func() { t.desired.replace(owner{class, iface}, targets) })
}

// RouteUpdate adds a target, or replaces the one of the same class, interface,
// destination, TOS and priority.
func (t *RouteTable) RouteUpdate(class RouteClass, iface string, target Target) {
	t.claiming(iface, func() { t.desired.update(owner{class, iface}, target) })
}

// RouteRemove removes every target of that class through that interface to the
// destinations, whatever its TOS and priority. None is no error.
func (t *RouteTable) RouteRemove(class RouteClass, iface string, cidrs ...netip.Prefix) {
	for _, cidr := range cidrs {
		t.desired.removeCIDR(owner{class, iface}, cidr)
	}
}

// OnIfaceStateChanged takes in what the interface monitor said. Events may come
// late, twice and out of order: what is said about an index that does not own the
// name changes nothing, unless the index is newer and up, and then the next Apply
// asks the kernel.
func (t *RouteTable) OnIfaceStateChanged(name string, ifindex int, state ifacemonitor.State) {
	if disputed := t.ifaces.event(name, ifindex, state, t.config.Clock.Now()); disputed {
		t.QueueResyncIface(name)
	}
}

// QueueResync makes the next Apply read all interfaces and the whole table again,
// and repair what others changed.
func (t *RouteTable) QueueResync() { t.resync.all = true }

// QueueResyncIface does the same for one interface.
func (t *RouteTable) QueueResyncIface(name string) { t.resync.names[name] = struct{}{} }

// NextRecheck returns when Apply has something to do even if nothing is told to
// the table until then: a grace period or the wait for a conntrack deletion ends.
func (t *RouteTable) NextRecheck() (time.Time, bool) {
	at := t.flows.nextDeadline()
	if !t.grace.next.IsZero() && (at.IsZero() || t.grace.next.Before(at)) {
		at = t.grace.next
	}
	return at, !at.IsZero()
}

// Name names the table in logs, metrics and health: "routetable-ipv4" for the main
// one, "routetable-ipv4-1000" for another.
func (t *RouteTable) Name() string {
	name := fmt.Sprintf("routetable-ipv%d", t.config.IPVersion)
	if t.config.Table != unix.RT_TABLE_MAIN {
		name += fmt.Sprintf("-%d", t.config.Table)
	}
	return name
}

// Close closes the handle on the kernel, in which all stays as it is. Conntrack
// deletions that are under way go on until they return. The RouteTable must not
// be used afterwards.
func (t *RouteTable) Close() { t.closeKernel() }

func (t *RouteTable) openKernel() error {
	if t.kernel != nil {
		return nil
	}
	kernel, err := t.config.Open()
	if err != nil {
		return fmt.Errorf("open a handle for table %d: %w", t.config.Table, err)
	}
	t.kernel = kernel
	return nil
}

func (t *RouteTable) closeKernel() {
	if t.kernel != nil {
		t.kernel.Close()
		t.kernel = nil
	}
}

func (t *RouteTable) markDirty(key routeKey) { t.dirty[key] = struct{}{} }

// claiming makes a change that may claim an interface; then nothing on it waits
// for a grace period any longer.
func (t *RouteTable) claiming(iface string, change func()) {
	before := t.desired.claimed(iface)
	change()
	if !before && t.desired.claimed(iface) {
		t.grace.release(t.markDirty)
	}
}

func (t *RouteTable) ifaceChanged(change ifaceChange) {
	t.desired.ifaceChanged(change.name)
	if change.lost != 0 {
		t.resync.lost[change.lost] = struct{}{}
	}
	if change.firstUp && t.config.Ownership.IfaceIsOurs(change.name) {
		// Somebody, such as a CNI plugin, may have made routes before it was heard of.
		t.QueueResyncIface(change.name)
	}
}

// isOurs reports whether an observed route may be removed or replaced.
func (t *RouteTable) isOurs(key routeKey, have *observedRoute) bool {
	if have.adopted {
		return true
	}
	addr := key.cidr.Addr()
	if have.route.protocol == unix.RTPROT_KERNEL || addr.Is6() && (addr.IsLinkLocalUnicast() || addr.IsMulticast()) {
		return false
	}
	index := int(have.route.index)
	if t.family == 6 && index == loopbackIndex && have.route.kind != unix.RTN_UNICAST && have.route.kind != unix.RTN_LOCAL {
		index = 0
	}
	name := t.ifaces.byIndex[index]
	if index != 0 && name == "" {
		return false // heard of soon, and looked at then
	}
	return t.config.Ownership.RouteIsOurs(ObservedRoute{
		CIDR: key.cidr, Type: int(have.route.kind), Protocol: int(have.route.protocol), IfaceName: name,
	})
}

var _ SyncerInterface = (*RouteTable)(nil)

// isAny reports whether err is one of the errnos.
func isAny(err error, errnos ...unix.Errno) bool {
	for _, errno := range errnos {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}
