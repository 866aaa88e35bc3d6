package simulation

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/manx-dataplane/manx/dataplane"
	"github.com/manx-dataplane/manx/qos"
)

// endpoint is what the datastore holds about a workload.
type endpoint struct {
	iface    string
	nets     []string
	floating string
	limits   string // of limitSets
	inactive bool
	mac      bool
	spoofs   bool
}

// limitSet is a way to ask for limits, and what that means: worked out by hand, in bits,
// bits a second and bytes.
type limitSet struct {
	annotations     map[string]string
	controls        *qos.Controls
	ingress, egress *limit
	kubernetes      bool // by annotations that the configuration can turn off
}

type limit struct{ rate, burst, peak, minburst uint64 }

const defaultBurst = 4 << 30

var limitSets = map[string]limitSet{
	"none":    {},
	"egress":  {annotations: map[string]string{"qos.projectcalico.org/egressBandwidth": "10M", "qos.projectcalico.org/egressBurst": "1M"}, egress: &limit{rate: 10e6, burst: 1e6}},
	"egress2": {annotations: map[string]string{"qos.projectcalico.org/egressBandwidth": "200M"}, egress: &limit{rate: 200e6, burst: defaultBurst}},
	"k8s":     {annotations: map[string]string{"kubernetes.io/egress-bandwidth": "30M"}, egress: &limit{rate: 30e6, burst: defaultBurst}, kubernetes: true},
	"k8s-both": {
		annotations: map[string]string{"kubernetes.io/egress-bandwidth": "40M", "kubernetes.io/ingress-bandwidth": "50M"},
		egress:      &limit{rate: 40e6, burst: defaultBurst}, ingress: &limit{rate: 50e6, burst: defaultBurst}, kubernetes: true,
	},
	"ingress": {annotations: map[string]string{"qos.projectcalico.org/ingressBandwidth": "20M"}, ingress: &limit{rate: 20e6, burst: defaultBurst}},
	"both": {
		controls: &qos.Controls{IngressBandwidth: 5e6, IngressBurst: 2e6, EgressBandwidth: 100e6, EgressBurst: 8e6, EgressPeakrate: 300e6, EgressMinburst: 20000},
		ingress:  &limit{rate: 5e6, burst: 2e6}, egress: &limit{rate: 100e6, burst: 8e6, peak: 300e6, minburst: 20000},
	},
	// A bucket below one frame follows the MTU.
	"tiny": {controls: &qos.Controls{EgressBandwidth: 1e6, EgressBurst: 1000}, egress: &limit{rate: 1e6, burst: 1000}},
}

func endpointID(id int) dataplane.WorkloadEndpointID {
	return dataplane.WorkloadEndpointID{Orchestrator: "k8s", Workload: fmt.Sprintf("default/pod-%d", id), Endpoint: "eth0"}
}

func endpointMAC(id int) net.HardwareAddr { return net.HardwareAddr{0xee, 0, 0, 0, 0, byte(id)} }

// message is the endpoint as the driver takes it.
func (e endpoint) message(id int) dataplane.WorkloadEndpointUpdate {
	set := limitSets[e.limits]
	spec := &dataplane.WorkloadEndpoint{
		State: dataplane.EndpointActive, InterfaceName: e.iface,
		Annotations: set.annotations, QoSControls: set.controls,
	}
	if e.inactive {
		spec.State = dataplane.EndpointInactive
	}
	if e.mac {
		spec.MAC = endpointMAC(id)
	}
	for _, cidr := range e.nets {
		prefix := netip.MustParsePrefix(cidr)
		if prefix.Addr().Is4() {
			spec.IPv4Nets = append(spec.IPv4Nets, prefix)
		} else {
			spec.IPv6Nets = append(spec.IPv6Nets, prefix)
		}
	}
	if e.floating != "" {
		spec.IPv4NAT = []dataplane.NAT{{ExternalIP: netip.MustParseAddr(e.floating), InternalIP: spec.IPv4Nets[0].Addr()}}
	}
	if e.spoofs {
		spec.AllowSpoofedSourcePrefixes = []netip.Prefix{netip.MustParsePrefix("10.200.0.0/16")}
	}
	return dataplane.WorkloadEndpointUpdate{ID: endpointID(id), Endpoint: spec}
}

// setEndpoint writes to the datastore; nil removes.
func (w *world) setEndpoint(id int, e *endpoint) {
	w.watchLimits(func() {
		if e == nil {
			delete(w.endpoints, id)
		} else {
			w.endpoints[id] = *e
		}
	})
	switch {
	case w.agent == nil:
	case e == nil:
		w.agent.send(dataplane.WorkloadEndpointRemove{ID: endpointID(id)})
	default:
		w.agent.send(e.message(id))
	}
}

// winner is the endpoint that has an interface: the one of the lowest ID.
func (w *world) winner(iface string) (id int, e endpoint, ok bool) {
	for id = range maxEndpoints {
		if e, ok = w.endpoints[id]; ok && e.iface == iface {
			return id, e, true
		}
	}
	return 0, endpoint{}, false
}

// wanted are the limits of an interface.
func (w *world) wanted(iface string) (ingress, egress *limit) {
	_, e, ok := w.winner(iface)
	set := limitSets[e.limits]
	if !ok || e.inactive || !isWorkload(iface) || !w.cfg.QoSControls || set.kubernetes && !w.cfg.QoSKubernetesAnnotations {
		return nil, nil
	}
	return set.ingress, set.egress
}

// watchLimits makes a change, and takes note of interfaces that lose or get a limit by it.
func (w *world) watchLimits(change func()) {
	type state struct{ ingress, egress, claimed bool }
	states := map[string]state{}
	now := func(name string) state {
		ingress, egress := w.wanted(name)
		_, _, claimed := w.winner(name)
		return state{ingress != nil, egress != nil, claimed}
	}
	for _, name := range slotNames {
		states[name] = now(name)
	}
	change()
	for _, name := range slotNames {
		before, after := states[name], now(name)
		p := w.pods[name]
		switch {
		case before.claimed && !after.claimed && p != nil && w.cfg.QoSControls:
			w.cleared[name] = time.Now()
			p.graceEnds = time.Now().Add(qos.DefaultGracePeriod)
		case before != after || !w.cfg.QoSControls:
			w.limitsCleared(name)
		}
		if p != nil && p.foreignRoot && after.ingress {
			p.rootWasBorrowed = true
		}
	}
}

// configure changes the configuration on the fly.
func (w *world) configure(change func(*world)) {
	w.watchLimits(func() { change(w) })
	if w.agent != nil {
		cfg := w.cfg
		w.agent.send(dataplane.ConfigUpdate{Config: &cfg})
	}
}

// settledFor reports whether nothing has been done to a name's limits for that long.
func (w *world) settledFor(name string, d time.Duration) bool {
	at, ok := w.cleared[name]
	return !ok || time.Since(at) >= d
}
