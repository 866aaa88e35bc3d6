package rtnl

import (
	"fmt"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// NeighList dumps the neighbour entries (ARP, NDP) of a family (unix.AF_INET or
// unix.AF_INET6) through one interface, or through all where ifindex is zero. An
// interrupted dump is an error (EINTR) with no entries: the caller retries.
func (h *Handle) NeighList(ifindex, family int) ([]netlink.Neigh, error) {
	h.raw.Socket.Lock()
	defer h.raw.Socket.Unlock()
	h.routeIO.init()
	seq := atomic.AddUint32(&h.raw.Seq, 1)
	// The netlink library puts the interface into the header, which strict checking
	// refuses.
	b, done := appendHeader(h.routeIO.send[:0], unix.RTM_GETNEIGH, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, seq)
	b = append(b, byte(family), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	if ifindex != 0 {
		b = appendUint32(b, netlink.NDA_IFINDEX, uint32(ifindex))
	}
	h.routeIO.send = done(b)
	var neighs []netlink.Neigh
	err := h.routeIO.transmit(h)
	if err == nil {
		err = h.receiveDump(seq, func(kind uint16, body []byte) error {
			if kind != unix.RTM_NEWNEIGH {
				return nil
			}
			neigh, err := netlink.NeighDeserialize(body)
			if err != nil {
				return err
			}
			neighs = append(neighs, cloneNeigh(neigh))
			return nil
		})
	}
	if err != nil {
		return nil, opError("list neighbours", fmt.Sprintf("ifindex %d", ifindex), err)
	}
	return neighs, nil
}

// NeighSet creates a neighbour entry or replaces the one of the same address.
// ENODEV: its interface is gone. It may be down; going down flushes its entries.
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

// cloneNeigh copies what points into the receive buffer.
func cloneNeigh(n *netlink.Neigh) netlink.Neigh {
	c := *n
	c.IP = append(c.IP[:0:0], c.IP...)
	c.LLIPAddr = append(c.LLIPAddr[:0:0], c.LLIPAddr...)
	c.HardwareAddr = append(c.HardwareAddr[:0:0], c.HardwareAddr...)
	return c
}
