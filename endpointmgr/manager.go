package endpointmgr

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"

	"github.com/manx-dataplane/manx/config"
	"github.com/manx-dataplane/manx/dataplane"
	"github.com/manx-dataplane/manx/internal/logging"
	"github.com/manx-dataplane/manx/qos"
	"github.com/manx-dataplane/manx/routetable"
)

// RouteTable is what the manager needs of a route table. *routetable.RouteTable is
// one.
type RouteTable interface {
	// SetRoutes replaces the routes of a class on an interface. The table may keep
	// targets; nobody changes them afterwards.
	SetRoutes(class routetable.RouteClass, iface string, targets []routetable.Target)
}

// QoS is what the manager needs of the shapers. *qos.Syncer is one.
type QoS interface {
	// SetLimits sets the limits of an interface that an endpoint claims. Zero Limits
	// mean claimed, not limited.
	SetLimits(iface string, limits qos.Limits)
	// RemoveLimits says that no endpoint claims the interface.
	RemoveLimits(iface string)
}

// PendingTeller is a RouteTable or QoS that can tell interfaces apart when not all
// of them are done. With one that cannot, a failed apply holds back the status of all
// endpoints that are not up yet.
type PendingTeller interface {
	// Pending says whether the kernel lacks something that was set for this
	// interface, which is up, be it for an error or because it has to wait. Who says so
	// without an error sees to it that there is another apply (Wake, NextRecheck).
	Pending(iface string) bool
}

// Status is an endpoint's operational status.
type Status string

// The statuses.
const (
	// StatusUp: its interface is up and everything it wants is programmed.
	StatusUp Status = "up"
	// StatusDown: it exists but is not up.
	StatusDown Status = "down"
	// StatusGone: it was removed.
	StatusGone Status = "gone"
)

// StatusReporter hears of statuses. It is called from the goroutine that calls the
// manager.
type StatusReporter interface {
	// OnStatus tells the status of an endpoint, when it changes, and for one that is
	// up also when the endpoint does. On error it is told again at the next apply.
	OnStatus(id dataplane.WorkloadEndpointID, ep *dataplane.WorkloadEndpoint, status Status) error
	// OnAllReported is called after the first apply, when the status of every endpoint
	// there is has been told, and after each resync: what others left about other
	// endpoints is out of date, and what they took away is to be put back. On error it
	// is called again at the next apply.
	OnAllReported() error
}

// ErrNotReportable is what an error of OnStatus wraps where trying again is of no use.
// It is logged, and the endpoint counts as reported.
var ErrNotReportable = errors.New("cannot be reported")

// Config is what a Manager needs. QoS and Sysctls are required.
type Config struct {
	// RoutesV4 and RoutesV6 take the routes. Nil means that routes of that family are
	// not programmed.
	RoutesV4 RouteTable
	RoutesV6 RouteTable
	QoS      QoS
	Sysctls  Sysctls
	// Status may be nil.
	Status StatusReporter
	// IsWorkloadIface says whether an endpoint may claim an interface of this name. The
	// addresses of those that none may claim are the node's own, to which no endpoint
	// gets a route. Nil means any: an endpoint that names the node's uplink, or its
	// address, then gets its way.
	IsWorkloadIface func(name string) bool
	// IPv6Support is whether IPv6 sysctls are written.
	IPv6Support bool

	// The following change with a ConfigUpdate message.

	// FloatingIPs is whether endpoints' NAT addresses get routes.
	FloatingIPs bool
	// KubernetesAnnotations is whether kubernetes.io/*-bandwidth count.
	KubernetesAnnotations bool
	// DefaultBurstBits is the burst of a limit that gives none, in bits.
	DefaultBurstBits uint64

	// Log nil means that nothing is logged.
	Log logrus.FieldLogger
	// Registerer nil means that metrics are not registered.
	Registerer prometheus.Registerer
}

// Manager is the [dataplane.Manager] of workload endpoints. All methods are to be
// called from one goroutine.
type Manager struct {
	cfg     Config
	log     logrus.FieldLogger
	metrics metrics
	// noIPv6 is set once it was said that the kernel has no IPv6 sysctls.
	noIPv6 bool

	// What OnUpdate noted and CompleteDeferredWork has not seen yet. A nil endpoint
	// means that it was removed.
	pending       map[dataplane.WorkloadEndpointID]*dataplane.WorkloadEndpoint
	pendingConfig *config.Config

	endpoints map[dataplane.WorkloadEndpointID]*endpoint
	ifaces    map[string]*iface // present or claimed
	host      hostAddrs
	// shadowed are the endpoints that wait for another to give up their interface.
	shadowed map[dataplane.WorkloadEndpointID]*endpoint
	// dirtyIfaces are to be programmed, dirtyStatuses to be looked at for a status to
	// report.
	dirtyIfaces   map[string]*iface
	dirtyStatuses map[dataplane.WorkloadEndpointID]*endpoint
	// allReported is set once OnAllReported succeeded, until the next resync.
	allReported bool
}

var (
	_ dataplane.ManagerWithRouteTables = (*Manager)(nil)
	_ dataplane.ApplyCompleter         = (*Manager)(nil)
	_ dataplane.Resyncer               = (*Manager)(nil)
	_ dataplane.HealthDetailer         = (*Manager)(nil)
)

// New returns a manager that knows of no endpoint.
func New(cfg Config) *Manager {
	cfg.Log = logging.OrDiscard(cfg.Log)
	if cfg.Status == nil {
		cfg.Status = noStatus{}
	}
	return &Manager{
		cfg:           cfg,
		log:           cfg.Log,
		metrics:       newMetrics(cfg.Registerer),
		pending:       map[dataplane.WorkloadEndpointID]*dataplane.WorkloadEndpoint{},
		endpoints:     map[dataplane.WorkloadEndpointID]*endpoint{},
		ifaces:        map[string]*iface{},
		host:          newHostAddrs(),
		shadowed:      map[dataplane.WorkloadEndpointID]*endpoint{},
		dirtyIfaces:   map[string]*iface{},
		dirtyStatuses: map[dataplane.WorkloadEndpointID]*endpoint{},
	}
}

// GetRouteTableSyncers returns those of the configured route tables that a driver
// can apply.
func (m *Manager) GetRouteTableSyncers() (syncers []routetable.SyncerInterface) {
	for _, table := range []RouteTable{m.cfg.RoutesV4, m.cfg.RoutesV6} {
		if syncer, ok := table.(routetable.SyncerInterface); ok {
			syncers = append(syncers, syncer)
		}
	}
	return syncers
}

// OnUpdate takes note of a message.
func (m *Manager) OnUpdate(msg any) {
	switch msg := msg.(type) {
	case dataplane.WorkloadEndpointUpdate:
		if msg.Endpoint == nil {
			m.log.WithField("endpoint", msg.ID).Warn("Ignoring an update without an endpoint")
			return
		}
		m.pending[msg.ID] = msg.Endpoint
	case dataplane.WorkloadEndpointRemove:
		m.pending[msg.ID] = nil
	case dataplane.IfaceStateUpdate:
		m.onIfaceState(msg)
	case dataplane.IfaceAddrsUpdate:
		if m.cfg.IsWorkloadIface != nil && !m.cfg.IsWorkloadIface(msg.Name) {
			m.host.set(msg.Name, msg.Addrs)
		}
	case dataplane.ConfigUpdate:
		if msg.Config != nil {
			m.pendingConfig = msg.Config
		}
	}
}

// CompleteDeferredWork hands over routes and limits, writes sysctls, and reports
// endpoints that are no longer up. Interfaces whose sysctls could not be written and
// statuses that could not be reported stay dirty.
func (m *Manager) CompleteDeferredWork() error {
	m.takeConfig()
	m.takeHostAddrs()
	m.takeEndpoints()
	return errors.Join(m.programDirty(), m.reportLost())
}

// OnApplied reports the status of endpoints that changed: up for those whose routes
// and limits are in the kernel. Those that are still being waited for, or whose status
// could not be reported, are looked at again at the next call.
func (m *Manager) OnApplied(applyErr error) error {
	errs := m.reportAllReached(applyErr)
	if !m.allReported {
		if err := m.cfg.Status.OnAllReported(); err != nil {
			errs = append(errs, fmt.Errorf("tidy up earlier endpoint statuses: %w", err))
		} else {
			m.allReported = true
		}
	}
	return errors.Join(errs...)
}

// QueueResync has the sysctls of all interfaces written anew at the next
// CompleteDeferredWork, and OnAllReported called anew after the next apply. Somebody
// may have changed the ones or the other; and of an interface that left the namespace
// and came back while the monitor lost events, with the index it had, nobody tells.
func (m *Manager) QueueResync() {
	m.allReported = false
	for name, i := range m.ifaces {
		if i.configured {
			i.configured = false
			m.dirtyIfaces[name] = i
		}
	}
}

// HealthDetail names endpoints that are down because another one has their interface.
func (m *Manager) HealthDetail() (lines []string) {
	const most = 10
	for _, id := range slices.SortedFunc(maps.Keys(m.shadowed), dataplane.WorkloadEndpointID.Compare) {
		if len(lines) == most {
			return append(lines, fmt.Sprintf("and %d more endpoints are waiting for an interface", len(m.shadowed)-most))
		}
		i := m.shadowed[id].iface
		lines = append(lines, fmt.Sprintf("endpoint %s is down: interface %s is claimed by %s", id, i.name, i.winner().id))
	}
	return lines
}

func (m *Manager) programDirty() error {
	if len(m.dirtyIfaces) == 0 {
		return nil
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(m.dirtyIfaces)) {
		done, err := m.program(m.dirtyIfaces[name])
		if done {
			delete(m.dirtyIfaces, name)
		}
		errs = append(errs, err)
	}
	if len(m.dirtyIfaces) == 0 {
		m.dirtyIfaces = map[string]*iface{}
	}
	return errors.Join(errs...)
}

// takeConfig applies a new configuration to all endpoints.
func (m *Manager) takeConfig() {
	c := m.pendingConfig
	if c == nil {
		return
	}
	m.pendingConfig = nil
	if m.cfg.FloatingIPs == c.FloatingIPs &&
		m.cfg.KubernetesAnnotations == c.QoSKubernetesAnnotations &&
		m.cfg.DefaultBurstBits == c.QoSDefaultBurstBits {
		return
	}
	m.cfg.FloatingIPs = c.FloatingIPs
	m.cfg.KubernetesAnnotations = c.QoSKubernetesAnnotations
	m.cfg.DefaultBurstBits = c.QoSDefaultBurstBits
	for id, ep := range m.endpoints {
		if _, changes := m.pending[id]; !changes && !ep.removed {
			m.pending[id] = ep.spec
		}
	}
}

// takeEndpoints moves what was noted of endpoints into claims of interfaces.
func (m *Manager) takeEndpoints() {
	if len(m.pending) == 0 {
		return
	}
	for _, id := range slices.SortedFunc(maps.Keys(m.pending), dataplane.WorkloadEndpointID.Compare) {
		if spec := m.pending[id]; spec != nil {
			m.updateEndpoint(id, spec)
		} else if ep := m.endpoints[id]; ep != nil && !ep.removed {
			ep.removed = true
			m.setClaim(ep, "")
			m.dirtyStatuses[id] = ep
		}
	}
	// Not clear: walking a map takes as long as it was once big.
	m.pending = map[dataplane.WorkloadEndpointID]*dataplane.WorkloadEndpoint{}

	active := 0
	for _, ep := range m.endpoints {
		if !ep.removed && ep.active() {
			active++
		}
	}
	m.metrics.active.Set(float64(active))
}

func (m *Manager) updateEndpoint(id dataplane.WorkloadEndpointID, spec *dataplane.WorkloadEndpoint) {
	ep := m.endpoints[id]
	if ep == nil {
		ep = &endpoint{id: id}
		m.endpoints[id] = ep
	}
	ep.spec, ep.removed = spec, false
	name, want, problems := m.wantOf(spec)
	ep.want = want
	m.logProblems(ep, problems)
	m.setClaim(ep, name)
	m.dirtyStatuses[id] = ep
}

// setClaim makes an endpoint the claimant of this interface, and of no other. The
// empty name means none at all.
func (m *Manager) setClaim(ep *endpoint, name string) {
	if old := ep.iface; old != nil && old.name != name {
		old.removeClaimant(ep)
		m.dirtyIfaces[old.name] = old
		ep.iface = nil
		ep.outdated = true
		delete(m.shadowed, ep.id)
	}
	if name == "" {
		return
	}
	i := m.ifaceNamed(name)
	if ep.iface == nil {
		i.addClaimant(ep)
		ep.iface = i
	}
	m.dirtyIfaces[name] = i
}
