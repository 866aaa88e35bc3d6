package routetable_test

import (
	"net"
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/routetable"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }

var _ = onEachKernel("route classes", func(kind worldKind) {
	var f *fixture
	BeforeEach(func() { f = newFixture(GinkgoT(), kind, nil) })

	wantClass := func(class routetable.RouteClass, iface string) {
		target := workloadTarget("10.65.0.1/32")
		target.MTU = 1400 + int(class)
		f.SetRoutes(class, iface, []routetable.Target{target})
	}

	It("prefers the better class, whatever the order of the requests and the interfaces", func() {
		f.addLink("cali1")
		f.addLink("cali2")
		wantClass(routetable.RouteClassVXLANTunnel, "cali2")
		f.apply()
		Expect(f.routes()).To(Equal([]string{"10.65.0.1/32 dev cali2 proto 80 scope link mtu 1404"}))
		wantClass(routetable.RouteClassLocalWorkload, "cali1")
		f.apply()
		Expect(f.routes()).To(Equal([]string{"10.65.0.1/32 dev cali1 proto 80 scope link mtu 1400"}))
		wantClass(routetable.RouteClassNoEncap, "cali2")
		f.apply()
		Expect(f.routes()).To(Equal([]string{"10.65.0.1/32 dev cali1 proto 80 scope link mtu 1400"}))
		f.want("cali1")
		f.apply()
		Expect(f.routes()).To(Equal([]string{"10.65.0.1/32 dev cali2 proto 80 scope link mtu 1404"}))
	})

	It("keeps the classes of one interface apart", func() {
		f.addLink("cali1")
		for class := routetable.RouteClassNoEncapBlackhole; class >= routetable.RouteClassLocalWorkload; class-- {
			wantClass(class, "cali1")
		}
		for class := routetable.RouteClassLocalWorkload; class <= routetable.RouteClassNoEncapBlackhole; class++ {
			f.apply()
			Expect(f.routes()).To(ContainElement(HaveSuffix("mtu %d", 1400+int(class))))
			f.SetRoutes(class, "cali1", nil)
		}
		f.apply()
		Expect(f.routes()).To(BeEmpty())
	})

	It("prefers the newest interface within a class", func() {
		f.addLink("cali1")
		f.addLink("cali2")
		wantClass(routetable.RouteClassLocalWorkload, "cali2")
		wantClass(routetable.RouteClassLocalWorkload, "cali1")
		f.apply()
		Expect(f.routes()).To(Equal([]string{"10.65.0.1/32 dev cali2 proto 80 scope link mtu 1400"}))
	})

	It("lets the next one take over in the same apply where the winner's interface goes down, and back", func() {
		f.addLink("cali1")
		index := f.addLink("cali2")
		wantClass(routetable.RouteClassLocalWorkload, "cali2")
		wantClass(routetable.RouteClassVXLANTunnel, "cali1")
		f.apply()
		for range 2 {
			f.OnIfaceStateChanged("cali2", index, down)
			f.apply()
			Expect(f.routes()).To(Equal([]string{"10.65.0.1/32 dev cali1 proto 80 scope link mtu 1404"}))
			f.OnIfaceStateChanged("cali2", index, up)
			f.apply()
			Expect(f.routes()).To(Equal([]string{"10.65.0.1/32 dev cali2 proto 80 scope link mtu 1400"}))
		}
		delLink(f.t, f.w, "cali2")
		f.OnIfaceStateChanged("cali2", index, absent)
		f.apply()
		Expect(f.routes()).To(Equal([]string{"10.65.0.1/32 dev cali1 proto 80 scope link mtu 1404"}))
		f.expectSettled()
	})

	It("has one winner per destination, TOS and priority", func() {
		f.addLink("cali1")
		f.addLink("cali2")
		plain, metric, tos := workloadTarget("10.65.0.1/32"), workloadTarget("10.65.0.1/32"), workloadTarget("10.65.0.1/32")
		metric.Priority, tos.TOS = 50, 0x10
		f.SetRoutes(routetable.RouteClassLocalWorkload, "cali1", []routetable.Target{plain, metric, tos})
		f.SetRoutes(routetable.RouteClassVXLANTunnel, "cali2", []routetable.Target{metric})
		f.apply()
		Expect(f.routes()).To(Equal([]string{
			"10.65.0.1/32 dev cali1 proto 80 scope link",
			"10.65.0.1/32 dev cali1 proto 80 scope link metric 50",
			"10.65.0.1/32 dev cali1 proto 80 scope link tos 16",
		}))
		f.expectSettled()
		f.RouteRemove(routetable.RouteClassLocalWorkload, "cali1", prefix("10.65.0.1/32"))
		f.apply()
		Expect(f.routes()).To(Equal([]string{"10.65.0.1/32 dev cali2 proto 80 scope link metric 50"}))
	})
})

var _ = onEachKernel("target types", func(kind worldKind) {
	var f *fixture
	BeforeEach(func() {
		f = newFixture(GinkgoT(), kind, nil)
	})
	node := func(version int) {
		f.conf.IPVersion = version
		f.restart()
		index := f.addLink("eth0")
		if version == 6 {
			must(f.t, f.w.AddAddress(index, prefix("fd00:1::1/64")))
		} else {
			must(f.t, f.w.AddAddress(index, prefix("192.168.1.1/24")))
		}
	}

	It("are all what ip(8) would make of them, and found unchanged (IPv4)", func() {
		node(4)
		f.SetRoutes(routetable.RouteClassLocalWorkload, "eth0", []routetable.Target{
			{Type: routetable.TargetTypeLocal, CIDR: prefix("10.1.0.1/32")},
			{Type: routetable.TargetTypeLinkLocalUnicast, CIDR: prefix("10.1.0.2/32")},
			{Type: routetable.TargetTypeGlobalUnicast, CIDR: prefix("10.1.0.3/32"), Src: addr("192.168.1.1")},
			{Type: routetable.TargetTypeOnLink, CIDR: prefix("10.1.4.0/24"), GW: addr("172.16.0.1")},
			{Type: routetable.TargetTypeVXLAN, CIDR: prefix("10.1.5.0/24"), GW: addr("172.16.0.2"), MTU: 1450},
			{Type: routetable.TargetTypeNoEncap, CIDR: prefix("10.1.6.0/24"), GW: addr("192.168.1.7"), Protocol: 81},
			{Type: routetable.TargetTypeNoEncap, CIDR: prefix("0.0.0.0/0"), GW: addr("192.168.1.7"), Priority: 4000000000},
		})
		f.SetRoutes(routetable.RouteClassVXLANBlackhole, routetable.InterfaceNone, []routetable.Target{
			{Type: routetable.TargetTypeBlackhole, CIDR: prefix("10.2.1.0/24")},
			{Type: routetable.TargetTypeProhibit, CIDR: prefix("10.2.2.0/24")},
			{Type: routetable.TargetTypeThrow, CIDR: prefix("10.2.3.0/24")},
			{Type: routetable.TargetTypeUnreachable, CIDR: prefix("10.2.4.7/24"), Priority: 9},
		})
		f.apply()
		Expect(f.routes()).To(Equal([]string{
			"0.0.0.0/0 via 192.168.1.7 dev eth0 proto 80 metric 4000000000",
			"10.1.0.2/32 dev eth0 proto 80 scope link",
			"10.1.0.3/32 dev eth0 proto 80 src 192.168.1.1",
			"10.1.4.0/24 via 172.16.0.1 dev eth0 onlink proto 80",
			"10.1.5.0/24 via 172.16.0.2 dev eth0 onlink proto 80 mtu 1450",
			"10.1.6.0/24 via 192.168.1.7 dev eth0 proto 81",
			"blackhole 10.2.1.0/24 proto 80",
			"local 10.1.0.1/32 dev eth0 proto 80 scope host",
			"prohibit 10.2.2.0/24 proto 80",
			"throw 10.2.3.0/24 proto 80",
			"unreachable 10.2.4.0/24 proto 80 metric 9",
		}))
		f.expectSettled()
		f.SetRoutes(routetable.RouteClassLocalWorkload, "eth0", nil)
		f.SetRoutes(routetable.RouteClassVXLANBlackhole, routetable.InterfaceNone, nil)
		f.apply()
		Expect(f.routes()).To(BeEmpty())
	})

	It("are all what ip(8) would make of them, and found unchanged (IPv6)", func() {
		node(6)
		f.SetRoutes(routetable.RouteClassLocalWorkload, "eth0", []routetable.Target{
			{Type: routetable.TargetTypeLocal, CIDR: prefix("fd01::1/128")},
			{Type: routetable.TargetTypeLinkLocalUnicast, CIDR: prefix("fd01::2/128")},
			{Type: routetable.TargetTypeGlobalUnicast, CIDR: prefix("fd01::3/128"), Src: addr("fd00:1::1")},
			{Type: routetable.TargetTypeOnLink, CIDR: prefix("fd01:4::/64"), GW: addr("fd99::1")},
			{Type: routetable.TargetTypeVXLAN, CIDR: prefix("fd01:5::/64"), GW: addr("fd99::2"), MTU: 1450},
			{Type: routetable.TargetTypeNoEncap, CIDR: prefix("fd01:6::/64"), GW: addr("fd00:1::7"), Protocol: 81},
			{Type: routetable.TargetTypeNoEncap, CIDR: prefix("::/0"), GW: addr("fd00:1::7"), Priority: 50},
		})
		f.SetRoutes(routetable.RouteClassVXLANBlackhole, routetable.InterfaceNone, []routetable.Target{
			{Type: routetable.TargetTypeBlackhole, CIDR: prefix("fd02:1::/64")},
			{Type: routetable.TargetTypeProhibit, CIDR: prefix("fd02:2::/64")},
			{Type: routetable.TargetTypeThrow, CIDR: prefix("fd02:3::/64")},
			{Type: routetable.TargetTypeUnreachable, CIDR: prefix("fd02:4::/64"), Priority: 9},
		})
		f.apply()
		Expect(f.routes()).To(Equal([]string{
			"::/0 via fd00:1::7 dev eth0 proto 80 metric 50",
			"blackhole fd02:1::/64 dev lo proto 80",
			"fd01:4::/64 via fd99::1 dev eth0 onlink proto 80",
			"fd01:5::/64 via fd99::2 dev eth0 onlink proto 80 mtu 1450",
			"fd01:6::/64 via fd00:1::7 dev eth0 proto 81",
			"fd01::2/128 dev eth0 proto 80",
			"fd01::3/128 dev eth0 proto 80 src fd00:1::1",
			"local fd01::1/128 dev eth0 proto 80",
			"prohibit fd02:2::/64 dev lo proto 80",
			"throw fd02:3::/64 dev lo proto 80",
			"unreachable fd02:4::/64 dev lo proto 80 metric 9",
		}))
		f.expectSettled()
		f.SetRoutes(routetable.RouteClassLocalWorkload, "eth0", nil)
		f.SetRoutes(routetable.RouteClassVXLANBlackhole, routetable.InterfaceNone, nil)
		f.apply()
		Expect(f.routes()).To(BeEmpty())
	})

	It("change from any into any other in place", func() {
		for _, version := range []int{4, 6} {
			f = newFixture(GinkgoT(), kind, nil)
			node(version)
			dst, gw, far := prefix("10.1.0.0/24"), addr("192.168.1.7"), addr("172.16.0.1")
			if version == 6 {
				dst, gw, far = prefix("fd01::/64"), addr("fd00:1::7"), addr("fd99::1")
			}
			targets := []routetable.Target{
				{Type: routetable.TargetTypeLinkLocalUnicast}, {Type: routetable.TargetTypeGlobalUnicast, MTU: 1400},
				{Type: routetable.TargetTypeOnLink, GW: far}, {Type: routetable.TargetTypeNoEncap, GW: gw},
				{Type: routetable.TargetTypeBlackhole}, {Type: routetable.TargetTypeUnreachable}, {Type: routetable.TargetTypeThrow},
				{Type: routetable.TargetTypeNoEncap, MultiPath: []routetable.NextHop{
					{GW: gw, IfaceName: "eth0"}, {GW: gw.Next(), IfaceName: "eth0", Weight: 5},
				}},
			}
			for i := range targets {
				targets[i].CIDR = dst
				for j := range targets {
					targets[j].CIDR = dst
					f.RouteUpdate(routetable.RouteClassNoEncap, "eth0", targets[i])
					f.apply()
					f.RouteUpdate(routetable.RouteClassNoEncap, "eth0", targets[j])
					f.apply()
					Expect(f.routes()).To(HaveLen(1))
					f.expectSettled()
				}
			}
		}
	})

	It("that cannot be are named by the error, and stop no others", func() {
		f.addLink("cali1")
		bad := []routetable.Target{
			{Type: "nonsense", CIDR: prefix("10.1.1.0/24")},
			{Type: routetable.TargetTypeLinkLocalUnicast, CIDR: prefix("fd00::/64")},
			{Type: routetable.TargetTypeNoEncap, CIDR: prefix("10.1.2.0/24"), GW: addr("fd00::1")},
			{Type: routetable.TargetTypeLinkLocalUnicast, CIDR: prefix("10.1.3.0/24"), Priority: -1},
			{Type: routetable.TargetTypeLinkLocalUnicast, CIDR: prefix("10.1.4.0/24"), Protocol: 256},
			{Type: routetable.TargetTypeLinkLocalUnicast, CIDR: prefix("10.1.5.0/24"), MTU: 100000},
			{Type: routetable.TargetTypeLinkLocalUnicast},
		}
		f.SetRoutes(routetable.RouteClassLocalWorkload, "cali1", append(bad, workloadTarget("10.65.0.1/32")))
		for range 2 {
			err := f.Apply()
			for _, words := range []string{
				`10.1.1.0/24: unknown target type "nonsense"`, "fd00::/64 is not an IPv4 prefix", "10.1.2.0/24: gateway fd00::1",
				"10.1.3.0/24: priority -1", "10.1.4.0/24: protocol 256", "10.1.5.0/24: MTU 100000", "invalid Prefix is not an IPv4 prefix",
			} {
				Expect(err).To(MatchError(ContainSubstring(words)))
			}
			Expect(f.routes()).To(Equal([]string{"10.65.0.1/32 dev cali1 proto 80 scope link"}))
		}
		f.want("cali1", "10.65.0.1/32")
		f.apply()
	})

	It("goes to a numbered table, which the first route creates, and touches no other", func() {
		f.conf.Table, f.conf.Ownership = 1000, routetable.ExclusivePolicy{}
		f.restart()
		index := f.addLink("cali1")
		addRoute(f.t, f.w, routeVia(1001, "10.65.0.1/32", index, 80))
		addRoute(f.t, f.w, routeVia(unix.RT_TABLE_MAIN, "10.65.0.1/32", index, 80))
		f.apply()
		Expect(f.routes()).To(BeEmpty())
		f.want("cali1", "10.65.0.1/32")
		f.apply()
		Expect(f.routes()).To(HaveLen(1))
		f.expectSettled()
		f.want("cali1")
		f.apply()
		Expect(f.routes()).To(BeEmpty())
		Expect(dump(f.t, f.w, unix.AF_INET, 1001)).To(HaveLen(1))
		Expect(dump(f.t, f.w, unix.AF_INET, unix.RT_TABLE_MAIN)).To(HaveLen(1))
	})
})

var _ = onEachKernel("multi-path routes", func(kind worldKind) {
	for _, version := range []int{4, 6} {
		Describe(map[int]string{4: "of IPv4", 6: "of IPv6"}[version], func() {
			var f *fixture
			var index [2]int
			names := [2]string{"eth0", "eth1"}
			gateways := [2]netip.Addr{addr("192.168.0.7"), addr("192.168.1.7")}
			dst := "10.1.0.0/24"
			if version == 6 {
				gateways = [2]netip.Addr{addr("fd00::7"), addr("fd00:1::7")}
				dst = "fd01::/64"
			}
			addresses := func(i int) netip.Prefix {
				bits := 24
				if version == 6 {
					bits = 64
				}
				return netip.PrefixFrom(gateways[i].Next(), bits)
			}
			BeforeEach(func() {
				f = newFixture(GinkgoT(), kind, func(c *routetable.Config) { c.IPVersion = version })
				for i, name := range names {
					index[i] = f.addLink(name)
					must(f.t, f.w.AddAddress(index[i], addresses(i)))
				}
				f.SetRoutes(routetable.RouteClassNoEncap, routetable.InterfaceNone, []routetable.Target{{
					Type: routetable.TargetTypeNoEncap, CIDR: prefix(dst), MultiPath: []routetable.NextHop{
						{GW: gateways[1], IfaceName: "eth1", Weight: 3}, {GW: gateways[0], IfaceName: "eth0"},
					},
				}})
				f.apply()
			})
			hop := func(i int) string { return " via " + gateways[i].String() + " dev " + names[i] }
			both := []string{dst + " proto 80 nexthop" + hop(0) + " weight 1 nexthop" + hop(1) + " weight 3"}
			if version == 6 { // in the order of the words
				both = []string{dst + " proto 80 nexthop" + hop(1) + " weight 3 nexthop" + hop(0) + " weight 1"}
			}
			single := func(i int) []string { return []string{dst + hop(i) + " proto 80"} }

			It("go over all next hops whose interface is up", func() {
				Expect(f.routes()).To(Equal(both))
				f.expectSettled()
			})

			It("go over those that are left, and over all again", func() {
				setDown(f.t, f.w, "eth1")
				f.OnIfaceStateChanged("eth1", index[1], down)
				f.apply()
				Expect(f.routes()).To(Equal(single(0)))
				f.expectSettled()
				setUp(f.t, f.w, "eth1")
				if version == 6 {
					must(f.t, f.w.AddAddress(index[1], addresses(1))) // the kernel drops IPv6 addresses
				}
				f.OnIfaceStateChanged("eth1", index[1], up)
				f.apply()
				Expect(f.routes()).To(Equal(both))
				f.expectSettled()
			})

			It("go where no interface is up, and come back with the first", func() {
				for i, name := range names {
					setDown(f.t, f.w, name)
					f.OnIfaceStateChanged(name, index[i], down)
				}
				f.apply()
				Expect(f.routes()).To(BeEmpty())
				setUp(f.t, f.w, "eth1")
				if version == 6 {
					must(f.t, f.w.AddAddress(index[1], addresses(1)))
				}
				f.OnIfaceStateChanged("eth1", index[1], up)
				f.apply()
				Expect(f.routes()).To(Equal(single(1)))
				f.expectSettled()
			})

			It("are written again where an interface was down and up within one batch", func() {
				setDown(f.t, f.w, "eth1")
				setUp(f.t, f.w, "eth1")
				if version == 6 {
					must(f.t, f.w.AddAddress(index[1], addresses(1)))
				}
				f.OnIfaceStateChanged("eth1", index[1], down)
				f.OnIfaceStateChanged("eth1", index[1], up)
				f.apply()
				Expect(f.routes()).To(Equal(both))
				f.expectSettled()
			})

			It("are removed whole", func() {
				f.SetRoutes(routetable.RouteClassNoEncap, routetable.InterfaceNone, nil)
				f.apply()
				Expect(f.routes()).To(BeEmpty())
			})

			It("stay ours where the kernel takes one of their links out", func() {
				f.RouteUpdate(routetable.RouteClassNoEncap, routetable.InterfaceNone, routetable.Target{
					Type: routetable.TargetTypeNoEncap, CIDR: prefix(dst), Protocol: unix.RTPROT_BOOT, MultiPath: []routetable.NextHop{
						{GW: gateways[1], IfaceName: "eth1"}, {GW: gateways[0], IfaceName: "eth0"},
					},
				})
				f.apply()
				delLink(f.t, f.w, "eth1")
				f.OnIfaceStateChanged("eth1", index[1], absent)
				f.SetRoutes(routetable.RouteClassNoEncap, routetable.InterfaceNone, nil)
				f.QueueResyncIface("eth0")
				f.apply()
				Expect(f.routes()).To(BeEmpty())
			})

			It("are repaired where others changed them", func() {
				changed := routeVia(tableNumber, dst, index[0], 80)
				changed.Scope, changed.Gw = 0, gateways[0].AsSlice()
				addRoute(f.t, f.w, changed)
				f.QueueResync()
				f.apply()
				Expect(f.routes()).To(Equal(both))
			})
		})
	}

	It("of IPv6 need gateways", func() {
		f := newFixture(GinkgoT(), kind, func(c *routetable.Config) { c.IPVersion = 6 })
		f.addLink("eth0")
		f.SetRoutes(routetable.RouteClassNoEncap, routetable.InterfaceNone, []routetable.Target{{
			Type: routetable.TargetTypeGlobalUnicast, CIDR: prefix("fd01::/64"), MultiPath: []routetable.NextHop{{IfaceName: "eth0"}},
		}})
		Expect(f.Apply()).To(MatchError(ContainSubstring("next hop through eth0 has no gateway")))
	})
})

var _ = onEachKernel("ownership", func(kind worldKind) {
	var f *fixture
	BeforeEach(func() { f = newFixture(GinkgoT(), kind, nil) })
	setPolicy := func(p routetable.WorkloadPolicy) {
		f.conf.Ownership, f.conf.GracePeriod = p, -1
		f.restart()
	}
	// scene makes the routes of several programs.
	scene := func() {
		cali, eth, vxlan := addLink(f.t, f.w, "cali1", 0), addLink(f.t, f.w, "eth0", 0), addLink(f.t, f.w, "vxlan0", 0)
		for i, r := range []struct{ index, protocol int }{
			{cali, 80}, {cali, 3}, {cali, 200}, {eth, 80}, {eth, 3}, {eth, 200}, {vxlan, 80}, {vxlan, 3},
		} {
			addRoute(f.t, f.w, routeVia(tableNumber, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), 32).String(), r.index, r.protocol))
		}
		addRoute(f.t, f.w, netlink.Route{
			Family: unix.AF_INET, Table: tableNumber, Type: unix.RTN_BLACKHOLE, Protocol: 80,
			Dst: &net.IPNet{IP: net.IPv4(10, 2, 0, 0).To4(), Mask: net.CIDRMask(24, 32)},
		})
	}

	It("with removal of external routes: all on workload interfaces, and our protocol anywhere", func() {
		setPolicy(routetable.WorkloadPolicy{
			WorkloadPrefixes: []string{"cali"}, OwnIfaces: []string{"vxlan0"}, Protocols: []int{80}, RemoveExternalRoutes: true,
		})
		scene()
		f.apply()
		Expect(f.routes()).To(Equal([]string{
			"10.1.0.4/32 dev eth0 proto 3 scope link",
			"10.1.0.5/32 dev eth0 proto 200 scope link",
		}))
	})

	It("without: our protocol only", func() {
		setPolicy(routetable.WorkloadPolicy{WorkloadPrefixes: []string{"cali"}, Protocols: []int{80}})
		scene()
		f.apply()
		Expect(f.routes()).To(Equal([]string{
			"10.1.0.1/32 dev cali1 proto 3 scope link",
			"10.1.0.2/32 dev cali1 proto 200 scope link",
			"10.1.0.4/32 dev eth0 proto 3 scope link",
			"10.1.0.5/32 dev eth0 proto 200 scope link",
			"10.1.0.7/32 dev vxlan0 proto 3 scope link",
		}))
	})

	It("takes a protocol that others use for ours on workload interfaces only", func() {
		setPolicy(routetable.WorkloadPolicy{WorkloadPrefixes: []string{"cali"}, Protocols: []int{3}})
		scene()
		f.apply()
		Expect(f.routes()).To(ContainElement("10.1.0.4/32 dev eth0 proto 3 scope link"))
		Expect(f.routes()).NotTo(ContainElement("10.1.0.1/32 dev cali1 proto 3 scope link"))
	})

	It("removes what it wrote itself even where the policy would not have it ours", func() {
		setPolicy(routetable.WorkloadPolicy{WorkloadPrefixes: []string{"cali"}, Protocols: []int{80}})
		f.addLink("eth0")
		target := workloadTarget("10.1.0.1/32")
		target.Protocol = 3
		f.SetRoutes(routetable.RouteClassNoEncap, "eth0", []routetable.Target{target})
		f.apply()
		Expect(f.routes()).To(HaveLen(1))
		f.SetRoutes(routetable.RouteClassNoEncap, "eth0", nil)
		f.apply()
		Expect(f.routes()).To(BeEmpty())
	})

	It("replaces another program's route on a workload interface, without removal of external routes too", func() {
		setPolicy(routetable.WorkloadPolicy{WorkloadPrefixes: []string{"cali"}, Protocols: []int{80}})
		index := f.addLink("cali1")
		f.apply()
		addRoute(f.t, f.w, routeVia(tableNumber, "10.65.0.1/32", index, 3)) // as a CNI plugin does
		f.want("cali1", "10.65.0.1/32")
		f.apply()
		Expect(f.routes()).To(Equal([]string{"10.65.0.1/32 dev cali1 proto 80 scope link"}))
	})

	for _, known := range []bool{true, false} {
		name := "leaves another program's route where it is, says that it is in the way, and takes its place when it goes"
		if !known {
			name += " (the route came after the last resync)"
		}
		It(name, func() {
			index := f.addLink("eth0")
			f.addLink("cali1")
			foreign := routeVia(tableNumber, "10.65.0.1/32", index, 200)
			if !known {
				f.apply()
			}
			addRoute(f.t, f.w, foreign)
			f.want("cali1", "10.65.0.1/32", "10.65.0.2/32")
			there := []string{"10.65.0.1/32 dev eth0 proto 200 scope link", "10.65.0.2/32 dev cali1 proto 80 scope link"}
			for range 2 {
				err := f.Apply()
				Expect(err).To(MatchError(routetable.ErrConflict))
				Expect(err).To(MatchError(ContainSubstring(`10.65.0.1/32 (priority 0, TOS 0)`)))
				Expect(err).To(MatchError(ContainSubstring(`protocol 200, through "eth0"`)))
				Expect(f.routes()).To(Equal(there))
			}
			delRoute(f.t, f.w, foreign)
			f.QueueResync()
			f.apply()
			Expect(f.routes()).To(Equal([]string{
				"10.65.0.1/32 dev cali1 proto 80 scope link", "10.65.0.2/32 dev cali1 proto 80 scope link",
			}))
		})
	}

	It("says the same of the same conflicts each time, so that nobody takes them for news", func() {
		index := f.addLink("eth0")
		f.addLink("cali1")
		var cidrs []string
		for _, target := range manyTargets(10) {
			cidrs = append(cidrs, target.CIDR.String())
			addRoute(f.t, f.w, routeVia(tableNumber, target.CIDR.String(), index, 200))
		}
		f.want("cali1", cidrs...)
		first := f.Apply()
		Expect(first).To(MatchError(routetable.ErrConflict))
		for range 5 {
			Expect(f.Apply()).To(MatchError(first.Error()))
		}
	})

	It("forgets a conflict with the wish", func() {
		index := f.addLink("eth0")
		f.addLink("cali1")
		addRoute(f.t, f.w, routeVia(tableNumber, "10.65.0.1/32", index, 200))
		f.want("cali1", "10.65.0.1/32")
		Expect(f.Apply()).To(MatchError(routetable.ErrConflict))
		f.want("cali1")
		f.apply()
		Expect(f.routes()).To(HaveLen(1))
	})

	It("does not remove another's route of the same destination with its own", func() {
		index := f.addLink("cali1")
		f.want("cali1", "10.65.0.1/32")
		f.apply()
		eth := f.addLink("eth0")
		// Ours is removed behind our back, and another's is there now.
		delRoute(f.t, f.w, routeVia(tableNumber, "10.65.0.1/32", index, 80))
		addRoute(f.t, f.w, routeVia(tableNumber, "10.65.0.1/32", eth, 200))
		f.want("cali1")
		f.apply()
		Expect(f.routes()).To(Equal([]string{"10.65.0.1/32 dev eth0 proto 200 scope link"}))
	})
})
