package rtnl

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// NeighList dumps the neighbour entries (ARP, NDP) of a family (unix.AF_INET or
// unix.AF_INET6) through one interface, or through all where ifindex is zero. An
// interrupted dump is an error (EINTR) with no entries: the caller retries.
func (h *Handle) NeighList(ifindex, family int) ([]netlink.Neigh, error) {
	neighs, err := h.nl.NeighList(ifindex, family)
	if err != nil {
		return nil, opError("list neighbours", fmt.Sprintf("ifindex %d", ifindex), err)
	}
	return neighs, nil
}

// NeighSet creates a neighbour entry or replaces the one of the same address.
// ENODEV: its interface is gone; ENETDOWN: it is down.
func (h *Handle) NeighSet(neigh *netlink.Neigh) error {
	return h.write("set neighbour", neighObject(neigh), func() error { return h.nl.NeighSet(neigh) })
}

// NeighDel deletes a neighbour entry. ENOENT: there is none; ENODEV: its
// interface is gone.
func (h *Handle) NeighDel(neigh *netlink.Neigh) error {
	return h.write("delete neighbour", neighObject(neigh), func() error { return h.nl.NeighDel(neigh) })
}

func neighObject(n *netlink.Neigh) string {
	return fmt.Sprintf("%s (ifindex %d)", n.IP, n.LinkIndex)
}
