package mocks_test

import (
	"fmt"
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
	links, err := w.LinkList()
	if err != nil {
		d.t.Fatal(err)
	}
	var indexes []int
	for _, l := range links {
		if index := l.Attrs().Index; d.ours(index) {
			indexes = append(indexes, index)
		}
	}
	slices.Sort(indexes)
	for _, index := range indexes {
		// Asking for one link makes the kernel catch up with its carrier
		// (linkwatch_sync_dev), which it otherwise does up to a second later.
		d.link(w, index)
	}
	var b strings.Builder
	for _, index := range indexes {
		l := d.link(w, index)
		a := l.Attrs()
		fmt.Fprintf(&b, "link %d %s %s flags %#x oper %s mtu %d group %d lower %d txqlen %d\n",
			a.Index, a.Name, l.Type(), a.RawFlags, a.OperState, a.MTU, a.Group, a.ParentIndex, a.TxQLen)
		d.writeFilters(&b, w, index)
	}
	d.writeQdiscs(&b, w)
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		d.writeRoutes(&b, w, family, indexes)
		d.writeNeighbours(&b, w, family)
	}
	return b.String()
}

// ours reports whether a link is not one that the real namespace had from the start.
func (d *differ) ours(index int) bool { return index == 1 || index > 1+d.extra }

func (d *differ) link(w world, index int) netlink.Link {
	d.t.Helper()
	l, err := w.LinkByIndex(index)
	if err != nil {
		d.t.Fatal(err)
	}
	return l
}

func (d *differ) writeFilters(b *strings.Builder, w world, index int) {
	d.t.Helper()
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		filters, err := w.FilterList(index, parent)
		if err != nil {
			d.t.Fatal(err)
		}
		for _, f := range filters {
			fmt.Fprintf(b, "  filter %+v %s %s\n", attrsOf(f), f.Type(), u32Of(f))
		}
	}
}

func (d *differ) writeQdiscs(b *strings.Builder, w world) {
	d.t.Helper()
	qdiscs, err := w.QdiscList()
	if err != nil {
		d.t.Fatal(err)
	}
	slices.SortStableFunc(qdiscs, func(x, y netlink.Qdisc) int { return x.Attrs().LinkIndex - y.Attrs().LinkIndex })
	for _, q := range qdiscs {
		if d.ours(q.Attrs().LinkIndex) {
			fmt.Fprintf(b, "qdisc %s\n", qdiscString(q))
		}
	}
}

func (d *differ) writeRoutes(b *strings.Builder, w world, family int, indexes []int) {
	d.t.Helper()
	for _, table := range []int{unix.RT_TABLE_MAIN, unix.RT_TABLE_LOCAL, 100, 1000} {
		routes := d.routes(w, rtnl.RouteFilter{Family: family, Table: table})
		slices.Sort(routes)
		b.WriteString(strings.Join(routes, ""))
	}
	for _, index := range indexes {
		through := d.routes(w, rtnl.RouteFilter{Family: family, Table: unix.RT_TABLE_MAIN, IfIndex: index})
		if len(through) > 0 {
			fmt.Fprintf(b, "through %d: %d\n", index, len(through))
		}
	}
}

func (d *differ) writeNeighbours(b *strings.Builder, w world, family int) {
	d.t.Helper()
	neighs, err := w.NeighList(0, family)
	if err != nil {
		d.t.Fatal(err)
	}
	var lines []string
	for _, n := range neighs {
		if n.State == unix.NUD_PERMANENT {
			lines = append(lines, fmt.Sprintf("neigh %s dev %d lladdr %s\n", n.IP, n.LinkIndex, n.HardwareAddr))
		}
	}
	slices.Sort(lines)
	b.WriteString(strings.Join(lines, ""))
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
	if major := a.Handle >> 16; major >= 0x8000 && major < 0xffff && major != 0xca11 && major != 0xca12 {
		handle = "auto"
	}
	text := fmt.Sprintf("dev %d %s %s parent %#x", a.LinkIndex, q.Type(), handle, a.Parent)
	if t, ok := q.(*netlink.Tbf); ok {
		text += fmt.Sprintf(" rate %d limit %d buffer %d peak %d minburst %d", t.Rate, t.Limit, t.Buffer, t.Peakrate, t.Minburst)
	}
	if b, ok := q.(*rtnl.Bfifo); ok {
		text += fmt.Sprintf(" limit %d", b.Limit)
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
