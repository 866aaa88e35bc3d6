package mocks

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/rtnl"
)

// RouteEach calls fn for every route of a table, in a fixed order. The first error
// that fn returns ends it and is returned as it is. A table that does not exist has
// no routes.
//
// The hook of OnCall can interrupt the dump with EINTR: before any route, or, set by
// AfterCall, after all of them.
func (h *Handle) RouteEach(filter rtnl.RouteFilter, fn func(*netlink.Route) error) error {
	var routes []*netlink.Route
	call := Call{Op: OpRouteList, Index: filter.IfIndex, Detail: fmt.Sprintf("table %d", filter.Table)}
	err := h.call(call, func() error {
		routes = h.k.fib.list(h.k, filter)
		return nil
	})
	for _, r := range routes {
		if err := fn(r); err != nil {
			return err
		}
	}
	return err
}

// RouteBatch makes the changes in order. It returns nil where all succeeded, else one
// entry per operation: its own error, or nil.
func (h *Handle) RouteBatch(ops []rtnl.RouteOp) []error {
	if len(ops) == 0 {
		return nil
	}
	errs := make([]error, len(ops))
	batch := Call{Op: OpRouteBatch, Detail: fmt.Sprintf("%d", len(ops))}
	if h.outside {
		for i := range ops {
			errs[i] = h.routeOp(&ops[i])
		}
		return anyError(errs)
	}
	if err := h.k.announce(&batch); err != nil {
		for i := range ops {
			errs[i] = routeCall(&ops[i]).wrap(err)
		}
		return errs
	}
	for i := range ops {
		errs[i] = h.routeOp(&ops[i])
	}
	if err := h.k.outcome(batch, nil); err != nil {
		for i := range ops {
			errs[i] = routeCall(&ops[i]).wrap(err)
		}
	}
	return anyError(errs)
}

func anyError(errs []error) []error {
	if slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		return errs
	}
	return nil
}

func routeCall(op *rtnl.RouteOp) Call {
	call := Call{Op: OpRouteSet, Index: op.Route.LinkIndex, Name: "default", Detail: fmt.Sprintf("table %d", op.Route.Table)}
	if op.Delete {
		call.Op = OpRouteDel
	}
	if op.Route.Dst != nil {
		call.Name = op.Route.Dst.String()
	}
	return call
}

func (h *Handle) routeOp(op *rtnl.RouteOp) error {
	return h.call(routeCall(op), func() error {
		wanted, err := newRoute(&op.Route)
		if err != nil {
			return err
		}
		switch {
		case op.Delete:
			return h.k.fib.delete(h.k, wanted)
		case wanted.Family == unix.AF_INET:
			return h.k.fib.setV4(h.k, wanted, op.Exclusive)
		}
		return h.k.fib.setV6(h.k, wanted, op.Exclusive)
	})
}

// newRoute takes a request apart.
func newRoute(r *netlink.Route) (*route, error) {
	bits := 128
	switch r.Family {
	case unix.AF_INET:
		bits = 32
	case unix.AF_INET6:
	default:
		return nil, unix.EINVAL
	}
	if r.Table <= 0 || r.Tos < 0 || r.Tos > 255 || r.Priority < 0 || bits == 128 && r.Tos != 0 {
		return nil, unix.EINVAL
	}
	n := &route{Route: *r, dst: netip.PrefixFrom(netip.IPv4Unspecified(), 0)}
	if bits == 128 {
		n.dst = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	if r.Dst != nil {
		ones, size := r.Dst.Mask.Size()
		addr := ipAddr(r.Dst.IP)
		if size != bits || addr.BitLen() != bits {
			return nil, unix.EINVAL
		}
		n.dst = netip.PrefixFrom(addr, ones)
	}
	if n.Type == 0 {
		n.Type = unix.RTN_UNICAST
	}
	for _, nh := range r.MultiPath {
		n.hops = append(n.hops, hop{index: nh.LinkIndex, gw: ipAddr(nh.Gw), weight: nh.Hops, flags: nh.Flags})
	}
	if n.multipath = len(n.hops) > 0; !n.multipath {
		n.hops = []hop{{index: r.LinkIndex, gw: ipAddr(r.Gw), flags: r.Flags & unix.RTNH_F_ONLINK}}
	}
	for _, h := range n.hops {
		if h.gw.IsValid() && h.gw.BitLen() != bits {
			return nil, unix.EINVAL
		}
	}
	n.Src = slices.Clone(r.Src)
	n.Dst, n.LinkIndex, n.Gw, n.MultiPath, n.Flags = nil, 0, nil, nil, 0
	return n, nil
}

// special reports whether the route's type answers with an error.
func (r *route) special() bool {
	switch r.Type {
	case unix.RTN_BLACKHOLE, unix.RTN_UNREACHABLE, unix.RTN_PROHIBIT, unix.RTN_THROW:
		return true
	}
	return false
}

// setV4 is fib_table_insert.
func (f *fib) setV4(k *Kernel, r *route, exclusive bool) error {
	if r.dst != r.dst.Masked() {
		return unix.EINVAL
	}
	if err := f.checkV4(k, r); err != nil {
		return err
	}
	for _, old := range f.tables[r.id()][r.dst] {
		if old.Tos != r.Tos || old.Priority != r.Priority {
			continue
		}
		if exclusive {
			return unix.EEXIST
		}
		f.remove(k, old)
		break
	}
	f.insert(k, r)
	return nil
}

// checkV4 is fib_create_info.
func (f *fib) checkV4(k *Kernel, r *route) error {
	if r.special() {
		if r.multipath || r.hops[0].index != 0 || r.hops[0].gw.IsValid() {
			return unix.EINVAL
		}
		r.hops = nil
		return nil
	}
	switch r.Type {
	case unix.RTN_UNICAST:
	case unix.RTN_LOCAL:
		if r.Scope < netlink.SCOPE_HOST {
			return unix.EINVAL
		}
	default:
		return unix.EINVAL
	}
	if r.Scope > netlink.SCOPE_HOST {
		return unix.EINVAL
	}
	for i := range r.hops {
		if err := f.checkHopV4(k, r, &r.hops[i]); err != nil {
			return err
		}
	}
	if r.Src != nil && !f.isLocal(ipAddr(r.Src)) {
		return unix.EINVAL
	}
	return nil
}

// checkHopV4 is fib_check_nh.
func (f *fib) checkHopV4(k *Kernel, r *route, h *hop) error {
	l := k.links[h.index]
	if r.Scope == netlink.SCOPE_HOST {
		switch {
		case r.multipath || h.gw.IsValid():
			return unix.EINVAL
		case l == nil:
			return unix.ENODEV
		}
		return nil
	}
	if h.gw.IsValid() {
		if h.flags&unix.RTNH_F_ONLINK == 0 {
			return f.checkGatewayV4(k, r, h)
		}
		if r.Scope >= netlink.SCOPE_LINK {
			return unix.EINVAL
		}
	}
	switch {
	case l == nil:
		return unix.ENODEV
	case !l.up():
		return unix.ENETDOWN
	case h.gw.IsValid() && (f.isLocal(h.gw) || f.tables[tableID{unix.AF_INET, unix.RT_TABLE_LOCAL}] == nil):
		return unix.EINVAL // without any local address, all addresses count as broadcast
	case !h.gw.IsValid() && h.flags&unix.RTNH_F_ONLINK != 0:
		return unix.EINVAL
	}
	return nil
}

// checkGatewayV4 looks the gateway up, first in the route's own table: it must be on
// a link, or one of our own addresses.
func (f *fib) checkGatewayV4(k *Kernel, r *route, h *hop) error {
	scope := max(r.Scope+1, netlink.SCOPE_LINK)
	found := f.onLink(h.gw, h.index, scope, r.Table)
	if found == nil || found.special() {
		found = f.onLink(h.gw, h.index, scope, unix.RT_TABLE_LOCAL, unix.RT_TABLE_MAIN)
	}
	if found == nil {
		return unix.ENETUNREACH
	}
	switch found.Type {
	case unix.RTN_BLACKHOLE:
		return unix.EINVAL
	case unix.RTN_UNREACHABLE:
		return unix.EHOSTUNREACH
	case unix.RTN_PROHIBIT:
		return unix.EACCES
	case unix.RTN_THROW:
		return unix.ENETUNREACH
	}
	if h.index == 0 {
		h.index = found.hops[0].index
	}
	if l := k.links[h.index]; l == nil || !l.up() {
		return unix.ENETDOWN
	}
	return nil
}

// onLink returns the longest match for an address among the tables' routes without a
// gateway, of IPv4 those of at least the given scope. It is a lookup without a TOS,
// which finds no route that has one (fib_check_nh).
func (f *fib) onLink(addr netip.Addr, index int, scope netlink.Scope, tables ...int) *route {
	usable := func(r *route) bool {
		return r.Tos == 0 && (addr.Is6() || r.Scope >= scope) &&
			(r.special() || slices.ContainsFunc(r.hops, func(h hop) bool {
				return !h.gw.IsValid() && !h.dead && (index == 0 || h.index == index)
			}))
	}
	var best *route
	for _, number := range tables {
		for routes := range f.matches(addr, number) {
			sorted := sortedRoutes(routes)
			if i := slices.IndexFunc(sorted, usable); i >= 0 {
				if best == nil || sorted[i].dst.Bits() > best.dst.Bits() {
					best = sorted[i]
				}
				break
			}
		}
	}
	return best
}

// sortedRoutes returns the routes of one destination in the order that a lookup tries
// them.
func sortedRoutes(routes []*route) []*route {
	return slices.SortedStableFunc(slices.Values(routes), compareRoutes)
}

// delete is fib_table_delete and ip6_route_del: the first route that has what the
// request names.
func (f *fib) delete(k *Kernel, wanted *route) error {
	if wanted.Family == unix.AF_INET && wanted.dst != wanted.dst.Masked() {
		return unix.EINVAL
	}
	hop := wanted.hops[0]
	if wanted.multipath { // rtnl does not send it
		hop.index, hop.gw = 0, netip.Addr{}
	}
	for _, r := range f.tables[wanted.id()][wanted.dst.Masked()] {
		if wanted.Family == unix.AF_INET {
			if r.Tos != wanted.Tos || r.Type != wanted.Type ||
				wanted.Scope != netlink.SCOPE_NOWHERE && r.Scope != wanted.Scope {
				continue
			}
		}
		if wanted.Priority != 0 && r.Priority != wanted.Priority ||
			wanted.Protocol != 0 && r.Protocol != wanted.Protocol {
			continue
		}
		if hop.index != 0 && r.hopIndex() != hop.index {
			continue
		}
		if hop.gw.IsValid() && (len(r.hops) == 0 || r.hops[0].gw != hop.gw) {
			continue
		}
		f.remove(k, r)
		return nil
	}
	return unix.ESRCH
}

// list returns the routes that pass a filter, in order.
func (f *fib) list(k *Kernel, filter rtnl.RouteFilter) []*netlink.Route {
	var found []*route
	if filter.IfIndex != 0 {
		for r := range f.byLink[filter.IfIndex] {
			if r.id() == (tableID{filter.Family, filter.Table}) {
				found = append(found, r)
			}
		}
	} else {
		for _, routes := range f.tables[tableID{filter.Family, filter.Table}] {
			found = append(found, routes...)
		}
	}
	slices.SortStableFunc(found, compareRoutes)
	shown := make([]*netlink.Route, len(found))
	for i, r := range found {
		shown[i] = r.netlink(k)
	}
	return shown
}

// netlink returns the route as a dump shows it.
func (r *route) netlink(k *Kernel) *netlink.Route {
	n := r.Route
	n.Src = slices.Clone(n.Src)
	n.Dst = &net.IPNet{IP: r.dst.Addr().AsSlice(), Mask: net.CIDRMask(r.dst.Bits(), r.dst.Addr().BitLen())}
	if r.multipath {
		n.Flags = unix.RTNH_F_LINKDOWN // unless one hop is not
		for _, h := range r.hops {
			if h.dead || h.shownFlags(k, r)&unix.RTNH_F_LINKDOWN == 0 {
				n.Flags = 0
			}
			n.MultiPath = append(n.MultiPath, &netlink.NexthopInfo{
				LinkIndex: h.index, Hops: h.weight, Gw: netIP(h.gw), Flags: h.shownFlags(k, r),
			})
		}
		return &n
	}
	for _, h := range r.hops {
		n.LinkIndex, n.Gw, n.Flags = h.index, netIP(h.gw), h.shownFlags(k, r)
	}
	return &n
}

func netIP(addr netip.Addr) net.IP {
	if !addr.IsValid() {
		return nil
	}
	return addr.AsSlice()
}

// shownFlags are the next hop's flags: what was asked for and the link's state.
// Routes to the host itself know no carrier.
func (h *hop) shownFlags(k *Kernel, r *route) int {
	flags := h.flags
	if r.Scope == netlink.SCOPE_HOST || r.Type == unix.RTN_LOCAL {
		return flags
	}
	if h.dead {
		flags |= unix.RTNH_F_DEAD
	}
	if l := k.links[h.index]; h.dead || l != nil && l.up() && !l.carrier {
		flags |= unix.RTNH_F_LINKDOWN
	}
	return flags
}
