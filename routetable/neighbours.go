package routetable

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/rtnl"
)

// neighbour is a permanent entry that a route's target asks for.
type neighbour struct {
	index int
	mac   string // the bytes
	// suspect says that the kernel may not have it, or not so.
	suspect bool
}

// neighbours holds the entries that we made, by the key of their route; the
// address is the route's destination.
type neighbours map[routeKey]neighbour

// neighbourChange sets the entry of a key, or removes it where want is zero.
type neighbourChange struct {
	key        routeKey
	have, want neighbour
}

// doubt has the entries of links that went down or away looked at. The kernel
// flushes those (neigh_ifdown), but not where a link only lost its carrier, or goes
// on under another name, which may not have been told yet.
func (n neighbours) doubt(lost func(index int) bool, mark func(routeKey)) {
	for key, entry := range n {
		if lost(entry.index) {
			entry.suspect = true
			n[key] = entry
			mark(key)
		}
	}
}

// planNeighbour plans the entry of a key, whose winning target may be nil.
func (t *RouteTable) planNeighbour(key routeKey, target *Target, route *kernelRoute) {
	if !t.config.StaticARP {
		return
	}
	var want neighbour
	if target != nil && len(target.DestMAC) > 0 && route.isLocal() && key.cidr.IsSingleIP() {
		want = neighbour{index: int(route.index), mac: string(target.DestMAC)}
	}
	if have := t.neighbours[key]; have != want {
		t.plan.neighbours = append(t.plan.neighbours, neighbourChange{key: key, have: have, want: want})
	}
}

// removeNeighbours removes the entries that are no longer wanted where they are. It
// goes before the removal of routes, as setNeighbours goes after their addition: an
// entry that is left by a crash has a route that says whose it is.
func (t *RouteTable) removeNeighbours() {
	for i := range t.plan.neighbours {
		c := &t.plan.neighbours[i]
		if c.have.index == 0 || c.have.index == c.want.index {
			continue
		}
		err := t.kernel.NeighDel(t.netlinkNeighbour(c.key, c.have))
		if err != nil && !rtnl.IsAbsent(err) {
			t.neighbourFailed(c, err)
			c.have.suspect = true // it may be gone though the answer was lost
			t.neighbours[c.key] = c.have
			c.want = c.have // not before the old one is gone
			continue
		}
		delete(t.neighbours, c.key)
		for variant := range t.desired.variants {
			// Another priority's route may lead to the same neighbour.
			key := routeKey{cidr: c.key.cidr, tos: variant.tos, priority: variant.priority}
			if entry, ok := t.neighbours[key]; ok && entry.index == c.have.index {
				entry.suspect = true
				t.neighbours[key] = entry
				t.plan.unsettled = append(t.plan.unsettled, key)
			}
		}
	}
}

// setNeighbours makes the entries of routes that are in the kernel. Others' keys
// are looked at again when their route is about to be.
func (t *RouteTable) setNeighbours() {
	for i := range t.plan.neighbours {
		c := &t.plan.neighbours[i]
		route := t.observed[c.key]
		if c.want.index == 0 || c.want == c.have || int(route.route.index) != c.want.index || !route.adopted || route.suspect {
			continue
		}
		err := t.kernel.NeighSet(t.netlinkNeighbour(c.key, c.want))
		if err != nil {
			c.want.suspect = true // it may have gone in though the answer was lost
			t.neighbourFailed(c, err)
		}
		t.neighbours[c.key] = c.want
	}
}

func (t *RouteTable) neighbourFailed(c *neighbourChange, err error) {
	t.plan.unsettled = append(t.plan.unsettled, c.key)
	err = fmt.Errorf("neighbour entry of %s: %w", c.key.cidr.Addr(), err)
	if isAny(err, unix.ENODEV, unix.ENETDOWN, unix.EINVAL) && c.want.index != 0 {
		t.plan.refused = append(t.plan.refused, refusal{[]int{c.want.index}, err})
		return
	}
	t.fail(err)
}

// readNeighbours compares the entries that we made with the kernel's: what is no
// longer as we made it is made again, and what an earlier life made is ours.
//
// An entry does not say who made it, but a route does: an address of ours that is
// routed to the entry's interface.
func (t *RouteTable) readNeighbours() error {
	if !t.config.StaticARP {
		return nil
	}
	var present map[neighbourID]string
	err := retryInterrupted(func() error {
		list, err := t.kernel.NeighList(0, t.family.af())
		present = permanentNeighbours(list)
		return err
	})
	if err != nil {
		return fmt.Errorf("list the neighbour entries for table %d: %w", t.config.Table, err)
	}
	for key, entry := range t.neighbours {
		if present[entry.id(key)] != entry.mac && !entry.suspect {
			delete(t.neighbours, key)
			t.markDirty(key)
		}
	}
	for key, have := range t.observed {
		entry := neighbour{index: int(have.route.index)}
		if _, known := t.neighbours[key]; known || !key.cidr.IsSingleIP() || !have.route.isLocal() {
			continue
		}
		if entry.mac = present[entry.id(key)]; entry.mac != "" && t.isOurs(key, &have) {
			t.neighbours[key] = entry
			t.markDirty(key)
		}
	}
	return nil
}

// neighbourID is what the kernel keys its entries by.
type neighbourID struct {
	index int
	addr  netip.Addr
}

func (n neighbour) id(key routeKey) neighbourID { return neighbourID{n.index, key.cidr.Addr()} }

func permanentNeighbours(list []netlink.Neigh) map[neighbourID]string {
	present := make(map[neighbourID]string, len(list))
	for _, n := range list {
		if addr, ok := netip.AddrFromSlice(n.IP); ok && n.State&netlink.NUD_PERMANENT != 0 {
			present[neighbourID{n.LinkIndex, addr.Unmap()}] = string(n.HardwareAddr)
		}
	}
	return present
}

func (t *RouteTable) netlinkNeighbour(key routeKey, n neighbour) *netlink.Neigh {
	return &netlink.Neigh{
		LinkIndex:    n.index,
		Family:       t.family.af(),
		State:        netlink.NUD_PERMANENT,
		IP:           key.cidr.Addr().AsSlice(),
		HardwareAddr: net.HardwareAddr(n.mac),
	}
}
