package routetable_test

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/routetable"
	"github.com/manx-dataplane/manx/rtnl"
)

// onEachKernel runs the same specs against mocks and the real kernel.
func onEachKernel(text string, specs func(kind worldKind)) bool {
	for _, kind := range []worldKind{mockWorlds, realWorlds} {
		Describe(text+" ("+kind.name+")", func() { specs(kind) })
	}
	return true
}

var errInjected = errors.New("injected")

var _ = onEachKernel("local workload routes", func(kind worldKind) {
	var f *fixture
	BeforeEach(func() { f = newFixture(GinkgoT(), kind, nil) })

	It("programs routes through an interface that is up", func() {
		f.addLink("cali1")
		f.want("cali1", "10.65.0.1/32", "10.65.1.0/24")
		f.apply()
		Expect(f.routes()).To(Equal([]string{
			"10.65.0.1/32 dev cali1 proto 80 scope link",
			"10.65.1.0/24 dev cali1 proto 80 scope link",
		}))
		f.expectSettled()
	})

	It("does no I/O before Apply", func() {
		f.addLink("cali1")
		f.want("cali1", "10.65.0.1/32")
		Expect(f.spied.opens).To(BeZero())
	})

	It("waits for an interface that does not exist, without an error", func() {
		f.want("cali1", "10.65.0.1/32")
		f.apply()
		Expect(f.routes()).To(BeEmpty())
		f.addLink("cali1")
		f.apply()
		Expect(f.routes()).To(HaveLen(1))
	})

	It("waits for an interface that is down, without an error", func() {
		index := f.addLink("cali1")
		setDown(f.t, f.w, "cali1")
		f.tell("cali1")
		f.want("cali1", "10.65.0.1/32")
		f.apply()
		Expect(f.routes()).To(BeEmpty())
		setUp(f.t, f.w, "cali1")
		f.OnIfaceStateChanged("cali1", index, up)
		f.apply()
		Expect(f.routes()).To(HaveLen(1))
	})

	It("updates and removes single routes", func() {
		f.addLink("cali1")
		f.want("cali1", "10.65.0.1/32")
		f.RouteUpdate(routetable.RouteClassLocalWorkload, "cali1", workloadTarget("10.65.0.2/32"))
		f.apply()
		Expect(f.routes()).To(HaveLen(2))
		f.RouteRemove(routetable.RouteClassLocalWorkload, "cali1", netip.MustParsePrefix("10.65.0.1/32"))
		f.apply()
		Expect(f.routes()).To(Equal([]string{"10.65.0.2/32 dev cali1 proto 80 scope link"}))
	})

	It("makes SetRoutes' targets the only ones", func() {
		f.addLink("cali1")
		f.want("cali1", "10.65.0.1/32", "10.65.0.2/32")
		f.apply()
		f.want("cali1", "10.65.0.2/32", "10.65.0.3/32")
		f.spied.ops = nil
		f.apply()
		Expect(f.spied.ops).To(HaveLen(2), "one removal and one addition")
		Expect(f.routes()).To(Equal([]string{
			"10.65.0.2/32 dev cali1 proto 80 scope link",
			"10.65.0.3/32 dev cali1 proto 80 scope link",
		}))
	})

	It("writes nothing where set, removed and set back come before one Apply", func() {
		f.addLink("cali1")
		f.want("cali1", "10.65.0.1/32")
		f.apply()
		f.spied.ops = nil
		f.want("cali1")
		f.want("cali1", "10.65.0.1/32")
		f.RouteRemove(routetable.RouteClassLocalWorkload, "cali1", netip.MustParsePrefix("10.65.0.1/32"))
		f.RouteUpdate(routetable.RouteClassLocalWorkload, "cali1", workloadTarget("10.65.0.1/32"))
		f.apply()
		Expect(f.spied.ops).To(BeEmpty())
	})

	It("removes at once what it wrote itself, however new the interface", func() {
		f.addLink("cali1")
		f.want("cali1", "10.65.0.1/32")
		f.apply()
		f.want("cali1")
		f.apply()
		Expect(f.routes()).To(BeEmpty())
	})

	It("takes over what an earlier life wrote, without a write", func() {
		f.addLink("cali1")
		f.want("cali1", "10.65.0.1/32")
		f.apply()
		f.restart()
		f.want("cali1", "10.65.0.1/32")
		f.apply()
		Expect(f.spied.ops).To(BeEmpty())
		f.want("cali1")
		f.apply()
		Expect(f.routes()).To(BeEmpty(), "what was wanted needs no grace period")
	})

	It("moves a route to the interface that wants it now", func() {
		f.addLink("cali1")
		f.addLink("cali2")
		f.want("cali1", "10.65.0.1/32")
		f.apply()
		f.want("cali1")
		f.want("cali2", "10.65.0.1/32")
		f.spied.ops = nil
		f.apply()
		Expect(f.routes()).To(Equal([]string{"10.65.0.1/32 dev cali2 proto 80 scope link"}))
		Expect(f.spied.ops).To(HaveLen(1), "replaced in place")
	})

	It("puts the table's protocol and source address into routes, and a target's own", func() {
		f.conf.Protocol = 99
		f.conf.SourceAddress = netip.MustParseAddr("192.168.7.1")
		f.restart()
		index := f.addLink("cali1")
		must(f.t, f.w.AddAddress(index, netip.MustParsePrefix("192.168.7.1/32")))
		must(f.t, f.w.AddAddress(index, netip.MustParsePrefix("192.168.7.2/32")))
		own := workloadTarget("10.65.0.2/32")
		own.Protocol, own.Src = 98, netip.MustParseAddr("192.168.7.2")
		f.SetRoutes(routetable.RouteClassLocalWorkload, "cali1", []routetable.Target{workloadTarget("10.65.0.1/32"), own})
		f.apply()
		Expect(f.routes()).To(Equal([]string{
			"10.65.0.1/32 dev cali1 proto 99 scope link src 192.168.7.1",
			"10.65.0.2/32 dev cali1 proto 98 scope link src 192.168.7.2",
		}))
		f.expectSettled()
	})

	It("changes a route in place", func() {
		f.addLink("cali1")
		f.want("cali1", "10.65.0.1/32")
		f.apply()
		target := workloadTarget("10.65.0.1/32")
		target.MTU = 1400
		f.spied.ops = nil
		f.RouteUpdate(routetable.RouteClassLocalWorkload, "cali1", target)
		f.apply()
		Expect(f.spied.ops).To(HaveLen(1))
		Expect(f.routes()).To(Equal([]string{"10.65.0.1/32 dev cali1 proto 80 scope link mtu 1400"}))
		f.expectSettled()
	})

	It("serves IPv6", func() {
		f.conf.IPVersion = 6
		f.restart()
		f.addLink("cali1")
		f.want("cali1", "fd00:65::1/128", "fd00:65:1::/64")
		f.apply()
		Expect(f.routes()).To(Equal([]string{
			"fd00:65:1::/64 dev cali1 proto 80",
			"fd00:65::1/128 dev cali1 proto 80",
		}))
		f.expectSettled()
		f.want("cali1")
		f.apply()
		Expect(f.routes()).To(BeEmpty())
	})
})

var _ = onEachKernel("resync", func(kind worldKind) {
	var f *fixture
	var index int
	BeforeEach(func() {
		f = newFixture(GinkgoT(), kind, nil)
		index = f.addLink("cali1")
		f.want("cali1", "10.65.0.1/32", "10.65.0.2/32")
		f.apply()
	})
	good := []string{"10.65.0.1/32 dev cali1 proto 80 scope link", "10.65.0.2/32 dev cali1 proto 80 scope link"}

	for _, resync := range []struct {
		name  string
		queue func()
	}{
		{"a full resync", func() { f.QueueResync() }},
		{"a resync of the interface", func() { f.QueueResyncIface("cali1") }},
	} {
		It(resync.name+" puts back what others removed", func() {
			delRoute(f.t, f.w, routeVia(tableNumber, "10.65.0.1/32", index, 80))
			resync.queue()
			f.apply()
			Expect(f.routes()).To(Equal(good))
		})

		It(resync.name+" changes back what others changed", func() {
			changed := routeVia(tableNumber, "10.65.0.1/32", index, 80)
			changed.MTU = 1300
			addRoute(f.t, f.w, changed)
			resync.queue()
			f.apply()
			Expect(f.routes()).To(Equal(good))
		})

		It(resync.name+" removes what others added", func() {
			addRoute(f.t, f.w, routeVia(tableNumber, "10.65.0.3/32", index, 3))
			resync.queue()
			f.apply()
			Expect(f.routes()).To(Equal(good))
		})
	}

	It("reads the table once, and an interface through the kernel's filter", func() {
		f.spied.dumps = nil
		f.QueueResync()
		f.apply()
		Expect(f.spied.dumps).To(Equal([]rtnl.RouteFilter{{Family: unix.AF_INET, Table: tableNumber}}))
		f.spied.dumps = nil
		f.QueueResyncIface("cali1")
		f.apply()
		Expect(f.spied.dumps).To(Equal([]rtnl.RouteFilter{{Family: unix.AF_INET, Table: tableNumber, IfIndex: index}}))
	})

	It("reads the table once instead of many interfaces", func() {
		f.spied.dumps = nil
		for _, name := range []string{"cali1", "cali2", "cali3", "cali4", "cali5"} {
			f.QueueResyncIface(name)
		}
		f.apply()
		Expect(f.spied.dumps).To(Equal([]rtnl.RouteFilter{{Family: unix.AF_INET, Table: tableNumber}}))
	})

	It("begins an interrupted dump anew", func() {
		delRoute(f.t, f.w, routeVia(tableNumber, "10.65.0.1/32", index, 80))
		interruptions := 3
		f.spied.failDump = func() error {
			if interruptions--; interruptions >= 0 {
				return unix.EINTR
			}
			return nil
		}
		f.QueueResync()
		f.apply()
		Expect(f.routes()).To(Equal(good))
	})

	for _, restarted := range []bool{false, true} {
		It(fmt.Sprintf("copes with dumps of a busy table that miss routes which are there (after a restart: %v)", restarted), func() {
			f.SetRoutes(routetable.RouteClassLocalWorkload, "cali1", manyTargets(200))
			f.apply()
			before := f.routes()
			if restarted {
				f.restart()
				f.SetRoutes(routetable.RouteClassLocalWorkload, "cali1", manyTargets(200))
			}
			f.spied.misses = func(dump, route int) bool { return (7*dump+route)%10 == 0 }
			f.QueueResync()
			f.apply()
			Expect(f.routes()).To(Equal(before))
			f.spied.misses = nil
			f.expectSettled()
		})
	}

	It("goes on writing where the kernel cannot be read any more, and says so", func() {
		f.spied.failDump = func() error { return errInjected }
		f.QueueResync()
		f.want("cali1", "10.65.0.9/32")
		Expect(f.Apply()).To(MatchError(errInjected))
		Expect(f.routes()).To(Equal([]string{"10.65.0.9/32 dev cali1 proto 80 scope link"}))
		f.spied.failDump = nil
		f.spied.dumps = nil
		f.apply()
		Expect(f.spied.dumps).NotTo(BeEmpty(), "the resync was still queued")
	})

	It("writes routes of a link that was down again though the kernel cannot be read any more", func() {
		setDown(f.t, f.w, "cali1")
		setUp(f.t, f.w, "cali1")
		f.OnIfaceStateChanged("cali1", index, down)
		f.OnIfaceStateChanged("cali1", index, up)
		f.spied.failLink = func() error { return errInjected }
		f.QueueResync()
		Expect(f.Apply()).To(MatchError(errInjected))
		Expect(f.routes()).To(Equal(good))
	})

	It("writes nothing before the table has been read once", func() {
		f.restart()
		f.spied.failDump = func() error { return errInjected }
		f.want("cali1", "10.65.0.9/32")
		Expect(f.Apply()).To(MatchError(errInjected))
		Expect(f.spied.ops).To(BeEmpty())
		Expect(f.routes()).To(Equal(good))
	})
})

// What mocks do not model: a second route of the same key, other metrics.
var _ = Describe("resync (the Linux kernel, by ip)", func() {
	var f *fixture
	BeforeEach(func() {
		f = newFixture(GinkgoT(), realWorlds, nil)
		f.addLink("cali1")
		f.want("cali1", "10.65.0.1/32", "10.65.0.2/32")
		f.apply()
	})
	good := []string{"10.65.0.1/32 dev cali1 proto 80 scope link", "10.65.0.2/32 dev cali1 proto 80 scope link"}

	It("repairs routes to which others gave what no target has", func() {
		runIn(f, "ip", "route", "replace", "10.65.0.1/32", "dev", "cali1", "proto", "80", "scope", "link", "initcwnd", "20")
		runIn(f, "ip", "route", "replace", "10.65.0.2/32", "dev", "cali1", "proto", "80", "scope", "link", "realm", "7")
		f.spied.ops = nil
		f.QueueResync()
		f.apply()
		Expect(f.spied.ops).To(HaveLen(2))
		f.expectSettled()
	})

	It("removes what was appended behind a route of ours", func() {
		runIn(f, "ip", "route", "append", "10.65.0.1/32", "dev", "cali1", "mtu", "1300", "proto", "80", "scope", "link")
		runIn(f, "ip", "route", "prepend", "10.65.0.2/32", "dev", "cali1", "mtu", "1300", "proto", "80", "scope", "link")
		Expect(f.routes()).To(HaveLen(4))
		f.QueueResync()
		f.apply()
		Expect(f.routes()).To(Equal(good))
		f.expectSettled()
	})

	for _, wanted := range []bool{true, false} {
		It(fmt.Sprintf("ends right where the kernel takes a route of ours for the one appended behind it (wanted: %v)", wanted), func() {
			target := workloadTarget("10.65.0.1/32")
			target.MTU = 1400
			f.RouteUpdate(routetable.RouteClassLocalWorkload, "cali1", target)
			f.apply()
			runIn(f, "ip", "route", "append", "10.65.0.1/32", "dev", "cali1", "mtu", "1300", "proto", "80", "scope", "link")
			runIn(f, "ip", "route", "append", "10.65.0.1/32", "dev", "cali1", "proto", "80", "scope", "link")
			want := []string{"10.65.0.1/32 dev cali1 proto 80 scope link mtu 1400", good[1]}
			if !wanted {
				f.want("cali1", "10.65.0.2/32")
				want = want[1:]
			}
			f.QueueResync()
			f.apply()
			Expect(f.routes()).To(Equal(want))
			f.expectSettled()
		})
	}

	It("removes an IPv6 route of ours that was appended behind one", func() {
		f = newFixture(GinkgoT(), realWorlds, func(c *routetable.Config) { c.IPVersion = 6 })
		f.addLink("cali1")
		f.addLink("cali2")
		f.want("cali1", "fd00:65::1/128")
		f.apply()
		runIn(f, "ip", "-6", "route", "append", "fd00:65::1/128", "dev", "cali2", "proto", "80")
		Expect(f.routes()).To(HaveLen(2))
		f.want("cali2", "fd00:65::2/128") // no grace period
		f.QueueResync()
		f.apply()
		Expect(f.routes()).To(Equal([]string{"fd00:65::1/128 dev cali1 proto 80", "fd00:65::2/128 dev cali2 proto 80"}))
		f.expectSettled()
	})

	It("takes an IPv6 route for certain sources neither for its own nor for the one that is wanted", func() {
		f = newFixture(GinkgoT(), realWorlds, func(c *routetable.Config) { c.IPVersion, c.GracePeriod = 6, -1 })
		f.addLink("cali1")
		runIn(f, "ip", "-6", "route", "add", "fd00:65::1/128", "from", "fd01::/64", "dev", "cali1", "proto", "80")
		f.want("cali1", "fd00:65::1/128")
		f.apply()
		Expect(f.routes()).To(Equal([]string{"fd00:65::1/128 dev cali1 proto 80"}))
		f.expectSettled()
		f.want("cali1")
		f.apply()
		Expect(f.routes()).To(BeEmpty())
	})

	It("leaves another program's route behind one of ours alone, whatever becomes of ours", func() {
		f.addLink("eth0")
		runIn(f, "ip", "route", "append", "10.65.0.1/32", "dev", "eth0", "proto", "200", "scope", "link")
		foreign := "10.65.0.1/32 dev eth0 proto 200 scope link"
		f.QueueResync()
		f.apply()
		Expect(f.routes()).To(ContainElement(foreign))
		target := workloadTarget("10.65.0.1/32")
		target.MTU = 1300
		f.RouteUpdate(routetable.RouteClassLocalWorkload, "cali1", target)
		f.apply()
		Expect(f.routes()).To(ContainElements(foreign, "10.65.0.1/32 dev cali1 proto 80 scope link mtu 1300"))
		f.expectSettled()
		f.want("cali1")
		f.apply()
		Expect(f.routes()).To(Equal([]string{foreign}))
		f.expectSettled()
	})
})

var _ = onEachKernel("grace period", func(kind worldKind) {
	var f *fixture
	var index int
	BeforeEach(func() {
		f = newFixture(GinkgoT(), kind, nil)
		index = addLink(f.t, f.w, "cali1", 0)
		addRoute(f.t, f.w, routeVia(tableNumber, "10.65.0.1/32", index, 3))
		f.OnIfaceStateChanged("cali1", index, up)
		f.apply()
	})

	It("spares routes on an unclaimed interface of ours, then removes them", func() {
		Expect(f.routes()).To(HaveLen(1))
		at, ok := f.NextRecheck()
		Expect(ok).To(BeTrue())
		Expect(at).To(Equal(f.clock.Now().Add(10 * time.Second)))
		f.clock.SetTime(at.Add(-time.Nanosecond))
		f.apply()
		Expect(f.routes()).To(HaveLen(1))
		f.clock.SetTime(at)
		f.apply()
		Expect(f.routes()).To(BeEmpty())
		_, ok = f.NextRecheck()
		Expect(ok).To(BeFalse())
	})

	It("counts from when the interface was first seen, not from its last change", func() {
		f.clock.SetTime(f.clock.Now().Add(6 * time.Second))
		f.OnIfaceStateChanged("cali1", index, down)
		f.OnIfaceStateChanged("cali1", index, up)
		f.QueueResync()
		f.apply()
		Expect(f.routes()).To(HaveLen(1))
		f.clock.SetTime(f.clock.Now().Add(4 * time.Second))
		f.apply()
		Expect(f.routes()).To(BeEmpty())
	})

	It("ends as soon as the interface is claimed", func() {
		f.want("cali1", "10.65.0.2/32")
		f.apply()
		Expect(f.routes()).To(Equal([]string{"10.65.0.2/32 dev cali1 proto 80 scope link"}))
	})

	It("lets a claim have the spared route", func() {
		f.want("cali1", "10.65.0.1/32")
		f.spied.ops = nil
		f.apply()
		Expect(f.spied.ops).To(HaveLen(1))
		Expect(f.routes()).To(Equal([]string{"10.65.0.1/32 dev cali1 proto 80 scope link"}))
	})

	It("is not inherited by the next interface of the name", func() {
		f.clock.SetTime(f.clock.Now().Add(20 * time.Second))
		f.apply()
		delLink(f.t, f.w, "cali1")
		f.OnIfaceStateChanged("cali1", index, absent)
		f.apply()
		next := addLink(f.t, f.w, "cali1", 0)
		addRoute(f.t, f.w, routeVia(tableNumber, "10.65.0.1/32", next, 3))
		f.OnIfaceStateChanged("cali1", next, up)
		f.apply()
		Expect(f.routes()).To(HaveLen(1), "a new interface has a grace period of its own")
	})

	It("does not apply where it is switched off", func() {
		f.conf.GracePeriod = -1
		f.restart()
		f.apply()
		Expect(f.routes()).To(BeEmpty())
	})

	It("notices routes that were made before the interface was heard of", func() {
		later := addLink(f.t, f.w, "cali2", 0)
		addRoute(f.t, f.w, routeVia(tableNumber, "10.65.0.2/32", later, 3))
		f.OnIfaceStateChanged("cali2", later, up)
		f.apply()
		f.clock.SetTime(f.clock.Now().Add(10 * time.Second))
		f.apply()
		Expect(f.routes()).To(BeEmpty())
	})
})

// runIn runs a command in a fixture's real namespace.
func runIn(f *fixture, args ...string) {
	f.t.Helper()
	must(f.t, f.w.(*realWorld).ns.Do(func() error { return run(args...) }))
}
