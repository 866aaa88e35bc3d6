package rtnl

import "github.com/vishvananda/netlink"

// RouteFilter narrows a dump of routes. The kernel does the filtering.
type RouteFilter struct {
	// Family is unix.AF_INET or unix.AF_INET6.
	Family int
	// Table is the routing table's number; it must be set.
	Table int
	// IfIndex, where not zero, keeps only routes through that interface.
	IfIndex int
}

// RouteOp is one change to a routing table.
type RouteOp struct {
	// Delete removes the route instead of adding or replacing it.
	Delete bool
	// Route is what to add or delete. Table and Family must be set.
	Route netlink.Route
}
