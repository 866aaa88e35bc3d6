package mocks_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/manx-dataplane/manx/mocks"
	"github.com/manx-dataplane/manx/rtnl"
)

// TestMockAnswersAsTheKernelDoes makes random sequences of requests to a Kernel and
// to a real namespace, and wants the same errno for each and the same state after
// each.
func TestMockAnswersAsTheKernelDoes(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("needs root, to compare with a real kernel")
		}
		t.Skip("needs root, to compare with a real kernel")
	}
	rapid.Check(t, func(t *rapid.T) {
		real, err := newRealWorld()
		if err != nil {
			t.Fatal(err)
		}
		defer real.destroy()
		mock := newMockWorld(mocks.NewKernel())
		d := &differ{t: t, worlds: [2]world{mock, real}}
		d.prepare()
		names := slices.Sorted(mapKeys(operations))
		steps := rapid.IntRange(1, 60).Draw(t, "steps")
		for range steps {
			name := rapid.SampledFrom(names).Draw(t, "operation")
			operations[name](d)
			d.compareState()
		}
	})
}

func mapKeys[K comparable, V any](m map[K]V) func(func(K) bool) {
	return func(yield func(K) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

type differ struct {
	t      *rapid.T
	worlds [2]world
	extra  int // links that the real namespace has from the start, besides lo
	trace  []string
}

// prepare makes both worlds' next ifindex the same, and keeps IPv6 link-local
// addresses out of it: they come when duplicate address detection is done.
func (d *differ) prepare() {
	for _, w := range d.worlds {
		if err := w.writeSysctl("/proc/sys/net/ipv6/conf/default/addr_gen_mode", "1"); err != nil {
			d.t.Fatal(err)
		}
	}
	links, err := d.worlds[1].LinkList()
	if err != nil {
		d.t.Fatal(err)
	}
	d.extra = len(links) - 1
	for i := range d.extra {
		filler := ifb(fmt.Sprintf("filler%d", i))
		if err := d.worlds[0].LinkAdd(filler); err != nil {
			d.t.Fatal(err)
		}
		if err := d.worlds[0].LinkDel(filler); err != nil {
			d.t.Fatal(err)
		}
	}
}

// both makes a request in both worlds and compares what comes back.
func (d *differ) both(what string, request func(w world) error) {
	d.t.Helper()
	d.trace = append(d.trace, what)
	mock, real := errnoOf(request(d.worlds[0])), errnoOf(request(d.worlds[1]))
	d.trace[len(d.trace)-1] += ": " + real.Error()
	if real == 0 {
		d.trace[len(d.trace)-1] = what + ": ok"
	}
	if mock != real {
		d.t.Fatalf("%s\nmock answered %v, kernel %v", strings.Join(d.trace, "\n"), mock, real)
	}
}

func (d *differ) compareState() {
	d.t.Helper()
	mock, real := d.state(d.worlds[0]), d.state(d.worlds[1])
	if mock != real {
		d.t.Fatalf("%s\n%s", strings.Join(d.trace, "\n"), difference(mock, real))
	}
}

// difference lists the lines that only one of two states has.
func difference(mock, real string) string {
	var b strings.Builder
	for _, side := range []struct{ who, has, lacks string }{{"mock", mock, real}, {"kernel", real, mock}} {
		lines := strings.Split(side.lacks, "\n")
		for _, line := range strings.Split(side.has, "\n") {
			if i := slices.Index(lines, line); i >= 0 {
				lines = slices.Delete(lines, i, i+1)
			} else {
				fmt.Fprintf(&b, "only the %s has: %s\n", side.who, line)
			}
		}
	}
	return b.String()
}

// state renders all that the seam shows of a world.
func (d *differ) state(w world) string {
	d.t.Helper()
	var b strings.Builder
	links, err := w.LinkList()
	if err != nil {
		d.t.Fatal(err)
	}
	slices.SortFunc(links, func(x, y netlink.Link) int { return x.Attrs().Index - y.Attrs().Index })
	for _, l := range links {
		if index := l.Attrs().Index; index == 1 || index > 1+d.extra {
			// Asking for one link makes the kernel catch up with its carrier
			// (linkwatch_sync_dev), which it otherwise does up to a second later.
			if l, err = w.LinkByIndex(index); err != nil {
				d.t.Fatal(err)
			}
		}
	}
	for _, l := range links {
		index := l.Attrs().Index
		if index != 1 && index <= 1+d.extra {
			continue
		}
		if l, err = w.LinkByIndex(index); err != nil {
			d.t.Fatal(err)
		}
		a := l.Attrs()
		fmt.Fprintf(&b, "link %d %s %s flags %#x oper %s mtu %d group %d lower %d txqlen %d\n",
			a.Index, a.Name, l.Type(), a.RawFlags, a.OperState, a.MTU, a.Group, a.ParentIndex, a.TxQLen)
		for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
			filters, err := w.FilterList(index, parent)
			if err != nil {
				d.t.Fatal(err)
			}
			for _, f := range filters {
				fmt.Fprintf(&b, "  filter %+v %s %s\n", attrsOf(f), f.Type(), u32Of(f))
			}
		}
	}
	qdiscs, err := w.QdiscList()
	if err != nil {
		d.t.Fatal(err)
	}
	slices.SortStableFunc(qdiscs, func(x, y netlink.Qdisc) int { return x.Attrs().LinkIndex - y.Attrs().LinkIndex })
	for _, q := range qdiscs {
		if index := q.Attrs().LinkIndex; index == 1 || index > 1+d.extra {
			fmt.Fprintf(&b, "qdisc %s\n", qdiscString(q))
		}
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		for _, table := range []int{unix.RT_TABLE_MAIN, unix.RT_TABLE_LOCAL, 100, 1000} {
			routes := d.routes(w, rtnl.RouteFilter{Family: family, Table: table})
			slices.Sort(routes)
			b.WriteString(strings.Join(routes, ""))
		}
		for _, l := range links {
			if through := d.routes(w, rtnl.RouteFilter{Family: family, Table: unix.RT_TABLE_MAIN, IfIndex: l.Attrs().Index}); len(through) > 0 {
				fmt.Fprintf(&b, "through %d: %d\n", l.Attrs().Index, len(through))
			}
		}
		neighs, err := w.NeighList(0, family)
		if err != nil {
			d.t.Fatal(err)
		}
		var lines []string
		for _, n := range neighs {
			if n.State == unix.NUD_PERMANENT {
				lines = append(lines, fmt.Sprintf("neigh %s dev %d lladdr %s state %d\n", n.IP, n.LinkIndex, n.HardwareAddr, n.State))
			}
		}
		slices.Sort(lines)
		b.WriteString(strings.Join(lines, ""))
	}
	return b.String()
}

func attrsOf(f netlink.Filter) string {
	a := f.Attrs()
	return fmt.Sprintf("handle %#x parent %#x prio %d proto %#x", a.Handle, a.Parent, a.Priority, a.Protocol)
}

func u32Of(f netlink.Filter) string {
	u, ok := f.(*netlink.U32)
	if !ok {
		return ""
	}
	text := fmt.Sprintf("redir %d sel %d %d", u.RedirIndex, u.Sel.Flags, u.Sel.Nkeys)
	for _, action := range u.Actions {
		text += " " + action.Type()
		if m, ok := action.(*netlink.MirredAction); ok {
			text += fmt.Sprintf(" %v %d %v", m.MirredAction, m.Ifindex, m.Action)
		}
	}
	return text
}

// qdiscString leaves out handles that the kernel chose: it counts them for the whole
// machine.
func qdiscString(q netlink.Qdisc) string {
	a := q.Attrs()
	handle := fmt.Sprintf("%#x", a.Handle)
	if major := a.Handle >> 16; major >= 0x8000 && major < 0xffff && major != 0xca11 {
		handle = "auto"
	}
	text := fmt.Sprintf("dev %d %s %s parent %#x", a.LinkIndex, q.Type(), handle, a.Parent)
	if t, ok := q.(*netlink.Tbf); ok {
		text += fmt.Sprintf(" rate %d limit %d buffer %d peak %d minburst %d", t.Rate, t.Limit, t.Buffer, t.Peakrate, t.Minburst)
	}
	return text
}

func (d *differ) routes(w world, filter rtnl.RouteFilter) (lines []string) {
	err := w.RouteEach(filter, func(r *netlink.Route) error {
		// Broadcast and multicast routes are not modelled.
		if r.Type != unix.RTN_BROADCAST && r.Type != unix.RTN_MULTICAST && r.Type != unix.RTN_ANYCAST {
			lines = append(lines, routeString(r))
		}
		return nil
	})
	if err != nil {
		d.t.Fatal(err)
	}
	return lines
}

func routeString(r *netlink.Route) string {
	flags := r.Flags
	if slices.ContainsFunc(r.MultiPath, func(h *netlink.NexthopInfo) bool { return h.Flags&unix.RTNH_F_DEAD != 0 }) {
		flags = 0 // whether a carrier is missing then depends on what went first
	}
	text := fmt.Sprintf("route %s table %d type %d dev %d via %s src %s scope %d proto %d prio %d tos %d mtu %d flags %#x",
		r.Dst, r.Table, r.Type, r.LinkIndex, r.Gw, r.Src, r.Scope, r.Protocol, r.Priority, r.Tos, r.MTU, flags)
	for _, h := range r.MultiPath {
		text += fmt.Sprintf(" [dev %d via %s weight %d flags %#x]", h.LinkIndex, h.Gw, h.Hops, h.Flags)
	}
	return text + "\n"
}

// What operations draw from: few names and addresses, so that they meet.
func (d *differ) index() int {
	links, err := d.worlds[0].LinkList()
	if err != nil {
		d.t.Fatal(err)
	}
	i := rapid.IntRange(0, 2*len(links)).Draw(d.t, "link") // now and then one that is not there
	if i < 2*len(links) {
		return links[i/2].Attrs().Index
	}
	return 20
}
func (d *differ) name() string {
	return rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(d.t, "name")
}
func (d *differ) coin(label string) bool { return rapid.Bool().Draw(d.t, label) }

func oneOf[T any](d *differ, label string, values ...T) T {
	return rapid.SampledFrom(values).Draw(d.t, label)
}

var operations = map[string]func(*differ){
	"add veth": func(d *differ) {
		name, peer := d.name(), d.name()
		d.both(fmt.Sprintf("add veth %s peer %s", name, peer), func(w world) error { return w.LinkAdd(veth(name, peer)) })
	},
	"add veth and set up": func(d *differ) {
		name, peer := d.name(), d.name()
		d.both(fmt.Sprintf("add veth %s peer %s, up", name, peer), func(w world) error {
			l := veth(name, peer)
			if err := w.LinkAdd(l); err != nil {
				return err
			}
			p, err := w.LinkByName(peer)
			if err != nil {
				return err
			}
			if err := w.LinkSetUp(p); err != nil {
				return err
			}
			return w.LinkSetUp(l)
		})
	},
	"add ifb": func(d *differ) {
		name := oneOf(d, "name", "a", "b", "x/y", "", "sixteen-letters-")
		index := oneOf(d, "wanted", 0, 0, 5, 8)
		if name == "" {
			return // the library's own error, not the kernel's
		}
		d.both(fmt.Sprintf("add ifb %s index %d", name, index), func(w world) error {
			l := ifb(name)
			l.Index = index
			return w.LinkAdd(l)
		})
	},
	"delete link": func(d *differ) {
		index := d.index()
		d.both(fmt.Sprintf("delete link %d", index), func(w world) error { return w.LinkDel(ofIndex(index)) })
	},
	"set up": func(d *differ) {
		index := d.index()
		d.both(fmt.Sprintf("set up %d", index), func(w world) error { return w.LinkSetUp(ofIndex(index)) })
	},
	"set down": func(d *differ) {
		index := d.index()
		d.both(fmt.Sprintf("set down %d", index), func(w world) error { return w.LinkSetDown(ofIndex(index)) })
	},
	"set MTU": func(d *differ) {
		index, mtu := d.index(), oneOf(d, "mtu", 1280, 1400, 1500, 65535, 65536)
		if index == 1 {
			return
		}
		d.both(fmt.Sprintf("set MTU %d of %d", mtu, index), func(w world) error { return w.LinkSetMTU(ofIndex(index), mtu) })
	},
	"rename": func(d *differ) {
		index, name := d.index(), d.name()
		if index == 1 {
			return
		}
		d.both(fmt.Sprintf("rename %d to %s", index, name), func(w world) error { return w.LinkSetName(ofIndex(index), name) })
	},
	"set group": func(d *differ) {
		index, group := d.index(), oneOf(d, "group", 0, 7, 7)
		d.both(fmt.Sprintf("set group %d of %d", group, index), func(w world) error { return w.LinkSetGroup(ofIndex(index), group) })
	},
	"delete group": func(d *differ) {
		d.both("delete group 7", func(w world) error { return w.LinkDelGroup(7) })
	},
	"root qdisc": func(d *differ) {
		q := d.rootQdisc()
		replace := d.coin("replace")
		d.both(fmt.Sprintf("root qdisc %s replace %v", qdiscString(q), replace), func(w world) error {
			if replace {
				return w.QdiscReplace(q)
			}
			return w.QdiscAdd(q)
		})
	},
	"ingress qdisc": func(d *differ) {
		q := d.ingressQdisc()
		replace := d.coin("replace")
		d.both(fmt.Sprintf("ingress qdisc %s replace %v", qdiscString(q), replace), func(w world) error {
			if replace {
				return w.QdiscReplace(q)
			}
			return w.QdiscAdd(q)
		})
	},
	"delete qdisc": func(d *differ) {
		q := d.rootQdisc()
		if d.coin("ingress") {
			q = d.ingressQdisc()
		}
		d.both("delete qdisc "+qdiscString(q), func(w world) error { return w.QdiscDel(q) })
	},
	"filter": func(d *differ) {
		parent := oneOf(d, "parent", uint32(netlink.HANDLE_MIN_INGRESS), netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS, netlink.MakeHandle(0xffff, 0), netlink.MakeHandle(1, 0))
		from, to, prio := d.index(), d.index(), oneOf(d, "prio", uint16(0), 1, 2)
		if d.coin("no target") {
			to = 0
		}
		handle := oneOf(d, "handle", uint32(0), 0, 1, 0x800)
		proto := oneOf(d, "protocol", uint16(unix.ETH_P_ALL), unix.ETH_P_ALL, unix.ETH_P_IP)
		verb := oneOf(d, "verb", "add", "add", "replace", "delete", "delete")
		if verb == "delete" {
			handle = d.handleOfFilter(from, parent, prio)
		}
		d.both(fmt.Sprintf("%s filter on %d parent %#x to %d prio %d handle %#x proto %d", verb, from, parent, to, prio, handle, proto), func(w world) error {
			f := redirect(from, to, prio)
			f.Parent, f.Handle, f.Protocol = parent, handle, proto
			switch verb {
			case "add":
				return w.FilterAdd(f)
			case "replace":
				return w.FilterReplace(f)
			}
			return w.FilterDel(f)
		})
	},
	// IPv6 addresses are for the behavioural suite: the kernel gives them their routes
	// later, from a work queue.
	"IPv4 address": func(d *differ) {
		index := d.index()
		p := netip.MustParsePrefix(oneOf(d, "address", "10.1.0.1/24", "10.1.0.1/32", "10.2.0.1/16"))
		remove := d.coin("remove")
		if index == 1 {
			return
		}
		d.both(fmt.Sprintf("address %s of %d remove %v", p, index, remove), func(w world) error {
			if remove {
				return w.delAddress(index, p)
			}
			return w.addAddress(index, p)
		})
	},
	"IPv4 route": func(d *differ) {
		op := d.route(unix.AF_INET,
			[]string{"0.0.0.0/0", "10.65.0.1/32", "10.65.0.2/32", "10.65.0.0/24", "10.65.0.1/24"},
			[]string{"", "", "10.1.0.2", "10.65.0.9", "10.1.0.1"}, "10.1.0.1")
		d.batch(op)
	},
	"IPv6 route": func(d *differ) {
		op := d.route(unix.AF_INET6,
			[]string{"::/0", "fd00::1/128", "fd00::2/128", "fd00::/64", "fd00::1/64"},
			[]string{"", "", "2001:db8::2", "fd00::9", "fe80::9"}, "::1")
		d.batch(op)
	},
	"neighbour": func(d *differ) {
		index, ip := d.index(), net.ParseIP(oneOf(d, "ip", "10.65.0.1", "fd00::1"))
		remove := d.coin("remove")
		if index == 1 {
			return
		}
		d.both(fmt.Sprintf("neighbour %s dev %d remove %v", ip, index, remove), func(w world) error {
			n := &netlink.Neigh{LinkIndex: index, IP: ip, State: unix.NUD_PERMANENT, HardwareAddr: net.HardwareAddr{2, 1, 1, 1, 1, 1}}
			if remove {
				return w.NeighDel(n)
			}
			return w.NeighSet(n)
		})
	},
}

// handleOfFilter draws the handle of an existing filter, which for u32 includes its
// hash table, or zero.
func (d *differ) handleOfFilter(ifindex int, parent uint32, prio uint16) uint32 {
	filters, err := d.worlds[0].FilterList(ifindex, parent)
	if err != nil {
		d.t.Fatal(err)
	}
	handles := []uint32{0}
	for _, f := range filters {
		if f.Attrs().Priority == prio {
			handles = append(handles, f.Attrs().Handle)
		}
	}
	return oneOf(d, "handle", handles...)
}

func (d *differ) rootQdisc() netlink.Qdisc {
	handle := oneOf(d, "handle", 0, netlink.MakeHandle(1, 0), netlink.MakeHandle(0xca11, 0), netlink.MakeHandle(1, 1))
	q := tbf(d.index(), handle, oneOf(d, "rate", uint64(125_000), 1_000_000, 0))
	if d.coin("pfifo") {
		return &netlink.GenericQdisc{QdiscAttrs: q.QdiscAttrs, QdiscType: "pfifo"}
	}
	if d.coin("peak") {
		q.Peakrate, q.Minburst = 500_000, 2_000
	}
	return q
}

func (d *differ) ingressQdisc() netlink.Qdisc {
	var q netlink.Qdisc = ingress(d.index())
	if d.coin("clsact") {
		q = clsact(d.index())
	}
	if rapid.IntRange(0, 3).Draw(d.t, "no handle") == 0 {
		q.Attrs().Handle = 0
	}
	return q
}

// route draws a change to a route.
func (d *differ) route(family int, dsts, gws []string, src string) rtnl.RouteOp {
	r := netlink.Route{
		Family: family, Table: oneOf(d, "table", 254, 254, 100, 1000),
		Dst:      ipNet(netip.MustParsePrefix(oneOf(d, "dst", dsts...))),
		Protocol: netlink.RouteProtocol(oneOf(d, "protocol", 80, 80, 3)),
		Priority: oneOf(d, "priority", 0, 0, 100),
		Scope:    oneOf(d, "scope", netlink.SCOPE_LINK, netlink.SCOPE_UNIVERSE),
		Tos:      oneOf(d, "tos", 0, 0, 16),
		Type:     oneOf(d, "type", 0, unix.RTN_UNICAST, unix.RTN_UNICAST, unix.RTN_BLACKHOLE, unix.RTN_PROHIBIT, unix.RTN_THROW, unix.RTN_UNREACHABLE),
	}
	op := rtnl.RouteOp{Delete: rapid.IntRange(0, 2).Draw(d.t, "delete") == 0, Exclusive: d.coin("exclusive")}
	if r.Type <= unix.RTN_UNICAST || rapid.IntRange(0, 3).Draw(d.t, "odd") == 0 {
		r.LinkIndex = d.index()
	}
	if gw := oneOf(d, "gw", gws...); gw != "" {
		r.Gw = net.ParseIP(gw)
		if d.coin("onlink") {
			r.Flags = unix.RTNH_F_ONLINK
		}
	}
	if rapid.IntRange(0, 3).Draw(d.t, "src") == 0 {
		r.Src = net.ParseIP(src)
	}
	if rapid.IntRange(0, 3).Draw(d.t, "mtu") == 0 {
		r.MTU = 1400
	}
	if family == unix.AF_INET && !op.Delete && rapid.IntRange(0, 3).Draw(d.t, "multipath") == 0 {
		r.MultiPath = []*netlink.NexthopInfo{{LinkIndex: r.LinkIndex, Gw: r.Gw, Flags: r.Flags}, {LinkIndex: d.index()}}
		r.LinkIndex, r.Gw, r.Flags = 0, nil, 0
	}
	op.Route = r
	return op
}

func (d *differ) batch(op rtnl.RouteOp) {
	d.both(fmt.Sprintf("delete %v exclusive %v %s", op.Delete, op.Exclusive, strings.TrimSpace(routeString(&op.Route))), func(w world) error {
		if errs := w.RouteBatch([]rtnl.RouteOp{op}); errs != nil {
			return errs[0]
		}
		return nil
	})
}
