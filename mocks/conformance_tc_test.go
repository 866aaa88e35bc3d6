package mocks_test

import (
	"fmt"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/rtnl"
)

func qdiscsOf(w world, index int) (lines []string) {
	GinkgoHelper()
	qdiscs, err := w.QdiscList()
	Expect(err).NotTo(HaveOccurred())
	for _, q := range qdiscs {
		if q.Attrs().LinkIndex == index {
			lines = append(lines, fmt.Sprintf("%s %s", q.Type(), netlink.HandleStr(q.Attrs().Handle)))
		}
	}
	return lines
}

func qdiscBehaviour(w *world) {
	handle := netlink.MakeHandle(0xca11, 0)
	It("shows a default root qdisc once a link has been up", func() {
		a, b := addLink(*w, ifb("a")), addLink(*w, veth("b", "c"))
		Expect(qdiscsOf(*w, a)).To(BeEmpty())
		for _, index := range []int{a, b} {
			Expect((*w).LinkSetUp(ofIndex(index))).To(Succeed())
			Expect((*w).LinkSetDown(ofIndex(index))).To(Succeed())
		}
		Expect(qdiscsOf(*w, a)).To(Equal([]string{"pfifo_fast none"}))
		Expect(qdiscsOf(*w, b)).To(Equal([]string{"noqueue none"}))
	})
	It("adds a root qdisc in place of the default one, but not of another", func() {
		a := addPair(*w, "a", "b")
		Expect((*w).QdiscAdd(tbf(a, handle, 1_000_000))).To(Succeed())
		Expect(qdiscsOf(*w, a)).To(Equal([]string{"tbf ca11:0"}))
		Expect(errno((*w).QdiscAdd(tbf(a, handle, 1_000_000)))).To(Equal(unix.EEXIST))
		Expect(errno((*w).QdiscAdd(tbf(a, netlink.MakeHandle(1, 0), 1_000_000)))).To(Equal(unix.EEXIST))
	})
	It("changes a TBF in place, or grafts one of another handle over it", func() {
		a := addPair(*w, "a", "b")
		Expect((*w).QdiscReplace(tbf(a, handle, 1_000_000))).To(Succeed())
		Expect((*w).QdiscReplace(tbf(a, handle, 2_000_000))).To(Succeed())
		Expect(qdiscsOf(*w, a)).To(Equal([]string{"tbf ca11:0"}))
		Expect((*w).QdiscReplace(tbf(a, netlink.MakeHandle(1, 0), 2_000_000))).To(Succeed())
		Expect(qdiscsOf(*w, a)).To(Equal([]string{"tbf 1:0"}))
		other := &netlink.GenericQdisc{QdiscAttrs: tbf(a, netlink.MakeHandle(1, 0), 0).QdiscAttrs, QdiscType: "pfifo"}
		Expect(errno((*w).QdiscReplace(other))).To(Equal(unix.EINVAL))
		Expect((*w).QdiscChange(tbf(a, netlink.MakeHandle(1, 0), 3_000_000))).To(Succeed())
		Expect(errno((*w).QdiscChange(tbf(a, handle, 3_000_000)))).To(Equal(unix.ENOENT))
	})
	It("refuses a TBF without a rate, or with a peak rate that does not exceed it", func() {
		a := addPair(*w, "a", "b")
		Expect(errno((*w).QdiscReplace(tbf(a, handle, 0)))).To(Equal(unix.EINVAL))
		q := tbf(a, handle, 1_000_000)
		q.Peakrate, q.Minburst = 1_000_000, 2_000
		Expect(errno((*w).QdiscReplace(q))).To(Equal(unix.EINVAL))
	})
	DescribeTable("dumps a TBF's parameters as they were set",
		func(rate, peak uint64, buffer, limit uint32) {
			a := addPair(*w, "a", "b")
			q := tbf(a, handle, rate)
			q.Peakrate, q.Buffer, q.Limit = peak, buffer, limit
			if peak != 0 {
				q.Minburst = 1_600
			}
			Expect((*w).QdiscReplace(q)).To(Succeed())
			qdiscs, err := (*w).QdiscList()
			Expect(err).NotTo(HaveOccurred())
			i := slices.IndexFunc(qdiscs, func(q netlink.Qdisc) bool { return q.Type() == "tbf" })
			got := qdiscs[i].(*netlink.Tbf)
			Expect([]any{got.Rate, got.Peakrate, got.Limit}).To(Equal([]any{rate, peak, limit}))
			Expect(got.Buffer).To(BeNumerically("~", buffer, buffer/1000+1))
			Expect(got.Minburst).To(BeNumerically("~", q.Minburst, peak*64/1_000_000_000+1))
		},
		Entry("30 Mbit/s", uint64(3_750_000), uint64(0), uint32(2_000_000_000), uint32(600_000_000)),
		Entry("1 kbit/s", uint64(125), uint64(0), uint32(4_000_000_000), uint32(4_294_967_295)),
		Entry("100 Gbit/s", uint64(12_500_000_000), uint64(25_000_000_000), uint32(600_000), uint32(4_294_967_295)))
	It("has a queue below a TBF, whose limit a change of the TBF sets", func() {
		a := addPair(*w, "a", "b")
		below, handle2 := handle|1, netlink.MakeHandle(0xca12, 0)
		limit := func() (limits []uint32) {
			qdiscs, err := (*w).QdiscList()
			Expect(err).NotTo(HaveOccurred())
			for _, q := range qdiscs {
				if q, ok := q.(*rtnl.Bfifo); ok {
					Expect([]uint32{q.Parent, q.Handle}).To(Equal([]uint32{below, handle2}))
					limits = append(limits, q.Limit)
				}
			}
			return limits
		}
		Expect(errno((*w).QdiscReplace(queue(a, below, handle2, 3_000)))).To(Equal(unix.ENOENT))
		Expect((*w).QdiscReplace(tbf(a, handle, 1_000_000))).To(Succeed())
		Expect((*w).QdiscReplace(queue(a, below, handle2, 3_000))).To(Succeed())
		Expect(qdiscsOf(*w, a)).To(Equal([]string{"tbf ca11:0", "bfifo ca12:0"}))
		Expect(limit()).To(Equal([]uint32{3_000}))
		Expect((*w).QdiscReplace(queue(a, below, handle2, 4_000))).To(Succeed())
		Expect(limit()).To(Equal([]uint32{4_000}))
		Expect((*w).QdiscChange(tbf(a, handle, 2_000_000))).To(Succeed())
		Expect(limit()).To(Equal([]uint32{100_000}))
		Expect((*w).QdiscDel(queue(a, below, handle2, 0))).To(Succeed())
		Expect(errno((*w).QdiscDel(queue(a, below, handle2, 0)))).To(SatisfyAny(Equal(unix.EINVAL), Equal(unix.ENOENT)))
		Expect((*w).QdiscReplace(queue(a, below, handle2, 5_000))).To(Succeed())
		Expect((*w).QdiscReplace(tbf(a, netlink.MakeHandle(1, 0), 2_000_000))).To(Succeed())
		Expect(qdiscsOf(*w, a)).To(Equal([]string{"tbf 1:0"}))
	})
	It("does without a root qdisc that is deleted while the link is down", func() {
		a := addLink(*w, ifb("a"))
		Expect((*w).QdiscAdd(tbf(a, handle, 1_000_000))).To(Succeed())
		Expect((*w).QdiscDel(tbf(a, handle, 0))).To(Succeed())
		Expect(qdiscsOf(*w, a)).To(BeEmpty())
		Expect((*w).LinkSetUp(ofIndex(a))).To(Succeed())
		Expect(qdiscsOf(*w, a)).To(Equal([]string{"pfifo_fast none"}))
	})
	It("says EINVAL or ENOENT when there is no such qdisc to delete", func() {
		a := addPair(*w, "a", "b")
		Expect(errno((*w).QdiscDel(tbf(a, 0, 0)))).To(Equal(unix.ENOENT))
		Expect(errno((*w).QdiscDel(tbf(a, handle, 0)))).To(Equal(unix.EINVAL))
		Expect(errno((*w).QdiscDel(ingress(a)))).To(Equal(unix.ENOENT))
		Expect((*w).QdiscAdd(ingress(a))).To(Succeed())
		Expect((*w).QdiscDel(ingress(a))).To(Succeed())
		Expect(errno((*w).QdiscDel(ingress(a)))).To(Equal(unix.EINVAL))
		Expect(errno((*w).QdiscDel(tbf(4711, handle, 0)))).To(Equal(unix.ENODEV))
	})
	It("has either an ingress or a clsact qdisc", func() {
		a := addPair(*w, "a", "b")
		Expect((*w).QdiscAdd(clsact(a))).To(Succeed())
		Expect(errno((*w).QdiscAdd(clsact(a)))).To(Equal(unix.EEXIST))
		Expect(errno((*w).QdiscAdd(ingress(a)))).To(Equal(unix.EEXIST))
		Expect(errno((*w).QdiscReplace(ingress(a)))).To(Equal(unix.EINVAL))
		Expect(qdiscsOf(*w, a)).To(ConsistOf("noqueue none", "clsact ffff:0"))
	})
	It("keeps qdiscs and filters over down and rename, and loses them with the link or its move", func() {
		other, err := (*w).newNamespace()
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(other.destroy)
		a := addPair(*w, "a", "b")
		Expect((*w).QdiscAdd(tbf(a, handle, 1_000_000))).To(Succeed())
		Expect((*w).QdiscAdd(ingress(a))).To(Succeed())
		Expect((*w).FilterAdd(redirect(a, 0, 1))).To(Succeed())
		Expect((*w).LinkSetDown(ofIndex(a))).To(Succeed())
		Expect((*w).LinkSetName(ofIndex(a), "c")).To(Succeed())
		Expect(qdiscsOf(*w, a)).To(ConsistOf("tbf ca11:0", "ingress ffff:0"))
		Expect((*w).FilterList(a, netlink.HANDLE_MIN_INGRESS)).To(HaveLen(1))
		Expect((*w).moveLink(byName(*w, "c"), other)).To(Succeed())
		Expect(qdiscsOf(other, byName(other, "c").Attrs().Index)).To(BeEmpty())
	})
}

func filterBehaviour(w *world) {
	It("loses filters with their qdisc", func() {
		a, i := addPair(*w, "a", "b"), addLink(*w, ifb("i"))
		Expect((*w).QdiscAdd(ingress(a))).To(Succeed())
		Expect((*w).FilterAdd(redirect(a, i, 1))).To(Succeed())
		Expect((*w).QdiscDel(ingress(a))).To(Succeed())
		Expect((*w).FilterList(a, netlink.HANDLE_MIN_INGRESS)).To(BeEmpty())
		Expect((*w).QdiscAdd(ingress(a))).To(Succeed())
		Expect((*w).FilterList(a, netlink.HANDLE_MIN_INGRESS)).To(BeEmpty())
	})
	It("keeps a filter whose target is deleted, pointing to nothing", func() {
		a, i := addPair(*w, "a", "b"), addLink(*w, ifb("i"))
		Expect((*w).QdiscAdd(ingress(a))).To(Succeed())
		Expect((*w).FilterAdd(redirect(a, i, 1))).To(Succeed())
		target := func() int {
			filters, err := (*w).FilterList(a, netlink.HANDLE_MIN_INGRESS)
			Expect(err).NotTo(HaveOccurred())
			Expect(filters).To(HaveLen(1))
			return filters[0].(*netlink.U32).RedirIndex
		}
		Expect(target()).To(Equal(i))
		Expect((*w).LinkDel(ofIndex(i))).To(Succeed())
		Expect(target()).To(BeZero())
	})
	It("refuses a filter whose target, qdisc or link is not there", func() {
		a := addPair(*w, "a", "b")
		Expect(errno((*w).FilterAdd(redirect(a, 0, 1)))).To(Equal(unix.EINVAL))
		Expect((*w).QdiscAdd(clsact(a))).To(Succeed())
		Expect(errno((*w).FilterAdd(redirect(a, 4711, 1)))).To(Equal(unix.ENODEV))
		Expect(errno((*w).FilterAdd(redirect(4711, 0, 1)))).To(Equal(unix.ENODEV))
		Expect((*w).FilterList(4711, netlink.HANDLE_MIN_INGRESS)).To(BeEmpty())
	})
	It("adds a second filter where no handle is given, whatever the verb", func() {
		a := addPair(*w, "a", "b")
		Expect((*w).QdiscAdd(ingress(a))).To(Succeed())
		Expect((*w).FilterReplace(redirect(a, 0, 1))).To(Succeed())
		Expect((*w).FilterReplace(redirect(a, 0, 1))).To(Succeed())
		filters, err := (*w).FilterList(a, netlink.HANDLE_MIN_INGRESS)
		Expect(err).NotTo(HaveOccurred())
		Expect(filters).To(HaveLen(2))
		Expect(filters[0].Attrs().Handle).To(Equal(uint32(0x80000800)))
		Expect(filters[1].Attrs().Handle).To(Equal(uint32(0x80000801)))
	})
	It("deletes one filter by its handle, or all of a priority", func() {
		a := addPair(*w, "a", "b")
		Expect((*w).QdiscAdd(ingress(a))).To(Succeed())
		for _, prio := range []uint16{1, 1, 2} {
			Expect((*w).FilterAdd(redirect(a, 0, prio))).To(Succeed())
		}
		f := redirect(a, 0, 1)
		f.Handle = 0x80000800
		Expect((*w).FilterDel(f)).To(Succeed())
		Expect(errno((*w).FilterDel(f))).To(Equal(unix.ENOENT))
		Expect((*w).FilterList(a, netlink.HANDLE_MIN_INGRESS)).To(HaveLen(2))
		Expect((*w).FilterDel(redirect(a, 0, 1))).To(Succeed())
		Expect(errno((*w).FilterDel(redirect(a, 0, 1)))).To(Equal(unix.ENOENT))
		Expect((*w).FilterList(a, netlink.HANDLE_MIN_INGRESS)).To(HaveLen(1))
	})
	It("has one protocol for a priority", func() {
		a := addPair(*w, "a", "b")
		Expect((*w).QdiscAdd(ingress(a))).To(Succeed())
		Expect((*w).FilterAdd(redirect(a, 0, 1))).To(Succeed())
		f := redirect(a, 0, 1)
		f.Protocol = unix.ETH_P_IP
		Expect(errno((*w).FilterAdd(f))).To(Equal(unix.EINVAL))
	})
	It("separates the two directions of a clsact qdisc, and an ingress qdisc has but one", func() {
		a := addPair(*w, "a", "b")
		Expect((*w).QdiscAdd(clsact(a))).To(Succeed())
		Expect((*w).FilterAdd(redirect(a, 0, 1))).To(Succeed())
		Expect((*w).FilterList(a, netlink.HANDLE_MIN_EGRESS)).To(BeEmpty())
		Expect((*w).FilterList(a, netlink.HANDLE_MIN_INGRESS)).To(HaveLen(1))
		b := byName(*w, "b").Attrs().Index
		Expect((*w).QdiscAdd(ingress(b))).To(Succeed())
		Expect((*w).FilterAdd(redirect(b, 0, 1))).To(Succeed())
		Expect((*w).FilterList(b, netlink.MakeHandle(0xffff, 0))).To(HaveLen(1))
	})
}
