package dataplane

import (
	"context"
	"errors"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	"k8s.io/utils/clock"

	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/internal/logging"
	"github.com/manx-dataplane/manx/routetable"
)

// Defaults of Config.
const (
	// DefaultApplyInterval and DefaultApplyBurst are Felix's: ten applies a second.
	DefaultApplyInterval   = 100 * time.Millisecond
	DefaultApplyBurst      = 10
	DefaultRetryMin        = 100 * time.Millisecond
	DefaultRetryMax        = 10 * time.Second
	DefaultLivenessTimeout = 90 * time.Second
)

// queueLength is how many messages may wait: the first sync of 5,000 interfaces
// (state, MTU and addresses of each) with nothing read meanwhile.
const queueLength = 1 << 14

// ErrStopped is returned by Send once Run has returned.
var ErrStopped = errors.New("driver has stopped")

// Config is what a Driver needs. The zero value works: it means the defaults and
// no refresh timers.
type Config struct {
	// Clock is the source of time; nil means the real one.
	Clock clock.Clock
	// Log nil means that nothing is logged.
	Log logrus.FieldLogger
	// Registerer nil means that metrics are not registered. Two drivers in one
	// process need registerers that wrap different labels.
	Registerer prometheus.Registerer

	// ApplyInterval and ApplyBurst throttle applies: ApplyBurst at once, then one each
	// ApplyInterval.
	ApplyInterval time.Duration
	ApplyBurst    int
	// RetryMin and RetryMax bound the time between a failed apply and its retry, which
	// doubles with each retry that fails.
	RetryMin time.Duration
	RetryMax time.Duration
	// RouteRefreshInterval is how often managers and their route tables resync, and
	// QoSRefreshInterval how often the other syncers do; 0 means never. A
	// ConfigUpdate message changes both.
	RouteRefreshInterval time.Duration
	QoSRefreshInterval   time.Duration
	// LivenessTimeout is how long the loop may take to come round before the driver
	// calls itself dead.
	LivenessTimeout time.Duration
}

// withDefaults returns the Config with what was left out filled in.
func (c Config) withDefaults() Config {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	c.Log = logging.OrDiscard(c.Log)
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.ApplyInterval, DefaultApplyInterval},
		{&c.RetryMin, DefaultRetryMin},
		{&c.RetryMax, DefaultRetryMax},
		{&c.LivenessTimeout, DefaultLivenessTimeout},
	} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
	if c.ApplyBurst <= 0 {
		c.ApplyBurst = DefaultApplyBurst
	}
	return c
}

// Driver is the reference driver: one loop that feeds managers and syncers and
// applies what they want. Register everything, then call Run once.
//
// Messages and interface events go through one queue, in the order in which they
// came, and none is ever merged with another: a deletion between two creations, or
// a "down" between two "ups" (on which the kernel flushed the routes), is seen by
// everyone. The queue is bounded. When it is full the caller waits for the loop. For
// the interface monitor that means that it stops reading its socket, and if that
// overflows, it knows and dumps anew: the way back from a burst that nobody can
// keep up with is the one that is there anyway.
type Driver struct {
	cfg      Config
	log      logrus.FieldLogger
	metrics  *metrics
	managers []Manager
	syncers  []*syncer
	queue    chan any
	wake     chan struct{}
	started  atomic.Bool
	stopped  chan struct{} // closed when Run returns
	health   health
}

// syncer is a registered syncer and what the driver knows about it.
type syncer struct {
	routetable.SyncerInterface
	name       string
	isTable    bool         // refreshed at RouteRefreshInterval
	applyStart atomic.Int64 // Unix nanoseconds; 0 while no Apply runs
}

// NewDriver returns a driver that has nothing registered.
func NewDriver(cfg Config) *Driver {
	cfg = cfg.withDefaults()
	d := &Driver{
		cfg:     cfg,
		log:     cfg.Log,
		metrics: newMetrics(cfg.Registerer),
		queue:   make(chan any, queueLength),
		wake:    make(chan struct{}, 1),
		stopped: make(chan struct{}),
	}
	d.health.lastRound = cfg.Clock.Now()
	return d
}

// RegisterManager adds a manager and, if it is a ManagerWithRouteTables, its route
// tables. Managers are called in the order in which they were registered. Not to
// be called once Run was.
func (d *Driver) RegisterManager(m Manager) {
	d.managers = append(d.managers, m)
	tables, ok := m.(ManagerWithRouteTables)
	if !ok {
		return
	}
	for _, table := range tables.GetRouteTableSyncers() {
		name := "routetable-" + strconv.Itoa(len(d.syncers))
		if named, ok := table.(interface{ Name() string }); ok {
			name = named.Name()
		}
		d.syncers = append(d.syncers, &syncer{SyncerInterface: table, name: name, isTable: true})
	}
}

// RegisterSyncer adds a syncer that no manager hands out, such as the shapers'. The
// name is for logs, metrics and health. Not to be called once Run was.
func (d *Driver) RegisterSyncer(name string, s routetable.SyncerInterface) {
	d.syncers = append(d.syncers, &syncer{SyncerInterface: s, name: name})
}

// Send queues a message for the managers. While the queue is full it waits, until
// ctx is done. Any goroutine may call it; messages of one goroutine keep their order.
func (d *Driver) Send(ctx context.Context, msg any) error {
	select {
	case <-d.stopped:
		return ErrStopped
	default:
	}
	select {
	case d.queue <- msg:
		return nil
	case <-d.stopped:
		return ErrStopped
	case <-ctx.Done():
		return ctx.Err()
	}
}

// OnIfaceState is an ifacemonitor StateCallback. Like all five callbacks it may be
// called from any goroutine, only queues, and does nothing once Run has returned.
func (d *Driver) OnIfaceState(name string, state ifacemonitor.State, ifindex int) {
	d.post(IfaceStateUpdate{Name: name, State: state, Index: ifindex})
}

// OnIfaceAddrs is an ifacemonitor AddrCallback.
func (d *Driver) OnIfaceAddrs(name string, addrs []netip.Addr) {
	d.post(IfaceAddrsUpdate{Name: name, Addrs: addrs})
}

// OnIfaceMTU is an ifacemonitor MTUCallback.
func (d *Driver) OnIfaceMTU(name string, ifindex, mtu int) {
	d.post(IfaceMTUUpdate{Name: name, Index: ifindex, MTU: mtu})
}

// OnIfaceInSync is an ifacemonitor InSyncCallback.
func (d *Driver) OnIfaceInSync() {
	d.post(IfacesInSync{})
}

// OnIfaceEventsLost is an ifacemonitor LostCallback.
func (d *Driver) OnIfaceEventsLost() {
	d.post(IfaceEventsLost{})
}

func (d *Driver) post(msg any) {
	select {
	case d.queue <- msg:
	case <-d.stopped:
	}
}

// Wake asks for an apply though there is no message, because a syncer has something
// to do. It never blocks; any goroutine may call it.
func (d *Driver) Wake() {
	select {
	case d.wake <- struct{}{}:
	default: // one is asked for already
	}
}

// Run runs the loop until ctx is done, and then returns nil, leaving what was
// programmed as it is. It waits for an apply that is under way, so that nothing is
// written once it has returned; a process that has to end whatever the kernel does
// ends without waiting for Run.
func (d *Driver) Run(ctx context.Context) error {
	if !d.started.CompareAndSwap(false, true) {
		return errors.New("driver was started before")
	}
	defer func() {
		close(d.stopped)
		d.health.stop()
	}()
	newLoop(d).run(ctx)
	return nil
}
