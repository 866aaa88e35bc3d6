package endpointmgr_test

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/manx-dataplane/manx/dataplane"
	"github.com/manx-dataplane/manx/endpointmgr"
	"github.com/manx-dataplane/manx/routetable"
)

var _ = Describe("Status", func() {
	var w *world
	BeforeEach(func() {
		w = newWorld()
		w.link("cali1", 7, up)
		w.update(id("a"), pod("cali1"))
	})

	It("is up only after the syncers are done", func() {
		Expect(w.m.CompleteDeferredWork()).To(Succeed())
		Expect(w.status.take()).To(BeEmpty())
		Expect(w.m.OnApplied(nil)).To(Succeed())
		Expect(w.status.take()).To(Equal([]string{"a up"}))
	})

	It("is lost before anything is taken away", func() {
		Expect(w.apply()).To(Succeed())
		w.status.take()
		w.link("cali1", 7, down)
		Expect(w.m.CompleteDeferredWork()).To(Succeed())
		Expect(w.status.take()).To(Equal([]string{"a down"}))
		w.remove(id("a"))
		Expect(w.m.CompleteDeferredWork()).To(Succeed())
		Expect(w.status.take()).To(Equal([]string{"a gone"}))
	})

	It("waits for syncers that failed, but what is up stays up meanwhile", func() {
		Expect(w.apply(errInjected)).To(Succeed())
		Expect(w.status.take()).To(Equal([]string{"a down"}))
		Expect(w.apply()).To(Succeed())
		Expect(w.status.take()).To(Equal([]string{"a up"}))
		w.update(id("a"), pod("cali1"))
		Expect(w.apply(errInjected)).To(Succeed())
		Expect(w.status.take()).To(BeEmpty())
	})

	It("waits for no other endpoint's interface where the syncers can tell them apart", func() {
		w = newWorld(func(c *endpointmgr.Config) {
			c.RoutesV4 = tellingTable{c.RoutesV4.(*fakeTable)}
			c.RoutesV6 = nil
			c.QoS = struct {
				*fakeQoS
				endpointmgr.PendingTeller
			}{c.QoS.(*fakeQoS), neverPending{}}
		})
		w.link("cali1", 7, up)
		w.link("cali2", 8, up)
		w.update(id("a"), pod("cali1"))
		w.update(id("b"), pod("cali2"))
		w.v4.pending["cali2"] = true
		Expect(w.apply(errInjected)).To(Succeed())
		Expect(w.status.take()).To(Equal([]string{"a up", "b down"}))
		Expect(w.apply()).To(Succeed(), "no error, but it still waits")
		Expect(w.status.take()).To(BeEmpty())
		w.v4.pending["cali2"] = false
		Expect(w.apply(errInjected)).To(Succeed(), "an error of yet another")
		Expect(w.status.take()).To(Equal([]string{"b up"}))
	})

	It("is told again when an endpoint that is up changes, and not when nothing does", func() {
		Expect(w.apply()).To(Succeed())
		w.status.take()
		Expect(w.apply()).To(Succeed())
		w.link("cali1", 7, up)
		Expect(w.apply()).To(Succeed())
		Expect(w.status.take()).To(BeEmpty())
		changed := pod("cali1")
		changed.IPv4Nets = nil
		w.m.OnUpdate(dataplane.WorkloadEndpointUpdate{ID: id("a"), Endpoint: &changed})
		Expect(w.apply()).To(Succeed())
		Expect(w.status.take()).To(Equal([]string{"a up"}))
		Expect(w.status.spec[id("a")]).To(BeIdenticalTo(&changed))
	})

	It("that could not be told is told at the next apply, and holds up no other", func() {
		w.link("cali2", 8, up)
		w.update(id("b"), pod("cali2"))
		failA := func(i dataplane.WorkloadEndpointID) error {
			if i == id("a") {
				return errInjected
			}
			return nil
		}
		w.status.fail = failA
		Expect(w.apply()).To(MatchError(ContainSubstring("report endpoint k8s a eth0 as up: injected")))
		Expect(w.status.take()).To(Equal([]string{"b up"}))
		w.status.fail = nil
		Expect(w.apply()).To(Succeed())
		Expect(w.status.take()).To(Equal([]string{"a up"}))

		w.status.fail = failA
		w.remove(id("a"))
		w.remove(id("b"))
		Expect(w.apply()).To(MatchError(ContainSubstring("report endpoint k8s a eth0 as gone: injected")))
		Expect(w.status.take()).To(Equal([]string{"b gone"}))
		Expect(w.v4.routes).To(BeEmpty())
		w.status.fail = nil
		Expect(w.apply()).To(Succeed())
		Expect(w.status.take()).To(Equal([]string{"a gone"}))
		Expect(w.apply()).To(Succeed())
		Expect(w.status.take()).To(BeEmpty())
	})

	It("down between two lives of an interface is told however often that fails", func() {
		Expect(w.apply()).To(Succeed())
		w.status.take()
		w.link("cali1", 7, gone)
		w.link("cali1", 8, up)
		w.status.fail = func(dataplane.WorkloadEndpointID) error { return errInjected }
		Expect(w.apply()).To(HaveOccurred())
		w.status.fail = nil
		Expect(w.apply()).To(Succeed())
		Expect(w.status.take()).To(Equal([]string{"a down", "a up"}))
	})

	It("gone could not be told and the endpoint came back: down, then up", func() {
		Expect(w.apply()).To(Succeed())
		w.status.take()
		w.status.fail = func(dataplane.WorkloadEndpointID) error { return errInjected }
		w.remove(id("a"))
		Expect(w.apply()).To(HaveOccurred())
		w.status.fail = nil
		w.update(id("a"), pod("cali1"))
		Expect(w.apply()).To(Succeed())
		Expect(w.status.take()).To(Equal([]string{"a down", "a up"}))
	})

	It("of all is told before the reporter hears that it was, once, and again only after an error", func() {
		w.status.allErr = errInjected
		Expect(w.m.CompleteDeferredWork()).To(Succeed())
		Expect(w.status.all).To(BeZero())
		Expect(w.m.OnApplied(nil)).To(MatchError(errInjected))
		w.status.allErr = nil
		Expect(w.apply()).To(Succeed())
		Expect(w.apply()).To(Succeed())
		Expect(w.status.all).To(Equal(2))
	})

	It("after a resync the reporter may put right what others did, once, and again only after an error", func() {
		Expect(w.apply()).To(Succeed())
		w.m.QueueResync()
		Expect(w.m.CompleteDeferredWork()).To(Succeed())
		Expect(w.status.all).To(Equal(1))
		w.status.allErr = errInjected
		Expect(w.m.OnApplied(nil)).To(MatchError(errInjected))
		w.status.allErr = nil
		Expect(w.apply()).To(Succeed())
		Expect(w.apply()).To(Succeed())
		Expect(w.status.all).To(Equal(3))
	})

	It("that can never be reported is said once and holds up nothing", func() {
		w.status.fail = func(dataplane.WorkloadEndpointID) error {
			return fmt.Errorf("too long a name: %w", endpointmgr.ErrNotReportable)
		}
		Expect(w.apply()).To(Succeed())
		Expect(w.apply()).To(Succeed())
		Expect(w.warnings()).To(ConsistOf(And(ContainSubstring("k8s a eth0"), ContainSubstring("too long a name"))))
	})

	It("is counted", func() {
		reg := prometheus.NewRegistry()
		w = newWorld(func(c *endpointmgr.Config) { c.Registerer = reg })
		w.link("cali1", 7, up)
		w.update(id("a"), pod("cali1"))
		w.update(id("b"), pod("cali2"))
		w.update(id("c"), pod("cali3"))
		inactive := pod("cali4")
		inactive.State = dataplane.EndpointInactive
		w.update(id("d"), inactive)
		Expect(w.apply()).To(Succeed())
		w.remove(id("c"))
		Expect(w.apply()).To(Succeed())
		Expect(testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP manx_dataplane_active_endpoints Number of workload endpoints that are meant to be up.
# TYPE manx_dataplane_active_endpoints gauge
manx_dataplane_active_endpoints 2
# HELP manx_dataplane_endpoints Number of workload endpoints, by the status last reported.
# TYPE manx_dataplane_endpoints gauge
manx_dataplane_endpoints{status="down"} 2
manx_dataplane_endpoints{status="up"} 1
`))).To(Succeed())
	})

	It("may have nobody who wants to know", func() {
		w = newWorld(func(c *endpointmgr.Config) { c.Status, c.Log = nil, nil })
		w.link("cali1", 7, up)
		w.update(id("a"), pod("cali1"))
		Expect(w.apply()).To(Succeed())
		Expect(w.v4.cidrs("cali1")).NotTo(BeEmpty())
	})
})

var _ = Describe("A driver", func() {
	It("gets those route tables that it can apply", func() {
		w := newWorld()
		Expect(w.m.GetRouteTableSyncers()).To(BeEmpty())
		table := struct {
			*fakeTable
			routetable.SyncerInterface
		}{fakeTable: w.v4}
		w = newWorld(func(c *endpointmgr.Config) { c.RoutesV4, c.RoutesV6 = table, nil })
		Expect(w.m.GetRouteTableSyncers()).To(Equal([]routetable.SyncerInterface{table}))
	})

	It("pays nothing for an apply that has nothing to do", func() {
		w := newWorld()
		for i := range 100 {
			name := fmt.Sprintf("cali%d", i)
			w.link(name, i+1, up)
			w.update(id(name), pod(name))
		}
		Expect(w.apply()).To(Succeed())
		Expect(testing.AllocsPerRun(10, func() { _ = w.apply() })).To(BeZero())
	})

	It("may let any number of interfaces and endpoints come and go: nothing is kept of them", func() {
		w := newWorld()
		for i := range 100 {
			name := fmt.Sprintf("cali%d", i)
			w.update(id(name), pod(name))
			w.link(name, i+1, up)
			w.link(fmt.Sprintf("eth%d", i), i+1000, up) // nobody's
			Expect(w.apply()).To(Succeed())
			w.remove(id(name))
			if i%2 == 0 {
				Expect(w.apply()).To(Succeed())
			}
			w.link(name, i+1, gone)
			w.link(fmt.Sprintf("eth%d", i), i+1000, gone)
			Expect(w.apply()).To(Succeed())
		}
		Expect(w.m.Held()).To(BeZero())
	})

	It("may call OnUpdate at any time without anything being touched", func() {
		w := newWorld()
		w.link("cali1", 7, up)
		w.update(id("a"), pod("cali1"))
		Expect(w.sysctl.writes).To(BeZero())
		Expect(w.v4.routes).To(BeEmpty())
		Expect(w.qos.limits).To(BeEmpty())
		Expect(w.status.history).To(BeEmpty())
	})
})

type neverPending struct{}

func (neverPending) Pending(string) bool { return false }
