package routetable_test

import (
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/routetable"
	"github.com/manx-dataplane/manx/rtnl"
)

// realWorld is a network namespace of the real kernel.
type realWorld struct {
	tb      testing.TB
	ns      *rtnl.Namespace
	peers   *rtnl.Namespace
	handle  *rtnl.Handle
	inPeers *rtnl.Handle
}

func newRealWorld(tb testing.TB) *realWorld {
	if os.Getuid() != 0 {
		skipOrFail(tb, "needs root for network namespaces")
	}
	w := &realWorld{tb: tb}
	w.ns, w.handle = newNamespace(tb)
	w.peers, w.inPeers = newNamespace(tb)
	w.must(w.handle.LinkSetUp(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: "lo", Index: 1}}))
	return w
}

func newNamespace(tb testing.TB) (*rtnl.Namespace, *rtnl.Handle) {
	ns, err := rtnl.NewNamespace()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = ns.Close() })
	handle, err := rtnl.Open(rtnl.Options{Namespace: ns})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(handle.Close)
	return ns, handle
}

func (w *realWorld) must(err error) {
	w.tb.Helper()
	if err != nil {
		w.tb.Fatal(err)
	}
}

func (w *realWorld) Open() (routetable.Kernel, error) {
	return rtnl.Open(rtnl.Options{Namespace: w.ns})
}

func (w *realWorld) Outside() outside { return w.handle }

// AddLink creates a veth with its peer in another namespace, both up unless the
// link is to be down.
func (w *realWorld) AddLink(name string, index int) int {
	w.tb.Helper()
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, Index: index}, PeerName: "p-" + name}
	w.must(w.handle.LinkAdd(link))
	peer, err := w.handle.LinkByName("p-" + name)
	w.must(err)
	w.must(w.handle.LinkSetNamespace(peer, w.peers))
	peer, err = w.inPeers.LinkByName("p-" + name)
	w.must(err)
	w.must(w.inPeers.LinkSetUp(peer))
	created, err := w.handle.LinkByName(name)
	w.must(err)
	return created.Attrs().Index
}

// SetCarrier raises or drops the link's carrier and leaves IFF_UP alone.
func (w *realWorld) SetCarrier(name string, up bool) {
	peer, err := w.inPeers.LinkByName("p-" + name)
	w.must(err)
	if up {
		w.must(w.inPeers.LinkSetUp(peer))
	} else {
		w.must(w.inPeers.LinkSetDown(peer))
	}
}

// Run runs a command in the namespace.
func (w *realWorld) Run(args ...string) string {
	w.tb.Helper()
	out, err := runIn(w.ns, args...)
	if err != nil {
		w.tb.Fatalf("%v: %v: %s", args, err, out)
	}
	return out
}

var _ = fmt.Sprint
var _ = net.IPv4
var _ = unix.AF_INET
