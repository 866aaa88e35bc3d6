package routetable_test

import (
	"fmt"
	"net"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/routetable"
)

var _ = onEachKernel("static neighbour entries", func(kind worldKind) {
	mac := func(last byte) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0, last} }

	for _, version := range []int{4, 6} {
		Describe(fmt.Sprintf("of IPv%d", version), func() {
			var f *fixture
			var index int
			one, two, wide := "10.65.0.1", "10.65.0.2", "10.66.0.0/24"
			bits, family := "/32", unix.AF_INET
			if version == 6 {
				one, two, wide, bits, family = "fd00::1", "fd00::2", "fd01::/64", "/128", unix.AF_INET6
			}
			BeforeEach(func() {
				f = newFixture(GinkgoT(), kind, func(c *routetable.Config) { c.StaticARP, c.IPVersion = true, version })
				index = f.addLink("cali1")
			})
			want := func(iface, ip string, mac net.HardwareAddr) {
				target := workloadTarget(ip + bits)
				target.DestMAC = mac
				f.RouteUpdate(routetable.RouteClassLocalWorkload, iface, target)
			}
			entries := func() []string {
				list, err := f.w.NeighList(0, family)
				must(f.t, err)
				var found []string
				for _, n := range list {
					if n.State&netlink.NUD_PERMANENT != 0 {
						found = append(found, fmt.Sprintf("%s %s if%d", n.IP, n.HardwareAddr, n.LinkIndex))
					}
				}
				slices.Sort(found)
				return found
			}
			entry := func(ip string, last byte, index int) string { return fmt.Sprintf("%s %s if%d", ip, mac(last), index) }

			It("are made from the endpoint's MAC address, follow it and go with the route", func() {
				want("cali1", one, mac(1))
				want("cali1", two, nil)
				net := workloadTarget(wide)
				net.DestMAC = mac(9)
				f.RouteUpdate(routetable.RouteClassLocalWorkload, "cali1", net)
				f.apply()
				Expect(entries()).To(Equal([]string{entry(one, 1, index)}))
				want("cali1", one, mac(2))
				f.apply()
				Expect(entries()).To(Equal([]string{entry(one, 2, index)}))
				f.spied.neighs = nil
				f.apply()
				f.QueueResync()
				f.apply()
				Expect(f.spied.neighs).To(BeEmpty())
				f.want("cali1")
				f.apply()
				Expect(entries()).To(BeEmpty())
			})

			It("are none where they are not configured", func() {
				f.conf.StaticARP = false
				f.restart()
				want("cali1", one, mac(1))
				f.apply()
				Expect(entries()).To(BeEmpty())
			})

			It("move with the route", func() {
				want("cali1", one, mac(1))
				f.apply()
				f.want("cali1")
				next := f.addLink("cali2")
				want("cali2", one, mac(2))
				f.apply()
				Expect(entries()).To(Equal([]string{entry(one, 2, next)}))
			})

			It("stay where a route of another priority goes", func() {
				low := workloadTarget(one + bits)
				low.DestMAC, low.Priority = mac(1), 50
				want("cali1", one, mac(1))
				f.RouteUpdate(routetable.RouteClassLocalWorkload, "cali1", low)
				f.apply()
				f.SetRoutes(routetable.RouteClassLocalWorkload, "cali1", []routetable.Target{low})
				f.apply()
				Expect(entries()).To(Equal([]string{entry(one, 1, index)}))
			})

			It("are made again by a resync", func() {
				want("cali1", one, mac(1))
				want("cali1", two, mac(2))
				f.apply()
				good := entries()
				must(f.t, f.w.NeighDel(&netlink.Neigh{LinkIndex: index, Family: family, IP: net.ParseIP(one)}))
				must(f.t, f.w.NeighSet(&netlink.Neigh{
					LinkIndex: index, Family: family, IP: net.ParseIP(two), HardwareAddr: mac(7), State: netlink.NUD_PERMANENT,
				}))
				f.QueueResync()
				f.apply()
				Expect(entries()).To(Equal(good))
			})

			It("are made again after the interface was down, within one batch too", func() {
				want("cali1", one, mac(1))
				f.apply()
				setDown(f.t, f.w, "cali1")
				setUp(f.t, f.w, "cali1")
				Expect(entries()).To(BeEmpty())
				f.OnIfaceStateChanged("cali1", index, down)
				f.OnIfaceStateChanged("cali1", index, up)
				f.apply()
				Expect(entries()).To(Equal([]string{entry(one, 1, index)}))
			})

			It("go with the route while the interface has no carrier", func() {
				want("cali1", one, mac(1))
				f.apply()
				setDown(f.t, f.w, peerOf("cali1"))
				f.OnIfaceStateChanged("cali1", index, down)
				f.apply()
				f.want("cali1")
				f.apply()
				Expect(entries()).To(BeEmpty())
			})

			It("do not stay on an interface that has another name now", func() {
				want("cali1", one, mac(1))
				f.apply()
				must(f.t, f.w.LinkSetName(linkOf(index), "cali2"))
				f.OnIfaceStateChanged("cali1", index, absent)
				f.apply() // nobody has said yet that it is cali2 now
				Expect(entries()).To(BeEmpty())
			})

			It("of an earlier life go with its routes, or as soon as the MAC address is not known", func() {
				want("cali1", one, mac(1))
				want("cali1", two, mac(2))
				f.apply()
				f.restart()
				want("cali1", two, nil)
				f.apply()
				Expect(f.routes()).To(HaveLen(1))
				Expect(entries()).To(BeEmpty())
			})

			It("of an earlier life stay in a grace period, and then go with the route", func() {
				want("cali1", one, mac(1))
				f.apply()
				f.restart()
				f.apply()
				Expect(f.routes()).To(HaveLen(1))
				Expect(entries()).To(HaveLen(1))
				f.clock.SetTime(f.clock.Now().Add(routetable.DefaultGracePeriod))
				f.apply()
				Expect(f.routes()).To(BeEmpty())
				Expect(entries()).To(BeEmpty())
			})

			It("of other programs stay where no route of ours leads", func() {
				must(f.t, f.w.NeighSet(&netlink.Neigh{
					LinkIndex: index, Family: family, IP: net.ParseIP(two), HardwareAddr: mac(7), State: netlink.NUD_PERMANENT,
				}))
				want("cali1", one, mac(1))
				f.apply()
				f.QueueResync()
				f.apply()
				Expect(entries()).To(Equal([]string{entry(one, 1, index), entry(two, 7, index)}))
			})

			It("are never made for routes removed before they were applied", func() {
				want("cali1", one, mac(1))
				f.want("cali1")
				f.apply()
				f.QueueResync()
				f.apply()
				Expect(f.spied.neighs).To(BeEmpty())
				Expect(entries()).To(BeEmpty())
			})

			It("go though the answer to their making was lost", func() {
				f.spied.failNeighAfter = func() error { return unix.ENOBUFS }
				want("cali1", one, mac(1))
				Expect(f.Apply()).To(MatchError(unix.ENOBUFS))
				f.spied.failNeighAfter = nil
				f.want("cali1")
				f.apply()
				Expect(entries()).To(BeEmpty())
			})

			It("are made again if they are wanted again when the answer to their removal was lost", func() {
				want("cali1", one, mac(1))
				f.apply()
				f.spied.failNeighAfter = func() error { return unix.ENOBUFS }
				f.want("cali1")
				Expect(f.Apply()).To(MatchError(unix.ENOBUFS))
				f.spied.failNeighAfter = nil
				want("cali1", one, mac(1))
				f.apply()
				Expect(entries()).To(Equal([]string{entry(one, 1, index)}))
			})

			It("fail without stopping the routes, and are retried", func() {
				f.spied.failNeigh = func() error { return errInjected }
				want("cali1", one, mac(1))
				Expect(f.Apply()).To(MatchError(errInjected))
				Expect(f.routes()).To(HaveLen(1))
				f.spied.failNeigh = nil
				f.apply()
				Expect(entries()).To(Equal([]string{entry(one, 1, index)}))
			})
		})
	}
})
