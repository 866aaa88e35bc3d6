package qos_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/qos"
)

var _ = Describe("Coexistence", func() {
	onBoth(func(newBackend func() *backend) {
		const plugin = "bwp3a9f0c6d21e4"
		var b *backend
		var a *agent
		BeforeEach(func() {
			b = newBackend()
			b.addPod(vethName)
		})

		// runPlugin does what the CNI bandwidth plugin does to a new pod.
		runPlugin := func() {
			GinkgoHelper()
			ifb := b.addIFB(plugin, 1500)
			b.addHook("ingress", vethName)
			b.redirect(vethName, 1, ifb.Index)
			b.setRoot(vethName, 0x10000, 7e6)
			b.setRoot(plugin, 0x10000, 8e6)
		}
		// monitorFilter is another program's filter that lets packets pass on.
		monitorFilter := func(prio uint16) {
			GinkgoHelper()
			Expect(b.outside.FilterAdd(&netlink.U32{
				FilterAttrs: netlink.FilterAttrs{LinkIndex: b.index(vethName), Parent: netlink.HANDLE_MIN_INGRESS, Priority: prio, Protocol: unix.ETH_P_ALL},
				ClassId:     netlink.MakeHandle(1, 1),
			})).To(Succeed())
		}
		first := func(filters []qos.Filter) qos.Filter {
			GinkgoHelper()
			best := filters[0]
			for _, f := range filters[1:] {
				if f.Priority < best.Priority || f.Priority == best.Priority && f.Handle < best.Handle {
					best = f
				}
			}
			return best
		}

		It("case A5: leaves the plugin's state as it is where it has no limit of its own, and when disabled", func() {
			runPlugin()
			before := b.observe()
			a = startAgent(b)
			a.SetLimits(vethName, qos.Limits{})
			a.settle()
			a.clockStep(time.Hour)
			a.QueueResync()
			a.settle()
			Expect(b.observe()).To(Equal(before))
			a.SetEnabled(false)
			a.settle()
			Expect(b.observe()).To(Equal(before))
		})

		It("goes in front of the plugin's filter, and leaves it as it was", func() {
			runPlugin()
			before := b.observe().ByName(vethName)
			a = startAgent(b)
			a.SetLimits(vethName, qos.Limits{Ingress: mbit(20), Egress: mbit(30)})
			a.settle()
			veth := b.observe().ByName(vethName)
			Expect(veth.Filters).To(HaveLen(2))
			Expect(veth.Filters).To(ContainElement(before.Filters[0]))
			Expect(first(veth.Filters).Target).To(Equal(b.index(ifbName)))
			Expect(b.rate(vethName)).To(BeEquivalentTo(20e6))
			Expect(veth.Root.Attrs().Handle).To(BeEquivalentTo(0x10000), "changed in place")
			Expect(veth.Queue).To(BeNil())
			Expect(b.queue(vethName)).To(Equal(queueFor(20e6)))

			By("switching off")
			a.SetEnabled(false)
			a.settle()
			Expect(b.observe().ByName(vethName)).To(Equal(before))
			Expect(b.ifbs()).To(BeEmpty())
		})

		It("gets in front of a plugin that came later", func() {
			a = startAgent(b)
			a.SetLimits(vethName, qos.Limits{Egress: mbit(30)})
			a.settle()
			index := b.index(ifbName)
			ifb := b.addIFB(plugin, 1500)
			b.redirect(vethName, 1, ifb.Index)
			a.QueueResync()
			a.settle()
			veth := b.observe().ByName(vethName)
			Expect(first(veth.Filters).Target).To(Equal(index))
			Expect(veth.Filters).To(HaveLen(2))
		})

		It("gives a TBF that it changed in place its parameters back", func() {
			b.setRoot(vethName, 0x10000, 7e6)
			a = startAgent(b)
			a.SetLimits(vethName, qos.Limits{Ingress: mbit(20)})
			a.settle()
			a.SetLimits(vethName, qos.Limits{Ingress: mbit(30)})
			a.settle()
			Expect(b.rate(vethName)).To(BeEquivalentTo(30e6))

			By("looking again: nothing to do")
			b.resetWrites()
			before := b.observe()
			a.QueueResync()
			a.settle()
			Expect(b.writes()).To(BeEmpty())
			Expect(b.observe()).To(Equal(before))

			a.SetLimits(vethName, qos.Limits{})
			a.settle()
			Expect(b.rate(vethName)).To(BeEquivalentTo(7e6))
			Expect(b.queue(vethName)).To(BeEquivalentTo(1 << 20))
		})

		It("replaces no queue that another program put below its own TBF", func() {
			b.setRoot(vethName, 0x10000, 7e6)
			b.setQueue(vethName, 0x70000, "pfifo")
			before := b.observe().ByName(vethName)
			a = startAgent(b)
			a.SetLimits(vethName, qos.Limits{Ingress: mbit(20)})
			a.settle()
			Expect(b.rate(vethName)).To(BeEquivalentTo(20e6))
			Expect(b.observe().ByName(vethName).Queue).To(Equal(before.Queue))
			a.SetLimits(vethName, qos.Limits{})
			a.settle()
			Expect(b.observe().ByName(vethName)).To(Equal(before))
		})

		It("removes what Felix or the plugin left at the root only where we alone shape", func() {
			b.setRoot(vethName, 0x10000, 7e6)
			b.addPod("caliother")
			b.setRoot("caliother", 0x10000, 7e6)
			b.setRoot("caliother", 0x10000, 7e6)
			a = startAgent(b)
			a.SetLimits(vethName, qos.Limits{})
			a.settle()
			Expect(b.rate(vethName)).To(BeEquivalentTo(7e6))
			a.stop()
			a = startAgent(b, func(c *qos.Config) { c.RemoveExternal = true })
			a.SetLimits(vethName, qos.Limits{})
			a.settle()
			Expect(b.rate(vethName)).To(BeZero())
			Expect(b.rate("caliother")).To(BeEquivalentTo(7e6), "nobody claims it")
		})

		It("takes over what Felix made, without a new device", func() {
			ifb := b.addIFB(ifbName, 1500)
			b.setRoot(ifbName, 0x10000, 8e6)
			b.addHook("ingress", vethName)
			b.redirect(vethName, 0xc000, ifb.Index)
			a = startAgent(b)
			a.SetLimits(vethName, qos.Limits{Egress: mbit(30)})
			a.settle()
			Expect(b.index(ifbName)).To(Equal(ifb.Index))
			Expect(b.rate(ifbName)).To(BeEquivalentTo(30e6))
			Expect(b.queue(ifbName)).To(Equal(queueFor(30e6)))
			root := b.observe().ByName(ifbName).Root.(*netlink.Tbf)
			Expect(root.Handle).To(BeEquivalentTo(0x10000), "changed in place")
			Expect(root.Limit).To(BeEquivalentTo(30e6/8/40 + 512<<20))
			veth := b.observe().ByName(vethName)
			Expect(veth.Filters).To(HaveLen(1))
			Expect(veth.Filters[0].Marked).To(BeTrue())
			a.SetLimits(vethName, qos.Limits{})
			a.settle()
			Expect(b.ifbs()).To(BeEmpty())
			Expect(b.observe().ByName(vethName).Hook).To(Equal(qos.HookNone))
		})

		It("uses a clsact qdisc that is there, behind other programs' filters, and leaves both", func() {
			b.addHook("clsact", vethName)
			monitorFilter(1)
			monitorFilter(0xca11)
			before := b.observe().ByName(vethName)
			a = startAgent(b)
			a.SetLimits(vethName, qos.Limits{Egress: mbit(30)})
			a.settle()
			veth := b.observe().ByName(vethName)
			Expect(veth.Hook).To(Equal(qos.HookClsact))
			Expect(veth.RedirectsTo(b.index(ifbName))).To(BeTrue())
			Expect(veth.Filters).To(HaveLen(3))
			for _, filter := range veth.Filters {
				if filter.Marked {
					Expect(filter.Priority).To(BeEquivalentTo(0xca12))
				}
			}
			a.SetLimits(vethName, qos.Limits{})
			a.settle()
			Expect(b.observe().ByName(vethName)).To(Equal(before))
		})

		It("leaves an empty clsact qdisc, and an empty ingress qdisc of someone else, when its limit goes", func() {
			b.addPod("cali2")
			b.addHook("clsact", vethName)
			b.addHook("ingress", "cali2")
			a = startAgent(b)
			for _, limits := range []qos.Limits{{Egress: mbit(30)}, {}} {
				a.SetLimits(vethName, limits)
				a.SetLimits("cali2", limits)
				a.settle()
				a.QueueResync()
				a.settle()
			}
			Expect(b.observe().ByName(vethName).Hook).To(Equal(qos.HookClsact))
			Expect(b.observe().ByName("cali2").Hook).To(Equal(qos.HookIngress))
			Expect(b.ifbs()).To(BeEmpty())
		})

		It("keeps its ingress qdisc while another program has a filter on it", func() {
			a = startAgent(b)
			a.SetLimits(vethName, qos.Limits{Egress: mbit(30)})
			a.settle()
			monitorFilter(7)
			a.SetLimits(vethName, qos.Limits{})
			a.settle()
			veth := b.observe().ByName(vethName)
			Expect(veth.Hook).To(Equal(qos.HookIngress))
			Expect(veth.Filters).To(HaveLen(1))
			Expect(b.ifbs()).To(BeEmpty())
		})

		It("detaches a stray redirect from an interface that is no workload's, without grace", func() {
			b.addPod("eth77")
			b.addHook("ingress", "eth77")
			ifb := b.addIFB("bwcali000000000", 1500)
			b.redirect("eth77", 1, ifb.Index)
			a = startAgent(b)
			a.settle()
			Expect(b.ifbs()).To(BeEmpty())
			Expect(b.observe().ByName("eth77").Filters).To(BeEmpty())
		})

		It("never touches the plugin's devices in a sweep", func() {
			b.addIFB(plugin, 1500)
			b.addIFB("bwcali000000000", 1500)
			a = startAgent(b)
			a.settle()
			Expect(b.ifbs()).To(BeEmpty())
			Expect(b.index(plugin)).NotTo(BeZero())
		})
	})
})
