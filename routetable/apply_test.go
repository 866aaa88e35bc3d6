package routetable_test

import (
	"fmt"
	"net/netip"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/routetable"
	"github.com/manx-dataplane/manx/rtnl"
)

// manyTargets makes n targets of a /32 each.
func manyTargets(n int) []routetable.Target {
	targets := make([]routetable.Target, n)
	for i := range targets {
		ip := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		targets[i] = routetable.Target{Type: routetable.TargetTypeLinkLocalUnicast, CIDR: netip.PrefixFrom(ip, 32)}
	}
	return targets
}

var _ = onEachKernel("Apply", func(kind worldKind) {
	var f *fixture
	BeforeEach(func() { f = newFixture(GinkgoT(), kind, nil) })

	It("sends many changes at a time", func() {
		f.addLink("cali1")
		f.SetRoutes(routetable.RouteClassLocalWorkload, "cali1", manyTargets(2000))
		f.apply()
		Expect(f.routes()).To(HaveLen(2000))
		Expect(f.spied.batches).To(BeNumerically("<=", 4))
		f.expectSettled()
		f.want("cali1")
		f.apply()
		Expect(f.routes()).To(BeEmpty())
	})

	It("tells each failing route apart in a batch that fails altogether", func() {
		f.addLink("cali1")
		targets := manyTargets(1000)
		for i := range targets {
			targets[i].Src = addr("1.2.3.4") // not an address of this host
		}
		f.SetRoutes(routetable.RouteClassLocalWorkload, "cali1", append(targets, workloadTarget("10.65.0.1/32")))
		err := f.Apply()
		Expect(err).To(MatchError(unix.EINVAL))
		Expect(err).To(MatchError(ContainSubstring("10.0.0.0/32")))
		Expect(err).To(MatchError(ContainSubstring("and 984 more errors")))
		Expect(f.routes()).To(Equal([]string{"10.65.0.1/32 dev cali1 proto 80 scope link"}))
	})

	It("does not let a failing route stop others, retries it on a fresh socket and keeps it for the next Apply", func() {
		f.addLink("cali1")
		f.apply()
		opens := f.spied.opens
		bad := func(op *rtnl.RouteOp) bool { return op.Route.Dst.String() == "10.65.0.1/32" }
		attempts := 0
		f.spied.fail = func(op *rtnl.RouteOp) error {
			if bad(op) {
				attempts++
				return errInjected
			}
			return nil
		}
		f.want("cali1", "10.65.0.1/32", "10.65.0.2/32")
		Expect(f.Apply()).To(MatchError(errInjected))
		Expect(f.routes()).To(Equal([]string{"10.65.0.2/32 dev cali1 proto 80 scope link"}))
		Expect(attempts).To(Equal(3))
		Expect(f.spied.opens).To(Equal(opens + 2))
		f.spied.fail = nil
		f.apply()
		Expect(f.routes()).To(HaveLen(2))
	})

	It("succeeds where a retry does", func() {
		f.addLink("cali1")
		failures := 2
		f.spied.fail = func(*rtnl.RouteOp) error {
			if failures--; failures >= 0 {
				return errInjected
			}
			return nil
		}
		f.want("cali1", "10.65.0.1/32")
		f.apply()
		Expect(f.routes()).To(HaveLen(1))
	})

	It("does not let a failing removal stop others", func() {
		f.addLink("cali1")
		f.want("cali1", "10.65.0.1/32", "10.65.0.2/32")
		f.apply()
		f.spied.fail = func(op *rtnl.RouteOp) error {
			if op.Delete && op.Route.Dst.String() == "10.65.0.1/32" {
				return unix.EPERM
			}
			return nil
		}
		f.want("cali1", "10.65.0.3/32")
		Expect(f.Apply()).To(MatchError(unix.EPERM))
		Expect(f.routes()).To(Equal([]string{
			"10.65.0.1/32 dev cali1 proto 80 scope link", "10.65.0.3/32 dev cali1 proto 80 scope link",
		}))
		f.spied.fail = nil
		f.apply()
		Expect(f.routes()).To(HaveLen(1))
	})

	It("removes what went in though the answer was lost, without a resync", func() {
		f.addLink("cali1")
		f.apply()
		attempts := 0
		f.spied.fail = func(*rtnl.RouteOp) error {
			if attempts++; attempts < 3 {
				return errInjected
			}
			return nil
		}
		f.spied.failAfter = func() error { return unix.ENOBUFS }
		f.want("cali1", "10.65.0.1/32")
		Expect(f.Apply()).To(MatchError(unix.ENOBUFS))
		Expect(f.routes()).To(HaveLen(1))
		f.spied.failAfter = nil
		f.want("cali1")
		f.apply()
		Expect(f.routes()).To(BeEmpty())
	})

	It("adds again what it removed though the answer was lost, without a resync", func() {
		f.addLink("cali1")
		f.want("cali1", "10.65.0.1/32")
		f.apply()
		attempts := 0
		f.spied.fail = func(*rtnl.RouteOp) error {
			if attempts++; attempts > 1 {
				return errInjected
			}
			return nil
		}
		f.spied.failAfter = func() error { return unix.ENOBUFS }
		f.want("cali1")
		Expect(f.Apply()).To(MatchError(errInjected))
		Expect(f.routes()).To(BeEmpty())
		f.spied.fail, f.spied.failAfter = nil, nil
		f.want("cali1", "10.65.0.1/32")
		f.apply()
		Expect(f.routes()).To(HaveLen(1))
	})

	for _, cause := range []string{"another program has removed it", "the answer to its removal was lost"} {
		It("keeps a route of another priority where it removes priority 0 and "+cause, func() {
			index := f.addLink("cali1")
			plain, metric := workloadTarget("10.65.0.1/32"), workloadTarget("10.65.0.1/32")
			metric.Priority = 50
			f.SetRoutes(routetable.RouteClassLocalWorkload, "cali1", []routetable.Target{plain, metric})
			f.apply()
			f.SetRoutes(routetable.RouteClassLocalWorkload, "cali1", []routetable.Target{metric})
			if cause == "another program has removed it" {
				delRoute(f.t, f.w, routeVia(tableNumber, "10.65.0.1/32", index, 80))
			} else {
				lost := false
				f.spied.fail = func(*rtnl.RouteOp) error { return nil }
				f.spied.failAfter = func() (err error) {
					if !lost {
						err, lost = unix.ENOBUFS, true
					}
					return err
				}
			}
			f.apply()
			Expect(f.routes()).To(Equal([]string{"10.65.0.1/32 dev cali1 proto 80 scope link metric 50"}))
			f.expectSettled()
		})
	}

	It("fails where no socket can be opened, and recovers", func() {
		f.addLink("cali1")
		f.want("cali1", "10.65.0.1/32")
		f.spied.failOpen = func() error { return errInjected }
		Expect(f.Apply()).To(MatchError(errInjected))
		f.spied.failOpen = nil
		f.apply()
		Expect(f.routes()).To(HaveLen(1))
	})

	for _, errno := range []unix.Errno{unix.ENODEV, unix.ENETDOWN, unix.EINVAL, unix.ENETUNREACH, unix.EHOSTUNREACH} {
		It(fmt.Sprintf("takes %q for an error while the interface is up", errno), func() {
			f.addLink("cali1")
			f.want("cali1", "10.65.0.1/32")
			f.spied.fail = func(*rtnl.RouteOp) error { return errno }
			Expect(f.Apply()).To(MatchError(errno))
			f.spied.fail = nil
			f.apply()
			Expect(f.routes()).To(HaveLen(1))
		})
	}

	It("writes routes that a gateway needs before those that need it, and removals first", func() {
		f.addLink("eth0")
		must(f.t, f.w.AddAddress(indexOf(f.t, f.w, "eth0"), prefix("192.168.1.1/32")))
		f.SetRoutes(routetable.RouteClassNoEncap, "eth0", []routetable.Target{
			{Type: routetable.TargetTypeNoEncap, CIDR: prefix("10.0.0.0/24"), GW: addr("192.168.1.7")},
			{Type: routetable.TargetTypeLinkLocalUnicast, CIDR: prefix("192.168.1.7/32")},
		})
		f.apply()
		Expect(f.routes()).To(HaveLen(2))
		Expect(f.spied.opens).To(Equal(1), "without a retry")
	})

	It("allocates nothing and makes no call where there is nothing to do", func() {
		f.addLink("cali1")
		f.SetRoutes(routetable.RouteClassLocalWorkload, "cali1", manyTargets(100))
		f.apply()
		f.spied.ops, f.spied.dumps, f.spied.batches = nil, nil, 0
		var err error
		allocations := testing.AllocsPerRun(100, func() { err = f.Apply() })
		Expect(err).NotTo(HaveOccurred())
		Expect(allocations).To(BeZero())
		Expect(f.spied.batches).To(BeZero())
		Expect(f.spied.dumps).To(BeEmpty())
	})

	It("counts what it does, for each table and family by itself", func() {
		registry := prometheus.NewRegistry()
		f.conf.Registerer = registry
		f.restart()
		other := f.conf
		other.Table = 1000
		Expect(routetable.New(other).Name()).To(Equal("routetable-ipv4-1000"))
		other.IPVersion = 6
		Expect(routetable.New(other).Name()).To(Equal("routetable-ipv6-1000"))
		Expect(f.Name()).To(Equal("routetable-ipv4"))
		f.addLink("cali1")
		f.want("cali1", "10.65.0.1/32")
		f.want("cali2", "10.65.0.2/32") // which does not exist
		f.apply()
		Expect(testutil.GatherAndCount(registry, "manx_routetable_routes")).To(Equal(3))
		gauge := func(name string) (value float64) {
			families, err := registry.Gather()
			Expect(err).NotTo(HaveOccurred())
			for _, family := range families {
				for _, metric := range family.GetMetric() {
					if family.GetName() == name {
						value += metric.GetGauge().GetValue()
					}
				}
			}
			return value
		}
		Expect(gauge("manx_routetable_wanted_routes")).To(Equal(2.0))
		Expect(gauge("manx_routetable_routes")).To(Equal(1.0))
		problems, err := testutil.GatherAndLint(registry)
		Expect(err).NotTo(HaveOccurred())
		Expect(problems).To(BeEmpty())
	})
})

var _ = Describe("New", func() {
	It("panics without what it cannot do without", func() {
		open := func() (routetable.Kernel, error) { return nil, errInjected }
		Expect(func() { routetable.New(routetable.Config{Open: open}) }).To(Panic())
		Expect(func() { routetable.New(routetable.Config{Ownership: routetable.ExclusivePolicy{}}) }).To(Panic())
		Expect(func() {
			routetable.New(routetable.Config{Open: open, Ownership: routetable.ExclusivePolicy{}, IPVersion: 5})
		}).To(Panic())
	})
})
