package routetable_test

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/routetable"
	"github.com/manx-dataplane/manx/rtnl"
)

// After any sequence of wishes, interface events, others' edits and injected
// errors, once errors stop and the events have been told, Apply succeeds and the
// kernel's table is what the model says.

// Both run more often with -rapid.checks.
func TestKernelEqualsModelOnMocks(t *testing.T) { checkProperty(t, mockWorlds, 20) }
func TestKernelEqualsModelOnLinux(t *testing.T) { checkProperty(t, realWorlds, 1) }

// checkProperty checks as many times rapid's number of sequences, 100 by default.
func checkProperty(t *testing.T, kind worldKind, times int) {
	for _, version := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d", version), func(t *testing.T) {
			for range times {
				rapid.Check(t, func(r *rapid.T) { newProperty(r, kind.open(r), version).run() })
			}
		})
	}
}

// property is one random run: a RouteTable, its kernel, and the model.
type property struct {
	r       *rapid.T
	w       world
	version int
	table   int

	clock  *clocktesting.FakePassiveClock
	rt     *routetable.RouteTable
	spied  *record
	policy routetable.WorkloadPolicy

	nextIndex int
	// untold are the events that the monitor has yet to tell.
	untold []event
	// The model: what is wanted, and the index and state of each interface that
	// exists, and others' routes that must not be touched.
	wanted map[wish]routetable.Target
	links  map[string]*modelLink
	dead   []event
	// edited says that others have changed the table, or the kernel failed to be
	// read, so that only a resync can put things right.
	edited bool
}

type event struct {
	name  string
	index int
	state ifacemonitor.State
}

type wish struct {
	class    routetable.RouteClass
	iface    string
	cidr     netip.Prefix
	priority int
}

type modelLink struct {
	index int
	up    bool
}

const propertyTable = 77

// flowsTimeout is longer than all that may be waited for, see applyAll.
const flowsTimeout = 1000 * time.Hour

var propertyIfaces = []string{"cali1", "cali2", "cali3", "eth0"}

func newProperty(r *rapid.T, w world, version int) *property {
	p := &property{
		r: r, w: w, version: version, table: propertyTable,
		clock:     clocktesting.NewFakePassiveClock(time.Unix(1e9, 0)),
		spied:     &record{},
		nextIndex: 1000,
		wanted:    map[wish]routetable.Target{},
		links:     map[string]*modelLink{},
		policy: routetable.WorkloadPolicy{
			WorkloadPrefixes: []string{"cali"}, Protocols: []int{80}, RemoveExternalRoutes: rapid.Bool().Draw(r, "removeExternal"),
		},
	}
	p.restart()
	// Most runs start with interfaces that are up, without which little happens.
	for _, name := range propertyIfaces {
		if rapid.IntRange(0, 3).Draw(r, "missing") != 3 {
			p.addLink(name)
			p.setLink(name, true)
		}
	}
	p.tellAll()
	return p
}

func (p *property) restart() {
	if p.rt != nil {
		p.rt.Close()
	}
	p.rt = routetable.New(routetable.Config{
		Open: func() (routetable.Kernel, error) {
			kernel, err := p.w.OpenKernel()
			return &spy{kernel, p.spied}, err
		},
		IPVersion: p.version, Table: p.table, Ownership: p.policy, Clock: p.clock,
		StaticARP: true, Conntrack: noFlows{}, ConntrackTimeout: flowsTimeout,
	})
	for w, target := range p.wanted {
		p.rt.RouteUpdate(w.class, w.iface, target)
	}
	p.untold = nil
	for name, link := range p.links {
		p.rt.OnIfaceStateChanged(name, link.index, link.state())
	}
}

func (l *modelLink) state() ifacemonitor.State {
	if l.up {
		return up
	}
	return down
}

func (p *property) filter() rtnl.RouteFilter {
	return rtnl.RouteFilter{Family: map[int]int{4: unix.AF_INET, 6: unix.AF_INET6}[p.version], Table: p.table}
}

func (p *property) run() {
	defer func() { p.rt.Close() }()
	steps := map[string]func(){
		"want": p.want, "want less": p.wantLess, "set": p.set,
		"add link": p.newLink, "delete link": p.delLink, "set up": func() { p.setState(true) }, "set down": func() { p.setState(false) },
		"rename": p.rename, "tell": p.tell, "tell late": p.tellOutOfOrder,
		"others add": p.othersAdd, "others delete": p.othersDelete,
		"resync": func() { p.rt.QueueResync() }, "resync iface": func() { p.rt.QueueResyncIface(p.iface()) },
		"faults": p.toggleFaults, "wait": func() { p.clock.SetTime(p.clock.Now().Add(4 * time.Second)) },
		"restart": p.restart,
	}
	names := append(slices.Sorted(maps.Keys(steps)), "apply", "apply", "apply", "want", "want", "want", "set up", "tell", "tell")
	for range rapid.IntRange(10, 60).Draw(p.r, "steps") {
		step := rapid.SampledFrom(names).Draw(p.r, "step")
		if step == "apply" {
			_ = p.rt.Apply()
		} else {
			steps[step]()
		}
	}
	p.settle()
}

// settle ends the faults, tells what is untold, repairs what others did behind
// our back, and compares.
func (p *property) settle() {
	*p.spied = record{}
	p.tellAll()
	if p.edited {
		p.rt.QueueResync()
	}
	p.applyAll()
	p.clock.SetTime(p.clock.Now().Add(routetable.DefaultGracePeriod))
	p.applyAll()
	p.check()

	p.spied.ops = nil
	p.rt.QueueResync()
	p.applyAll()
	if len(p.spied.ops) > 0 {
		p.r.Fatalf("a resync finds %d things to write: %+v", len(p.spied.ops), p.spied.ops)
	}
	if _, ok := p.rt.NextRecheck(); ok {
		p.r.Fatalf("something still waits")
	}

	// Without faults, edits and lies, no resync is needed.
	for range rapid.IntRange(0, 6).Draw(p.r, "quiet rounds") {
		for range rapid.IntRange(1, 4).Draw(p.r, "quiet steps") {
			p.quietStep()
		}
		p.tellAll()
		p.applyAll()
		p.check()
		p.tellOfTheDead()
	}
}

// applyAll applies until nothing waits for the deletion of flows, which is on a
// goroutine of its own.
func (p *property) applyAll() {
	for deadline := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
		must(p.r, p.rt.Apply())
		at, waits := p.rt.NextRecheck()
		if !waits || at.Sub(p.clock.Now()) < time.Hour {
			return
		}
		if time.Now().After(deadline) {
			p.r.Fatalf("a deletion of flows does not end")
		}
	}
}

func (p *property) quietStep() {
	steps := []struct {
		name string
		do   func()
	}{
		{"want", p.want}, {"want less", p.wantLess}, {"set", p.set}, {"add link", p.newLink}, {"delete link", p.delLink},
		{"rename", p.rename}, {"tell", p.tell}, {"flap", p.flap}, {"flap", p.flap},
		{"set up", func() { p.setState(true) }}, {"set down", func() { p.setState(false) }},
	}
	i := rapid.IntRange(0, len(steps)-1).Draw(p.r, "quiet step")
	p.r.Log(steps[i].name)
	steps[i].do()
}

// tellOfTheDead repeats what was said of interfaces that are no more. Where the
// name has a new owner, "down" and "gone" cause no write, let alone a change.
func (p *property) tellOfTheDead() {
	p.spied.ops = nil
	for _, e := range p.dead {
		if p.links[e.name] != nil && p.links[e.name].index != e.index {
			p.rt.OnIfaceStateChanged(e.name, e.index, rapid.SampledFrom([]ifacemonitor.State{down, absent}).Draw(p.r, "late"))
		}
	}
	must(p.r, p.rt.Apply())
	p.check()
	if len(p.spied.ops) > 0 {
		p.r.Fatalf("late events of dead interfaces cause writes: %+v", p.spied.ops)
	}
}

// check compares the kernel's table with the model's.
func (p *property) check() {
	var got []string
	must(p.r, p.w.RouteEach(p.filter(), func(r *netlink.Route) error {
		if !strings.Contains(r.Dst.String(), "/") {
			return nil
		}
		got = append(got, describe(r, p.names()))
		return nil
	}))
	slices.Sort(got)
	want := p.model()
	if !slices.Equal(got, want) {
		p.r.Fatalf("kernel:\n  %s\nmodel:\n  %s\nlinks: %v", strings.Join(got, "\n  "), strings.Join(want, "\n  "), p.names())
	}
	p.checkNeighbours()
}

// checkNeighbours compares the permanent neighbour entries. One that is too many
// may be left where others removed the route that says whose it is, and the agent
// started anew.
func (p *property) checkNeighbours() {
	list, err := p.w.NeighList(0, p.filter().Family)
	must(p.r, err)
	got, want := map[string]string{}, map[string]string{}
	for _, n := range list {
		if n.State&netlink.NUD_PERMANENT != 0 {
			got[fmt.Sprintf("%s %d", n.IP, n.LinkIndex)] = n.HardwareAddr.String()
		}
	}
	for _, w := range p.winners() {
		if target := p.wanted[w]; target.DestMAC != nil && !target.GW.IsValid() {
			want[fmt.Sprintf("%s %d", w.cidr.Addr(), p.links[w.iface].index)] = target.DestMAC.String()
		}
	}
	if p.edited {
		maps.DeleteFunc(got, func(entry, _ string) bool { return want[entry] == "" })
	}
	if !maps.Equal(got, want) {
		p.r.Fatalf("neighbour entries: %v, want %v, links: %v", got, want, p.names())
	}
}

func (p *property) names() map[int]string {
	names := map[int]string{1: "lo"}
	for name, link := range p.links {
		names[link.index] = name
	}
	return names
}

// winners returns the wishes that the table should hold.
func (p *property) winners() []wish {
	best := map[string]wish{}
	for w := range p.wanted {
		index, usable := p.usable(w)
		if !usable {
			continue
		}
		key := fmt.Sprintf("%s %d", w.cidr, w.priority)
		other, ok := best[key]
		otherIndex, _ := p.usable(other)
		if !ok || w.class < other.class || w.class == other.class && index > otherIndex {
			best[key] = w
		}
	}
	return slices.Collect(maps.Values(best))
}

func (p *property) usable(w wish) (index int, ok bool) {
	if w.iface == routetable.InterfaceNone {
		return 0, len(p.hops(w)) > 0
	}
	link := p.links[w.iface]
	if link == nil || !link.up {
		return 0, false
	}
	return link.index, true
}

// hops returns a multi-path wish's next hops over interfaces that are up.
func (p *property) hops(w wish) (hops []routetable.NextHop) {
	for _, hop := range p.wanted[w].MultiPath {
		if link := p.links[hop.IfaceName]; link != nil && link.up {
			hops = append(hops, hop)
		}
	}
	return hops
}

// model says what the table should hold, in describe's words.
func (p *property) model() []string {
	var routes []string
	for _, w := range p.winners() {
		target := p.wanted[w]
		s := w.cidr.String()
		var hops []string
		switch {
		case target.Type == routetable.TargetTypeBlackhole:
			s = "blackhole " + s
			if p.version == 6 {
				s += " dev lo"
			}
			s += " proto 80"
		case len(p.hops(w)) > 1:
			s += " proto 80"
			for _, hop := range p.hops(w) {
				hops = append(hops, fmt.Sprintf(" nexthop via %s dev %s onlink weight %d", hop.GW, hop.IfaceName, hop.Weight))
			}
			slices.Sort(hops)
		case len(p.hops(w)) == 1:
			hop := p.hops(w)[0]
			s += fmt.Sprintf(" via %s dev %s onlink proto 80", hop.GW, hop.IfaceName)
		default:
			if target.GW.IsValid() {
				s += " via " + target.GW.String()
			}
			s += " dev " + w.iface
			if target.Type == routetable.TargetTypeOnLink {
				s += " onlink"
			}
			s += " proto 80"
			if p.version == 4 && target.Type == routetable.TargetTypeLinkLocalUnicast {
				s += " scope link"
			}
		}
		if w.priority != 0 {
			s += fmt.Sprintf(" metric %d", w.priority)
		}
		if target.MTU != 0 {
			s += fmt.Sprintf(" mtu %d", target.MTU)
		}
		routes = append(routes, s+strings.Join(hops, ""))
	}
	slices.Sort(routes)
	return routes
}

func (p *property) iface() string { return rapid.SampledFrom(propertyIfaces).Draw(p.r, "iface") }

func (p *property) cidr() netip.Prefix {
	n := byte(rapid.IntRange(1, 4).Draw(p.r, "cidr"))
	if p.version == 6 {
		return netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 15: n}), 128)
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, n}), 32)
}

func (p *property) draw() (wish, routetable.Target) {
	w := wish{
		class: routetable.RouteClass(rapid.IntRange(0, 2).Draw(p.r, "class")), iface: p.iface(), cidr: p.cidr(),
		priority: rapid.SampledFrom([]int{0, 0, 0, 50}).Draw(p.r, "priority"),
	}
	target := routetable.Target{
		Type: rapid.SampledFrom([]routetable.TargetType{
			routetable.TargetTypeLinkLocalUnicast, routetable.TargetTypeGlobalUnicast, routetable.TargetTypeOnLink, routetable.TargetTypeBlackhole,
		}).Draw(p.r, "type"),
		CIDR: w.cidr, Priority: w.priority,
	}
	if rapid.IntRange(0, 5).Draw(p.r, "multi-path") == 0 {
		w.iface, target.Type = routetable.InterfaceNone, routetable.TargetTypeOnLink
		names := rapid.Permutation(propertyIfaces).Draw(p.r, "hops")
		for i := range rapid.IntRange(1, len(names)).Draw(p.r, "count") {
			target.MultiPath = append(target.MultiPath, routetable.NextHop{GW: p.gateway(), IfaceName: names[i], Weight: i + 1})
		}
		return w, target
	}
	if target.Type != routetable.TargetTypeBlackhole && rapid.Bool().Draw(p.r, "MAC") {
		target.DestMAC = net.HardwareAddr{2, 0, 0, 0, 0, w.cidr.Addr().AsSlice()[w.cidr.Bits()/8-1]}
	}
	if target.Type == routetable.TargetTypeOnLink {
		target.GW = p.gateway() // the MAC address is for nothing
	} else if target.Type != routetable.TargetTypeBlackhole {
		target.MTU = rapid.SampledFrom([]int{0, 1400}).Draw(p.r, "mtu")
	}
	return w, target
}

func (p *property) gateway() netip.Addr {
	return addr(map[int]string{4: "172.16.0.1", 6: "fd99::1"}[p.version])
}

func (p *property) want() {
	w, target := p.draw()
	p.wanted[w] = target
	p.rt.RouteUpdate(w.class, w.iface, target)
}

func (p *property) wantLess() {
	w, _ := p.draw()
	maps.DeleteFunc(p.wanted, func(other wish, _ routetable.Target) bool {
		return other.class == w.class && other.iface == w.iface && other.cidr == w.cidr
	})
	p.rt.RouteRemove(w.class, w.iface, w.cidr)
}

func (p *property) set() {
	first, target := p.draw()
	maps.DeleteFunc(p.wanted, func(w wish, _ routetable.Target) bool { return w.class == first.class && w.iface == first.iface })
	targets := []routetable.Target{}
	if rapid.Bool().Draw(p.r, "any") {
		p.wanted[first] = target
		targets = append(targets, target)
	}
	p.rt.SetRoutes(first.class, first.iface, targets)
}

func (p *property) happened(name string, index int, state ifacemonitor.State) {
	p.untold = append(p.untold, event{name, index, state})
}

func (p *property) newLink() { p.addLink(p.iface()) }

func (p *property) addLink(name string) {
	if p.links[name] != nil {
		return
	}
	p.nextIndex += rapid.IntRange(0, 1).Draw(p.r, "new index")
	index := p.nextIndex
	for _, link := range p.links {
		if link.index == index {
			return
		}
	}
	// An IFB has no carrier that one would have to wait for.
	must(p.r, p.w.LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: name, Index: index, TxQLen: -1}}))
	p.links[name] = &modelLink{index: index}
	p.happened(name, index, down)
}

func (p *property) delLink() {
	name := p.iface()
	if link := p.links[name]; link != nil {
		must(p.r, p.w.LinkDel(linkOf(link.index)))
		delete(p.links, name)
		p.happened(name, link.index, absent)
		p.dead = append(p.dead, event{name, link.index, absent})
	}
}

func (p *property) setState(up bool) { p.setLink(p.iface(), up) }

func (p *property) setLink(name string, up bool) {
	link := p.links[name]
	if link == nil || link.up == up {
		return
	}
	if up {
		must(p.r, p.w.LinkSetUp(linkOf(link.index)))
	} else {
		must(p.r, p.w.LinkSetDown(linkOf(link.index)))
	}
	link.up = up
	p.happened(name, link.index, link.state())
}

// flap sets a link down and up, or the other way round.
func (p *property) flap() {
	name := p.iface()
	if link := p.links[name]; link != nil {
		before := link.up
		p.setLink(name, !before)
		p.setLink(name, before)
	}
}

func (p *property) rename() {
	from, to := p.iface(), p.iface()
	link := p.links[from]
	if link == nil || p.links[to] != nil {
		return
	}
	if p.policy.RemoveExternalRoutes && to == "eth0" {
		return // what others have put on it would no longer be ours
	}
	must(p.r, p.w.LinkSetName(linkOf(link.index), to))
	delete(p.links, from)
	p.links[to] = link
	p.happened(from, link.index, absent)
	p.happened(to, link.index, link.state())
}

func (p *property) tell() {
	if len(p.untold) > 0 {
		e := p.untold[0]
		p.untold = p.untold[1:]
		p.rt.OnIfaceStateChanged(e.name, e.index, e.state)
	}
}

func (p *property) tellAll() {
	for len(p.untold) > 0 {
		p.tell()
	}
}

// tellOutOfOrder tells an event before its turn, and again in its turn.
func (p *property) tellOutOfOrder() {
	if len(p.untold) > 0 {
		e := p.untold[rapid.IntRange(0, len(p.untold)-1).Draw(p.r, "event")]
		p.rt.OnIfaceStateChanged(e.name, e.index, e.state)
	}
}

// othersRoute is a route of another program on a workload interface, which is
// ours where external routes are removed and otherwise by its protocol.
func (p *property) othersRoute() (netlink.Route, bool) {
	name := p.iface()
	link := p.links[name]
	if link == nil || !link.up || name == "eth0" {
		return netlink.Route{}, false
	}
	protocol := 80
	if p.policy.RemoveExternalRoutes {
		protocol = rapid.SampledFrom([]int{3, 80}).Draw(p.r, "protocol")
	}
	r := routeVia(p.table, p.cidr().String(), link.index, protocol)
	r.MTU = rapid.SampledFrom([]int{0, 1300}).Draw(p.r, "mtu")
	r.Priority = rapid.SampledFrom([]int{0, 0, 50}).Draw(p.r, "priority")
	return r, true
}

func (p *property) othersAdd() {
	if r, ok := p.othersRoute(); ok {
		p.edited = true
		must(p.r, firstOf(p.w.RouteBatch([]rtnl.RouteOp{{Route: r}})))
	}
}

// othersDelete deletes one of the table's routes.
func (p *property) othersDelete() {
	var routes []netlink.Route
	must(p.r, p.w.RouteEach(p.filter(), func(r *netlink.Route) error {
		c := *r
		c.Dst = &net.IPNet{IP: slices.Clone(r.Dst.IP), Mask: slices.Clone(r.Dst.Mask)}
		c.Gw, c.Src = slices.Clone(r.Gw), nil
		routes = append(routes, c)
		return nil
	}))
	if len(routes) > 0 {
		p.edited = true
		r := routes[rapid.IntRange(0, len(routes)-1).Draw(p.r, "route")]
		must(p.r, firstOf(p.w.RouteBatch([]rtnl.RouteOp{{Delete: true, Route: r}})))
	}
}

var propertyErrors = []error{
	unix.EINTR, unix.EBUSY, unix.ENOBUFS, unix.ENODEV, unix.EEXIST, unix.ENOENT, unix.EPERM, unix.ENOMEM,
	unix.EINVAL, unix.ENETDOWN, unix.ESRCH, unix.EAGAIN, unix.ENETUNREACH,
}

// toggleFaults switches the injection of errors on or off.
func (p *property) toggleFaults() {
	if p.spied.fail != nil {
		*p.spied = record{}
		return
	}
	failing := func() error {
		if rapid.IntRange(0, 2).Draw(p.r, "fails") == 0 {
			return rapid.SampledFrom(propertyErrors).Draw(p.r, "errno")
		}
		return nil
	}
	p.spied.fail = func(op *rtnl.RouteOp) error {
		err := failing()
		if op.Delete && rtnl.IsAbsent(err) {
			return nil // the kernel does not lie
		}
		return err
	}
	p.spied.failAfter = func() error {
		if rapid.IntRange(0, 4).Draw(p.r, "answer lost") == 0 {
			return unix.ENOBUFS
		}
		return nil
	}
	p.spied.failDump = failing
	p.spied.failOpen = failing
}
