package endpointmgr

import (
	"net/netip"

	"github.com/manx-dataplane/manx/dataplane"
)

// hostAddrs are the node's own addresses: those of all interfaces that no endpoint
// may claim. A route to a workload for one of them would be dead, since the kernel
// looks at its local table first, and one for a network around one would take the
// node's neighbours along.
type hostAddrs struct {
	byIface map[string][]netip.Addr
	ifaces  map[netip.Addr]int  // how many interfaces have it
	changed map[netip.Addr]bool // came or went since they were last looked at
}

func newHostAddrs() hostAddrs {
	return hostAddrs{
		byIface: map[string][]netip.Addr{},
		ifaces:  map[netip.Addr]int{},
		changed: map[netip.Addr]bool{},
	}
}

// set takes note of all addresses of an interface.
func (h *hostAddrs) set(iface string, addrs []netip.Addr) {
	before := h.byIface[iface]
	if len(addrs) == 0 {
		delete(h.byIface, iface)
	} else {
		h.byIface[iface] = addrs
	}
	for _, addr := range addrs {
		if h.ifaces[addr]++; h.ifaces[addr] == 1 {
			h.changed[addr] = true
		}
	}
	for _, addr := range before {
		if h.ifaces[addr]--; h.ifaces[addr] == 0 {
			delete(h.ifaces, addr)
			h.changed[addr] = true
		}
	}
}

// within returns an address of the node's that the network holds, if there is one.
func (h *hostAddrs) within(cidr netip.Prefix) (netip.Addr, bool) {
	if cidr.IsSingleIP() {
		return cidr.Addr(), h.ifaces[cidr.Addr()] > 0
	}
	for addr := range h.ifaces {
		if cidr.Contains(addr) {
			return addr, true
		}
	}
	return netip.Addr{}, false
}

// concerns says whether a change of the node's addresses is about this endpoint.
func (h *hostAddrs) concerns(ep *dataplane.WorkloadEndpoint) bool {
	for addr := range h.changed {
		for _, nets := range [][]netip.Prefix{ep.IPv4Nets, ep.IPv6Nets} {
			for _, cidr := range nets {
				if cidr.Contains(addr) {
					return true
				}
			}
		}
		for _, nats := range [][]dataplane.NAT{ep.IPv4NAT, ep.IPv6NAT} {
			for _, nat := range nats {
				if nat.ExternalIP == addr {
					return true
				}
			}
		}
	}
	return false
}

// takeHostAddrs works out anew what endpoints want whose addresses became the node's
// own, or are no longer.
func (m *Manager) takeHostAddrs() {
	if len(m.host.changed) == 0 {
		return
	}
	for id, ep := range m.endpoints {
		if _, changes := m.pending[id]; !changes && !ep.removed && m.host.concerns(ep.spec) {
			m.pending[id] = ep.spec
		}
	}
	m.host.changed = map[netip.Addr]bool{}
}
