package qos

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"k8s.io/utils/clock"

	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/internal/logging"
)

// DefaultGracePeriod is how long shaping on an existing workload interface that
// no endpoint claims is left alone: the datastore may lag behind the runtime.
const DefaultGracePeriod = 10 * time.Second

// Config configures a Syncer. Kernel and Reaper must be set.
type Config struct {
	Kernel Kernel
	// Reaper deletes this Syncer's devices; its Run is the caller's to call.
	Reaper *Reaper
	// Sysctls, where set, is used to turn IPv6 off on IFB devices, which makes them
	// cheaper; see disableIPv6.
	Sysctls Sysctls
	// Clock; nil means the real one.
	Clock clock.Clock
	// Log; nil means none.
	Log logrus.FieldLogger
	// Registerer of metrics; nil means none.
	Registerer prometheus.Registerer
	// GracePeriod; zero means DefaultGracePeriod.
	GracePeriod time.Duration
	// Enabled is the first value for SetEnabled.
	Enabled bool
	// RemoveExternal says that nobody else shapes workload interfaces: a TBF or HTB
	// with root handle 1:, as Felix and the CNI bandwidth plugin make it, is removed
	// from claimed interfaces that have no ingress limit.
	RemoveExternal bool
	// IsWorkloadIface tells workload interfaces by name; nil means that all are.
	// Shaping of ours on others is removed without grace.
	IsWorkloadIface func(name string) bool
	// Wake is called, from any goroutine, when Apply has something to do that no
	// other method call announced. It must not call the Syncer. May be nil.
	Wake func()
}

// Syncer makes the kernel's shapers agree with the limits that endpoints want.
//
// All methods must be called from one goroutine. Only Apply does I/O. It must not
// be called before both the datastore and the interface monitor are in sync: the
// first Apply sweeps away every device that no endpoint has claimed by then.
type Syncer struct {
	config  Config
	kernel  Kernel
	log     logrus.FieldLogger
	metrics syncerMetrics
	inbox   inbox

	desired map[string]Limits // of claimed interfaces
	owners  map[string]string // name of IFB -> claimed interface with an egress limit
	enabled bool
	removal removal // how far disabling has come

	snapshot *Snapshot
	todo     todo
	memory   memory
}

// removal is how far the removal of everything that is ours has come.
type removal int

const (
	removalDue     removal = iota // or not disabled
	removalStarted                // the Reaper is at work
	removalDone                   // the kernel was read again and nothing was left
)

// todo is what Apply has to do.
type todo struct {
	resync   bool
	sweep    Reason              // why to sweep; empty: no need to
	reasons  map[string]Reason   // better known reasons, by name of IFB
	dirty    map[string]struct{} // claimed interfaces to bring in line
	appeared map[string]struct{} // interfaces to look up anew
	vanished map[int]string      // interfaces said to be gone, by ifindex
}

// memory is what cannot be read from the kernel.
type memory struct {
	unclaimed   map[int]time.Time    // since when, by ifindex, for the grace period
	hookIsOurs  map[int]bool         // who made an ingress qdisc, by ifindex, where known
	unused      map[int]int          // IFBs that nothing was redirected to yet, and whose they are, by ifindex
	borrowed    map[int]*netlink.Tbf // root TBFs as they were before we changed them, by ifindex
	raised      map[int]Limit        // whose too small burst was logged, by ifindex
	unsupported map[string]bool      // kinds that the kernel lacks: whether since the last resync
	newestIFB   int                  // highest ifindex of an IFB of ours that was ever seen
}

// inbox is what the Reaper's goroutine leaves for Apply.
type inbox struct {
	mu      sync.Mutex
	gone    []Device
	waiting map[string]struct{} // names of IFBs that Apply waits for
}

// New returns a Syncer that knows nothing yet: its first Apply reads everything.
func New(config Config) *Syncer {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	config.GracePeriod = cmp.Or(config.GracePeriod, DefaultGracePeriod)
	if config.IsWorkloadIface == nil {
		config.IsWorkloadIface = func(string) bool { return true }
	}
	if config.Wake == nil {
		config.Wake = func() {}
	}
	s := &Syncer{
		config:   config,
		kernel:   config.Kernel,
		log:      logging.OrDiscard(config.Log),
		metrics:  newSyncerMetrics(config.Registerer),
		inbox:    inbox{waiting: make(map[string]struct{})},
		desired:  make(map[string]Limits),
		owners:   make(map[string]string),
		enabled:  config.Enabled,
		snapshot: newSnapshot(0),
		todo: todo{
			resync:   true,
			sweep:    ReasonStartup,
			reasons:  make(map[string]Reason),
			dirty:    make(map[string]struct{}),
			appeared: make(map[string]struct{}),
			vanished: make(map[int]string),
		},
		memory: memory{
			unclaimed:   make(map[int]time.Time),
			hookIsOurs:  make(map[int]bool),
			unused:      make(map[int]int),
			borrowed:    make(map[int]*netlink.Tbf),
			raised:      make(map[int]Limit),
			unsupported: make(map[string]bool),
		},
	}
	config.Reaper.subscribe(s.onReaped)
	return s
}

// SetLimits claims the interface for an endpoint that wants these limits. Zero
// Limits: claimed, not limited.
func (s *Syncer) SetLimits(iface string, limits Limits) {
	old, claimed := s.desired[iface]
	if claimed && old.Equal(limits) {
		return
	}
	s.desired[iface] = limits
	ifb := IFBName(iface)
	if limits.Egress != nil {
		s.owners[ifb] = iface
	} else {
		delete(s.owners, ifb)
	}
	s.todo.dirty[iface] = struct{}{}
	if s.snapshot.ByName(iface) == nil {
		s.todo.appeared[iface] = struct{}{}
	}
}

// RemoveLimits says that no endpoint claims the interface.
func (s *Syncer) RemoveLimits(iface string) {
	if _, claimed := s.desired[iface]; !claimed {
		return
	}
	delete(s.desired, iface)
	delete(s.todo.dirty, iface)
	if s.snapshot.ByName(iface) == nil { // else what is known of it may be wrong
		delete(s.todo.appeared, iface)
	}
	ifb := IFBName(iface)
	delete(s.owners, ifb)
	if s.enabled {
		s.sweepLater(ReasonEndpointGone)
		s.todo.reasons[ifb] = ReasonEndpointGone
	}
}

// SetEnabled turns shaping on or off. Off: the next Apply removes everything that
// is ours, without grace; after that Apply does nothing.
func (s *Syncer) SetEnabled(enabled bool) {
	if s.enabled == enabled {
		return
	}
	s.enabled = enabled
	s.removal = removalDue
	s.todo.resync = true
	s.todo.sweep = ReasonStartup
}

// OnIfaceStateChanged takes note of an interface event. An end of an index that
// does not own the name, as far as is known, says nothing about the name's owner.
func (s *Syncer) OnIfaceStateChanged(name string, ifindex int, state ifacemonitor.State) {
	known := s.snapshot.Interfaces[ifindex]
	if state == ifacemonitor.StateNotPresent {
		if known != nil && known.Name == name {
			s.todo.vanished[ifindex] = name
		}
		return
	}
	if known != nil && known.Name == name {
		return
	}
	if isIFBName(name) {
		// Someone else's doing, unless it is late word of a device of ours that has gone
		// since: indexes only grow. (Where they do not, the next resync will tell.)
		if ifindex > s.memory.newestIFB {
			s.QueueResync()
		}
		return
	}
	if other := s.snapshot.ByName(name); other != nil {
		s.todo.vanished[other.Index] = name
	}
	if known != nil {
		s.todo.vanished[ifindex] = known.Name // renamed
	}
	if _, claimed := s.desired[name]; claimed {
		s.todo.appeared[name] = struct{}{}
	}
}

// OnIfaceMTUChanged takes note of an interface's MTU in bytes, which its shapers
// follow.
func (s *Syncer) OnIfaceMTUChanged(name string, ifindex, mtu int) {
	known := s.snapshot.Interfaces[ifindex]
	if known == nil || known.Name != name || known.MTU == mtu {
		return
	}
	known.MTU = mtu
	if _, claimed := s.desired[name]; claimed {
		s.todo.dirty[name] = struct{}{}
	}
}

// QueueResync has the next Apply read everything anew, repair what differs, and
// sweep.
func (s *Syncer) QueueResync() {
	s.todo.resync = true
	s.sweepLater(ReasonPeriodic)
}

// Apply makes the kernel agree with what is desired. What fails stays to be done
// by the next Apply and never stops the rest; the error joins what failed. With
// nothing to do it makes no kernel call.
func (s *Syncer) Apply() error {
	if s.takeReaped() {
		s.updateMetrics()
	}
	if !s.enabled {
		return s.applyDisabled()
	}
	if !s.todo.any() && !s.sweepIsDue() {
		return nil
	}
	if s.todo.resync {
		if err := s.observe(); err != nil {
			return err
		}
		s.sweepLater(ReasonPeriodic)
	}
	errs := append(s.checkVanished(), s.lookUpAppeared()...)
	errs = append(errs, s.reconcile()...)
	if s.sweepIsDue() {
		_, failed := s.sweep()
		errs = append(errs, failed...)
	}
	s.updateMetrics()
	return joinSome(errs)
}

// applyDisabled removes everything that is ours, until the kernel says that
// nothing is left.
func (s *Syncer) applyDisabled() error {
	if s.removal == removalDone || s.removal == removalStarted && s.config.Reaper.Pending() > 0 {
		return nil
	}
	if err := s.observe(); err != nil {
		return err
	}
	s.todo.sweep = ReasonDisabled
	removed, errs := s.sweep()
	s.updateMetrics()
	switch {
	case len(errs) > 0:
		s.removal = removalDue
	case removed > 0:
		s.removal = removalStarted
	default:
		s.removal = removalDone
	}
	return joinSome(errs)
}

// NextRecheck returns when Apply has something to do although nothing happens:
// when a grace period ends. False: never.
func (s *Syncer) NextRecheck() (time.Time, bool) {
	var next time.Time
	for _, since := range s.memory.unclaimed {
		if at := since.Add(s.config.GracePeriod); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next, !next.IsZero()
}

// reconcile brings every dirty interface in line.
func (s *Syncer) reconcile() (errs []error) {
	for _, name := range slices.Sorted(maps.Keys(s.todo.dirty)) {
		if _, pending := s.todo.appeared[name]; pending {
			continue // its look-up failed
		}
		veth := s.snapshot.ByName(name)
		if veth == nil {
			delete(s.todo.dirty, name) // until it appears
			continue
		}
		limits := s.desired[name]
		err := errors.Join(s.syncEgress(veth, limits.Egress), s.syncIngress(veth, limits.Ingress))
		if err == nil || s.confirmGone(veth) {
			delete(s.todo.dirty, name)
			continue
		}
		// What went wrong may be what we believe about it.
		s.todo.appeared[name] = struct{}{}
		errs = append(errs, fmt.Errorf("interface %s (ifindex %d): %w", veth.Name, veth.Index, err))
	}
	return errs
}

// isWanted reports whether an IFB of that name has something to shape: a claimed
// interface with an egress limit that exists, or may exist.
func (s *Syncer) isWanted(ifb string) bool {
	owner, ok := s.owners[ifb]
	if !ok || !s.enabled {
		return false
	}
	_, pending := s.todo.appeared[owner]
	return pending || s.snapshot.ByName(owner) != nil
}

// onReaped is called by the Reaper, from its goroutine.
func (s *Syncer) onReaped(device Device) {
	s.inbox.mu.Lock()
	first := len(s.inbox.gone) == 0
	s.inbox.gone = append(s.inbox.gone, device)
	_, awaited := s.inbox.waiting[device.Name]
	s.inbox.mu.Unlock()
	if awaited || first { // the first of several, for the metrics
		s.config.Wake()
	}
}

// mustAwait reports whether the name is reserved by the Reaper. If so, Wake will
// be called when it is free, and its owner looked at then.
func (s *Syncer) mustAwait(ifb string) bool {
	if !s.config.Reaper.Reserved(ifb) {
		return false
	}
	s.await(ifb)
	s.config.Reaper.hurry(ifb)
	return s.config.Reaper.Reserved(ifb) // still, so that the answer will come after the question
}

func (s *Syncer) await(ifb string) {
	s.inbox.mu.Lock()
	defer s.inbox.mu.Unlock()
	s.inbox.waiting[ifb] = struct{}{}
}

// takeReaped takes note of what the Reaper has deleted, and reports whether that was
// anything.
func (s *Syncer) takeReaped() bool {
	s.inbox.mu.Lock()
	defer s.inbox.mu.Unlock()
	if len(s.inbox.gone) == 0 {
		return false
	}
	for _, device := range s.inbox.gone {
		if known := s.snapshot.Interfaces[device.Index]; known != nil && known.Name == device.Name {
			s.snapshot.remove(device.Index)
		}
		if _, awaited := s.inbox.waiting[device.Name]; awaited {
			delete(s.inbox.waiting, device.Name)
			if owner, ok := s.owners[device.Name]; ok {
				s.todo.dirty[owner] = struct{}{}
			}
		}
	}
	s.inbox.gone = nil
	return true
}

// unlessLacking returns err, from a request that creates something of that kind, or
// nil where it says that the kernel lacks that kind: that is said once and tried
// again only after a resync.
func (s *Syncer) unlessLacking(kind string, err error) error {
	if err == nil || !isUnsupported(kind, err) {
		return err
	}
	if _, said := s.memory.unsupported[kind]; !said {
		s.log.WithField("kind", kind).WithError(err).
			Error("The kernel lacks what bandwidth limits need; they are not enforced")
	}
	s.memory.unsupported[kind] = true
	s.metrics.unsupported.WithLabelValues(kind).Set(1)
	return nil
}

// lacksAny reports whether the kernel is known to lack anything that egress limits
// need.
func (s *Syncer) lacksAny() bool {
	return slices.ContainsFunc(kindsNeeded(), func(kind string) bool { return s.memory.unsupported[kind] })
}

func (t *todo) any() bool {
	return t.resync || t.sweep != "" || len(t.dirty)+len(t.appeared)+len(t.vanished) > 0
}

// forget drops what is remembered of interfaces that are gone.
func (m *memory) forget(snapshot *Snapshot) {
	gone := func(index int) bool { return snapshot.Interfaces[index] == nil }
	maps.DeleteFunc(m.unclaimed, func(index int, _ time.Time) bool { return gone(index) })
	maps.DeleteFunc(m.hookIsOurs, func(index int, _ bool) bool { return gone(index) })
	maps.DeleteFunc(m.unused, func(index int, _ int) bool { return gone(index) })
	maps.DeleteFunc(m.borrowed, func(index int, _ *netlink.Tbf) bool { return gone(index) })
	maps.DeleteFunc(m.raised, func(index int, _ Limit) bool { return gone(index) })
}

// another drops what is remembered of an interface that may be another one of the same
// index now.
func (m *memory) another(index int) {
	delete(m.hookIsOurs, index)
	maps.DeleteFunc(m.unused, func(_, veth int) bool { return veth == index })
}

// joinSome joins errors, but not thousands.
func joinSome(errs []error) error {
	const most = 10
	if more := len(errs) - most; more > 0 {
		errs = append(errs[:most:most], fmt.Errorf("and %d more", more))
	}
	return errors.Join(errs...)
}
