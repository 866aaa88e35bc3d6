package mocks

import (
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

type neighKey struct {
	index int
	addr  netip.Addr
}

// NeighList dumps the neighbour entries of a family through one interface, or
// through all where ifindex is zero.
func (h *Handle) NeighList(ifindex, family int) (neighs []netlink.Neigh, err error) {
	err = h.call(Call{Op: OpNeighList, Index: ifindex}, func() error {
		for key, n := range h.k.neighs {
			if (ifindex == 0 || key.index == ifindex) && (family == unix.AF_UNSPEC || n.Family == family) {
				shown := *n
				shown.IP, shown.HardwareAddr = slices.Clone(n.IP), slices.Clone(n.HardwareAddr)
				neighs = append(neighs, shown)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(neighs, func(a, b netlink.Neigh) int {
		if a.LinkIndex != b.LinkIndex {
			return a.LinkIndex - b.LinkIndex
		}
		return ipAddr(a.IP).Compare(ipAddr(b.IP))
	})
	return neighs, nil
}

// NeighSet creates a neighbour entry or replaces the one of the same address.
// ENODEV: its interface is gone.
func (h *Handle) NeighSet(n *netlink.Neigh) error {
	return h.onNeigh(OpNeighSet, n, func(key neighKey) error {
		entry := *n
		entry.Family = familyOf(key.addr)
		entry.IP, entry.HardwareAddr = slices.Clone(n.IP), slices.Clone(n.HardwareAddr)
		if entry.State == 0 {
			entry.State = unix.NUD_NONE
		}
		entry.Type = unix.RTN_UNICAST
		h.k.neighs[key] = &entry
		return nil
	})
}

// NeighDel deletes a neighbour entry. ENOENT: there is none; ENODEV: its interface
// is gone.
func (h *Handle) NeighDel(n *netlink.Neigh) error {
	return h.onNeigh(OpNeighDel, n, func(key neighKey) error {
		if h.k.neighs[key] == nil {
			return unix.ENOENT
		}
		delete(h.k.neighs, key)
		return nil
	})
}

func (h *Handle) onNeigh(op Op, n *netlink.Neigh, effect func(neighKey) error) error {
	return h.call(Call{Op: op, Index: n.LinkIndex, Name: n.IP.String()}, func() error {
		key := neighKey{n.LinkIndex, ipAddr(n.IP)}
		switch {
		case !key.addr.IsValid():
			return unix.EINVAL
		case h.k.links[n.LinkIndex] == nil:
			return unix.ENODEV
		}
		return effect(key)
	})
}

// flushNeighs is neigh_ifdown: static entries go with a link that goes down.
func (k *Kernel) flushNeighs(index int, families ...int) {
	for key := range k.neighs {
		if key.index == index && slices.Contains(families, familyOf(key.addr)) {
			delete(k.neighs, key)
		}
	}
}

func ipAddr(ip []byte) netip.Addr {
	addr, _ := netip.AddrFromSlice(ip)
	return addr.Unmap()
}

func familyOf(addr netip.Addr) int {
	if addr.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
