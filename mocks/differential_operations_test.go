package mocks_test

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/manx-dataplane/manx/rtnl"
)

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
	"queue below a TBF": func(d *differ) {
		parent := oneOf(d, "parent", netlink.MakeHandle(1, 1), netlink.MakeHandle(0xca11, 1), netlink.MakeHandle(0xca11, 1), netlink.MakeHandle(0xca11, 2))
		handle := oneOf(d, "handle", netlink.MakeHandle(0xca12, 0), netlink.MakeHandle(0xca12, 0), 0, netlink.MakeHandle(0xca12, 1))
		var q netlink.Qdisc = queue(d.index(), parent, handle, oneOf(d, "limit", uint32(3_000), 4_000))
		if d.coin("pfifo") {
			q = &netlink.GenericQdisc{QdiscAttrs: *q.Attrs(), QdiscType: "pfifo"}
		}
		verb := oneOf(d, "verb", "replace", "replace", "add", "delete")
		d.both(fmt.Sprintf("%s queue %s", verb, qdiscString(q)), func(w world) error {
			switch verb {
			case "add":
				return w.QdiscAdd(q)
			case "replace":
				return w.QdiscReplace(q)
			}
			return w.QdiscDel(q)
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
