package endpointmgr_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
	"pgregory.net/rapid"

	"github.com/manx-dataplane/manx/config"
	"github.com/manx-dataplane/manx/dataplane"
	"github.com/manx-dataplane/manx/endpointmgr"
	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/qos"
	"github.com/manx-dataplane/manx/routetable"
)

// simulation is a manager, the messages on their way to it, and the truth they
// are about. The truth is all that the model is made from.
type simulation struct {
	*world
	*WithT
	queue []any

	links     map[string]link // that exist
	nextIndex int
	endpoints map[dataplane.WorkloadEndpointID]dataplane.WorkloadEndpoint
	config    config.Config
}

type link struct {
	index int
	state ifacemonitor.State
}

var (
	simIfaces = []string{"cali1", "cali2", "cali3"}
	simNets   = []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32"), netip.MustParsePrefix("10.0.0.2/32"), netip.MustParsePrefix("10.1.0.0/24")}
	simIDs    = []dataplane.WorkloadEndpointID{id("a"), id("b"), id("c"), {Orchestrator: "cni", Workload: "a", Endpoint: "eth0"}}
)

// TestAnySequenceEndsInWhatTheModelSays: whatever the order of endpoint,
// interface and configuration messages, wherever applies fall between them, whatever
// fails and however late stale events come, once failures stop what is held for the
// kernel equals what follows from the truth alone.
func TestAnySequenceEndsInWhatTheModelSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &simulation{
			world: newWorld(), WithT: NewWithT(t),
			links:     map[string]link{},
			nextIndex: 100,
			endpoints: map[dataplane.WorkloadEndpointID]dataplane.WorkloadEndpoint{},
			config:    config.Config{FloatingIPs: true, QoSKubernetesAnnotations: true},
		}
		steps := []func(*rapid.T){
			s.changeEndpoint, s.changeEndpoint, s.removeEndpoint,
			s.changeLink, s.changeLink, s.removeLink, s.replaceLink, s.staleEvent,
			s.changeConfig, s.deliverSome, s.applyWithFailures, s.completeOnly, s.applyAll,
		}
		for range rapid.IntRange(0, 100).Draw(t, "steps") {
			rapid.SampledFrom(steps).Draw(t, "step")(t)
		}
		s.stopFailures()
		s.deliver(len(s.queue))
		s.Expect(s.apply()).To(Succeed())
		s.check()
		s.Expect(s.apply()).To(Succeed())
		s.check()
	})
}

func (s *simulation) changeEndpoint(t *rapid.T) {
	ep := dataplane.WorkloadEndpoint{
		State:         rapid.SampledFrom([]dataplane.EndpointState{dataplane.EndpointActive, dataplane.EndpointActive, dataplane.EndpointInactive}).Draw(t, "state"),
		InterfaceName: rapid.SampledFrom(append([]string{"not/valid"}, simIfaces...)).Draw(t, "iface"),
		IPv4Nets:      rapid.SliceOfNDistinct(rapid.SampledFrom(simNets), 0, 3, rapid.ID).Draw(t, "nets"),
		MAC:           mac,
	}
	if rapid.Bool().Draw(t, "floating") {
		ep.IPv4NAT = []dataplane.NAT{{ExternalIP: netip.MustParseAddr("192.0.2.1")}}
	}
	if rapid.Bool().Draw(t, "spoofs") {
		ep.AllowSpoofedSourcePrefixes = simNets
	}
	if rapid.Bool().Draw(t, "limited") {
		ep.Annotations = map[string]string{"kubernetes.io/egress-bandwidth": "30M", "kubernetes.io/ingress-bandwidth": "bad"}
	}
	id := rapid.SampledFrom(simIDs).Draw(t, "id")
	s.endpoints[id] = ep
	s.queue = append(s.queue, dataplane.WorkloadEndpointUpdate{ID: id, Endpoint: &ep})
}

func (s *simulation) removeEndpoint(t *rapid.T) {
	id := rapid.SampledFrom(simIDs).Draw(t, "id")
	delete(s.endpoints, id)
	s.queue = append(s.queue, dataplane.WorkloadEndpointRemove{ID: id})
}

// changeLink creates a link or changes its state.
func (s *simulation) changeLink(t *rapid.T) {
	name := rapid.SampledFrom(simIfaces).Draw(t, "name")
	l, exists := s.links[name]
	if !exists {
		s.nextIndex++
		l.index = s.nextIndex
		if rapid.IntRange(0, 3).Draw(t, "explicit index") == 0 {
			l.index = rapid.IntRange(1, 99).Draw(t, "index")
		}
	}
	state := rapid.SampledFrom([]ifacemonitor.State{up, down}).Draw(t, "state")
	if exists && l.state == state {
		return // the monitor repeats nothing
	}
	l.state = state
	s.setLink(name, l)
}

func (s *simulation) removeLink(t *rapid.T) {
	name := rapid.SampledFrom(simIfaces).Draw(t, "name")
	if l, exists := s.links[name]; exists {
		s.setLink(name, link{l.index, gone})
	}
}

// replaceLink creates a link again with the same index.
func (s *simulation) replaceLink(t *rapid.T) {
	name := rapid.SampledFrom(simIfaces).Draw(t, "name")
	if l, exists := s.links[name]; exists {
		s.setLink(name, link{l.index, gone})
		s.setLink(name, l)
	}
}

// setLink changes the kernel now, and tells the manager some time.
func (s *simulation) setLink(name string, l link) {
	if l.state == gone {
		delete(s.links, name)
		delete(s.sysctl.ifaces, name)
		maps.DeleteFunc(s.sysctl.values, func(path, _ string) bool { return strings.Contains(path, "/"+name+"/") })
	} else {
		s.links[name] = l
		s.sysctl.ifaces[name] = true
	}
	s.queue = append(s.queue, dataplane.IfaceStateUpdate{Name: name, Index: l.index, State: l.state})
}

// staleEvent sends what an embedder's disordered source may: an event about an index
// that was there before.
func (s *simulation) staleEvent(t *rapid.T) {
	name := rapid.SampledFrom(simIfaces).Draw(t, "name")
	l, exists := s.links[name]
	if !exists || l.index <= 1 {
		return
	}
	s.queue = append(s.queue, dataplane.IfaceStateUpdate{
		Name:  name,
		Index: rapid.IntRange(1, l.index-1).Draw(t, "index"),
		State: rapid.SampledFrom([]ifacemonitor.State{up, down, gone}).Draw(t, "state"),
	})
}

func (s *simulation) changeConfig(t *rapid.T) {
	s.config = config.Config{
		FloatingIPs:              rapid.Bool().Draw(t, "floating"),
		QoSKubernetesAnnotations: rapid.Bool().Draw(t, "annotations"),
		QoSDefaultBurstBits:      rapid.SampledFrom([]uint64{0, 1_000_000}).Draw(t, "burst"),
	}
	c := s.config
	s.queue = append(s.queue, dataplane.ConfigUpdate{Config: &c})
}

func (s *simulation) deliverSome(t *rapid.T) {
	s.deliver(rapid.IntRange(0, len(s.queue)).Draw(t, "messages"))
}

func (s *simulation) deliver(n int) {
	for _, msg := range s.queue[:n] {
		s.m.OnUpdate(msg)
	}
	s.queue = s.queue[n:]
}

func (s *simulation) applyWithFailures(t *rapid.T) {
	failing := rapid.Float64Range(0, 0.5).Draw(t, "failing")
	fails := func(what string) bool { return rapid.Float64Range(0, 1).Draw(t, what) < failing }
	s.sysctl.fail = func(string) error {
		if fails("sysctl") {
			return syscall.EINVAL
		}
		return nil
	}
	s.status.fail = func(dataplane.WorkloadEndpointID) error {
		if fails("status") {
			return errInjected
		}
		return nil
	}
	var syncErr error
	if fails("syncers") {
		syncErr = errInjected
	}
	_ = s.apply(syncErr)
	s.stopFailures()
}

// completeOnly is an apply that the driver broke off before its end.
func (s *simulation) completeOnly(*rapid.T) { _ = s.m.CompleteDeferredWork() }

func (s *simulation) applyAll(*rapid.T) {
	s.deliver(len(s.queue))
	s.Expect(s.apply()).To(Succeed())
	s.check()
}

func (s *simulation) stopFailures() {
	s.sysctl.fail, s.status.fail = nil, nil
}

func (s *simulation) winner(iface string) (dataplane.WorkloadEndpointID, bool) {
	var claimants []dataplane.WorkloadEndpointID
	for id, ep := range s.endpoints {
		if ep.InterfaceName == iface {
			claimants = append(claimants, id)
		}
	}
	if len(claimants) == 0 {
		return dataplane.WorkloadEndpointID{}, false
	}
	return slices.MinFunc(claimants, dataplane.WorkloadEndpointID.Compare), true
}

// check compares all that the fakes hold with the model.
func (s *simulation) check() {
	routes := map[string][]routetable.Target{}
	limits := map[string]qos.Limits{}
	statuses := map[dataplane.WorkloadEndpointID]endpointmgr.Status{}
	for id := range s.endpoints {
		statuses[id] = endpointmgr.StatusDown
	}
	for _, name := range simIfaces {
		winner, claimed := s.winner(name)
		if !claimed {
			continue
		}
		ep := s.endpoints[winner]
		limits[name] = qos.Limits{}
		if ep.State != dataplane.EndpointActive {
			continue
		}
		limits[name] = s.limitsOf(ep)
		if targets := s.routesOf(ep); len(targets) > 0 {
			routes[name] = targets
		}
		if s.links[name].state == up {
			statuses[winner] = endpointmgr.StatusUp
			s.Expect(s.sysctl.of(name)).To(Equal(sysctlsOf(ep)), name)
		}
	}
	s.Expect(s.v4.routes).To(Equal(routes))
	s.Expect(s.qos.limits).To(Equal(limits))
	s.Expect(s.status.status).To(Equal(statuses))
	for id, status := range statuses {
		if status == endpointmgr.StatusUp {
			s.Expect(*s.status.spec[id]).To(Equal(s.endpoints[id]))
		}
	}
}

func (s *simulation) routesOf(ep dataplane.WorkloadEndpoint) []routetable.Target {
	targets := []routetable.Target{}
	cidrs := slices.Clone(ep.IPv4Nets)
	if s.config.FloatingIPs && len(ep.IPv4NAT) > 0 {
		cidrs = append(cidrs, netip.MustParsePrefix("192.0.2.1/32"))
	}
	for _, cidr := range cidrs {
		target := routetable.Target{Type: routetable.TargetTypeLinkLocalUnicast, CIDR: cidr}
		if cidr.Bits() == 32 {
			target.DestMAC = mac
		}
		targets = append(targets, target)
	}
	return targets
}

func (s *simulation) limitsOf(ep dataplane.WorkloadEndpoint) qos.Limits {
	if ep.Annotations == nil || !s.config.QoSKubernetesAnnotations {
		return qos.Limits{}
	}
	burst := s.config.QoSDefaultBurstBits
	if burst == 0 {
		burst = qos.DefaultBurst
	}
	return qos.Limits{Egress: &qos.Limit{RateBits: 30_000_000, BurstBits: burst}}
}

func sysctlsOf(ep dataplane.WorkloadEndpoint) map[string]string {
	want := maps.Clone(configured)
	if ep.AllowSpoofedSourcePrefixes != nil {
		want["net/ipv4/conf/X/rp_filter"] = "2"
	}
	return want
}

// TestWhatOneEndpointDoesNeverChangesAnother: with one endpoint for each
// interface, whatever befalls one leaves the other as it was.
func TestWhatOneEndpointDoesNeverChangesAnother(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		w.link("cali1", 7, up)
		w.update(id("a"), pod("cali1"))
		NewWithT(t).Expect(w.apply()).To(Succeed())
		w.status.take()
		w.sysctl.fail = func(path string) error {
			if strings.Contains(path, "/cali1/") {
				t.Fatalf("touched: %s", path)
			}
			return rapid.SampledFrom([]error{nil, syscall.EIO, syscall.ENOENT}).Draw(t, "sysctl")
		}
		for i := range rapid.IntRange(1, 20).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				w.update(id("b"), pod("cali2"))
			case 1:
				w.remove(id("b"))
			case 2:
				w.link("cali2", 100+i, rapid.SampledFrom([]ifacemonitor.State{up, down}).Draw(t, "state"))
			case 3:
				_ = w.apply(rapid.SampledFrom([]error{nil, errInjected}).Draw(t, "syncers"))
			}
		}
		g := NewWithT(t)
		g.Expect(w.v4.cidrs("cali1")).To(Equal([]string{"10.0.0.1/32"}))
		g.Expect(w.qos.limits).To(HaveKeyWithValue("cali1", rate30M))
		for _, line := range w.status.history {
			g.Expect(line).NotTo(HavePrefix("a "), fmt.Sprint(w.status.history))
		}
	})
}
