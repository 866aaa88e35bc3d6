package qos_test

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"

	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/qos"
)

var _ = Describe("Syncer", func() {
	onBoth(func(newBackend func() *backend) {
		var b *backend
		var a *agent
		BeforeEach(func() {
			b = newBackend()
		})

		limited := func(limits qos.Limits) {
			GinkgoHelper()
			a.SetLimits(vethName, limits)
			a.settle()
		}

		Context("with one pod", func() {
			var removePod func()
			BeforeEach(func() {
				removePod = b.addPod(vethName)
				a = startAgent(b)
			})

			It("limits a re-created pod whose interface was reported before its endpoint claimed it again", func() {
				a.SetLimits(vethName, qos.Limits{Ingress: mbit(20), Egress: mbit(30)})
				a.settle()
				old := b.index(vethName)
				a.RemoveLimits(vethName)
				Expect(a.Apply()).To(Succeed())
				removePod()
				b.addPod(vethName)
				a.gone(vethName, old)
				a.up(b, vethName)
				a.SetLimits(vethName, qos.Limits{Ingress: mbit(20), Egress: mbit(30)})
				a.settle()
				Expect(b.rate(vethName)).To(BeEquivalentTo(20e6))
				Expect(b.rate(ifbName)).To(BeEquivalentTo(30e6))
			})

			It("shapes both directions as asked, with 25 ms of latency", func() {
				limited(qos.Limits{Ingress: mbit(20), Egress: mbit(30)})

				s := b.observe()
				veth, ifb := s.ByName(vethName), s.ByName(ifbName)
				Expect(ifb).NotTo(BeNil())
				Expect(ifb.Up).To(BeTrue())
				Expect(ifb.MTU).To(Equal(veth.MTU))
				Expect(veth.Hook).To(Equal(qos.HookIngress))
				Expect(veth.RedirectsTo(ifb.Index)).To(BeTrue())
				for iface, bits := range map[*qos.Interface]uint64{veth: 20e6, ifb: 30e6} {
					tbf := iface.Root.(*netlink.Tbf)
					Expect(netlink.HandleStr(tbf.Handle)).To(Equal("ca11:0"))
					Expect(tbf.Rate).To(Equal(bits / 8))
					Expect(tbf.Limit).To(BeEquivalentTo(bits/8/40 + 512<<20))
					Expect(b.queue(iface.Name)).To(Equal(queueFor(bits)))
				}
			})

			DescribeTable("has a queue for 25 ms and one packet, and not for the burst", func(limit qos.Limit, bytes int) {
				limited(qos.Limits{Ingress: &limit, Egress: &limit})
				Expect(b.queue(vethName)).To(BeEquivalentTo(bytes))
				Expect(b.queue(ifbName)).To(BeEquivalentTo(bytes))
			},
				Entry("1 Gbit/s", *mbit(1000), 3_125_000),
				Entry("10 Mbit/s, less than a GSO packet in 25 ms", *mbit(10), 80<<10),
				Entry("10 Mbit/s, with a burst that no GSO packet fits into", qos.Limit{RateBits: 10e6, BurstBits: 8 * 1514}, 31_250),
				Entry("1 Mbit/s, with a burst of 10,000 bytes", qos.Limit{RateBits: 1e6, BurstBits: 8 * 10_000}, 10_000),
				Entry("1 Mbit/s, with a peak rate, which lets no GSO packet pass", qos.Limit{RateBits: 1e6, BurstBits: qos.DefaultBurst, PeakRateBits: 2e6}, 3_125),
				Entry("1 Mbit/s, with a peak rate of which 1 ms is more", qos.Limit{RateBits: 1e6, BurstBits: qos.DefaultBurst, PeakRateBits: 100e6}, 12_500),
				Entry("1 Mbit/s, with a peak rate and a minburst", qos.Limit{RateBits: 1e6, BurstBits: qos.DefaultBurst, PeakRateBits: 100e6, MinBurstBytes: 9000}, 9_000))

			It("makes no kernel call when nothing changed, and no write in a resync", func() {
				limited(qos.Limits{Ingress: mbit(20), Egress: &qos.Limit{RateBits: 1e9, BurstBits: 1e6, PeakRateBits: 2e9}})
				if b.mock == nil {
					before := b.observe()
					a.QueueResync()
					a.settle()
					Expect(b.observe()).To(Equal(before))
					return
				}
				calls := b.mock.Calls()
				a.SetLimits(vethName, qos.Limits{Ingress: mbit(20), Egress: &qos.Limit{RateBits: 1e9, BurstBits: 1e6, PeakRateBits: 2e9}})
				a.up(b, vethName)
				Expect(a.Apply()).To(Succeed())
				Expect(b.mock.Calls()).To(Equal(calls))
				b.mock.ResetWrites()
				a.QueueResync()
				Expect(a.Apply()).To(Succeed())
				Expect(b.mock.Writes()).To(BeEmpty())
				Expect(b.mock.Calls()).To(Equal(calls + 3))
			})

			It("changes limits in place", func() {
				limited(qos.Limits{Ingress: mbit(20), Egress: mbit(30)})
				index := b.index(ifbName)
				b.resetWrites()
				limited(qos.Limits{Ingress: mbit(200), Egress: mbit(300)})
				if b.mock != nil {
					var writes []string
					for _, write := range b.writes() {
						writes = append(writes, fmt.Sprintf("%s %s", write.Op, write.Kind))
					}
					Expect(writes).To(Equal([]string{
						"change qdisc tbf", "replace qdisc bfifo", "change qdisc tbf", "replace qdisc bfifo",
					}))
				}
				Expect(b.index(ifbName)).To(Equal(index))
				for iface, bits := range map[string]uint64{vethName: 200e6, ifbName: 300e6} {
					Expect(b.rate(iface)).To(Equal(bits))
					Expect(b.queue(iface)).To(Equal(queueFor(bits)))
				}
			})

			It("leaves nothing behind when limits are cleared", func() {
				before := b.observe().ByName(vethName)
				limited(qos.Limits{Ingress: mbit(20), Egress: mbit(30)})
				limited(qos.Limits{})
				after := b.observe().ByName(vethName)
				Expect(after.Hook).To(Equal(qos.HookNone))
				Expect(after.Root.Type()).To(Equal(before.Root.Type()))
				Expect(b.ifbs()).To(BeEmpty())
			})

			It("adopts what a former life made, without a write", func() {
				limited(qos.Limits{Ingress: mbit(20), Egress: mbit(30)})
				before := b.observe()
				a.stop()
				a = startAgent(b)
				limited(qos.Limits{Ingress: mbit(20), Egress: mbit(30)})
				Expect(b.observe()).To(Equal(before))
			})

			It("deletes the device at once when its interface ends", func() {
				limited(qos.Limits{Egress: mbit(30)})
				index := b.index(vethName)
				removePod()
				a.gone(vethName, index)
				a.settle()
				Expect(b.ifbs()).To(BeEmpty())
			})

			It("does not ask about, let alone act on, the end of an index that does not own the name", func() {
				limited(qos.Limits{Ingress: mbit(20), Egress: mbit(30)})
				before := b.observe()
				calls := b.calls()
				for _, older := range []int{b.index(vethName) - 1, b.index(vethName) + 100, b.index(ifbName)} {
					a.gone(vethName, older)
					Expect(a.Apply()).To(Succeed())
				}
				Expect(b.calls()).To(Equal(calls))
				Expect(b.observe()).To(Equal(before))
			})

			It("writes nothing for word of an index that has the name no more, or of an end that was none", func() {
				limited(qos.Limits{Ingress: mbit(20), Egress: mbit(30)})
				before := b.observe()
				b.resetWrites()
				for _, state := range []ifacemonitor.State{ifacemonitor.StateUp, ifacemonitor.StateDown, ifacemonitor.StateNotPresent} {
					for _, index := range []int{b.index(vethName) - 1, 9999, b.index(vethName)} {
						a.OnIfaceStateChanged(vethName, index, state)
						Expect(a.Apply()).To(Succeed())
						Expect(a.Pending(vethName)).To(BeFalse())
					}
				}
				Expect(b.observe()).To(Equal(before))
				Expect(b.writes()).To(BeEmpty())
			})

			It("gives a new interface of the same name a fresh device", func() {
				limited(qos.Limits{Egress: mbit(30)})
				index, ifb := b.index(vethName), b.index(ifbName)
				removePod()
				b.addPod(vethName)
				a.gone(vethName, index)
				a.up(b, vethName)
				a.settle()
				Expect(b.index(ifbName)).NotTo(Equal(ifb))
				Expect(b.observe().ByName(vethName).RedirectsTo(b.index(ifbName))).To(BeTrue())
			})

			It("is programmed anew when the end of the old interface was never reported", func() {
				limited(qos.Limits{Ingress: mbit(3), Egress: mbit(30)})
				removePod()
				b.addPod(vethName)
				a.up(b, vethName)
				a.settle()
				Expect(b.rate(vethName)).To(BeEquivalentTo(3e6))
				Expect(b.observe().ByName(vethName).RedirectsTo(b.index(ifbName))).To(BeTrue())
			})

			It("follows the interface's MTU", func() {
				limited(qos.Limits{Egress: mbit(30)})
				veth, err := b.outside.LinkByName(vethName)
				Expect(err).NotTo(HaveOccurred())
				Expect(b.outside.LinkSetMTU(veth, 9000)).To(Succeed())
				a.OnIfaceMTUChanged(vethName, veth.Attrs().Index, 9000)
				a.settle()
				Expect(b.observe().ByName(ifbName).MTU).To(Equal(9000))

				Expect(b.outside.LinkSetMTU(veth, 1280)).To(Succeed())
				a.QueueResync()
				a.settle()
				Expect(b.observe().ByName(ifbName).MTU).To(Equal(1280))
			})

			It("repairs what a vandal did", func() {
				limited(qos.Limits{Ingress: mbit(20), Egress: mbit(30)})
				want := b.observe()
				vandals := map[string]func(){
					"IFB deleted": func() {
						Expect(b.outside.LinkDel(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Index: b.index(ifbName)}})).To(Succeed())
					},
					"IFB down": func() {
						Expect(b.outside.LinkSetDown(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Index: b.index(ifbName)}})).To(Succeed())
					},
					"ingress qdisc deleted": func() {
						Expect(b.outside.QdiscDel(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: b.index(vethName), Parent: netlink.HANDLE_INGRESS}})).To(Succeed())
					},
					"TBFs changed":          func() { b.setRoot(vethName, 0x10000, 1e6); b.setRoot(ifbName, 0xca110000, 1e6) },
					"filters deleted":       func() { b.deletePriority(vethName, 0xca11) },
					"queue deleted":         func() { Expect(b.outside.QdiscDel(b.observe().ByName(ifbName).Queue)).To(Succeed()) },
					"queue of another kind": func() { b.setQueue(ifbName, 0x70000, "pfifo") },
					"TBF and queue of another": func() {
						b.setRoot(ifbName, 0x10000, 1e6)
						b.setQueue(ifbName, 0x70000, "pfifo")
					},
				}
				for vandal, act := range vandals {
					By(vandal)
					act()
					a.QueueResync()
					a.settle()
					got := b.observe()
					Expect(got.ByName(vethName).RedirectsTo(b.index(ifbName))).To(BeTrue())
					Expect(got.ByName(vethName).Filters).To(HaveLen(1))
					Expect(got.ByName(ifbName).Up).To(BeTrue())
					Expect(got.ByName(ifbName).Root.(*netlink.Tbf).Rate).To(Equal(want.ByName(ifbName).Root.(*netlink.Tbf).Rate))
					Expect(got.ByName(vethName).Root.(*netlink.Tbf).Rate).To(Equal(want.ByName(vethName).Root.(*netlink.Tbf).Rate))
					Expect(b.queue(vethName)).To(Equal(queueFor(20e6)))
					Expect(b.queue(ifbName)).To(Equal(queueFor(30e6)))
				}
				limited(qos.Limits{})
				Expect(b.ifbs()).To(BeEmpty())
				Expect(b.observe().ByName(vethName).Hook).To(Equal(qos.HookNone))
			})

			It("detaches a renamed interface before its device goes", func() {
				limited(qos.Limits{Egress: mbit(30)})
				veth, err := b.outside.LinkByName(vethName)
				Expect(err).NotTo(HaveOccurred())
				Expect(b.outside.LinkSetDown(veth)).To(Succeed())
				Expect(b.outside.LinkSetName(veth, "calirenamed")).To(Succeed())
				a.gone(vethName, veth.Attrs().Index)
				a.OnIfaceStateChanged("calirenamed", veth.Attrs().Index, ifacemonitor.StateDown)
				a.settle()
				Expect(b.observe().ByName("calirenamed").RedirectsTo(b.index(ifbName))).To(BeTrue())
				a.clockStep(10 * time.Second)
				a.settle()
				Expect(b.ifbs()).To(BeEmpty())
				Expect(b.observe().ByName("calirenamed").Hook).To(Equal(qos.HookNone))
			})

			It("removes everything when disabled, then does nothing, and restores it when enabled", func() {
				limited(qos.Limits{Ingress: mbit(20), Egress: mbit(30)})
				a.SetEnabled(false)
				a.settle()
				Expect(b.ifbs()).To(BeEmpty())
				Expect(b.rate(vethName)).To(BeZero())
				Expect(b.observe().ByName(vethName).Hook).To(Equal(qos.HookNone))

				b.addIFB("bwcali000000000", 1500)
				a.QueueResync()
				a.settle()
				Expect(b.ifbs()).To(ConsistOf("bwcali000000000"))

				a.SetEnabled(true)
				a.settle()
				Expect(b.rate(vethName)).To(BeEquivalentTo(20e6))
				Expect(b.rate(ifbName)).To(BeEquivalentTo(30e6))
				Expect(b.ifbs()).To(ConsistOf(ifbName))
			})
		})

		Context("after a restart", func() {
			var removePod func()
			var index int
			BeforeEach(func() {
				removePod = b.addPod(vethName)
				a = startAgent(b)
				limited(qos.Limits{Ingress: mbit(20), Egress: mbit(30)})
				index = b.index(vethName)
				a.stop()
			})

			It("case A1: deletes the device of a pod that went while it was down", func() {
				removePod()
				a = startAgent(b)
				a.settle()
				Expect(b.ifbs()).To(BeEmpty())
			})

			It("case A2: keeps the device of an unclaimed interface until that ends, then deletes it at once", func() {
				a = startAgent(b)
				a.settle()
				Expect(b.ifbs()).To(ConsistOf(ifbName))
				at, ok := a.NextRecheck()
				Expect(ok).To(BeTrue())
				Expect(at).To(Equal(a.clock.Now().Add(10 * time.Second)))

				a.clockStep(1300 * time.Millisecond)
				a.OnIfaceStateChanged(vethName, index, ifacemonitor.StateDown)
				a.settle()
				Expect(b.ifbs()).To(ConsistOf(ifbName))
				removePod()
				a.gone(vethName, index)
				a.settle()
				Expect(b.ifbs()).To(BeEmpty())
				_, ok = a.NextRecheck()
				Expect(ok).To(BeFalse())
			})

			It("removes limits from an interface that stays unclaimed for the grace period", func() {
				a = startAgent(b)
				a.settle()
				a.clockStep(10*time.Second - time.Millisecond)
				a.settle()
				Expect(b.ifbs()).To(ConsistOf(ifbName))
				a.clockStep(time.Millisecond)
				a.settle()
				Expect(b.ifbs()).To(BeEmpty())
				Expect(b.rate(vethName)).To(BeZero())
				Expect(b.observe().ByName(vethName).Hook).To(Equal(qos.HookNone))
			})

			It("never lifts a limit that is claimed within the grace period", func() {
				before := b.observe()
				a = startAgent(b)
				a.settle()
				a.clockStep(5 * time.Second)
				limited(qos.Limits{Ingress: mbit(20), Egress: mbit(30)})
				a.clockStep(time.Hour)
				a.settle()
				Expect(b.observe()).To(Equal(before))
			})

			It("removes limits at once where the endpoint no longer wants any", func() {
				a = startAgent(b)
				limited(qos.Limits{})
				Expect(b.ifbs()).To(BeEmpty())
				Expect(b.rate(vethName)).To(BeZero())
			})

			It("case A4: replaces the device of an earlier life of the name", func() {
				old := b.index(ifbName)
				removePod()
				b.addPod(vethName)
				a = startAgent(b)
				limited(qos.Limits{Egress: mbit(30)})
				Expect(b.index(ifbName)).NotTo(BeElementOf(0, old))
				Expect(b.observe().ByName(vethName).RedirectsTo(b.index(ifbName))).To(BeTrue())
			})

			It("removes everything when it starts disabled", func() {
				a = startAgent(b, func(c *qos.Config) { c.Enabled = false })
				limited(qos.Limits{Egress: mbit(30)})
				Expect(b.ifbs()).To(BeEmpty())
				Expect(b.rate(vethName)).To(BeZero())
				Expect(b.observe().ByName(vethName).Hook).To(Equal(qos.HookNone))
			})
		})

		It("leaves a foreign device of our name alone and says so", func() {
			b.addPod(vethName)
			Expect(b.outside.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: ifbName}})).To(Succeed())
			index := b.index(ifbName)
			a = startAgent(b)
			a.SetLimits(vethName, qos.Limits{Egress: mbit(30)})
			Expect(a.Apply()).To(MatchError(And(ContainSubstring(vethName), ContainSubstring("bridge"))))
			Expect(b.index(ifbName)).To(Equal(index))
		})
	})
})

func (a *agent) clockStep(d time.Duration) { a.clock.Step(d) }

// deletePriority deletes all filters of one priority.
func (b *backend) deletePriority(veth string, prio uint16) {
	GinkgoHelper()
	Expect(b.outside.FilterDel(&netlink.U32{FilterAttrs: netlink.FilterAttrs{
		LinkIndex: b.index(veth), Parent: netlink.HANDLE_MIN_INGRESS, Priority: prio, Protocol: 3,
	}})).To(Succeed())
}
