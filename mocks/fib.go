package mocks

import (
	"cmp"
	"iter"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/rtnl"
)

// fib holds the routing tables of a namespace.
type fib struct {
	tables map[tableID]map[netip.Prefix][]*route
	byLink map[int]map[*route]struct{}
}

type tableID struct {
	family, number int
}

// route is an entry of a table. hops is never empty except for IPv4 routes that
// have no next hop, such as blackholes.
type route struct {
	netlink.Route // without what is kept below: Dst, LinkIndex, Gw, MultiPath, Flags
	dst           netip.Prefix
	hops          []hop
	multipath     bool
}

type hop struct {
	index  int
	gw     netip.Addr
	weight int
	flags  int // RTNH_F_ONLINK
	dead   bool
}

func newFIB() fib {
	return fib{tables: map[tableID]map[netip.Prefix][]*route{}, byLink: map[int]map[*route]struct{}{}}
}

func (r *route) id() tableID { return tableID{r.Family, r.Table} }

func (r *route) isLocalAddr() bool {
	return r.Table == unix.RT_TABLE_LOCAL && r.Type == unix.RTN_LOCAL && r.dst.IsSingleIP()
}

// insert adds a route among those of the same destination as the kernel does
// (fib_insert_alias, fib6_add_rt2node): the higher TOS first, then the lower
// priority, then the older.
func (f *fib) insert(k *Kernel, r *route) {
	id := r.id()
	if f.tables[id] == nil {
		f.tables[id] = map[netip.Prefix][]*route{}
	}
	routes := append(f.tables[id][r.dst], r)
	slices.SortStableFunc(routes, func(a, b *route) int {
		return cmp.Or(cmp.Compare(b.Tos, a.Tos), cmp.Compare(a.Priority, b.Priority))
	})
	f.tables[id][r.dst] = routes
	for _, h := range r.hops {
		if f.byLink[h.index] == nil {
			f.byLink[h.index] = map[*route]struct{}{}
		}
		f.byLink[h.index][r] = struct{}{}
	}
	if r.isLocalAddr() {
		k.multicast(r.message(rtnl.MessageNewAddr))
	}
}

// remove takes a route out.
func (f *fib) remove(k *Kernel, r *route) {
	table := f.tables[r.id()]
	left := slices.DeleteFunc(slices.Clone(table[r.dst]), func(other *route) bool { return other == r })
	if len(left) == 0 {
		delete(table, r.dst)
	} else {
		table[r.dst] = left
	}
	for _, h := range r.hops {
		delete(f.byLink[h.index], r)
	}
	if r.isLocalAddr() {
		k.multicast(r.message(rtnl.MessageDelAddr))
	}
}

func (r *route) message(t rtnl.MessageType) rtnl.Message {
	return rtnl.Message{Type: t, Index: r.hops[0].index, Addr: r.dst.Addr()}
}

// through returns the routes that use a link, in a fixed order.
func (f *fib) through(index int) []*route {
	routes := make([]*route, 0, len(f.byLink[index]))
	for r := range f.byLink[index] {
		routes = append(routes, r)
	}
	slices.SortFunc(routes, compareRoutes)
	return routes
}

// compareRoutes orders routes as dumps and flushes have them here: by family,
// table, destination, then the kernel's key.
func compareRoutes(a, b *route) int {
	for _, d := range []int{
		a.Family - b.Family, a.Table - b.Table,
		a.dst.Addr().Compare(b.dst.Addr()), a.dst.Bits() - b.dst.Bits(),
		a.Tos - b.Tos, a.Priority - b.Priority, a.hopIndex() - b.hopIndex(),
	} {
		if d != 0 {
			return d
		}
	}
	return 0
}

func (r *route) hopIndex() int {
	if len(r.hops) == 0 {
		return 0
	}
	return r.hops[0].index
}

// localAddrs returns the addresses of one family that the local table holds, in
// order.
func (f *fib) localAddrs(v6 bool) []rtnl.Message {
	family := unix.AF_INET
	if v6 {
		family = unix.AF_INET6
	}
	var addrs []rtnl.Message
	for _, routes := range f.tables[tableID{family, unix.RT_TABLE_LOCAL}] {
		for _, r := range routes {
			if r.isLocalAddr() {
				addrs = append(addrs, r.message(rtnl.MessageNewAddr))
			}
		}
	}
	slices.SortFunc(addrs, compareAddrs)
	return addrs
}

// linkUp is fib_netdev_event and addrconf_notify for NETDEV_UP: connected routes
// come back, and so do the next hops of multi-path routes.
func (f *fib) linkUp(k *Kernel, l *link) {
	if l.flags&net.FlagLoopback != 0 {
		for _, p := range []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8"), netip.MustParsePrefix("::1/128")} {
			if !slices.Contains(l.addrs, p) {
				l.addrs = append(slices.Clone(l.addrs), p)
			}
		}
	}
	for _, p := range l.addrs {
		f.addLocal(k, l, p)
		f.addConnected(k, l, p)
	}
	for _, r := range f.through(l.index) {
		for i := range r.hops {
			if r.hops[i].index == l.index {
				r.hops[i].dead = false
			}
		}
	}
}

// linkRunning is addrconf_dev_config: an interface with a carrier gets an IPv6
// link-local address, unless its addr_gen_mode is 1.
func (f *fib) linkRunning(k *Kernel, l *link) {
	if l.flags&net.FlagLoopback != 0 || !l.ipv6Enabled() || l.sysctl("net/ipv6/conf", "addr_gen_mode") == "1" {
		return
	}
	mac := l.mac
	addr := netip.AddrFrom16([16]byte{
		0xfe, 0x80, 8: mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5],
	})
	p := netip.PrefixFrom(addr, 64)
	if slices.Contains(l.addrs, p) {
		return
	}
	l.addrs = append(slices.Clone(l.addrs), p)
	f.addConnected(k, l, p)
	f.addLocal(k, l, p)
}

// linkDown is fib_disable_ip and rt6_disable_ip: IPv4 routes go without a message,
// except those of the interface's own addresses; IPv6 loses its addresses too.
func (f *fib) linkDown(k *Kernel, l *link) {
	for _, r := range f.through(l.index) {
		if r.Family == unix.AF_INET && r.Scope == netlink.SCOPE_HOST {
			continue
		}
		f.dropHops(k, r, l.index)
	}
	l.addrs = slices.DeleteFunc(slices.Clone(l.addrs), func(p netip.Prefix) bool { return p.Addr().Is6() })
}

// dropHops marks the hops through a link dead, and removes the route once it has
// no other. IPv6 has no dead hops: it drops them.
func (f *fib) dropHops(k *Kernel, r *route, index int) {
	alive := 0
	for i := range r.hops {
		if r.hops[i].index == index {
			r.hops[i].dead = true
		}
		if !r.hops[i].dead {
			alive++
		}
	}
	if alive == 0 {
		f.remove(k, r)
		return
	}
	if r.Family == unix.AF_INET6 {
		delete(f.byLink[index], r)
		r.hops = slices.DeleteFunc(r.hops, func(h hop) bool { return h.dead })
		r.multipath = len(r.hops) > 1
	}
}

// linkGone removes everything that still refers to a link.
func (f *fib) linkGone(k *Kernel, l *link) {
	for _, r := range f.through(l.index) {
		f.remove(k, r)
	}
	delete(f.byLink, l.index)
	for _, p := range l.addrs {
		f.dropSource(k, p.Addr())
	}
}

// AddAddress gives an interface an address, as "ip address add" does. EEXIST: it has
// it already. ENODEV: there is no such interface.
func (k *Kernel) AddAddress(ifindex int, p netip.Prefix) error {
	k.lock()
	defer k.unlock()
	l := k.links[ifindex]
	switch {
	case l == nil:
		return unix.ENODEV
	case slices.Contains(l.addrs, p):
		return unix.EEXIST
	case p.Addr().Is6() && !l.ipv6Enabled():
		return unix.EACCES
	}
	l.addrs = append(slices.Clone(l.addrs), p)
	k.fib.addLocal(k, l, p)
	if l.up() {
		k.fib.addConnected(k, l, p)
	}
	return nil
}

// DelAddress takes an address from an interface, and with it the routes that have it
// as their source. EADDRNOTAVAIL: the interface does not have it.
func (k *Kernel) DelAddress(ifindex int, p netip.Prefix) error {
	k.lock()
	defer k.unlock()
	l := k.links[ifindex]
	if l == nil {
		return unix.ENODEV
	}
	i := slices.Index(l.addrs, p)
	if i < 0 {
		return unix.EADDRNOTAVAIL
	}
	l.addrs = slices.Delete(slices.Clone(l.addrs), i, i+1)
	again := slices.ContainsFunc(l.addrs, func(q netip.Prefix) bool { return q.Addr() == p.Addr() })
	for _, r := range k.fib.through(ifindex) {
		ofLocal := r.isLocalAddr() && r.dst.Addr() == p.Addr() && !again
		ofPrefix := r.Protocol == unix.RTPROT_KERNEL && r.Table == unix.RT_TABLE_MAIN && r.dst == p.Masked()
		if ofLocal || ofPrefix {
			k.fib.remove(k, r)
		}
	}
	k.fib.dropSource(k, p.Addr())
	if p.Addr().Is4() && !slices.ContainsFunc(l.addrs, func(q netip.Prefix) bool { return q.Addr().Is4() }) {
		k.fib.disableV4(k, l)
	}
	return nil
}

// disableV4 is fib_disable_ip with force: an interface that loses its last IPv4
// address loses its IPv4 routes and neighbours, whoever made them.
func (f *fib) disableV4(k *Kernel, l *link) {
	for _, r := range f.through(l.index) {
		if r.Family == unix.AF_INET {
			f.dropHops(k, r, l.index)
		}
	}
	k.flushNeighs(l.index, unix.AF_INET)
}

// dropSource is fib_sync_down_addr: the main table's IPv4 routes from an address that
// is gone go too.
func (f *fib) dropSource(k *Kernel, addr netip.Addr) {
	if !addr.Is4() || f.isLocal(addr) {
		return
	}
	var doomed []*route
	for _, routes := range f.tables[tableID{unix.AF_INET, unix.RT_TABLE_MAIN}] {
		for _, r := range routes {
			if r.Src != nil && ipAddr(r.Src) == addr {
				doomed = append(doomed, r)
			}
		}
	}
	slices.SortFunc(doomed, compareRoutes)
	for _, r := range doomed {
		f.remove(k, r)
	}
}

// insertOnce adds a route of the kernel's own unless it is there already.
func (f *fib) insertOnce(k *Kernel, r *route) {
	for _, old := range f.tables[r.id()][r.dst] {
		if old.Protocol == r.Protocol && old.Priority == r.Priority && old.hopIndex() == r.hopIndex() {
			return
		}
	}
	f.insert(k, r)
}

func (f *fib) addLocal(k *Kernel, l *link, p netip.Prefix) {
	r := kernelRoute(l, netip.PrefixFrom(p.Addr(), p.Addr().BitLen()), unix.RT_TABLE_LOCAL)
	r.Type = unix.RTN_LOCAL
	if p.Addr().Is4() {
		r.Scope, r.Src = netlink.SCOPE_HOST, p.Addr().AsSlice()
	}
	f.insertOnce(k, r)
}

// addConnected adds the route to an address's subnet.
func (f *fib) addConnected(k *Kernel, l *link, p netip.Prefix) {
	if p.IsSingleIP() && (p.Addr().Is4() || l.flags&net.FlagLoopback != 0) {
		return
	}
	r := kernelRoute(l, p.Masked(), unix.RT_TABLE_MAIN)
	if p.Addr().Is4() {
		r.Scope, r.Src = netlink.SCOPE_LINK, p.Addr().AsSlice()
		if l.flags&net.FlagLoopback != 0 {
			r.Table, r.Type, r.Scope = unix.RT_TABLE_LOCAL, unix.RTN_LOCAL, netlink.SCOPE_HOST
		}
	} else {
		r.Priority = 256 // IP6_RT_PRIO_ADDRCONF
	}
	f.insertOnce(k, r)
}

func kernelRoute(l *link, dst netip.Prefix, table int) *route {
	return &route{
		Route: netlink.Route{
			Family: familyOf(dst.Addr()), Table: table,
			Protocol: unix.RTPROT_KERNEL, Type: unix.RTN_UNICAST,
		},
		dst:  dst,
		hops: []hop{{index: l.index}},
	}
}

// isLocal reports whether an address is one of the namespace's own.
func (f *fib) isLocal(addr netip.Addr) bool {
	for routes := range f.matches(addr, unix.RT_TABLE_LOCAL) {
		if slices.ContainsFunc(routes, func(r *route) bool { return r.Type == unix.RTN_LOCAL }) {
			return true
		}
	}
	return false
}

// matches yields the routes of a table to an address, those of the longest prefix
// first.
func (f *fib) matches(addr netip.Addr, number int) iter.Seq[[]*route] {
	table := f.tables[tableID{familyOf(addr), number}]
	return func(yield func([]*route) bool) {
		if len(table) == 0 {
			return
		}
		for bits := addr.BitLen(); bits >= 0; bits-- {
			dst, _ := addr.Prefix(bits)
			if routes := table[dst]; routes != nil && !yield(routes) {
				return
			}
		}
	}
}
