package endpointmgr_test

import (
	"fmt"
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/manx-dataplane/manx/dataplane"
	"github.com/manx-dataplane/manx/endpointmgr"
	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/qos"
)

const (
	up   = ifacemonitor.StateUp
	down = ifacemonitor.StateDown
	gone = ifacemonitor.StateNotPresent
)

var rate30M = qos.Limits{Egress: &qos.Limit{RateBits: 30_000_000, BurstBits: qos.DefaultBurst}}

// configured is what an interface with an ordinary endpoint has.
var configured = map[string]string{
	"net/ipv4/conf/X/rp_filter":    "1",
	"net/ipv4/conf/X/proxy_arp":    "1",
	"net/ipv4/conf/X/forwarding":   "1",
	"net/ipv4/neigh/X/proxy_delay": "0",
	"net/ipv6/conf/X/accept_ra":    "0",
	"net/ipv6/conf/X/proxy_ndp":    "1",
	"net/ipv6/conf/X/forwarding":   "1",
}

// expectUp checks that everything of pod("cali1") is there.
func expectUp(w *world) {
	GinkgoHelper()
	Expect(w.v4.cidrs("cali1")).To(Equal([]string{"10.0.0.1/32"}))
	Expect(w.v6.cidrs("cali1")).To(Equal([]string{"fd00::1/128"}))
	Expect(w.qos.limits).To(HaveKeyWithValue("cali1", rate30M))
	Expect(w.sysctl.of("cali1")).To(Equal(configured))
	Expect(w.status.status).To(HaveKeyWithValue(id("a"), endpointmgr.StatusUp))
}

// expectNothing checks that nothing is held for anyone.
func expectNothing(w *world) {
	GinkgoHelper()
	Expect(w.v4.routes).To(BeEmpty())
	Expect(w.v6.routes).To(BeEmpty())
	Expect(w.qos.limits).To(BeEmpty())
	Expect(w.status.status).To(BeEmpty())
}

var _ = Describe("The order of endpoint and interface", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	It("does not matter at the start: interface first", func() {
		w.link("cali1", 7, down)
		Expect(w.apply()).To(Succeed())
		w.link("cali1", 7, up)
		Expect(w.apply()).To(Succeed())
		w.update(id("a"), pod("cali1"))
		Expect(w.apply()).To(Succeed())
		expectUp(w)
	})

	It("does not matter at the start: endpoint first", func() {
		w.update(id("a"), pod("cali1"))
		Expect(w.apply()).To(Succeed())
		Expect(w.status.take()).To(Equal([]string{"a down"}))
		w.link("cali1", 7, up)
		Expect(w.apply()).To(Succeed())
		expectUp(w)
	})

	It("does not matter at removal: endpoint first", func() {
		w.update(id("a"), pod("cali1"))
		w.link("cali1", 7, up)
		Expect(w.apply()).To(Succeed())
		w.remove(id("a"))
		Expect(w.apply()).To(Succeed())
		expectNothing(w)
		w.link("cali1", 7, gone)
		Expect(w.apply()).To(Succeed())
		expectNothing(w)
	})

	It("does not matter at removal: interface first", func() {
		w.update(id("a"), pod("cali1"))
		w.link("cali1", 7, up)
		Expect(w.apply()).To(Succeed())
		w.status.take()
		w.link("cali1", 7, gone)
		Expect(w.apply()).To(Succeed())
		Expect(w.status.take()).To(Equal([]string{"a down"}))
		w.remove(id("a"))
		Expect(w.apply()).To(Succeed())
		Expect(w.status.take()).To(Equal([]string{"a gone"}))
		expectNothing(w)
	})

	DescribeTable("interface gone and back: programmed and configured anew, and down in between",
		func(index int, inOneBatch bool) {
			w.update(id("a"), pod("cali1"))
			w.link("cali1", 204, up)
			Expect(w.apply()).To(Succeed())
			w.status.take()
			w.link("cali1", 204, gone)
			if !inOneBatch {
				Expect(w.apply()).To(Succeed())
				Expect(w.sysctl.of("cali1")).To(BeEmpty())
			}
			w.link("cali1", index, up)
			Expect(w.apply()).To(Succeed())
			Expect(w.status.take()).To(Equal([]string{"a down", "a up"}))
			expectUp(w)
		},
		Entry("same index", 204, false),
		Entry("higher index", 205, false),
		Entry("lower index", 83, false),
		Entry("same index, in one batch", 204, true),
		Entry("higher index, in one batch", 205, true),
		Entry("lower index, in one batch", 83, true),
	)

	It("down and up again: reported down, then up, and configured anew", func() {
		w.update(id("a"), pod("cali1"))
		w.link("cali1", 7, up)
		Expect(w.apply()).To(Succeed())
		w.status.take()
		w.link("cali1", 7, down)
		Expect(w.apply()).To(Succeed())
		Expect(w.status.take()).To(Equal([]string{"a down"}))
		Expect(w.v4.cidrs("cali1")).NotTo(BeEmpty(), "the table knows itself that the interface is down")
		clear(w.sysctl.values)
		w.link("cali1", 7, up)
		Expect(w.apply()).To(Succeed())
		expectUp(w)
	})

	It("gone and back with the same index while events were lost: configured anew by a resync, and never reported down", func() {
		w.update(id("a"), pod("cali1"))
		w.link("cali1", 7, up)
		Expect(w.apply()).To(Succeed())
		w.status.take()
		clear(w.sysctl.values)
		Expect(w.apply()).To(Succeed())
		Expect(w.sysctl.of("cali1")).To(BeEmpty(), "nobody has told")
		w.m.QueueResync()
		Expect(w.apply()).To(Succeed())
		expectUp(w)
		Expect(w.status.take()).To(BeEmpty())
	})

	It("an older index that speaks late changes nothing (case B)", func() {
		w.link("cali1", 83, up)
		w.update(id("a"), pod("cali1"))
		Expect(w.apply()).To(Succeed())
		w.sysctl.values = map[string]string{} // 204 is a new interface
		for _, e := range []struct {
			index int
			state ifacemonitor.State
		}{{204, down}, {204, up}, {83, down}, {83, gone}, {204, up}} {
			w.tellLink("cali1", e.index, e.state)
			Expect(w.apply()).To(Succeed())
		}
		expectUp(w)
		Expect(w.status.take()).To(Equal([]string{"a up", "a down", "a up"}))
	})
})

var _ = Describe("Two endpoints on one interface", func() {
	var w *world
	BeforeEach(func() {
		w = newWorld()
		w.link("cali1", 7, up)
	})
	second := func(ep *dataplane.WorkloadEndpoint) {
		ep.IPv4Nets = []netip.Prefix{netip.MustParsePrefix("10.0.0.2/32")}
		ep.Annotations = nil
	}

	DescribeTable("the lower ID wins whoever comes first; the other takes over when it goes",
		func(first, then string) {
			eps := map[string]dataplane.WorkloadEndpoint{"a": pod("cali1"), "b": pod("cali1", second)}
			w.update(id(first), eps[first])
			Expect(w.apply()).To(Succeed())
			w.update(id(then), eps[then])
			Expect(w.apply()).To(Succeed())
			expectUp(w)
			Expect(w.status.status).To(HaveKeyWithValue(id("b"), endpointmgr.StatusDown))
			warnings := w.warnings()
			Expect(warnings).To(HaveLen(1))
			Expect(warnings[0]).To(And(ContainSubstring("k8s b eth0"), ContainSubstring("claimed by k8s a eth0")))
			w.update(id("b"), eps["b"])
			Expect(w.apply()).To(Succeed())
			Expect(w.warnings()).To(BeEmpty(), "said once")

			w.remove(id("a"))
			Expect(w.apply()).To(Succeed())
			Expect(w.v4.cidrs("cali1")).To(Equal([]string{"10.0.0.2/32"}))
			Expect(w.qos.limits).To(Equal(map[string]qos.Limits{"cali1": {}}))
			Expect(w.status.status).To(Equal(map[dataplane.WorkloadEndpointID]endpointmgr.Status{id("b"): endpointmgr.StatusUp}))
		},
		Entry("winner first", "a", "b"),
		Entry("winner second", "b", "a"),
	)

	It("health names the one that waits and the one that it waits for, until it need not", func() {
		w.update(id("a"), pod("cali1"))
		w.update(id("b"), pod("cali1", second))
		Expect(w.apply()).To(Succeed())
		Expect(w.m.HealthDetail()).To(Equal([]string{"endpoint k8s b eth0 is down: interface cali1 is claimed by k8s a eth0"}))
		w.remove(id("a"))
		Expect(w.apply()).To(Succeed())
		Expect(w.m.HealthDetail()).To(BeEmpty())
		for i := range 20 {
			w.update(id(fmt.Sprintf("c%02d", i)), pod("cali1"))
		}
		Expect(w.apply()).To(Succeed())
		Expect(w.m.HealthDetail()).To(And(HaveLen(11), ContainElement("and 10 more endpoints are waiting for an interface")))
		for i := range 20 {
			w.update(id(fmt.Sprintf("c%02d", i)), pod(fmt.Sprintf("cali%d", 100+i)))
		}
		Expect(w.apply()).To(Succeed())
		Expect(w.m.HealthDetail()).To(BeEmpty())
	})

	It("removing the one in the shadow touches nothing of the winner's", func() {
		w.update(id("a"), pod("cali1"))
		w.update(id("b"), pod("cali1", second))
		Expect(w.apply()).To(Succeed())
		w.status.take()
		w.remove(id("b"))
		Expect(w.apply()).To(Succeed())
		expectUp(w)
		Expect(w.status.take()).To(Equal([]string{"b gone"}))
	})

	It("the winner moving to another interface lets the other take over", func() {
		w.link("cali2", 8, up)
		w.update(id("a"), pod("cali1"))
		w.update(id("b"), pod("cali1", second))
		Expect(w.apply()).To(Succeed())
		w.update(id("a"), pod("cali2"))
		Expect(w.apply()).To(Succeed())
		Expect(w.v4.cidrs("cali1")).To(Equal([]string{"10.0.0.2/32"}))
		Expect(w.v4.cidrs("cali2")).To(Equal([]string{"10.0.0.1/32"}))
	})

	It("one that leaves the shadow for an interface of its own took nothing over", func() {
		w.link("cali2", 8, up)
		w.update(id("a"), pod("cali1"))
		w.update(id("b"), pod("cali1", second))
		Expect(w.apply()).To(Succeed())
		w.log.Reset()
		w.update(id("b"), pod("cali2", second))
		Expect(w.apply()).To(Succeed())
		Expect(w.status.status).To(HaveKeyWithValue(id("b"), endpointmgr.StatusUp))
		for _, e := range w.log.AllEntries() {
			Expect(e.Message).NotTo(ContainSubstring("takes over"))
		}
	})

	It("IDs are compared by orchestrator, workload, endpoint", func() {
		ids := []dataplane.WorkloadEndpointID{
			{Orchestrator: "a", Workload: "z", Endpoint: "z"},
			{Orchestrator: "b", Workload: "a", Endpoint: "z"},
			{Orchestrator: "b", Workload: "b", Endpoint: "a"},
			{Orchestrator: "b", Workload: "b", Endpoint: "b"},
		}
		for i, a := range ids {
			for j, b := range ids {
				Expect(a.Compare(b) < 0).To(Equal(i < j), "%v %v", a, b)
				Expect(a.Compare(b) == 0).To(Equal(i == j))
			}
		}
	})
})
