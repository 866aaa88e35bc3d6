package routetable

import (
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/manx-dataplane/manx/rtnl"
)

// Kernel is what a RouteTable asks of the kernel; see rtnl.Handle for the
// contract of each method.
type Kernel interface {
	LinkList() ([]netlink.Link, error)
	LinkByName(name string) (netlink.Link, error)
	RouteEach(filter rtnl.RouteFilter, fn func(*netlink.Route) error) error
	RouteBatch(ops []rtnl.RouteOp) []error
	NeighList(ifindex, family int) ([]netlink.Neigh, error)
	NeighSet(neigh *netlink.Neigh) error
	NeighDel(neigh *netlink.Neigh) error
	Close()
}

// Conntrack deletes connection-tracking entries.
type Conntrack interface {
	// ConntrackDelete deletes every flow from or to the address, in either
	// direction. None is no error. It is called from several goroutines at a time,
	// for one address each, and may take long.
	ConntrackDelete(addr netip.Addr) error
}
