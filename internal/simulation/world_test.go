package simulation

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/config"
	"github.com/manx-dataplane/manx/mocks"
	"github.com/manx-dataplane/manx/rtnl"
)

// world is the node: its kernel, what the container runtime and the datastore did, and
// the agent. Kernel calls are granted one at a time, and only while the main goroutine
// waits: so it and the hooks of the call that was granted may use it without a lock.
type world struct {
	options options
	kernel  *mocks.Kernel
	outside *mocks.Handle
	gate    *gate

	faults  faults
	counts  map[string]int // calls so far, for faults
	hang    hangOrder
	hung    map[int]string // devices whose delete hangs: names by ifindex
	excused map[int]string // those whose delete hung to the end
	agent   *incarnation   // nil while there is none

	said     sync.Mutex // guards what follows: logs and listeners are not granted
	problems []string
	trace    *strings.Builder // nil: nobody wants to know
	began    time.Time

	cfg       config.Config
	pods      map[string]*pod // by veth name
	endpoints map[int]endpoint
	foreign   map[int]string // names of foreign devices, by ifindex
	lastIndex int            // of the pod that went last

	wasSlow    bool
	wasFaulty  bool
	reordering bool
	vandalized map[string]time.Time // interfaces, when last
	cleared    map[string]time.Time // veths, when last some limit came to be or not to be wanted
	ifbUser    map[int]*pod         // whose traffic an IFB shaped first, by ifindex
	fates      map[int]error        // of calls under way, by number: what to tell after their effect
	external   map[string]int       // others' routes through pods' veths: ifindexes by destination
	sockets    atomic.Int32         // event sockets so far
	listener   *listener
}

// pod is a running pod, as the runtime made it.
type pod struct {
	name            string
	index           int
	ns              *mocks.Kernel
	hostUp, peerUp  bool
	mtu             int
	mistakable      bool   // for the earlier one of its index, to which a filter may have been added
	tampered        bool   // somebody redirects it to an IFB
	hook            string // made by others: "", "clsact", "ingress"
	renamed         bool
	foreignRoot     bool // a root TBF 1: was there first
	rootWasBorrowed bool // and an ingress limit took it over
	armedEgress     bool // its limits were seen in force
	armedIngress    bool
	graceEnds       time.Time // if no endpoint claims it
}

func newWorld(o options, trace *strings.Builder) *world {
	w := &world{
		options: o, kernel: mocks.NewKernel(), gate: newGate(o.seed), trace: trace, began: time.Now(),
		counts: map[string]int{}, hung: map[int]string{},
		pods: map[string]*pod{}, endpoints: map[int]endpoint{}, foreign: map[int]string{},
		vandalized: map[string]time.Time{}, cleared: map[string]time.Time{}, ifbUser: map[int]*pod{},
		fates: map[int]error{}, external: map[string]int{},
		cfg: *config.Defaults(),
	}
	w.outside = w.kernel.Outside()
	w.hang.release = make(chan struct{})
	w.cfg.EndpointStatusPathPrefix = o.statusDir
	w.cfg.FloatingIPs = o.floatingIPs
	w.cfg.IPv6Support = !o.noIPv6
	w.cfg.RemoveExternalRoutes = !o.keepExternal
	if o.noRefresh {
		w.cfg.InterfaceRefreshInterval, w.cfg.RouteRefreshInterval, w.cfg.QoSRefreshInterval = 0, 0, 0
	}
	w.buildNode()
	w.kernel.OnCall(w.beforeCall)
	w.kernel.AfterCall(w.afterCall)
	return w
}

// note writes a line of the trace.
func (w *world) note(format string, args ...any) {
	if w.trace != nil {
		w.said.Lock()
		defer w.said.Unlock()
		fmt.Fprintf(w.trace, "%10.3fs  %s\n", time.Since(w.began).Seconds(), fmt.Sprintf(format, args...))
	}
}

// problem takes note of a violation.
func (w *world) problem(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.note("VIOLATION: %s", text)
	w.said.Lock()
	defer w.said.Unlock()
	w.problems = append(w.problems, text)
}

// must is for what cannot fail unless the simulation is wrong.
func (w *world) must(err error) {
	if err != nil {
		w.problem("simulation: %v", err)
	}
}

// buildNode makes what is on the node beside pods, none of which is the agent's.
func (w *world) buildNode() {
	uplink := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0", TxQLen: -1}, PeerName: "wire", PeerTxQLen: -1}
	w.must(w.outside.LinkAdd(uplink))
	for _, link := range []netlink.Link{
		uplink, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wire"}},
		w.addDevice(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "docker0", TxQLen: -1}}),
		w.addDevice(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "ifb0", TxQLen: -1}}),
		w.addDevice(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: pluginIFB, TxQLen: -1}}),
	} {
		w.must(w.outside.LinkSetUp(link))
	}
	w.must(w.kernel.AddAddress(uplink.Index, netip.MustParsePrefix("192.168.0.2/24")))
	links, err := w.outside.LinkList()
	w.must(err)
	for _, link := range links {
		w.foreign[link.Attrs().Index] = link.Attrs().Name
	}
	for _, name := range []string{"eth0", pluginIFB} {
		w.must(w.outside.QdiscReplace(foreignTBF(w.indexOf(name))))
	}
	w.addRoute("0.0.0.0/0", uplink.Index, unix.RTPROT_STATIC, "192.168.0.1")
	w.addRoute("10.99.0.0/16", uplink.Index, 12, "192.168.0.3") // bird
	w.addRoute("172.31.0.7/32", uplink.Index, unix.RTPROT_BOOT, "")
}

const pluginIFB = "bwp3a9f0c6d21e4"

func (w *world) addDevice(link netlink.Link) netlink.Link {
	w.must(w.outside.LinkAdd(link))
	return link
}

// addRoute adds a route, or replaces one, as others do; that its device may be down is
// their problem.
func (w *world) addRoute(cidr string, index, protocol int, gw string) {
	prefix := netip.MustParsePrefix(cidr)
	route := netlink.Route{
		Family: unix.AF_INET, Table: unix.RT_TABLE_MAIN, Dst: ipNet(prefix), LinkIndex: index,
		Protocol: netlink.RouteProtocol(protocol), Scope: netlink.SCOPE_LINK, Type: unix.RTN_UNICAST,
	}
	if prefix.Addr().Is6() {
		route.Family, route.Scope = unix.AF_INET6, netlink.SCOPE_UNIVERSE
	}
	if gw != "" {
		route.Gw, route.Scope = netip.MustParseAddr(gw).AsSlice(), netlink.SCOPE_UNIVERSE
	}
	w.outside.RouteBatch([]rtnl.RouteOp{{Route: route}})
}

// foreignTBF is what the CNI bandwidth plugin and others put at a root.
func foreignTBF(index int) *netlink.Tbf {
	return &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)},
		Rate:       777_000, Buffer: 1_000_000, Limit: 99_999,
	}
}

func (w *world) indexOf(name string) int {
	link, err := w.outside.LinkByName(name)
	if err != nil {
		return 0
	}
	return link.Attrs().Index
}

// addPod is the runtime's and the CNI plugins' work for a new pod. An index of zero
// means the next free one. It does nothing where the name or the index is taken.
func (w *world) addPod(name string, index int, hook string, foreignRoot, up bool) {
	if w.indexOf(name) != 0 {
		return
	}
	if _, err := w.outside.LinkByIndex(index); err == nil {
		index = 0
	}
	ns := w.kernel.NewNamespace()
	host := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name, Index: index, TxQLen: -1},
		PeerName:  "eth0", PeerTxQLen: -1, PeerNamespace: netlink.NsFd(ns.FD()),
	}
	w.must(w.outside.LinkAdd(host))
	p := &pod{name: name, index: host.Index, ns: ns, mtu: 1500, hook: hook, foreignRoot: foreignRoot}
	w.pods[name] = p
	if hook != "" {
		w.addForeignHook(p)
	}
	if foreignRoot {
		w.must(w.outside.QdiscReplace(foreignTBF(p.index)))
	}
	// The agent may not have heard yet that limits are switched off.
	if _, e, ok := w.winner(name); ok && foreignRoot && limitSets[e.limits].ingress != nil {
		p.rootWasBorrowed = true
	}
	w.setPeerUp(p, true)
	if up {
		w.setHostUp(p, true)
	}
}

// addForeignHook does what an eBPF monitor does, or the CNI bandwidth plugin.
func (w *world) addForeignHook(p *pod) {
	attrs := netlink.QdiscAttrs{LinkIndex: p.index, Parent: netlink.HANDLE_INGRESS, Handle: netlink.MakeHandle(0xffff, 0)}
	filter := netlink.FilterAttrs{LinkIndex: p.index, Parent: netlink.HANDLE_MIN_INGRESS, Priority: 1, Protocol: unix.ETH_P_ALL}
	if p.hook == "clsact" {
		w.must(w.outside.QdiscAdd(&netlink.Clsact{QdiscAttrs: attrs}))
		w.must(w.outside.FilterAdd(&netlink.BpfFilter{FilterAttrs: filter, Fd: 3, Name: "monitor"}))
		return
	}
	w.must(w.outside.QdiscAdd(&netlink.Ingress{QdiscAttrs: attrs}))
	w.must(w.outside.FilterAdd(&netlink.U32{
		FilterAttrs: filter, Actions: []netlink.Action{netlink.NewMirredAction(w.indexOf(pluginIFB))},
	}))
}

func (w *world) deletePod(name string) {
	p := w.pods[name]
	if p == nil {
		return
	}
	p.ns.Destroy()
	delete(w.pods, name)
	maps.DeleteFunc(w.external, func(_ string, index int) bool { return index == p.index })
	w.lastIndex = p.index
	delete(w.vandalized, name)
}

func (w *world) setHostUp(p *pod, up bool) {
	p.hostUp = up
	if !up {
		maps.DeleteFunc(w.external, func(_ string, index int) bool { return index == p.index })
	}
	w.must(setUp(w.outside, p.name, up))
}

func (w *world) setPeerUp(p *pod, up bool) {
	p.peerUp = up
	w.must(setUp(p.ns.Outside(), "eth0", up))
}

func setUp(h *mocks.Handle, name string, up bool) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	if up {
		return h.LinkSetUp(link)
	}
	return h.LinkSetDown(link)
}

func (w *world) setMTU(name string, mtu int) {
	if p := w.pods[name]; p != nil {
		p.mtu = mtu
		w.must(w.outside.LinkSetMTU(ref(p.index), mtu))
	}
}

func (w *world) renamePod(from, to string) {
	p := w.pods[from]
	if p == nil || w.indexOf(to) != 0 {
		return
	}
	w.must(w.outside.LinkSetName(ref(p.index), to))
	delete(w.pods, from)
	w.pods[to] = p
	p.name, p.renamed = to, true
	p.rootWasBorrowed = true // perhaps, for a limit of its former name
	p.armedEgress, p.armedIngress = false, false
	w.limitsCleared(from)
	w.limitsCleared(to)
}

// limitsCleared takes note that a veth's limits may be lifted for a while, however late
// the agent hears of what came after.
func (w *world) limitsCleared(name string) {
	w.cleared[name] = time.Now()
	if p := w.pods[name]; p != nil {
		p.armedEgress, p.armedIngress = false, false
	}
}

func ref(index int) netlink.Link {
	return &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}
}
