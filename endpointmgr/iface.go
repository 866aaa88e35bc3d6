package endpointmgr

import (
	"slices"

	"github.com/sirupsen/logrus"

	"github.com/manx-dataplane/manx/dataplane"
	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/qos"
	"github.com/manx-dataplane/manx/routetable"
)

// iface is an interface name that an interface has or an endpoint claims.
type iface struct {
	name  string
	state ifacemonitor.State
	index int // 0 while not present
	// claimants are in the order of their IDs: the first one wins.
	claimants []*endpoint
	// held is set while routes and limits are claimed for this name.
	held bool
	// configured is set once the sysctls of this life are written, until the next
	// resync, with reverse path filtering as looseRPF says.
	configured bool
	looseRPF   bool
}

func (i *iface) winner() *endpoint {
	if len(i.claimants) == 0 {
		return nil
	}
	return i.claimants[0]
}

func (i *iface) addClaimant(ep *endpoint) {
	at, _ := slices.BinarySearchFunc(i.claimants, ep.id, func(c *endpoint, id dataplane.WorkloadEndpointID) int {
		return c.id.Compare(id)
	})
	i.claimants = slices.Insert(i.claimants, at, ep)
}

func (i *iface) removeClaimant(ep *endpoint) {
	i.claimants = slices.DeleteFunc(i.claimants, func(c *endpoint) bool { return c == ep })
}

// isStale says whether a message is about an interface that does not have this name
// any more. The monitor never sends such; an embedder's may. Indexes grow, so of
// two that say to have the name the higher one is right; one that was given a lower
// index on purpose can be told from a stale one by the absence reported before.
func (i *iface) isStale(msg dataplane.IfaceStateUpdate) bool {
	if msg.State == ifacemonitor.StateNotPresent {
		return msg.Index != i.index
	}
	return msg.Index < i.index
}

// onIfaceState notes an interface's state. It does nothing with it yet.
func (m *Manager) onIfaceState(msg dataplane.IfaceStateUpdate) {
	i := m.ifaces[msg.Name]
	if i == nil {
		if msg.State == ifacemonitor.StateNotPresent {
			return
		}
		i = m.ifaceNamed(msg.Name)
	}
	if i.isStale(msg) {
		m.log.WithFields(logrus.Fields{"iface": msg.Name, "ifindex": msg.Index, "owner": i.index}).
			Debug("Ignoring an event about an index that does not have this name")
		return
	}
	if msg.Index != i.index || msg.State == ifacemonitor.StateNotPresent {
		for _, ep := range i.claimants {
			ep.outdated = true
		}
	}
	i.state, i.index = msg.State, msg.Index
	if msg.State == ifacemonitor.StateNotPresent {
		i.index = 0
	}
	i.configured = false
	if i.held || len(i.claimants) > 0 {
		m.dirtyIfaces[i.name] = i
	}
	m.forgetIfUnused(i)
}

func (m *Manager) ifaceNamed(name string) *iface {
	i := m.ifaces[name]
	if i == nil {
		i = &iface{name: name}
		m.ifaces[name] = i
	}
	return i
}

func (m *Manager) forgetIfUnused(i *iface) {
	if i.state == ifacemonitor.StateNotPresent && !i.held && len(i.claimants) == 0 {
		delete(m.ifaces, i.name)
	}
}

// program hands over what is wanted for an interface and configures it. It
// returns whether that is done; if it is not and there is no error, there is
// something to wait for.
func (m *Manager) program(i *iface) (done bool, err error) {
	m.handOver(i)
	done, err = m.configure(i)
	for at, ep := range i.claimants {
		m.dirtyStatuses[ep.id] = ep
		m.logShadow(ep, i, at > 0)
	}
	m.forgetIfUnused(i)
	return done, err
}

// handOver gives routes and limits to those who program them.
func (m *Manager) handOver(i *iface) {
	winner := i.winner()
	if winner == nil {
		if i.held {
			m.setRoutes(i.name, nil, nil)
			m.cfg.QoS.RemoveLimits(i.name)
			i.held = false
		}
		return
	}
	i.held = true
	if winner.active() {
		m.setRoutes(i.name, winner.want.routesV4, winner.want.routesV6)
		m.cfg.QoS.SetLimits(i.name, winner.want.limits)
		return
	}
	m.setRoutes(i.name, nil, nil)
	m.cfg.QoS.SetLimits(i.name, qos.Limits{})
}

func (m *Manager) setRoutes(name string, v4, v6 []routetable.Target) {
	if m.cfg.RoutesV4 != nil {
		m.cfg.RoutesV4.SetRoutes(routetable.RouteClassLocalWorkload, name, v4)
	}
	if m.cfg.RoutesV6 != nil {
		m.cfg.RoutesV6.SetRoutes(routetable.RouteClassLocalWorkload, name, v6)
	}
}

// logShadow says once that an endpoint has to wait for another, and once that it
// need not any longer.
func (m *Manager) logShadow(ep *endpoint, i *iface, shadowed bool) {
	if _, was := m.shadowed[ep.id]; was == shadowed {
		return
	}
	log := m.log.WithFields(logrus.Fields{"endpoint": ep.id.String(), "iface": i.name})
	if shadowed {
		m.shadowed[ep.id] = ep
		log.WithField("reason", "interface claimed by "+i.winner().id.String()).
			Warn("Endpoint stays down: another one with a lower ID claims its interface")
		return
	}
	delete(m.shadowed, ep.id)
	log.Info("Endpoint takes over the interface that another one claimed")
}
