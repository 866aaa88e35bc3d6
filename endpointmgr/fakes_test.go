package endpointmgr_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"strings"
	"syscall"

	"github.com/sirupsen/logrus"
	logrustest "github.com/sirupsen/logrus/hooks/test"

	"github.com/manx-dataplane/manx/dataplane"
	"github.com/manx-dataplane/manx/endpointmgr"
	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/qos"
	"github.com/manx-dataplane/manx/routetable"
)

var errInjected = errors.New("injected")

// fakeTable holds what was set, of interfaces that have routes.
type fakeTable struct {
	routes  map[string][]routetable.Target
	pending map[string]bool
}

func (t *fakeTable) SetRoutes(class routetable.RouteClass, iface string, targets []routetable.Target) {
	if class != routetable.RouteClassLocalWorkload {
		panic("wrong class")
	}
	if len(targets) == 0 {
		delete(t.routes, iface)
		return
	}
	t.routes[iface] = targets
}

// cidrs returns the destinations on an interface.
func (t *fakeTable) cidrs(iface string) (cidrs []string) {
	for _, target := range t.routes[iface] {
		cidrs = append(cidrs, target.CIDR.String())
	}
	return cidrs
}

// tellingTable is a fakeTable that can tell interfaces apart.
type tellingTable struct{ *fakeTable }

func (t tellingTable) Pending(iface string) bool { return t.pending[iface] }

type fakeQoS struct{ limits map[string]qos.Limits }

func (q *fakeQoS) SetLimits(iface string, l qos.Limits) { q.limits[iface] = l }
func (q *fakeQoS) RemoveLimits(iface string)            { delete(q.limits, iface) }

// fakeSysctls has the parameters of the interfaces that exist.
type fakeSysctls struct {
	ifaces map[string]bool   // that exist; their parameters go with them
	values map[string]string // by path
	writes int
	noIPv6 bool
	fail   func(path string) error
}

func (s *fakeSysctls) WriteSysctl(path, value string) error {
	s.writes++
	if s.fail != nil {
		if err := s.fail(path); err != nil {
			return err
		}
	}
	iface := strings.Split(path, "/")[3]
	if !s.ifaces[iface] || s.noIPv6 && strings.HasPrefix(path, "net/ipv6/") {
		return &fs.PathError{Op: "open", Path: path, Err: syscall.ENOENT}
	}
	s.values[path] = value
	return nil
}

// of returns the parameters of an interface, with its name as X.
func (s *fakeSysctls) of(iface string) map[string]string {
	found := map[string]string{}
	for path, value := range s.values {
		if strings.Contains(path, "/"+iface+"/") {
			found[strings.ReplaceAll(path, iface, "X")] = value
		}
	}
	return found
}

// fakeStatus holds the status last told of each endpoint, and all that was told.
type fakeStatus struct {
	status  map[dataplane.WorkloadEndpointID]endpointmgr.Status
	spec    map[dataplane.WorkloadEndpointID]*dataplane.WorkloadEndpoint
	history []string // since the last take
	all     int      // calls of OnAllReported
	fail    func(id dataplane.WorkloadEndpointID) error
	allErr  error
}

func (s *fakeStatus) OnStatus(id dataplane.WorkloadEndpointID, ep *dataplane.WorkloadEndpoint, status endpointmgr.Status) error {
	if s.fail != nil {
		if err := s.fail(id); err != nil {
			return err
		}
	}
	s.history = append(s.history, fmt.Sprintf("%s %s", id.Workload, status))
	if status == endpointmgr.StatusGone {
		delete(s.status, id)
		delete(s.spec, id)
		return nil
	}
	s.status[id], s.spec[id] = status, ep
	return nil
}

func (s *fakeStatus) OnAllReported() error {
	s.all++
	return s.allErr
}

func (s *fakeStatus) take() []string {
	h := s.history
	s.history = nil
	return h
}

// world is a manager between fakes.
type world struct {
	m      *endpointmgr.Manager
	v4, v6 *fakeTable
	qos    *fakeQoS
	sysctl *fakeSysctls
	status *fakeStatus
	log    *logrustest.Hook
}

func newWorld(change ...func(*endpointmgr.Config)) *world {
	logger, hook := logrustest.NewNullLogger()
	logger.SetLevel(logrus.DebugLevel)
	w := &world{
		v4:     &fakeTable{routes: map[string][]routetable.Target{}, pending: map[string]bool{}},
		v6:     &fakeTable{routes: map[string][]routetable.Target{}, pending: map[string]bool{}},
		qos:    &fakeQoS{limits: map[string]qos.Limits{}},
		sysctl: &fakeSysctls{ifaces: map[string]bool{}, values: map[string]string{}},
		status: &fakeStatus{
			status: map[dataplane.WorkloadEndpointID]endpointmgr.Status{},
			spec:   map[dataplane.WorkloadEndpointID]*dataplane.WorkloadEndpoint{},
		},
		log: hook,
	}
	cfg := endpointmgr.Config{
		RoutesV4: w.v4, RoutesV6: w.v6, QoS: w.qos, Sysctls: w.sysctl, Status: w.status,
		IPv6Support: true, FloatingIPs: true, KubernetesAnnotations: true, Log: logger,
	}
	for _, c := range change {
		c(&cfg)
	}
	w.m = endpointmgr.New(cfg)
	return w
}

// link makes an interface exist in a state, or not, and tells the manager.
func (w *world) link(name string, index int, state ifacemonitor.State) {
	if state == ifacemonitor.StateNotPresent {
		delete(w.sysctl.ifaces, name)
		maps.DeleteFunc(w.sysctl.values, func(path, _ string) bool { return strings.Contains(path, "/"+name+"/") })
	} else {
		w.sysctl.ifaces[name] = true
	}
	w.tellLink(name, index, state)
}

// tellLink only tells the manager.
func (w *world) tellLink(name string, index int, state ifacemonitor.State) {
	w.m.OnUpdate(dataplane.IfaceStateUpdate{Name: name, Index: index, State: state})
}

func (w *world) update(id dataplane.WorkloadEndpointID, ep dataplane.WorkloadEndpoint) {
	w.m.OnUpdate(dataplane.WorkloadEndpointUpdate{ID: id, Endpoint: &ep})
}

func (w *world) remove(id dataplane.WorkloadEndpointID) {
	w.m.OnUpdate(dataplane.WorkloadEndpointRemove{ID: id})
}

// apply does what a driver does whose syncers return this.
func (w *world) apply(syncErrs ...error) error {
	return errors.Join(w.m.CompleteDeferredWork(), w.m.OnApplied(errors.Join(syncErrs...)))
}

// warnings returns what was logged for operators.
func (w *world) warnings() (texts []string) {
	for _, e := range w.log.AllEntries() {
		if e.Level <= logrus.WarnLevel {
			line, _ := (&logrus.TextFormatter{DisableTimestamp: true, DisableColors: true}).Format(e)
			texts = append(texts, string(line))
		}
	}
	w.log.Reset()
	return texts
}

func id(workload string) dataplane.WorkloadEndpointID {
	return dataplane.WorkloadEndpointID{Orchestrator: "k8s", Workload: workload, Endpoint: "eth0"}
}

var mac = net.HardwareAddr{0x0a, 0, 0, 0, 0, 1}

// pod returns an active endpoint with one address of each family and an egress
// limit.
func pod(iface string, change ...func(*dataplane.WorkloadEndpoint)) dataplane.WorkloadEndpoint {
	ep := dataplane.WorkloadEndpoint{
		State:         dataplane.EndpointActive,
		InterfaceName: iface,
		MAC:           mac,
		IPv4Nets:      []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")},
		IPv6Nets:      []netip.Prefix{netip.MustParsePrefix("fd00::1/128")},
		Annotations:   map[string]string{"kubernetes.io/egress-bandwidth": "30M"},
	}
	for _, c := range change {
		c(&ep)
	}
	return ep
}
