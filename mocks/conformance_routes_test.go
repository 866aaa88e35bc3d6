package mocks_test

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/rtnl"
)

func route(index int, cidr string) netlink.Route {
	p := netip.MustParsePrefix(cidr)
	r := netlink.Route{Family: unix.AF_INET, Table: 254, Dst: ipNet(p), LinkIndex: index, Protocol: 80, Scope: netlink.SCOPE_LINK}
	if p.Addr().Is6() {
		r.Family, r.Scope = unix.AF_INET6, 0
	}
	return r
}

func set(r netlink.Route) rtnl.RouteOp { return rtnl.RouteOp{Route: r} }
func add(r netlink.Route) rtnl.RouteOp { return rtnl.RouteOp{Route: r, Exclusive: true} }
func del(r netlink.Route) rtnl.RouteOp { return rtnl.RouteOp{Route: r, Delete: true} }

func routeErr(w world, op rtnl.RouteOp) error {
	if errs := w.RouteBatch([]rtnl.RouteOp{op}); errs != nil {
		return errno(errs[0])
	}
	return nil
}

func routesOf(w world, family, table int) (lines []string) {
	GinkgoHelper()
	err := w.RouteEach(rtnl.RouteFilter{Family: family, Table: table}, func(r *netlink.Route) error {
		if r.Protocol != unix.RTPROT_KERNEL {
			lines = append(lines, fmt.Sprintf("%s dev %d prio %d", r.Dst, r.LinkIndex, r.Priority))
		}
		return nil
	})
	Expect(err).NotTo(HaveOccurred())
	return lines
}

func routeBehaviour(w *world) {
	for _, f := range []struct {
		name, cidr, wide string
		family, prio     int
	}{
		{"IPv4", "10.65.0.1/32", "10.65.0.0/24", unix.AF_INET, 0},
		{"IPv6", "fd00::1/128", "fd00::/64", unix.AF_INET6, 1024},
	} {
		Context(f.name, func() {
			It("loses a link's routes when it goes down, and does not bring them back", func() {
				a := addPair(*w, "a", "b")
				b := byName(*w, "b").Attrs().Index
				Expect(routeErr(*w, set(route(a, f.cidr)))).To(Succeed())
				Expect(routeErr(*w, set(route(b, f.wide)))).To(Succeed())
				Expect((*w).LinkSetDown(ofIndex(a))).To(Succeed())
				Expect(routesOf(*w, f.family, 254)).To(Equal([]string{fmt.Sprintf("%s dev %d prio %d", f.wide, b, f.prio)}))
				Expect((*w).LinkSetUp(ofIndex(a))).To(Succeed())
				Expect(routesOf(*w, f.family, 254)).To(HaveLen(1))
				Expect((*w).LinkDel(ofIndex(b))).To(Succeed())
				Expect(routesOf(*w, f.family, 254)).To(BeEmpty())
			})
			It("keeps routes through a link that only loses its carrier", func() {
				a := addPair(*w, "a", "b")
				Expect(routeErr(*w, set(route(a, f.cidr)))).To(Succeed())
				Expect((*w).LinkSetDown(byName(*w, "b"))).To(Succeed())
				Eventually(running(*w, "a")).Within(5 * time.Second).Should(BeFalse())
				Expect(routesOf(*w, f.family, 254)).To(HaveLen(1))
			})
			It("refuses a route through a link that is down or not there", func() {
				a := addLink(*w, veth("a", "b"))
				Expect(routeErr(*w, set(route(a, f.cidr)))).To(Equal(unix.ENETDOWN))
				Expect(routeErr(*w, set(route(4711, f.cidr)))).To(Equal(unix.ENODEV))
				Expect(routeErr(*w, set(route(0, f.cidr)))).To(Equal(unix.ENODEV))
			})
			It("has one route for each destination and priority: sets it, or refuses to add it", func() {
				a := addPair(*w, "a", "b")
				b := byName(*w, "b").Attrs().Index
				Expect(routeErr(*w, set(route(a, f.cidr)))).To(Succeed())
				Expect(routeErr(*w, add(route(b, f.cidr)))).To(Equal(unix.EEXIST))
				Expect(routeErr(*w, set(route(b, f.cidr)))).To(Succeed())
				r := route(a, f.cidr)
				r.Priority = 7
				Expect(routeErr(*w, add(r))).To(Succeed())
				Expect(routesOf(*w, f.family, 254)).To(ConsistOf(
					fmt.Sprintf("%s dev %d prio %d", f.cidr, b, f.prio), fmt.Sprintf("%s dev %d prio 7", f.cidr, a)))
			})
			It("deletes only a route that has what the request names", func() {
				a := addPair(*w, "a", "b")
				Expect(routeErr(*w, set(route(a, f.cidr)))).To(Succeed())
				for name, change := range map[string]func(*netlink.Route){
					"protocol": func(r *netlink.Route) { r.Protocol = 3 },
					"link":     func(r *netlink.Route) { r.LinkIndex = byName(*w, "b").Attrs().Index },
					"table":    func(r *netlink.Route) { r.Table = 100 },
					"priority": func(r *netlink.Route) { r.Priority = 7 },
				} {
					r := route(a, f.cidr)
					change(&r)
					Expect(routeErr(*w, del(r))).To(Equal(unix.ESRCH), name)
				}
				Expect(routeErr(*w, del(route(a, f.cidr)))).To(Succeed())
				Expect(routeErr(*w, del(route(a, f.cidr)))).To(Equal(unix.ESRCH))
			})
			It("lists a table, by link too; one that does not exist is empty", func() {
				a := addPair(*w, "a", "b")
				r := route(a, f.cidr)
				r.Table = 1000
				Expect(routesOf(*w, f.family, 1000)).To(BeEmpty())
				Expect(routeErr(*w, set(r))).To(Succeed())
				Expect(routesOf(*w, f.family, 1000)).To(HaveLen(1))
				Expect(routesOf(*w, f.family, 254)).To(BeEmpty())
				count := 0
				for _, index := range []int{a, byName(*w, "b").Attrs().Index, 4711} {
					filter := rtnl.RouteFilter{Family: f.family, Table: 1000, IfIndex: index}
					Expect((*w).RouteEach(filter, func(r *netlink.Route) error { count += r.LinkIndex; return nil })).To(Succeed())
				}
				Expect(count).To(Equal(a))
			})
			It("keeps routes that need no link", func() {
				a := addPair(*w, "a", "b")
				r := route(0, f.cidr)
				r.Type, r.Scope = unix.RTN_BLACKHOLE, 0
				Expect(routeErr(*w, set(r))).To(Succeed())
				Expect((*w).LinkDel(ofIndex(a))).To(Succeed())
				Expect(routesOf(*w, f.family, 254)).To(HaveLen(1))
			})
			It("gives each operation of a batch its own error", func() {
				a := addPair(*w, "a", "b")
				errs := (*w).RouteBatch([]rtnl.RouteOp{
					set(route(a, f.cidr)), set(route(4711, f.wide)), del(route(a, f.wide)), set(route(a, f.wide)),
				})
				Expect(errs).To(HaveLen(4))
				var errnos []error
				for _, err := range errs {
					errnos = append(errnos, errno(err))
				}
				Expect(errnos).To(Equal([]error{nil, unix.ENODEV, unix.ESRCH, nil}))
				Expect(routesOf(*w, f.family, 254)).To(HaveLen(2))
			})
		})
	}
	It("refuses IPv4 destinations with host bits, and clears those of IPv6", func() {
		a := addPair(*w, "a", "b")
		Expect(routeErr(*w, set(route(a, "10.65.0.1/24")))).To(Equal(unix.EINVAL))
		Expect(routeErr(*w, set(route(a, "fd00::1/64")))).To(Succeed())
		Expect(routesOf(*w, unix.AF_INET6, 254)).To(Equal([]string{fmt.Sprintf("fd00::/64 dev %d prio 1024", a)}))
	})
	It("compares an IPv4 route's scope at its deletion", func() {
		a := addPair(*w, "a", "b")
		Expect(routeErr(*w, set(route(a, "10.65.0.1/32")))).To(Succeed())
		r := route(a, "10.65.0.1/32")
		r.Scope = netlink.SCOPE_UNIVERSE
		Expect(routeErr(*w, del(r))).To(Equal(unix.ESRCH))
		r.Scope = netlink.SCOPE_NOWHERE
		Expect(routeErr(*w, del(r))).To(Succeed())
	})
	It("finds no gateway by a route that has a TOS", func() {
		a := addPair(*w, "a", "b")
		blackhole := route(0, "10.66.0.0/24")
		blackhole.Type, blackhole.Tos = unix.RTN_BLACKHOLE, 16
		Expect(routeErr(*w, set(blackhole))).To(Succeed())
		r := route(a, "10.65.0.1/32")
		r.Gw, r.Scope, r.Tos = net.ParseIP("10.66.0.9"), 0, 16
		Expect(routeErr(*w, set(r))).To(Equal(unix.ENETUNREACH))
	})
	It("wants a gateway to be on a link", func() {
		a := addPair(*w, "a", "b")
		r4, r6 := route(a, "10.66.0.0/16"), route(a, "fd66::/64")
		r4.Gw, r4.Scope, r6.Gw = net.ParseIP("10.65.0.9"), 0, net.ParseIP("fd00::9")
		Expect(routeErr(*w, set(r4))).To(Equal(unix.ENETUNREACH))
		Expect(routeErr(*w, set(r6))).To(Equal(unix.EHOSTUNREACH))
		r4.Flags, r6.Flags = unix.RTNH_F_ONLINK, unix.RTNH_F_ONLINK
		Expect(routeErr(*w, set(r6))).To(Succeed())
		Expect((*w).LinkSetUp(ofIndex(1))).To(Succeed())
		Expect(routeErr(*w, set(r4))).To(Succeed())
		Expect(routeErr(*w, set(route(a, "10.65.0.0/24")))).To(Succeed())
		r4.Flags = 0
		Expect(routeErr(*w, set(r4))).To(Succeed())
	})
	It("wants a source to be one of its own addresses, and drops a route with it", func() {
		a := addPair(*w, "a", "b")
		r := route(a, "10.65.0.1/32")
		r.Src = net.ParseIP("10.1.0.1")
		Expect(routeErr(*w, set(r))).To(Equal(unix.EINVAL))
		b := byName(*w, "b").Attrs().Index
		Expect((*w).addAddress(b, netip.MustParsePrefix("10.1.0.1/32"))).To(Succeed())
		Expect(routeErr(*w, set(r))).To(Succeed())
		Expect((*w).delAddress(b, netip.MustParsePrefix("10.1.0.1/32"))).To(Succeed())
		Expect(routesOf(*w, unix.AF_INET, 254)).To(BeEmpty())
	})
	It("loses an interface's IPv4 routes with its last IPv4 address", func() {
		a := addPair(*w, "a", "b")
		Expect((*w).addAddress(a, netip.MustParsePrefix("10.1.0.1/32"))).To(Succeed())
		Expect(routeErr(*w, set(route(a, "10.65.0.1/32")))).To(Succeed())
		Expect((*w).delAddress(a, netip.MustParsePrefix("10.1.0.1/32"))).To(Succeed())
		Expect(routesOf(*w, unix.AF_INET, 254)).To(BeEmpty())
	})
	It("keeps a multi-path route while one of its links is up, and revives its hops", func() {
		a := addPair(*w, "a", "b")
		b := byName(*w, "b").Attrs().Index
		r := route(0, "10.66.0.0/16")
		r.MultiPath = []*netlink.NexthopInfo{{LinkIndex: a}, {LinkIndex: b, Hops: 2}}
		Expect(routeErr(*w, set(r))).To(Succeed())
		dead := func() (dead []bool) {
			Expect((*w).RouteEach(rtnl.RouteFilter{Family: unix.AF_INET, Table: 254}, func(r *netlink.Route) error {
				for _, h := range r.MultiPath {
					dead = append(dead, h.Flags&unix.RTNH_F_DEAD != 0)
				}
				return nil
			})).To(Succeed())
			return dead
		}
		Expect(dead()).To(Equal([]bool{false, false}))
		Expect((*w).LinkSetDown(ofIndex(a))).To(Succeed())
		Expect(dead()).To(Equal([]bool{true, false}))
		Expect((*w).LinkSetUp(ofIndex(a))).To(Succeed())
		Expect(dead()).To(Equal([]bool{false, false}))
		Expect((*w).LinkSetDown(ofIndex(a))).To(Succeed())
		Expect((*w).LinkSetDown(ofIndex(b))).To(Succeed())
		Expect(dead()).To(BeEmpty())
	})
	It("has connected routes while their interface is up", func() {
		a := addPair(*w, "a", "b")
		Expect((*w).addAddress(a, netip.MustParsePrefix("10.1.0.1/24"))).To(Succeed())
		connected := func() (n int) {
			Expect((*w).RouteEach(rtnl.RouteFilter{Family: unix.AF_INET, Table: 254}, func(*netlink.Route) error { n++; return nil })).To(Succeed())
			return n
		}
		Expect(connected()).To(Equal(1))
		Expect((*w).LinkSetDown(ofIndex(a))).To(Succeed())
		Expect(connected()).To(BeZero())
		Expect((*w).LinkSetUp(ofIndex(a))).To(Succeed())
		Expect(connected()).To(Equal(1))
	})
}
