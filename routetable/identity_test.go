package routetable_test

import (
	"fmt"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/routetable"
	"github.com/manx-dataplane/manx/rtnl"
)

// The traps of names and indexes that a route table meets in production.
var _ = onEachKernel("interface index and name", func(kind worldKind) {
	var f *fixture
	BeforeEach(func() { f = newFixture(GinkgoT(), kind, nil) })
	const route = "10.65.0.1/32 dev cali1 proto 80 scope link"

	Describe("the production order of a pod re-created under the same name (case B)", func() {
		const iface = "calidce2a7f6bc3"
		routed := []string{"10.65.0.1/32 dev " + iface + " proto 80 scope link"}
		steps := []func(){
			func() { f.OnIfaceStateChanged(iface, 204, down) },
			func() { f.OnIfaceStateChanged(iface, 204, up) },
			func() { f.OnIfaceStateChanged(iface, 83, down) },
			func() { f.OnIfaceStateChanged(iface, 83, absent) },
			func() { f.QueueResync() },
		}
		for endpointAt := range len(steps) + 1 {
			for _, everyStep := range []bool{false, true} {
				It(fmt.Sprintf("routes through 204 for good (endpoint before step %d, apply after every step: %v)", endpointAt, everyStep), func() {
					addLink(f.t, f.w, iface, 83)
					f.tell(iface)
					f.want(iface, "10.65.0.1/32")
					f.apply()
					Expect(f.routes()).To(Equal(routed))
					f.want(iface)
					f.apply()

					delLink(f.t, f.w, iface)
					addLink(f.t, f.w, iface, 204)
					for i, step := range steps {
						if i == endpointAt {
							f.want(iface, "10.65.0.1/32")
						}
						step()
						if everyStep {
							f.apply()
						}
					}
					if endpointAt == len(steps) {
						f.clock.SetTime(f.clock.Now().Add(5 * time.Minute))
						f.want(iface, "10.65.0.1/32")
					}
					f.apply()
					Expect(f.routes()).To(Equal(routed))
					Expect(indexOf(f.t, f.w, iface)).To(Equal(204))
					f.expectSettled()
				})
			}
		}
	})

	It("ignores a late down and a late removal of an older index", func() {
		old := f.addLink("cali1")
		f.want("cali1", "10.65.0.1/32")
		f.apply()
		delLink(f.t, f.w, "cali1")
		f.addLink("cali1")
		f.apply()
		f.OnIfaceStateChanged("cali1", old, down)
		f.OnIfaceStateChanged("cali1", old, absent)
		f.spied.ops = nil
		f.apply()
		Expect(f.spied.ops).To(BeEmpty())
		Expect(f.routes()).To(Equal([]string{route}))
	})

	It("ignores a late down and a late removal of an older index though the kernel cannot be asked", func() {
		old := f.addLink("cali1")
		f.want("cali1", "10.65.0.1/32")
		f.apply()
		delLink(f.t, f.w, "cali1")
		f.addLink("cali1")
		f.apply()
		f.spied.failLink = func() error { return errInjected }
		f.OnIfaceStateChanged("cali1", old, down)
		f.OnIfaceStateChanged("cali1", old, absent)
		f.spied.ops = nil
		Expect(f.Apply()).To(MatchError(errInjected))
		Expect(f.spied.ops).To(BeEmpty())
		Expect(f.routes()).To(Equal([]string{route}))
	})

	It("ignores a late up of an older index", func() {
		old := f.addLink("cali1")
		f.want("cali1", "10.65.0.1/32")
		f.apply()
		delLink(f.t, f.w, "cali1")
		f.addLink("cali1")
		f.OnIfaceStateChanged("cali1", old, up)
		f.apply()
		Expect(f.routes()).To(Equal([]string{route}))
		f.expectSettled()
	})

	It("lets the kernel settle a claim by a lower index", func() {
		high := addLink(f.t, f.w, "cali1", 500)
		f.tell("cali1")
		f.want("cali1", "10.65.0.1/32")
		f.apply()
		delLink(f.t, f.w, "cali1")
		low := addLink(f.t, f.w, "cali1", 400)
		Expect(low).To(BeNumerically("<", high))
		f.OnIfaceStateChanged("cali1", low, up) // the removal of 500 was never heard of
		f.apply()
		Expect(f.routes()).To(Equal([]string{route}))
		f.OnIfaceStateChanged("cali1", high, absent)
		f.apply()
		Expect(f.routes()).To(Equal([]string{route}))
	})

	It("re-created under a new index: routes follow", func() {
		old := f.addLink("cali1")
		f.want("cali1", "10.65.0.1/32")
		f.apply()
		delLink(f.t, f.w, "cali1")
		f.OnIfaceStateChanged("cali1", old, absent)
		f.apply()
		Expect(f.routes()).To(BeEmpty())
		f.addLink("cali1")
		f.apply()
		Expect(f.routes()).To(Equal([]string{route}))
	})

	It("re-created under the same index within one batch: routes are written again", func() {
		index := addLink(f.t, f.w, "cali1", 77)
		f.tell("cali1")
		f.want("cali1", "10.65.0.1/32")
		f.apply()
		delLink(f.t, f.w, "cali1")
		addLink(f.t, f.w, "cali1", index)
		f.OnIfaceStateChanged("cali1", index, absent)
		f.tell("cali1")
		f.apply()
		Expect(f.routes()).To(Equal([]string{route}))
		f.expectSettled()
	})

	It("down and up within one batch: routes are written again", func() {
		index := f.addLink("cali1")
		f.want("cali1", "10.65.0.1/32")
		f.apply()
		setDown(f.t, f.w, "cali1")
		setUp(f.t, f.w, "cali1")
		Expect(f.routes()).To(BeEmpty(), "the kernel removes routes of links that go down")
		f.OnIfaceStateChanged("cali1", index, down)
		f.OnIfaceStateChanged("cali1", index, up)
		f.apply()
		Expect(f.routes()).To(Equal([]string{route}))
		f.expectSettled()
	})

	It("down and up within one batch, of the carrier alone: routes stay", func() {
		index := f.addLink("cali1")
		f.want("cali1", "10.65.0.1/32")
		f.apply()
		setDown(f.t, f.w, peerOf("cali1"))
		setUp(f.t, f.w, peerOf("cali1"))
		Expect(f.routes()).To(Equal([]string{route}), "the kernel keeps routes of links without carrier")
		f.OnIfaceStateChanged("cali1", index, down)
		f.OnIfaceStateChanged("cali1", index, up)
		f.apply()
		Expect(f.routes()).To(Equal([]string{route}))
		f.expectSettled()
	})

	It("without carrier: routes are removed, and come back", func() {
		index := f.addLink("cali1")
		f.want("cali1", "10.65.0.1/32")
		f.apply()
		setDown(f.t, f.w, peerOf("cali1"))
		f.OnIfaceStateChanged("cali1", index, down)
		f.apply()
		Expect(f.routes()).To(BeEmpty())
		setUp(f.t, f.w, peerOf("cali1"))
		f.OnIfaceStateChanged("cali1", index, up)
		f.apply()
		Expect(f.routes()).To(Equal([]string{route}))
	})

	for _, to := range []string{"cali2", "eth7"} {
		for _, between := range []bool{false, true} {
			It(fmt.Sprintf("renamed to %s: routes follow the name, not the index (apply in between: %v)", to, between), func() {
				index := f.addLink("cali1")
				f.want("cali1", "10.65.0.1/32")
				f.want("cali2", "10.65.0.2/32")
				f.apply()
				setDown(f.t, f.w, "cali1")
				must(f.t, f.w.LinkSetName(linkOf(index), to))
				setUp(f.t, f.w, to)
				f.OnIfaceStateChanged("cali1", index, absent)
				if between {
					f.apply()
				}
				f.tell(to)
				f.apply()
				if to == "cali2" {
					Expect(f.routes()).To(Equal([]string{"10.65.0.2/32 dev cali2 proto 80 scope link"}))
				} else {
					Expect(f.routes()).To(BeEmpty())
				}
				f.expectSettled()
			})
		}
	}

	It("renamed without a removal of the old name being heard of: routes follow the name", func() {
		index := f.addLink("cali1")
		f.want("cali1", "10.65.0.1/32")
		f.apply()
		setDown(f.t, f.w, "cali1")
		must(f.t, f.w.LinkSetName(linkOf(index), "cali2"))
		setUp(f.t, f.w, "cali2")
		f.want("cali2", "10.65.0.1/32")
		f.tell("cali2")
		f.apply()
		Expect(f.routes()).To(Equal([]string{"10.65.0.1/32 dev cali2 proto 80 scope link"}))
		f.want("cali2")
		f.apply()
		Expect(f.routes()).To(BeEmpty(), "cali1 has no owner any more")
	})

	It("appearing only in a resync", func() {
		f.want("cali1", "10.65.0.1/32")
		f.apply()
		addLink(f.t, f.w, "cali1", 0)
		f.QueueResync()
		f.apply()
		Expect(f.routes()).To(Equal([]string{route}))
	})

	It("appearing only in a resync of its own", func() {
		f.want("cali1", "10.65.0.1/32")
		f.apply()
		addLink(f.t, f.w, "cali1", 0)
		f.QueueResyncIface("cali1")
		f.apply()
		Expect(f.routes()).To(Equal([]string{route}))
	})

	for _, resync := range []string{"full", "its own"} {
		It("gone only in a resync ("+resync+"): the next interface in line takes over", func() {
			f.addLink("cali1")
			f.addLink("cali2")
			f.want("cali1", "10.65.0.1/32")
			f.want("cali2", "10.65.0.1/32")
			f.apply()
			Expect(f.routes()).To(Equal([]string{"10.65.0.1/32 dev cali2 proto 80 scope link"}))
			delLink(f.t, f.w, "cali2")
			if resync == "full" {
				f.QueueResync()
			} else {
				f.QueueResyncIface("cali2")
			}
			f.apply()
			Expect(f.routes()).To(Equal([]string{route}))
		})
	}

	It("gone and heard of late: its routes are no error", func() {
		index := f.addLink("cali1")
		f.apply()
		delLink(f.t, f.w, "cali1")
		f.want("cali1", "10.65.0.1/32")
		f.apply()
		f.OnIfaceStateChanged("cali1", index, absent)
		f.apply()
		Expect(f.routes()).To(BeEmpty())
	})

	It("down and heard of late: its routes are no error, and come when it is up", func() {
		index := f.addLink("cali1")
		f.apply()
		setDown(f.t, f.w, "cali1")
		f.want("cali1", "10.65.0.1/32")
		f.apply()
		setUp(f.t, f.w, "cali1")
		f.OnIfaceStateChanged("cali1", index, down)
		f.OnIfaceStateChanged("cali1", index, up)
		f.apply()
		Expect(f.routes()).To(Equal([]string{route}))
	})

	It("down while its route is written: filtered; others go in; routed when it is up", func() {
		index := f.addLink("cali1")
		f.addLink("cali2")
		f.apply()
		f.want("cali1", "10.65.0.1/32")
		f.want("cali2", "10.65.0.2/32")
		f.spied.beforeBatch = func() {
			setDown(f.t, f.w, "cali1")
			f.spied.beforeBatch = nil
		}
		f.apply()
		Expect(f.routes()).To(Equal([]string{"10.65.0.2/32 dev cali2 proto 80 scope link"}))
		setUp(f.t, f.w, "cali1")
		f.OnIfaceStateChanged("cali1", index, down)
		f.OnIfaceStateChanged("cali1", index, up)
		f.apply()
		Expect(f.routes()).To(HaveLen(2))
	})

	It("flapping all the time while routes are written: reported for another run", func() {
		f.want("cali1", "10.65.0.1/32")
		f.want("cali2", "10.65.0.1/32")
		f.addLink("cali1")
		f.addLink("cali2")
		f.apply()
		f.RouteUpdate(routetable.RouteClassLocalWorkload, "cali1", workloadTarget("10.65.0.2/32"))
		f.RouteUpdate(routetable.RouteClassLocalWorkload, "cali2", workloadTarget("10.65.0.2/32"))
		flap := true
		f.spied.fail = func(op *rtnl.RouteOp) error {
			if flap && !op.Delete {
				// The interface that was chosen goes, and the other one comes back, which the
				// monitor has yet to say.
				f.QueueResyncIface("cali1")
				f.QueueResyncIface("cali2")
				for _, name := range []string{"cali1", "cali2"} {
					if indexOf(f.t, f.w, name) == op.Route.LinkIndex {
						setDown(f.t, f.w, name)
					} else {
						setUp(f.t, f.w, name)
					}
				}
			}
			return nil
		}
		Expect(f.Apply()).To(MatchError(routetable.ErrInterfacesFlapping))
		flap = false
		f.apply()
		Expect(f.routes()).To(HaveLen(2))
	})

	It("is given its own routes only, where an index moves from name to name", func() {
		a, b := f.addLink("cali1"), f.addLink("cali2")
		f.want("cali1", "10.65.0.1/32")
		f.want("cali2", "10.65.0.2/32")
		f.apply()
		for _, rename := range []struct {
			index int
			name  string
		}{{a, "cali3"}, {b, "cali1"}, {a, "cali2"}} {
			must(f.t, f.w.LinkSetDown(linkOf(rename.index)))
			must(f.t, f.w.LinkSetName(linkOf(rename.index), rename.name))
			must(f.t, f.w.LinkSetUp(linkOf(rename.index)))
		}
		f.tell("cali1")
		f.tell("cali2")
		f.apply()
		Expect(f.routes()).To(Equal([]string{route, "10.65.0.2/32 dev cali2 proto 80 scope link"}))
		Expect(indexOf(f.t, f.w, "cali1")).To(Equal(b))
	})
})

var _ = onEachKernel("IPv6 interface loss", func(kind worldKind) {
	It("down and up within one batch: routes are written again", func() {
		f := newFixture(GinkgoT(), kind, func(c *routetable.Config) { c.IPVersion = 6 })
		index := f.addLink("cali1")
		f.want("cali1", "fd00:65::1/128")
		f.apply()
		setDown(f.t, f.w, "cali1")
		setUp(f.t, f.w, "cali1")
		Expect(f.routes()).To(BeEmpty())
		f.OnIfaceStateChanged("cali1", index, down)
		f.OnIfaceStateChanged("cali1", index, up)
		f.apply()
		Expect(f.routes()).To(Equal([]string{"fd00:65::1/128 dev cali1 proto 80"}))
	})

	It("never removes the link-local and multicast routes of the kernel", func() {
		f := newFixture(GinkgoT(), kind, func(c *routetable.Config) { c.IPVersion, c.GracePeriod = 6, -1 })
		index := f.addLink("cali1")
		other := routeVia(tableNumber, "fe80::/64", index, 3)
		other.Priority = 77
		addRoute(f.t, f.w, other)
		f.want("cali1", "fd00:65::1/128")
		f.apply()
		f.expectSettled()
		var kept []netip.Prefix
		must(f.t, f.w.RouteEach(rtnl.RouteFilter{Family: unix.AF_INET6, Table: tableNumber}, collect(&kept)))
		Expect(kept).To(ContainElement(netip.MustParsePrefix("fe80::/64")))
		Expect(f.routes()).To(ContainElement("fe80::/64 dev cali1 proto 3 metric 77"))
	})
})
