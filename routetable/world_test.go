package routetable_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/mocks"
	"github.com/manx-dataplane/manx/routetable"
	"github.com/manx-dataplane/manx/rtnl"
)

// testingT is what the helpers need of a test, of whatever framework.
type testingT interface {
	Helper()
	Fatalf(format string, args ...any)
	Cleanup(func())
}

// outside is how tests play everybody else: runtimes, operators, other agents.
type outside interface {
	routetable.Kernel
	LinkByIndex(index int) (netlink.Link, error)
	LinkAdd(link netlink.Link) error
	LinkDel(link netlink.Link) error
	LinkSetUp(link netlink.Link) error
	LinkSetDown(link netlink.Link) error
	LinkSetName(link netlink.Link, name string) error
}

// world is a network namespace, of the real or of the in-memory kernel.
type world interface {
	outside
	// OpenKernel opens a handle for a RouteTable.
	OpenKernel() (routetable.Kernel, error)
	AddAddress(ifindex int, prefix netip.Prefix) error
}

type worldKind struct {
	name string
	open func(t testingT) world
}

var mockWorlds = worldKind{"mocks", newMockWorld}

var realWorlds = worldKind{"the Linux kernel", newRealWorld}

type mockWorld struct {
	*mocks.Handle
	k *mocks.Kernel
}

func newMockWorld(t testingT) world {
	k := mocks.NewKernel()
	w := &mockWorld{k.Outside(), k}
	must(t, w.LinkSetUp(loopback))
	return w
}

func (w *mockWorld) OpenKernel() (routetable.Kernel, error) { return w.k.NewHandle(), nil }

func (w *mockWorld) AddAddress(ifindex int, prefix netip.Prefix) error {
	return w.k.AddAddress(ifindex, prefix)
}

type realWorld struct {
	*rtnl.Handle
	ns *rtnl.Namespace
}

func newRealWorld(t testingT) world {
	if os.Getuid() != 0 {
		t.Fatalf("the tests of the real kernel need root")
	}
	ns, err := rtnl.NewNamespace()
	must(t, err)
	t.Cleanup(func() { _ = ns.Close() })
	handle, err := rtnl.Open(rtnl.Options{Namespace: ns})
	must(t, err)
	t.Cleanup(handle.Close)
	w := &realWorld{handle, ns}
	must(t, w.LinkSetUp(loopback))
	return w
}

func (w *realWorld) OpenKernel() (routetable.Kernel, error) {
	return rtnl.Open(rtnl.Options{Namespace: w.ns})
}

func (w *realWorld) AddAddress(ifindex int, prefix netip.Prefix) error {
	handle, err := netlink.NewHandleAt(netns.NsHandle(w.ns.FD()), unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer handle.Close()
	return handle.AddrAdd(linkOf(ifindex), &netlink.Addr{
		IPNet: &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())},
		Flags: unix.IFA_F_NODAD,
	})
}

var loopback = linkOf(1)

func linkOf(index int) netlink.Link {
	return &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}
}

func must(t testingT, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("unexpected error: %v", err)
	}
}

// addLink creates a veth that is up, and its peer, and returns its index, which
// is the given one unless that is zero.
func addLink(t testingT, w world, name string, index int) int {
	t.Helper()
	must(t, w.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, Index: index, TxQLen: -1}, PeerName: peerOf(name)}))
	setUp(t, w, peerOf(name))
	setUp(t, w, name)
	return indexOf(t, w, name)
}

// peerOf is the peer's name, no longer than the veth's.
func peerOf(name string) string { return "p" + name[1:] }

func indexOf(t testingT, w world, name string) int {
	t.Helper()
	link, err := w.LinkByName(name)
	must(t, err)
	return link.Attrs().Index
}

// setUp sets a link up and waits until the kernel shows what that means for its
// carrier and its peer's.
func setUp(t testingT, w world, name string) {
	t.Helper()
	must(t, w.LinkSetUp(linkOf(indexOf(t, w, name))))
	settleCarrier(t, w, name)
}

func setDown(t testingT, w world, name string) {
	t.Helper()
	must(t, w.LinkSetDown(linkOf(indexOf(t, w, name))))
	settleCarrier(t, w, name)
}

// settleCarrier waits until a veth and its peer show IFF_RUNNING exactly where
// both are up: the kernel's link watch works in the background.
func settleCarrier(t testingT, w world, name string) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		link, err := w.LinkByName(name)
		must(t, err)
		peer, err := w.LinkByIndex(link.Attrs().ParentIndex)
		must(t, err)
		a, b := link.Attrs().RawFlags, peer.Attrs().RawFlags
		running := a & b & unix.IFF_UP << 6 // IFF_RUNNING
		if a&unix.IFF_RUNNING == running && b&unix.IFF_RUNNING == running {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("carrier of %s does not settle: flags %x, peer %x", name, a, b)
		}
	}
}

func delLink(t testingT, w world, name string) {
	t.Helper()
	must(t, w.LinkDel(linkOf(indexOf(t, w, name))))
}

// dump returns a table's routes in the words of ip(8), sorted, without those that
// the kernel makes by itself.
func dump(t testingT, w world, family, table int) []string {
	t.Helper()
	links, err := w.LinkList()
	must(t, err)
	names := map[int]string{}
	for _, link := range links {
		names[link.Attrs().Index] = link.Attrs().Name
	}
	var routes []string
	for {
		routes = routes[:0]
		err := w.RouteEach(rtnl.RouteFilter{Family: family, Table: table}, func(r *netlink.Route) error {
			if r.Protocol != unix.RTPROT_KERNEL {
				routes = append(routes, describe(r, names))
			}
			return nil
		})
		if err == nil {
			break
		}
		if !strings.Contains(err.Error(), "interrupted") {
			must(t, err)
		}
	}
	slices.Sort(routes)
	return routes
}

func describe(r *netlink.Route, names map[int]string) string {
	types := map[int]string{
		unix.RTN_LOCAL: "local ", unix.RTN_BLACKHOLE: "blackhole ", unix.RTN_PROHIBIT: "prohibit ",
		unix.RTN_THROW: "throw ", unix.RTN_UNREACHABLE: "unreachable ",
	}
	s := types[r.Type] + r.Dst.String() + hopWords(r.Gw, r.LinkIndex, r.Flags, names)
	s += fmt.Sprintf(" proto %d", r.Protocol)
	if r.Scope != 0 {
		s += " scope " + r.Scope.String()
	}
	if r.Src != nil {
		s += " src " + r.Src.String()
	}
	if r.Priority != 0 && !(r.Family == unix.AF_INET6 && r.Priority == 1024) {
		s += fmt.Sprintf(" metric %d", r.Priority)
	}
	if r.Tos != 0 {
		s += fmt.Sprintf(" tos %d", r.Tos)
	}
	if r.MTU != 0 {
		s += fmt.Sprintf(" mtu %d", r.MTU)
	}
	var hops []string
	for _, h := range r.MultiPath {
		hops = append(hops, fmt.Sprintf(" nexthop%s weight %d", hopWords(h.Gw, h.LinkIndex, h.Flags, names), h.Hops+1))
	}
	slices.Sort(hops)
	return s + strings.Join(hops, "")
}

func hopWords(gw net.IP, index, flags int, names map[int]string) string {
	s := ""
	if gw != nil {
		s += " via " + gw.String()
	}
	if index != 0 {
		name := names[index]
		if name == "" {
			name = fmt.Sprintf("if%d", index)
		}
		s += " dev " + name
	}
	if flags&unix.RTNH_F_ONLINK != 0 {
		s += " onlink"
	}
	return s
}

// addRoute plays another program that adds a route.
func addRoute(t testingT, w world, r netlink.Route) {
	t.Helper()
	must(t, firstOf(w.RouteBatch([]rtnl.RouteOp{{Route: r}})))
}

// delRoute plays another program that deletes a route.
func delRoute(t testingT, w world, r netlink.Route) {
	t.Helper()
	must(t, firstOf(w.RouteBatch([]rtnl.RouteOp{{Delete: true, Route: r}})))
}

func firstOf(errs []error) error {
	if errs == nil {
		return nil
	}
	return errs[0]
}

// routeVia is a link-scope route of another program.
func routeVia(table int, cidr string, index, protocol int) netlink.Route {
	prefix := netip.MustParsePrefix(cidr)
	r := netlink.Route{
		Family: unix.AF_INET, Table: table, LinkIndex: index, Protocol: netlink.RouteProtocol(protocol),
		Scope: netlink.SCOPE_LINK, Type: unix.RTN_UNICAST,
		Dst: &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())},
	}
	if prefix.Addr().Is6() {
		r.Family, r.Scope = unix.AF_INET6, 0
	}
	return r
}

// spy is a Kernel that counts what a RouteTable asks for and can make it fail.
type spy struct {
	routetable.Kernel
	record *record
}

type record struct {
	opens   int
	batches int
	ops     []rtnl.RouteOp
	dumps   []rtnl.RouteFilter
	neighs  []string
	// fail, where set, is asked before each operation, failAfter once it has been
	// carried out: the answer was lost.
	fail      func(op *rtnl.RouteOp) error
	failAfter func() error
	// failDump is asked before each dump of routes, failLink before each look-up of
	// links, failNeigh before each write of a neighbour, failOpen before opening a
	// handle.
	failDump func() error
	// misses says which routes a dump does not show though they are there.
	misses    func(dump, route int) bool
	failLink  func() error
	failNeigh func() error
	// failNeighAfter is asked once a neighbour has been written or deleted.
	failNeighAfter func() error
	failOpen       func() error
	// beforeBatch is called before each batch.
	beforeBatch func()
}

func (r *record) reset() { *r = record{} }

func (s *spy) RouteEach(filter rtnl.RouteFilter, fn func(*netlink.Route) error) error {
	s.record.dumps = append(s.record.dumps, filter)
	if s.record.failDump != nil {
		if err := s.record.failDump(); err != nil {
			return err
		}
	}
	if s.record.misses == nil {
		return s.Kernel.RouteEach(filter, fn)
	}
	route := 0
	return s.Kernel.RouteEach(filter, func(r *netlink.Route) error {
		route++
		if s.record.misses(len(s.record.dumps), route) {
			return nil
		}
		return fn(r)
	})
}

func (s *spy) LinkByName(name string) (netlink.Link, error) {
	if s.record.failLink != nil {
		if err := s.record.failLink(); err != nil {
			return nil, err
		}
	}
	return s.Kernel.LinkByName(name)
}

func (s *spy) LinkList() ([]netlink.Link, error) {
	if s.record.failLink != nil {
		if err := s.record.failLink(); err != nil {
			return nil, err
		}
	}
	return s.Kernel.LinkList()
}

func (s *spy) RouteBatch(ops []rtnl.RouteOp) []error {
	s.record.batches++
	if s.record.beforeBatch != nil {
		s.record.beforeBatch()
	}
	s.record.ops = append(s.record.ops, ops...)
	if s.record.fail == nil {
		return s.Kernel.RouteBatch(ops)
	}
	errs := make([]error, len(ops))
	failed := false
	for i := range ops {
		if errs[i] = s.record.fail(&ops[i]); errs[i] == nil {
			errs[i] = firstOf(s.Kernel.RouteBatch(ops[i : i+1]))
			if errs[i] == nil && s.record.failAfter != nil {
				errs[i] = s.record.failAfter()
			}
		}
		failed = failed || errs[i] != nil
	}
	if !failed {
		return nil
	}
	return errs
}

func (s *spy) NeighSet(n *netlink.Neigh) error {
	s.record.neighs = append(s.record.neighs, "set "+n.IP.String())
	if s.record.failNeigh != nil {
		if err := s.record.failNeigh(); err != nil {
			return err
		}
	}
	err := s.Kernel.NeighSet(n)
	if err == nil && s.record.failNeighAfter != nil {
		err = s.record.failNeighAfter()
	}
	return err
}

func (s *spy) NeighDel(n *netlink.Neigh) error {
	s.record.neighs = append(s.record.neighs, "delete "+n.IP.String())
	err := s.Kernel.NeighDel(n)
	if s.record.failNeighAfter != nil { // also a retry's, which finds nothing
		err = s.record.failNeighAfter()
	}
	return err
}

var _ testingT = testing.TB(nil)

func run(args ...string) error {
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%v: %w: %s", args, err, out)
	}
	return nil
}

func collect(prefixes *[]netip.Prefix) func(*netlink.Route) error {
	return func(r *netlink.Route) error {
		addr, _ := netip.AddrFromSlice(r.Dst.IP)
		bits, _ := r.Dst.Mask.Size()
		*prefixes = append(*prefixes, netip.PrefixFrom(addr, bits))
		return nil
	}
}
