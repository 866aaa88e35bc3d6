package endpointmgr_test

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/manx-dataplane/manx/config"
	"github.com/manx-dataplane/manx/dataplane"
	"github.com/manx-dataplane/manx/endpointmgr"
	"github.com/manx-dataplane/manx/qos"
	"github.com/manx-dataplane/manx/routetable"
)

var _ = Describe("What an endpoint wants", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	run := func(ep dataplane.WorkloadEndpoint) {
		GinkgoHelper()
		w.link("cali1", 7, up)
		w.update(id("a"), ep)
		Expect(w.apply()).To(Succeed())
	}

	It("routes its addresses with its MAC, nets without, floating addresses too, each once", func() {
		run(pod("cali1", func(ep *dataplane.WorkloadEndpoint) {
			ep.IPv4Nets = []netip.Prefix{
				netip.MustParsePrefix("10.0.0.1/32"), netip.MustParsePrefix("10.1.2.3/24"), netip.MustParsePrefix("10.0.0.1/32"),
			}
			ep.IPv4NAT = []dataplane.NAT{{ExternalIP: netip.MustParseAddr("192.0.2.1"), InternalIP: netip.MustParseAddr("10.0.0.1")}}
			ep.IPv6NAT = []dataplane.NAT{{ExternalIP: netip.MustParseAddr("2001:db8::1")}}
		}))
		target := func(cidr string, mac net.HardwareAddr) routetable.Target {
			return routetable.Target{Type: routetable.TargetTypeLinkLocalUnicast, CIDR: netip.MustParsePrefix(cidr), DestMAC: mac}
		}
		Expect(w.v4.routes["cali1"]).To(Equal([]routetable.Target{
			target("10.0.0.1/32", mac), target("10.1.2.0/24", nil), target("192.0.2.1/32", mac),
		}))
		Expect(w.v6.routes["cali1"]).To(Equal([]routetable.Target{
			target("fd00::1/128", mac), target("2001:db8::1/128", mac),
		}))
	})

	It("does not route floating addresses where they are off, and takes them up when they are turned on", func() {
		w = newWorld(func(c *endpointmgr.Config) { c.FloatingIPs = false })
		run(pod("cali1", func(ep *dataplane.WorkloadEndpoint) {
			ep.IPv4NAT = []dataplane.NAT{{ExternalIP: netip.MustParseAddr("192.0.2.1")}}
		}))
		Expect(w.v4.cidrs("cali1")).To(Equal([]string{"10.0.0.1/32"}))
		w.m.OnUpdate(dataplane.ConfigUpdate{Config: &config.Config{FloatingIPs: true}})
		Expect(w.apply()).To(Succeed())
		Expect(w.v4.cidrs("cali1")).To(Equal([]string{"10.0.0.1/32", "192.0.2.1/32"}))
	})

	It("works without IPv6", func() {
		w = newWorld(func(c *endpointmgr.Config) { c.RoutesV6, c.IPv6Support = nil, false })
		run(pod("cali1"))
		Expect(w.status.status).To(HaveKeyWithValue(id("a"), endpointmgr.StatusUp))
		for path := range w.sysctl.values {
			Expect(path).NotTo(ContainSubstring("ipv6"))
		}
	})

	It("admin down: claimed, but no routes, no limits, status down", func() {
		run(pod("cali1"))
		run(pod("cali1", func(ep *dataplane.WorkloadEndpoint) { ep.State = dataplane.EndpointInactive }))
		Expect(w.v4.routes).To(BeEmpty())
		Expect(w.v6.routes).To(BeEmpty())
		Expect(w.qos.limits).To(HaveKeyWithValue("cali1", qos.Limits{}))
		Expect(w.status.take()).To(Equal([]string{"a up", "a down"}))
		run(pod("cali1"))
		expectUp(w)
	})

	It("admin down from the start: the interface is not configured", func() {
		run(pod("cali1", func(ep *dataplane.WorkloadEndpoint) { ep.State = dataplane.EndpointInactive }))
		Expect(w.sysctl.writes).To(BeZero())
		Expect(w.status.take()).To(Equal([]string{"a down"}))
	})

	It("loose reverse path filtering only while it may use other sources", func() {
		run(pod("cali1"))
		w.update(id("a"), pod("cali1", func(ep *dataplane.WorkloadEndpoint) {
			ep.AllowSpoofedSourcePrefixes = []netip.Prefix{netip.MustParsePrefix("172.16.0.0/12")}
		}))
		Expect(w.apply()).To(Succeed())
		Expect(w.sysctl.of("cali1")).To(HaveKeyWithValue("net/ipv4/conf/X/rp_filter", "2"))
		w.update(id("a"), pod("cali1"))
		Expect(w.apply()).To(Succeed())
		Expect(w.sysctl.of("cali1")).To(Equal(configured))
	})

	It("limits are worked out anew when the configuration changes", func() {
		run(pod("cali1"))
		w.m.OnUpdate(dataplane.ConfigUpdate{Config: &config.Config{
			FloatingIPs: true, QoSKubernetesAnnotations: true, QoSDefaultBurstBits: 1_000_000,
		}})
		Expect(w.apply()).To(Succeed())
		Expect(w.qos.limits["cali1"]).To(Equal(qos.Limits{Egress: &qos.Limit{RateBits: 30_000_000, BurstBits: 1_000_000}}))
		w.m.OnUpdate(dataplane.ConfigUpdate{Config: &config.Config{FloatingIPs: true}})
		Expect(w.apply()).To(Succeed())
		Expect(w.qos.limits["cali1"]).To(Equal(qos.Limits{}), "the annotation does not count any more")
		Expect(w.status.status).To(HaveKeyWithValue(id("a"), endpointmgr.StatusUp))
	})

	It("moving to another interface takes everything along in one apply, and is down in between", func() {
		w.link("cali2", 8, up)
		run(pod("cali1"))
		w.status.take()
		w.update(id("a"), pod("cali2"))
		Expect(w.apply()).To(Succeed())
		Expect(w.v4.routes).To(HaveLen(1))
		Expect(w.v4.cidrs("cali2")).To(Equal([]string{"10.0.0.1/32"}))
		Expect(w.qos.limits).To(Equal(map[string]qos.Limits{"cali2": rate30M}))
		Expect(w.status.take()).To(Equal([]string{"a down", "a up"}))
	})

	It("two endpoints may swap interfaces in one batch", func() {
		w.link("cali1", 7, up)
		w.link("cali2", 8, up)
		net4 := func(s string) func(*dataplane.WorkloadEndpoint) {
			return func(ep *dataplane.WorkloadEndpoint) { ep.IPv4Nets = []netip.Prefix{netip.MustParsePrefix(s)} }
		}
		w.update(id("a"), pod("cali1", net4("10.0.0.1/32")))
		w.update(id("b"), pod("cali2", net4("10.0.0.2/32")))
		Expect(w.apply()).To(Succeed())
		w.update(id("a"), pod("cali2", net4("10.0.0.1/32")))
		w.update(id("b"), pod("cali1", net4("10.0.0.2/32")))
		Expect(w.apply()).To(Succeed())
		Expect(w.v4.cidrs("cali1")).To(Equal([]string{"10.0.0.2/32"}))
		Expect(w.v4.cidrs("cali2")).To(Equal([]string{"10.0.0.1/32"}))
		Expect(w.status.status).To(Equal(map[dataplane.WorkloadEndpointID]endpointmgr.Status{
			id("a"): endpointmgr.StatusUp, id("b"): endpointmgr.StatusUp,
		}))
		Expect(w.warnings()).To(BeEmpty(), "that is no conflict")
	})
})

var _ = Describe("Bad input", func() {
	var w *world
	BeforeEach(func() {
		w = newWorld(func(c *endpointmgr.Config) {
			c.IsWorkloadIface = func(name string) bool { return strings.HasPrefix(name, "cali") }
		})
		w.link("cali1", 7, up)
		w.link("eth0", 2, up)
	})

	DescribeTable("an interface name that cannot be: endpoint down, said once, others go on",
		func(name, says string) {
			w.update(id("a"), pod("cali1"))
			w.update(id("b"), pod(name))
			Expect(w.apply()).To(Succeed())
			expectUp(w)
			Expect(w.status.status).To(HaveKeyWithValue(id("b"), endpointmgr.StatusDown))
			Expect(w.v4.routes).To(HaveLen(1))
			Expect(w.qos.limits).To(HaveLen(1))
			Expect(w.warnings()).To(ConsistOf(And(ContainSubstring("k8s b eth0"), ContainSubstring(says))))

			w.update(id("b"), pod(name))
			Expect(w.apply()).To(Succeed())
			Expect(w.warnings()).To(BeEmpty())
			w.remove(id("b"))
			Expect(w.apply()).To(Succeed())
			expectUp(w)
		},
		Entry("empty", "", "must have 1 to 15 bytes"),
		Entry("16 bytes", "cali567890123456", "must have 1 to 15 bytes"),
		Entry("slash", "cali/../all", "without slashes"),
		Entry("colon", "cali1:0", "without slashes, colons"),
		Entry("space", "cali 1", "and spaces"),
		Entry("..", "..", "must have 1 to 15 bytes"),
		Entry("the node's own", "eth0", "must begin with a prefix of workload interfaces"),
	)

	It("a bad value is named, once until it changes, and the rest counts", func() {
		bad := pod("cali1", func(ep *dataplane.WorkloadEndpoint) {
			ep.Annotations = map[string]string{
				"kubernetes.io/egress-bandwidth":  "30M",
				"kubernetes.io/ingress-bandwidth": "1",
			}
			ep.IPv4Nets = append(ep.IPv4Nets, netip.Prefix{}, netip.MustParsePrefix("fd00::2/128"), netip.MustParsePrefix("0.0.0.0/0"))
			ep.IPv6NAT = []dataplane.NAT{{}}
			ep.MAC = net.HardwareAddr{1, 2}
		})
		w.update(id("a"), bad)
		Expect(w.apply()).To(Succeed())
		Expect(w.qos.limits).To(HaveKeyWithValue("cali1", rate30M))
		Expect(w.v4.cidrs("cali1")).To(Equal([]string{"10.0.0.1/32"}))
		Expect(w.status.status).To(HaveKeyWithValue(id("a"), endpointmgr.StatusUp))
		Expect(w.warnings()).To(ConsistOf(
			ContainSubstring("kubernetes.io/ingress-bandwidth"),
			ContainSubstring("MAC 01:02: must have 6 bytes"),
			ContainSubstring("must be an IPv4 network"),
			ContainSubstring("network fd00::2/128: must be an IPv4 network"),
			ContainSubstring("network 0.0.0.0/0: must not be everything"),
			ContainSubstring("must be an IPv6 address"),
		))
		w.update(id("a"), bad)
		w.link("cali1", 7, down)
		Expect(w.apply()).To(Succeed())
		Expect(w.warnings()).To(BeEmpty())

		w.update(id("a"), pod("cali1"))
		w.update(id("a"), bad)
		Expect(w.apply()).To(Succeed())
		Expect(w.warnings()).To(BeEmpty(), "nobody saw it right")
		w.update(id("a"), pod("cali1"))
		Expect(w.apply()).To(Succeed())
		w.update(id("a"), bad)
		Expect(w.apply()).To(Succeed())
		Expect(w.warnings()).To(HaveLen(6))
	})

	It("an address of the node's own, or a network around one, gets no route, until it is no longer the node's", func() {
		w = newWorld(func(c *endpointmgr.Config) {
			c.IsWorkloadIface = func(name string) bool { return strings.HasPrefix(name, "cali") }
		})
		w.link("cali1", 7, up)
		tell := func(iface string, addrs ...string) {
			update := dataplane.IfaceAddrsUpdate{Name: iface}
			for _, a := range addrs {
				update.Addrs = append(update.Addrs, netip.MustParseAddr(a))
			}
			w.m.OnUpdate(update)
		}
		tell("eth0", "192.168.1.5", "fd01::5")
		tell("cali1", "10.0.0.1", "fe80::1") // a workload interface's say nothing about the node
		w.update(id("a"), pod("cali1", func(ep *dataplane.WorkloadEndpoint) {
			ep.IPv4Nets = append(ep.IPv4Nets, netip.MustParsePrefix("192.168.1.5/32"), netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("192.168.2.0/24"))
			ep.IPv6Nets = append(ep.IPv6Nets, netip.MustParsePrefix("fd01::/64"))
			ep.IPv4NAT = []dataplane.NAT{{ExternalIP: netip.MustParseAddr("192.168.1.6"), InternalIP: netip.MustParseAddr("10.0.0.1")}}
		}))
		Expect(w.apply()).To(Succeed())
		Expect(w.v4.cidrs("cali1")).To(Equal([]string{"10.0.0.1/32", "192.168.2.0/24", "192.168.1.6/32"}))
		Expect(w.v6.cidrs("cali1")).To(Equal([]string{"fd00::1/128"}))
		Expect(w.status.status).To(HaveKeyWithValue(id("a"), endpointmgr.StatusUp))
		Expect(w.warnings()).To(ConsistOf(
			ContainSubstring("network 192.168.1.5/32: must not hold an address of the node's own, 192.168.1.5"),
			ContainSubstring("network 192.168.0.0/16"), ContainSubstring("network fd01::/64")))

		tell("eth1", "192.168.1.5") // it moves, but stays the node's
		tell("eth0", "192.168.1.6")
		Expect(w.apply()).To(Succeed())
		Expect(w.v4.cidrs("cali1")).To(Equal([]string{"10.0.0.1/32", "192.168.2.0/24"}))

		tell("eth0")
		tell("eth1")
		Expect(w.apply()).To(Succeed())
		Expect(w.v4.cidrs("cali1")).To(Equal([]string{"10.0.0.1/32", "192.168.1.5/32", "192.168.0.0/16", "192.168.2.0/24", "192.168.1.6/32"}))
		Expect(w.v6.cidrs("cali1")).To(Equal([]string{"fd00::1/128", "fd01::/64"}))
	})

	It("an update without an endpoint and messages it does not know are ignored", func() {
		w.update(id("a"), pod("cali1"))
		w.m.OnUpdate(dataplane.WorkloadEndpointUpdate{ID: id("a")})
		w.m.OnUpdate(dataplane.ConfigUpdate{})
		w.m.OnUpdate("unknown")
		w.m.OnUpdate(nil)
		w.remove(id("never seen"))
		Expect(w.apply()).To(Succeed())
		expectUp(w)
	})
})

var _ = Describe("Sysctls", func() {
	var w *world
	BeforeEach(func() {
		w = newWorld()
		w.link("cali1", 7, up)
	})

	It("that fail keep the endpoint down, name the interface, are retried, and hold up no other endpoint", func() {
		w.sysctl.fail = func(path string) error {
			if strings.Contains(path, "/cali0/") && strings.HasSuffix(path, "proxy_arp") {
				return fmt.Errorf("write %s: %w", path, syscall.EACCES)
			}
			return nil
		}
		w.link("cali0", 6, up)
		w.update(id("0"), pod("cali0"))
		w.update(id("a"), pod("cali1"))
		err := w.apply()
		Expect(err).To(MatchError(syscall.EACCES))
		Expect(err).To(MatchError(ContainSubstring("configure interface cali0: write net/ipv4/conf/cali0/proxy_arp")))
		expectUp(w)
		Expect(w.status.status).To(HaveKeyWithValue(id("0"), endpointmgr.StatusDown))
		Expect(w.sysctl.of("cali0")).To(HaveLen(len(configured)-1-3), "the other IPv4 ones are written")

		w.sysctl.fail = nil
		Expect(w.apply()).To(Succeed())
		Expect(w.sysctl.of("cali0")).To(Equal(configured))
		Expect(w.status.status).To(HaveKeyWithValue(id("0"), endpointmgr.StatusUp))
	})

	It("of an interface that has just gone are no error: it waits", func() {
		delete(w.sysctl.ifaces, "cali1")
		w.update(id("a"), pod("cali1"))
		Expect(w.apply()).To(Succeed())
		Expect(w.status.status).To(HaveKeyWithValue(id("a"), endpointmgr.StatusDown))
		w.link("cali1", 7, gone)
		Expect(w.apply()).To(Succeed())
		w.link("cali1", 8, up)
		Expect(w.apply()).To(Succeed())
		expectUp(w)
		Expect(w.warnings()).To(BeEmpty())
	})

	It("of an interface that goes between IPv4 and IPv6 are no missing IPv6", func() {
		w.sysctl.fail = func(path string) error {
			if strings.HasPrefix(path, "net/ipv6/") {
				w.link("cali1", 7, gone)
			}
			return nil
		}
		w.update(id("a"), pod("cali1"))
		Expect(w.apply()).To(Succeed())
		Expect(w.warnings()).To(BeEmpty())
		Expect(w.status.status).To(HaveKeyWithValue(id("a"), endpointmgr.StatusDown))
	})

	It("that are missing are tried again at the next apply, should no event come", func() {
		delete(w.sysctl.ifaces, "cali1")
		w.update(id("a"), pod("cali1"))
		Expect(w.apply()).To(Succeed())
		w.sysctl.ifaces["cali1"] = true
		Expect(w.apply()).To(Succeed())
		expectUp(w)
	})

	It("of IPv6 that the kernel does not have are said once, and the endpoint is up", func() {
		w.sysctl.noIPv6 = true
		w.link("cali2", 8, up)
		w.update(id("a"), pod("cali1"))
		w.update(id("b"), pod("cali2"))
		Expect(w.apply()).To(Succeed())
		Expect(w.status.status).To(Equal(map[dataplane.WorkloadEndpointID]endpointmgr.Status{
			id("a"): endpointmgr.StatusUp, id("b"): endpointmgr.StatusUp,
		}))
		Expect(w.warnings()).To(ConsistOf(ContainSubstring("no IPv6 sysctls")))
	})

	It("are not written again without a reason", func() {
		w.update(id("a"), pod("cali1"))
		Expect(w.apply()).To(Succeed())
		writes := w.sysctl.writes
		w.update(id("a"), pod("cali1"))
		Expect(w.apply()).To(Succeed())
		Expect(w.apply()).To(Succeed())
		Expect(w.sysctl.writes).To(Equal(writes))
	})

	It("are left as they are when the endpoint goes", func() {
		w.update(id("a"), pod("cali1"))
		Expect(w.apply()).To(Succeed())
		w.remove(id("a"))
		Expect(w.apply()).To(Succeed())
		Expect(w.sysctl.of("cali1")).To(Equal(configured))
	})
})
