package infra

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/rtnl"
)

// Kernel reads and changes one namespace's state. It is safe for concurrent use.
type Kernel struct {
	// RT makes link, qdisc and filter requests.
	RT *rtnl.Handle

	nl *netlink.Handle // for addresses, routes and neighbours
}

// OpenKernel opens a namespace's Kernel until the spec ends.
func OpenKernel(ns *rtnl.Namespace) *Kernel {
	GinkgoHelper()
	k := openKernel(ns)
	DeferCleanup(k.Close)
	return k
}

func openKernel(ns *rtnl.Namespace) *Kernel {
	GinkgoHelper()
	rt, err := rtnl.Open(rtnl.Options{Namespace: ns})
	Expect(err).NotTo(HaveOccurred())
	nl, err := netlink.NewHandleAt(netns.NsHandle(ns.FD()), unix.NETLINK_ROUTE)
	Expect(err).NotTo(HaveOccurred())
	return &Kernel{RT: rt, nl: nl}
}

// Close closes the sockets.
func (k *Kernel) Close() {
	k.RT.Close()
	k.nl.Close()
}

// Link returns the link of that name; without one the spec fails.
func (k *Kernel) Link(name string) netlink.Link {
	GinkgoHelper()
	link, err := k.RT.LinkByName(name)
	Expect(err).NotTo(HaveOccurred())
	return link
}

// LinkExists reports whether there is a link of that name.
func (k *Kernel) LinkExists(name string) bool {
	GinkgoHelper()
	_, err := k.RT.LinkByName(name)
	if err != nil {
		Expect(rtnl.IsAbsent(err)).To(BeTrue(), "look up %s: %v", name, err)
	}
	return err == nil
}

// AddIFB makes an IFB device and sets it up.
func (k *Kernel) AddIFB(name string) *netlink.Ifb {
	GinkgoHelper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	ifb := &netlink.Ifb{LinkAttrs: attrs}
	Expect(k.RT.LinkAdd(ifb)).To(Succeed())
	ifb.Index = k.Link(name).Attrs().Index
	Expect(k.RT.LinkSetUp(ifb)).To(Succeed())
	return ifb
}

// AddAddr adds an address.
func (k *Kernel) AddAddr(link netlink.Link, prefix netip.Prefix) {
	GinkgoHelper()
	addr := &netlink.Addr{IPNet: ipNet(prefix)}
	if prefix.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	Expect(k.nl.AddrAdd(link, addr)).To(Succeed())
}

// AddRoute adds a route through an interface to the main table; on-link where
// there is no gateway.
func (k *Kernel) AddRoute(ifindex int, prefix netip.Prefix, gateway netip.Addr) {
	GinkgoHelper()
	route := &netlink.Route{LinkIndex: ifindex, Dst: ipNet(prefix), Scope: netlink.SCOPE_LINK}
	if gateway.IsValid() {
		route.Gw, route.Scope = gateway.AsSlice(), netlink.SCOPE_UNIVERSE
	}
	Expect(k.nl.RouteAdd(route)).To(Succeed(), "route %s", prefix)
}

// AddNeigh adds a permanent neighbour entry.
func (k *Kernel) AddNeigh(ifindex int, addr netip.Addr, mac net.HardwareAddr) {
	GinkgoHelper()
	neigh := &netlink.Neigh{LinkIndex: ifindex, IP: addr.AsSlice(), HardwareAddr: mac, State: netlink.NUD_PERMANENT}
	Expect(k.nl.NeighSet(neigh)).To(Succeed())
}

// IFBs returns the names of all IFB devices with the prefix.
func (k *Kernel) IFBs(prefix string) ([]string, error) {
	links, err := retry(k.RT.LinkList)
	var names []string
	for _, link := range links {
		if link.Type() == "ifb" && strings.HasPrefix(link.Attrs().Name, prefix) {
			names = append(names, link.Attrs().Name)
		}
	}
	return names, err
}

// RoutesTo returns the main table's routes to exactly a prefix.
func (k *Kernel) RoutesTo(prefix netip.Prefix) ([]netlink.Route, error) {
	family := netlink.FAMILY_V4
	if prefix.Addr().Is6() {
		family = netlink.FAMILY_V6
	}
	return retry(func() ([]netlink.Route, error) {
		filter := &netlink.Route{Dst: ipNet(prefix), Table: unix.RT_TABLE_MAIN}
		return k.nl.RouteListFiltered(family, filter, netlink.RT_FILTER_DST|netlink.RT_FILTER_TABLE)
	})
}

// DeleteRoutes deletes the routes to a pod, as somebody else might.
func (k *Kernel) DeleteRoutes(pod *Pod) {
	GinkgoHelper()
	for _, addr := range []netip.Addr{pod.IPv4, pod.IPv6} {
		routes, err := k.RoutesTo(netip.PrefixFrom(addr, addr.BitLen()))
		Expect(err).NotTo(HaveOccurred())
		for _, route := range routes {
			Expect(k.nl.RouteDel(&route)).To(Succeed())
		}
	}
}

// retry repeats a dump that the kernel says was interrupted.
func retry[T any](dump func() (T, error)) (T, error) {
	for {
		result, err := dump()
		if errors.Is(err, unix.EINTR) || errors.Is(err, netlink.ErrDumpInterrupted) {
			continue
		}
		return result, err
	}
}

func ipNet(prefix netip.Prefix) *net.IPNet {
	return &net.IPNet{
		IP:   prefix.Masked().Addr().AsSlice(),
		Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen()),
	}
}

// routeText shows a route in failure messages.
func routeText(r netlink.Route) string {
	return fmt.Sprintf("%s dev %d proto %d scope %d type %d table %d src %s", r.Dst, r.LinkIndex, r.Protocol, r.Scope, r.Type, r.Table, r.Src)
}
