package routetable

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/rtnl"
)

// neighbour is a permanent entry that a route's target asks for.
type neighbour struct {
	index int
	mac   string // the bytes
	// suspect says that the kernel may have removed it.
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

// doubt drops the entries of links that went away, and doubts those of links that
// went down: the kernel flushes them (neigh_ifdown), but not where a link merely
// lost its carrier.
func (n neighbours) doubt(lost, exists func(index int) bool, mark func(routeKey)) {
	for key, entry := range n {
		switch {
		case !lost(entry.index):
			continue
		case exists(entry.index):
			entry.suspect = true
			n[key] = entry
		default:
			delete(n, key)
		}
		mark(key)
	}
}

// planNeighbour plans the entry of a key, whose winning target may be nil.
func (t *RouteTable) planNeighbour(key routeKey, target *Target, index int) {
	if !t.config.StaticARP {
		return
	}
	var want neighbour
	if target != nil && len(target.DestMAC) > 0 && index != 0 && key.cidr.IsSingleIP() {
		want = neighbour{index: index, mac: string(target.DestMAC)}
	}
	if have := t.neighbours[key]; have != want {
		t.plan.neighbours = append(t.plan.neighbours, neighbourChange{key: key, have: have, want: want})
	}
}

// writeNeighbours makes the planned changes. One that fails leaves its key dirty.
func (t *RouteTable) writeNeighbours() {
	for i := range t.plan.neighbours {
		c := &t.plan.neighbours[i]
		if c.have.index != 0 && c.have.index != c.want.index {
			err := t.kernel.NeighDel(t.netlinkNeighbour(c.key, c.have))
			if err != nil && !rtnl.IsAbsent(err) {
				t.neighbourFailed(c, err)
				continue
			}
			delete(t.neighbours, c.key)
		}
		if c.want.index == 0 {
			continue
		}
		if err := t.kernel.NeighSet(t.netlinkNeighbour(c.key, c.want)); err != nil {
			t.neighbourFailed(c, err)
			continue
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

// readNeighbours forgets the entries that the kernel no longer has as we made
// them, so that they are made again.
func (t *RouteTable) readNeighbours() error {
	if len(t.neighbours) == 0 {
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
		if entry.suspect {
			continue // looked at anyway
		}
		if present[neighbourID{entry.index, key.cidr.Addr().String()}] != entry.mac {
			delete(t.neighbours, key)
			t.markDirty(key)
		}
	}
	return nil
}

// neighbourID is what the kernel keys its entries by.
type neighbourID struct {
	index int
	addr  string
}

func permanentNeighbours(list []netlink.Neigh) map[neighbourID]string {
	present := make(map[neighbourID]string, len(list))
	for _, n := range list {
		if n.State&netlink.NUD_PERMANENT != 0 {
			present[neighbourID{n.LinkIndex, n.IP.String()}] = string(n.HardwareAddr)
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
