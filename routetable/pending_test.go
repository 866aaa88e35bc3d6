package routetable_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/routetable"
)

var _ = onEachKernel("what is pending", func(kind worldKind) {
	var f *fixture
	BeforeEach(func() { f = newFixture(GinkgoT(), kind, nil) })

	It("is what was set and not applied, on an interface that is up", func() {
		Expect(f.Pending("cali1")).To(BeFalse(), "nothing is wanted")
		f.want("cali1", "10.65.0.1/32")
		Expect(f.Pending("cali1")).To(BeFalse(), "nothing can be done")
		f.addLink("cali1")
		Expect(f.Pending("cali1")).To(BeTrue())
		f.apply()
		Expect(f.Pending("cali1")).To(BeFalse())
		f.want("cali1", "10.65.0.1/32", "10.65.0.2/32")
		Expect(f.Pending("cali1")).To(BeTrue())
		f.apply()
		Expect(f.Pending("cali1")).To(BeFalse())
	})

	It("is a route whose place is taken, and no other interface's", func() {
		f = newFixture(GinkgoT(), kind, func(c *routetable.Config) {
			c.Ownership = routetable.WorkloadPolicy{WorkloadPrefixes: []string{"cali"}, Protocols: []int{80}}
		})
		index := f.addLink("eth0")
		f.addLink("cali1")
		f.addLink("cali2")
		addRoute(f.t, f.w, routeVia(tableNumber, "10.65.0.1/32", index, unix.RTPROT_STATIC))
		f.want("cali1", "10.65.0.1/32")
		f.want("cali2", "10.65.0.2/32")
		Expect(f.Apply()).To(HaveOccurred())
		Expect(f.Pending("cali1")).To(BeTrue())
		Expect(f.Pending("cali2")).To(BeFalse())
	})

	It("is a route whose place another program's takes on the same interface", func() {
		index := f.addLink("eth0") // not a workload's: others' routes on it are theirs
		addRoute(f.t, f.w, routeVia(tableNumber, "10.65.0.1/32", index, unix.RTPROT_STATIC))
		f.want("eth0", "10.65.0.1/32")
		Expect(f.Apply()).To(HaveOccurred())
		Expect(f.Pending("eth0")).To(BeTrue())
	})

	It("is not a route that another interface wins", func() {
		f.addLink("cali1")
		f.addLink("cali2")
		f.want("cali1", "10.65.0.1/32")
		f.want("cali2", "10.65.0.1/32")
		f.apply()
		Expect(f.Pending("cali1")).To(BeFalse())
		Expect(f.Pending("cali2")).To(BeFalse())
	})
})
