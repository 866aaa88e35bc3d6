package mocks_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/mocks"
	"github.com/manx-dataplane/manx/rtnl"
)

func TestMocks(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "mocks")
	goleak.VerifyNone(t, goleak.IgnoreAnyFunction(
		"github.com/onsi/ginkgo/v2/internal/interrupt_handler.(*InterruptHandler).registerForInterrupts.func2"))
}

// handle is the whole method set of *rtnl.Handle.
type handle interface {
	LinkList() ([]netlink.Link, error)
	LinkByName(name string) (netlink.Link, error)
	LinkByIndex(index int) (netlink.Link, error)
	LinkAdd(link netlink.Link) error
	LinkDel(link netlink.Link) error
	LinkSetUp(link netlink.Link) error
	LinkSetDown(link netlink.Link) error
	LinkSetMTU(link netlink.Link, mtu int) error
	LinkSetName(link netlink.Link, name string) error
	LinkSetNamespace(link netlink.Link, ns *rtnl.Namespace) error
	LinkSetGroup(link netlink.Link, group int) error
	LinkDelGroup(group int) error
	QdiscList() ([]netlink.Qdisc, error)
	QdiscAdd(qdisc netlink.Qdisc) error
	QdiscReplace(qdisc netlink.Qdisc) error
	QdiscChange(tbf *netlink.Tbf) error
	QdiscDel(qdisc netlink.Qdisc) error
	FilterList(ifindex int, parent uint32) ([]netlink.Filter, error)
	FilterAdd(filter netlink.Filter) error
	FilterReplace(filter netlink.Filter) error
	FilterDel(filter netlink.Filter) error
	RouteEach(filter rtnl.RouteFilter, fn func(*netlink.Route) error) error
	RouteBatch(ops []rtnl.RouteOp) []error
	NeighList(ifindex, family int) ([]netlink.Neigh, error)
	NeighSet(neigh *netlink.Neigh) error
	NeighDel(neigh *netlink.Neigh) error
	NamespaceID(fd int) (int, error)
	Close()
}

type eventSocket interface {
	RequestDump(dump rtnl.Dump) (seq uint32, err error)
	Receive() ([]rtnl.Message, error)
	Drain() ([]rtnl.Message, error)
	Close() error
}

type conntrack interface {
	ConntrackDelete(addr netip.Addr) error
	Close() error
}

var (
	_ conntrack   = (*rtnl.Conntrack)(nil)
	_ conntrack   = (*mocks.Conntrack)(nil)
	_ handle      = (*rtnl.Handle)(nil)
	_ handle      = (*mocks.Handle)(nil)
	_ eventSocket = (*rtnl.EventSocket)(nil)
	_ eventSocket = (*mocks.EventSocket)(nil)
)

// world is a network namespace, of a real or of an in-memory kernel, with what tests
// need beyond the seam.
type world interface {
	handle
	events() (eventSocket, error)
	smallEvents() (eventSocket, error) // with a receive buffer that a few dozen events overrun
	addAddress(ifindex int, p netip.Prefix) error
	delAddress(ifindex int, p netip.Prefix) error
	writeSysctl(path, value string) error
	readSysctl(path string) (string, error)
	moveLink(link netlink.Link, to world) error
	newNamespace() (world, error)
	fd() int
	destroy()
}

// The worlds that the behavioural suite runs in.
var worlds = []struct {
	name string
	open func() (world, error)
	real bool
}{
	{"mocks", func() (world, error) { return newMockWorld(mocks.NewKernel()), nil }, false},
	{"the Linux kernel", newRealWorld, true},
}

type mockWorld struct {
	*mocks.Handle
	k *mocks.Kernel
}

func newMockWorld(k *mocks.Kernel) world { return &mockWorld{k.NewHandle(), k} }
func outsideWorld(k *mocks.Kernel) world { return &mockWorld{k.Outside(), k} }

func (w *mockWorld) events() (eventSocket, error) { return w.k.NewEventSocket(mocks.EventOptions{}) }
func (w *mockWorld) smallEvents() (eventSocket, error) {
	return w.k.NewEventSocket(mocks.EventOptions{Capacity: 10})
}
func (w *mockWorld) addAddress(ifindex int, p netip.Prefix) error {
	return w.k.AddAddress(ifindex, p)
}
func (w *mockWorld) delAddress(ifindex int, p netip.Prefix) error {
	return w.k.DelAddress(ifindex, p)
}
func (w *mockWorld) writeSysctl(path, value string) error {
	return w.k.Sysctls().WriteSysctl(path, value)
}
func (w *mockWorld) readSysctl(path string) (string, error) { return w.k.Sysctls().ReadSysctl(path) }
func (w *mockWorld) moveLink(link netlink.Link, to world) error {
	return w.k.MoveLink(link, to.(*mockWorld).k)
}
func (w *mockWorld) newNamespace() (world, error) { return newMockWorld(w.k.NewNamespace()), nil }
func (w *mockWorld) fd() int                      { return w.k.FD() }
func (w *mockWorld) destroy()                     { w.k.Destroy(); w.Close() }

type realWorld struct {
	*rtnl.Handle
	ns    *rtnl.Namespace
	addrs *netlink.Handle
}

func newRealWorld() (world, error) {
	ns, err := rtnl.NewNamespace()
	if err != nil {
		return nil, err
	}
	h, err := rtnl.Open(rtnl.Options{Namespace: ns})
	if err != nil {
		ns.Close()
		return nil, err
	}
	addrs, err := netlink.NewHandleAt(netns.NsHandle(ns.FD()), unix.NETLINK_ROUTE)
	if err != nil {
		h.Close()
		ns.Close()
		return nil, err
	}
	return &realWorld{h, ns, addrs}, nil
}

func (w *realWorld) events() (eventSocket, error) {
	return rtnl.OpenEvents(rtnl.EventOptions{Options: rtnl.Options{Namespace: w.ns}})
}

func (w *realWorld) smallEvents() (eventSocket, error) {
	return rtnl.OpenEvents(rtnl.EventOptions{Options: rtnl.Options{Namespace: w.ns}, ReceiveBuffer: 16 << 10})
}

func (w *realWorld) addAddress(ifindex int, p netip.Prefix) error {
	return w.addrs.AddrAdd(ofIndex(ifindex), addressOf(p))
}

func (w *realWorld) delAddress(ifindex int, p netip.Prefix) error {
	return w.addrs.AddrDel(ofIndex(ifindex), addressOf(p))
}

func addressOf(p netip.Prefix) *netlink.Addr {
	addr := &netlink.Addr{IPNet: ipNet(p)}
	if p.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD // the mock has no duplicate address detection
	}
	return addr
}

func (w *realWorld) writeSysctl(path, value string) error {
	return w.ns.Do(func() error { return os.WriteFile(path, []byte(value), 0) })
}

func (w *realWorld) readSysctl(path string) (value string, err error) {
	err = w.ns.Do(func() error {
		content, err := os.ReadFile(path)
		value = strings.TrimSpace(string(content))
		return err
	})
	return value, err
}

func (w *realWorld) moveLink(link netlink.Link, to world) error {
	return w.LinkSetNamespace(link, to.(*realWorld).ns)
}

func (w *realWorld) newNamespace() (world, error) { return newRealWorld() }
func (w *realWorld) fd() int                      { return w.ns.FD() }
func (w *realWorld) destroy()                     { w.addrs.Close(); w.Close(); w.ns.Close() }

// ofIndex names a link by its index alone.
func ofIndex(index int) netlink.Link {
	return &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// errnoOf returns an error's errno, 0 for none.
func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	switch {
	case err == nil:
		return 0
	case errors.As(err, &errno):
		return errno
	}
	panic(fmt.Sprintf("not an errno: %v", err))
}

func veth(name, peer string) *netlink.Veth {
	return &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, TxQLen: -1}, PeerName: peer}
}

func ifb(name string) *netlink.Ifb {
	return &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: name, TxQLen: -1}}
}

func tbf(ifindex int, handle uint32, rate uint64) *netlink.Tbf {
	return &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: ifindex, Parent: netlink.HANDLE_ROOT, Handle: handle},
		Rate:       rate, Buffer: 1_000_000, Limit: 100_000,
	}
}

// queue is a bfifo below a TBF.
func queue(ifindex int, parent, handle uint32, limit uint32) *rtnl.Bfifo {
	return &rtnl.Bfifo{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: ifindex, Parent: parent, Handle: handle}, Limit: limit}
}

func ingressAttrs(ifindex int) netlink.QdiscAttrs {
	return netlink.QdiscAttrs{LinkIndex: ifindex, Parent: netlink.HANDLE_INGRESS, Handle: netlink.MakeHandle(0xffff, 0)}
}

func ingress(ifindex int) *netlink.Ingress {
	return &netlink.Ingress{QdiscAttrs: ingressAttrs(ifindex)}
}
func clsact(ifindex int) *netlink.Clsact { return &netlink.Clsact{QdiscAttrs: ingressAttrs(ifindex)} }

func redirect(from, to int, prio uint16) *netlink.U32 {
	f := &netlink.U32{FilterAttrs: netlink.FilterAttrs{
		LinkIndex: from, Parent: netlink.HANDLE_MIN_INGRESS, Priority: prio, Protocol: unix.ETH_P_ALL,
	}}
	if to != 0 {
		f.Actions = []netlink.Action{netlink.NewMirredAction(to)}
	}
	return f
}
