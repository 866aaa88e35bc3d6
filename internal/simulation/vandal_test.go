package simulation

import (
	"fmt"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/qos"
	"github.com/manx-dataplane/manx/rtnl"
)

// vandals do to a pod's veth and its IFB what somebody might do by hand. That there is
// nothing to do it to is no error.
var vandals = []struct {
	text string
	do   func(w *world, p *pod, ifb int)
}{
	{"deletes the ingress qdisc of %s", func(w *world, p *pod, _ int) {
		if p.hook == "" {
			_ = w.outside.QdiscDel(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: p.index, Parent: netlink.HANDLE_INGRESS, Handle: 0xffff0000}})
		}
	}},
	{"deletes the root qdisc of %s", func(w *world, p *pod, _ int) {
		if !p.foreignRoot {
			deleteRoot(w, p.index)
		}
	}},
	{"deletes the IFB of %s", func(w *world, _ *pod, ifb int) { _ = w.outside.LinkDel(ref(ifb)) }},
	{"sets the IFB of %s down", func(w *world, _ *pod, ifb int) { _ = w.outside.LinkSetDown(ref(ifb)) }},
	{"changes the MTU of the IFB of %s", func(w *world, _ *pod, ifb int) { _ = w.outside.LinkSetMTU(ref(ifb), 1111) }},
	{"deletes the TBF of the IFB of %s", func(w *world, _ *pod, ifb int) { deleteRoot(w, ifb) }},
	{"changes the TBF of the IFB of %s", func(w *world, _ *pod, ifb int) {
		tbf := foreignTBF(ifb)
		tbf.Handle = netlink.MakeHandle(0xca11, 0)
		_ = w.outside.QdiscReplace(tbf)
	}},
	{"deletes the queue of the IFB of %s", func(w *world, _ *pod, ifb int) { _ = w.outside.QdiscDel(queueOfOurs(ifb, 0)) }},
	{"shortens the queue of the IFB of %s", func(w *world, _ *pod, ifb int) { _ = w.outside.QdiscReplace(queueOfOurs(ifb, 1)) }},
	{"shortens the queue of %s", func(w *world, p *pod, _ int) { _ = w.outside.QdiscReplace(queueOfOurs(p.index, 1)) }},
	{"puts the IFB of %s into the reaper's link group", func(w *world, _ *pod, ifb int) { _ = w.outside.LinkSetGroup(ref(ifb), 0x6d616e78) }},
	{"puts ifb0 (not %s) into that group, too", func(w *world, _ *pod, _ int) {
		if !w.isReaping() {
			w.must(w.outside.LinkSetGroup(ref(w.indexOf("ifb0")), 0x6d616e78))
		}
	}},
	{"deletes the filters of %s", func(w *world, p *pod, _ int) {
		if p.hook == "" {
			deleteFilters(w, p.index)
		}
	}},
	{"redirects %s to its IFB once more", func(w *world, p *pod, ifb int) {
		w.ifbUser[ifb], p.tampered = p, true // as far as anyone can tell
		_ = w.outside.FilterAdd(&netlink.U32{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: p.index, Parent: netlink.HANDLE_MIN_INGRESS, Priority: 77, Protocol: unix.ETH_P_ALL},
			Actions:     []netlink.Action{netlink.NewMirredAction(ifb)},
		})
	}},
	{"flushes the routes of %s", func(w *world, p *pod, _ int) { flushRoutes(w, p.index) }},
	{"adds a stale route of ours through %s", func(w *world, p *pod, _ int) { w.addRoute("10.77.0.1/32", p.index, 80, "") }},
	{"adds a static route through %s", func(w *world, p *pod, _ int) {
		if p.hostUp && isWorkload(p.name) {
			cidr := fmt.Sprintf("10.78.0.%d/32", p.index%250)
			w.addRoute(cidr, p.index, unix.RTPROT_STATIC, "")
			w.external[cidr] = p.index
		}
	}},
	{"makes an IFB of the name that belongs to %s", func(w *world, p *pod, _ int) {
		_ = w.outside.LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: qos.IFBName(p.name), TxQLen: -1}})
	}},
	{"makes an IFB like the one of %s, for nobody", func(w *world, p *pod, _ int) {
		_ = w.outside.LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: qos.IFBName(p.name + "x"), TxQLen: -1}})
	}},
}

// vandal adds vandalism, where a refresh can repair it.
func (g *generator) vandal() {
	slot, n := g.slot(), g.IntN(len(vandals))
	if g.options.noRefresh {
		return
	}
	g.emit(func(w *world) {
		p := w.pods[slot]
		if p == nil {
			return
		}
		w.vandalized[slot] = time.Now()
		p.armedEgress, p.armedIngress = false, false
		vandals[n].do(w, p, w.indexOf(qos.IFBName(slot)))
	}, "somebody "+vandals[n].text, slot)
}

func deleteRoot(w *world, index int) {
	if root := w.roots()[index]; root != nil {
		w.must(w.outside.QdiscDel(&netlink.GenericQdisc{
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_ROOT, Handle: root.Handle}, QdiscType: "tbf",
		}))
	}
}

func deleteFilters(w *world, index int) {
	filters, err := w.outside.FilterList(index, netlink.HANDLE_MIN_INGRESS)
	w.must(err)
	for _, f := range filters {
		w.must(w.outside.FilterDel(f))
	}
}

func flushRoutes(w *world, index int) {
	var ops []rtnl.RouteOp
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		w.must(w.outside.RouteEach(rtnl.RouteFilter{Family: family, Table: unix.RT_TABLE_MAIN, IfIndex: index}, func(r *netlink.Route) error {
			if r.Protocol == 80 {
				ops = append(ops, rtnl.RouteOp{Delete: true, Route: *r})
			}
			return nil
		}))
	}
	w.outside.RouteBatch(ops)
}

// isReaping reports whether there is a device in the reaper's link group: it may be about
// to delete that group, having looked at who is in it.
func (w *world) isReaping() bool {
	links, err := w.outside.LinkList()
	w.must(err)
	return slices.ContainsFunc(links, func(l netlink.Link) bool { return l.Attrs().Group == 0x6d616e78 })
}

// queueOfOurs is what we put below a TBF of ours.
func queueOfOurs(index int, length uint32) *rtnl.Bfifo {
	return &rtnl.Bfifo{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.MakeHandle(0xca11, 1)},
		Limit:      length,
	}
}
