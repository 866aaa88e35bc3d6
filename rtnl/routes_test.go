package rtnl_test

import (
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/rtnl"
)

var _ = Describe("routes", func() {
	const table = 300
	var (
		ns     *rtnl.Namespace
		handle *rtnl.Handle
		index  int
	)
	BeforeEach(func() {
		ns = newNamespace()
		handle = newHandle(ns)
		Expect(handle.LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "if0", TxQLen: -1}})).To(Succeed())
		link, err := handle.LinkByName("if0")
		Expect(err).NotTo(HaveOccurred())
		index = link.Attrs().Index
		Expect(handle.LinkSetUp(link)).To(Succeed())
	})
	ip := func(arguments string) {
		GinkgoHelper()
		Expect(ns.Do(func() error {
			output, err := exec.Command("ip", strings.Fields(arguments)...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("ip %s: %w: %s", arguments, err, output)
			}
			return nil
		})).To(Succeed())
	}
	route := func(cidr string) netlink.Route {
		_, dst, err := net.ParseCIDR(cidr)
		Expect(err).NotTo(HaveOccurred())
		r := netlink.Route{Family: unix.AF_INET, Table: table, Dst: dst, LinkIndex: index, Protocol: 80, Scope: netlink.SCOPE_LINK}
		if dst.IP.To4() == nil {
			r.Family, r.Scope = unix.AF_INET6, 0
		}
		return r
	}
	words := func(r *netlink.Route) string {
		s := fmt.Sprintf("%s via %v dev %d proto %d scope %d src %v metric %d tos %d type %d mtu %d %v %d flags %x",
			r.Dst, r.Gw, r.LinkIndex, r.Protocol, r.Scope, r.Src, r.Priority, r.Tos, r.Type, r.MTU, r.MTULock, r.InitCwnd, r.Flags)
		for _, hop := range r.MultiPath {
			s += fmt.Sprintf(" nexthop %v %d %d %x", hop.Gw, hop.LinkIndex, hop.Hops, hop.Flags)
		}
		return s
	}
	list := func(filter rtnl.RouteFilter) []string {
		GinkgoHelper()
		var routes []string
		Expect(handle.RouteEach(filter, func(r *netlink.Route) error {
			routes = append(routes, words(r))
			return nil
		})).To(Succeed())
		slices.Sort(routes)
		return routes
	}
	byLibrary := func(filter rtnl.RouteFilter) []string {
		GinkgoHelper()
		library, err := netlink.NewHandleAt(netns.NsHandle(ns.FD()), unix.NETLINK_ROUTE)
		Expect(err).NotTo(HaveOccurred())
		defer library.Close()
		found, err := library.RouteListFiltered(filter.Family, &netlink.Route{Table: filter.Table}, netlink.RT_FILTER_TABLE)
		Expect(err).NotTo(HaveOccurred())
		var routes []string
		for i := range found {
			routes = append(routes, words(&found[i]))
		}
		slices.Sort(routes)
		return routes
	}

	It("are read as the netlink library reads them", func() {
		ip("address add 192.168.1.1/24 dev if0")
		ip("-6 address add fd00:1::1/64 dev if0 nodad")
		for _, words := range []string{
			"10.0.0.0/24 dev if0", "default via 192.168.1.7", "10.0.1.0/24 via 10.9.9.9 dev if0 onlink mtu 1400 metric 4000000000",
			"blackhole 10.0.2.0/24", "local 10.0.3.1 dev if0", "10.0.4.0/24 dev if0 tos 0x10 src 192.168.1.1 proto 99",
			"10.0.5.0/24 nexthop via 192.168.1.7 weight 3 nexthop via 192.168.1.8 dev if0 weight 256",
			"10.0.6.0/24 dev if0 mtu lock 1300 initcwnd 20",
			"fd01::/64 dev if0", "default via fd00:1::7", "unreachable fd02::/64", "fd03::1 via fd99::1 dev if0 onlink metric 7",
			"fd05::/64 nexthop via fd00:1::7 weight 3 nexthop via fd00:1::8",
		} {
			ip("route add table 300 " + words)
		}
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			filter := rtnl.RouteFilter{Family: family, Table: table}
			Expect(list(filter)).To(Equal(byLibrary(filter)))
			Expect(list(filter)).NotTo(BeEmpty())
		}
	})

	It("are read as they were written", func() {
		ip("address add 192.168.1.1/24 dev if0")
		ip("-6 address add fd00:1::1/64 dev if0 nodad")
		full := route("10.0.0.0/24")
		full.Priority, full.Tos, full.MTU, full.Src = 7, 0x10, 1400, net.ParseIP("192.168.1.1")
		onlink := route("10.0.1.0/24")
		onlink.Gw, onlink.Flags, onlink.Scope = net.ParseIP("10.9.9.9"), unix.RTNH_F_ONLINK, 0
		everywhere := route("0.0.0.0/0")
		everywhere.Gw, everywhere.Scope = net.ParseIP("192.168.1.7"), 0
		multi := netlink.Route{Family: unix.AF_INET6, Table: table, Dst: route("fd01::/64").Dst, Protocol: 80, MultiPath: []*netlink.NexthopInfo{
			{LinkIndex: index, Gw: net.ParseIP("fd00:1::7"), Hops: 2}, {LinkIndex: index, Gw: net.ParseIP("fd00:1::8")},
		}}
		nowhere := netlink.Route{Family: unix.AF_INET, Table: table, Dst: route("10.0.2.0/24").Dst, Protocol: 80, Type: unix.RTN_BLACKHOLE}
		for _, r := range []netlink.Route{full, onlink, everywhere, multi, nowhere, route("fd02::/64")} {
			Expect(handle.RouteBatch([]rtnl.RouteOp{{Route: r}})).To(BeNil())
			want := r
			if want.Type == 0 {
				want.Type = unix.RTN_UNICAST
			}
			if r.Family == unix.AF_INET6 {
				want.Priority = 1024
			}
			filter := rtnl.RouteFilter{Family: r.Family, Table: table}
			Expect(list(filter)).To(Equal([]string{words(&want)}))
			Expect(handle.RouteBatch([]rtnl.RouteOp{{Delete: true, Route: r}})).To(BeNil())
			Expect(list(filter)).To(BeEmpty())
		}
	})

	It("of a table or interface that does not exist are none", func() {
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			Expect(list(rtnl.RouteFilter{Family: family, Table: 301})).To(BeEmpty())
			Expect(list(rtnl.RouteFilter{Family: family, Table: table, IfIndex: 4711})).To(BeEmpty())
		}
	})

	It("of a family that the kernel lacks, as of IPv6 with ipv6.disable=1, are none, not those of all others", func() {
		ip("route add 10.0.0.0/24 dev if0")
		lacking := rtnl.RouteFilter{Family: unix.AF_X25, Table: unix.RT_TABLE_MAIN} // has no routes in any kernel
		Expect(list(lacking)).To(BeEmpty())
	})

	It("can be narrowed down to an interface", func() {
		ip("link add if1 type ifb")
		ip("link set if1 up")
		ip("route add 10.0.0.0/24 dev if0 table 300")
		ip("route add 10.0.1.0/24 dev if1 table 300")
		Expect(list(rtnl.RouteFilter{Family: unix.AF_INET, Table: table, IfIndex: index})).To(HaveLen(1))
	})

	// many makes operations of many routes; every third one is bad.
	many := func(n int, bad bool) []rtnl.RouteOp {
		ops := make([]rtnl.RouteOp, n)
		for i := range ops {
			ops[i].Route = route(fmt.Sprintf("10.%d.%d.%d/32", i>>16, i>>8&255, i&255))
			if bad && i%3 == 0 {
				ops[i].Route.LinkIndex = 4711
			}
		}
		return ops
	}

	It("are changed many at a time, and each has its own error", func() {
		ops := many(2000, true)
		ops[1].Route.Family = 99 // cannot even be sent
		errs := handle.RouteBatch(ops)
		Expect(errs).To(HaveLen(len(ops)))
		for i, err := range errs {
			switch {
			case i == 1:
				Expect(err).To(MatchError(unix.EINVAL))
			case i%3 == 0:
				Expect(err).To(MatchError(unix.ENODEV), "%d", i)
				Expect(err).To(MatchError(ContainSubstring(ops[i].Route.Dst.String())))
			default:
				Expect(err).NotTo(HaveOccurred(), "%d", i)
			}
		}
		Expect(list(rtnl.RouteFilter{Family: unix.AF_INET, Table: table})).To(HaveLen(2000 - 667 - 1))
	})

	It("do not overrun the socket where all of many fail", func() {
		ops := many(2000, false)
		for i := range ops {
			ops[i].Delete = true
		}
		Expect(handle.RouteBatch(many(1, false))).To(BeNil()) // the table exists
		errs := handle.RouteBatch(ops)
		Expect(errs[0]).NotTo(HaveOccurred())
		for _, err := range errs[1:] {
			Expect(err).To(MatchError(unix.ESRCH))
		}
	})

	It("count as one write a system call", func() {
		var writes []string
		counted, err := rtnl.Open(rtnl.Options{Namespace: ns, BeforeWrite: func(op string) { writes = append(writes, op) }})
		Expect(err).NotTo(HaveOccurred())
		defer counted.Close()
		Expect(counted.RouteBatch(many(200, false))).To(BeNil())
		Expect(counted.RouteBatch(many(1, false))).To(BeNil())
		Expect(counted.RouteBatch(nil)).To(BeNil())
		Expect(writes).To(Equal([]string{
			"change 128 routes", "change 72 routes", fmt.Sprintf("set route 10.0.0.0/32 (ifindex %d, table 300)", index),
		}))
	})

	It("are added exclusively only where there is none", func() {
		for _, cidr := range []string{"10.0.0.1/32", "fd00::1/128"} {
			exclusive := rtnl.RouteOp{Exclusive: true, Route: route(cidr)}
			Expect(handle.RouteBatch([]rtnl.RouteOp{exclusive})).To(BeNil())
			exclusive.Route.MTU = 1300
			Expect(handle.RouteBatch([]rtnl.RouteOp{exclusive})[0]).To(MatchError(unix.EEXIST))
			exclusive.Exclusive = false
			Expect(handle.RouteBatch([]rtnl.RouteOp{exclusive})).To(BeNil())
		}
	})

	It("are explained by the kernel where it refuses one", func() {
		bad := route("10.0.0.0/24")
		bad.Src = net.ParseIP("1.2.3.4")
		Expect(handle.RouteBatch([]rtnl.RouteOp{{Route: bad}})[0]).To(MatchError(ContainSubstring("Invalid prefsrc address")))
	})

	It("end a dump early where the callback fails, and leave the socket usable", func() {
		Expect(handle.RouteBatch(many(2000, false))).To(BeNil())
		errStop := errors.New("stop")
		calls := 0
		err := handle.RouteEach(rtnl.RouteFilter{Family: unix.AF_INET, Table: table}, func(*netlink.Route) error {
			calls++
			return errStop
		})
		Expect(err).To(BeIdenticalTo(errStop))
		Expect(calls).To(Equal(1))
		Expect(list(rtnl.RouteFilter{Family: unix.AF_INET, Table: table})).To(HaveLen(2000))
	})

	It("share the socket with neighbours", func() {
		neigh := &netlink.Neigh{
			LinkIndex: index, Family: unix.AF_INET, IP: net.IPv4(10, 0, 0, 1), State: netlink.NUD_PERMANENT,
			HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1},
		}
		Expect(handle.NeighSet(neigh)).To(Succeed())
		for _, ifindex := range []int{0, index} {
			found, err := handle.NeighList(ifindex, unix.AF_INET)
			Expect(err).NotTo(HaveOccurred())
			Expect(found).To(HaveLen(1))
			Expect(found[0].IP.Equal(neigh.IP)).To(BeTrue())
			Expect(found[0].HardwareAddr).To(Equal(neigh.HardwareAddr))
		}
		Expect(handle.NeighDel(neigh)).To(Succeed())
		Expect(rtnl.IsAbsent(handle.NeighDel(neigh))).To(BeTrue())
	})
})
