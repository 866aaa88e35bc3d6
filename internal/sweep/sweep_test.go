package sweep_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/internal/nodetest"
	"github.com/manx-dataplane/manx/internal/sweep"
	"github.com/manx-dataplane/manx/mocks"
	"github.com/manx-dataplane/manx/qos"
	"github.com/manx-dataplane/manx/rtnl"
)

var (
	_ sweep.Kernel = (*rtnl.Handle)(nil)
	_ sweep.Kernel = (*mocks.Handle)(nil)
)

func TestSweep(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "sweep")
	goleak.VerifyNone(t, goleak.IgnoreAnyFunction(
		"github.com/onsi/ginkgo/v2/internal/interrupt_handler.(*InterruptHandler).registerForInterrupts.func2"))
}

var _ = AfterSuite(nodetest.CleanUp)

const veth = "cali0027f0645a2"

// hooked is a kernel with hooks: before each look, and before each rename.
type hooked struct {
	sweep.Kernel
	looks        int
	beforeLook   func(n int)
	beforeRename func(link netlink.Link, to string) error
}

func (h *hooked) LinkList() ([]netlink.Link, error) {
	h.looks++
	if h.beforeLook != nil {
		h.beforeLook(h.looks)
	}
	return h.Kernel.LinkList()
}

func (h *hooked) LinkSetName(link netlink.Link, to string) error {
	if h.beforeRename != nil {
		if err := h.beforeRename(link, to); err != nil {
			return err
		}
	}
	return h.Kernel.LinkSetName(link, to)
}

var _ = Describe("A sweep", func() {
	var node *nodetest.Node
	var kernel *hooked
	var config sweep.Config
	BeforeEach(func() {
		node = nodetest.New()
		kernel = &hooked{Kernel: node.Kernel}
		config = sweep.Config{Kernel: kernel, Grace: time.Millisecond, OpenReaper: func() (qos.ReaperKernel, error) {
			return rtnl.Open(rtnl.Options{Namespace: node.NS})
		}}
	})
	try := func(ctx context.Context) (sweep.Result, error) {
		GinkgoHelper()
		sweeper, err := sweep.New(config)
		Expect(err).NotTo(HaveOccurred())
		return sweeper.Sweep(ctx)
	}
	run := func() sweep.Result {
		GinkgoHelper()
		result, err := try(GinkgoT().Context())
		Expect(err).NotTo(HaveOccurred())
		return result
	}
	outcomes := func(result sweep.Result) map[string]sweep.Outcome {
		found := make(map[string]sweep.Outcome)
		for _, orphan := range result.Orphans {
			found[orphan.Name] = orphan.Outcome
		}
		return found
	}
	shapers := func() []string {
		GinkgoHelper()
		var names []string
		for _, name := range node.Links() {
			if strings.HasPrefix(name, "bw") {
				names = append(names, name)
			}
		}
		return names
	}

	Describe("deletes", func() {
		It("what nothing redirects to and no interface's IFB is named", func() {
			node.AddIFB("bwcali000000001")
			node.AddIFB("bwcali000000002")
			node.AddWorkload(veth, nil)
			result := run()
			Expect(outcomes(result)).To(Equal(map[string]sweep.Outcome{
				"bwcali000000001": sweep.Deleted, "bwcali000000002": sweep.Deleted,
			}))
			Expect(result.Devices).To(Equal(3))
			Expect(shapers()).To(ConsistOf(nodetest.IFBName(veth)))
		})
		It("the devices of workloads that have gone (case A)", func() {
			node.AddWorkload(veth, nil)
			node.Delete(veth)
			Expect(outcomes(run())).To(HaveKeyWithValue(nodetest.IFBName(veth), sweep.Deleted))
			Expect(shapers()).To(BeEmpty())
		})
		It("more than one batch of them, and says how far it is", func() {
			for n := range 150 {
				node.AddIFB("bwcali" + string(rune('a'+n/26)) + string(rune('a'+n%26)))
			}
			total, last := 0, 0
			config.Progress = func(n int) func(int) {
				total = n
				return func(done int) {
					Expect(done).To(BeNumerically(">=", last))
					last = done
				}
			}
			Expect(run().Count(sweep.Deleted)).To(Equal(150))
			Expect([]int{total, last}).To(Equal([]int{150, 150}))
			Expect(shapers()).To(BeEmpty())
		})
		It("what a sweep that was killed had set aside", func() {
			node.AddIFB("bwcali.1a2b")
			Expect(outcomes(run())).To(Equal(map[string]sweep.Outcome{"bwcali.1a2b": sweep.Deleted}))
		})
		It("what it had set aside itself, under the same name", func() {
			node.AddIFB("bwcali000000001")
			index := node.Link("bwcali000000001").Attrs().Index
			kernel.beforeLook = func(n int) {
				if n == 1 {
					Expect(node.Kernel.LinkSetName(node.Link("bwcali000000001"), "bwcali."+base36(index))).To(Succeed())
				}
			}
			Expect(run().Count(sweep.Deleted)).To(Equal(1))
		})
		It("on a kernel that does not rename devices that are up", func() {
			node.AddIFB("bwcali000000001")
			kernel.beforeRename = func(link netlink.Link, _ string) error {
				if node.Link(link.Attrs().Name).Attrs().RawFlags&unix.IFF_UP != 0 {
					return unix.EBUSY
				}
				return nil
			}
			Expect(run().Count(sweep.Deleted)).To(Equal(1))
		})
	})

	Describe("does not delete", func() {
		AfterEach(func() {
			for _, name := range shapers() {
				Expect(name).NotTo(ContainSubstring("."), "a device was left set aside")
			}
		})
		It("a device that something redirects to, whatever its name", func() {
			host := node.AddVeth("eth0", nil)
			node.Redirect(host, node.AddIFB("bwcali000000001"))
			Expect(run().Orphans).To(BeEmpty())
		})
		DescribeTable("a device that is redirected to from elsewhere than an ingress qdisc",
			func(parent uint32, qdisc func(index int) netlink.Qdisc) {
				host := node.AddVeth("eth0", nil)
				ifb := node.AddIFB("bwcali000000001")
				Expect(node.Kernel.QdiscAdd(qdisc(host))).To(Succeed())
				Expect(node.Kernel.FilterAdd(nodetest.RedirectFilter(host, parent, ifb))).To(Succeed())
				Expect(run().Orphans).To(BeEmpty())
			},
			Entry("clsact, incoming", uint32(netlink.HANDLE_MIN_INGRESS), clsact),
			Entry("clsact, outgoing", uint32(netlink.HANDLE_MIN_EGRESS), clsact),
			Entry("htb", netlink.MakeHandle(1, 0), func(index int) netlink.Qdisc {
				return netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)})
			}),
		)
		It("a device that has the name of an existing interface's IFB and is not wired (yet)", func() {
			node.AddVeth(veth, nil)
			node.AddIFB(nodetest.IFBName(veth))
			Expect(run().Orphans).To(BeEmpty())
		})
		It("a device that is wired between the two looks", func() {
			ifb := node.AddIFB("bwcali000000001")
			kernel.beforeLook = func(n int) {
				if n == 2 {
					node.Redirect(node.AddVeth("eth0", nil), ifb)
				}
			}
			Expect(run().Orphans).To(BeEmpty())
			Expect(shapers()).To(ConsistOf("bwcali000000001"))
		})
		It("a device that was made anew between the two looks, under the same name", func() {
			node.AddIFB("bwcali000000001")
			kernel.beforeLook = func(n int) {
				if n == 2 {
					node.Delete("bwcali000000001")
					node.AddIFB("bwcali000000001")
				}
			}
			Expect(run().Orphans).To(BeEmpty())
			Expect(shapers()).To(ConsistOf("bwcali000000001"))
		})
		It("a leftover that an agent has found for an interface that came after the second look", func() {
			name := nodetest.IFBName(veth)
			index := node.AddIFB(name)
			kernel.beforeRename = func(_ netlink.Link, to string) error {
				if to != name {
					node.AddVeth(veth, nil) // and the agent looks the device up by its name
				}
				return nil
			}
			Expect(outcomes(run())).To(Equal(map[string]sweep.Outcome{name: sweep.Spared}))
			link := node.Link(name)
			Expect(link.Attrs().Index).To(Equal(index))
			Expect(link.Attrs().RawFlags & unix.IFF_UP).NotTo(BeZero())
		})
		It("such a leftover on a kernel that does not rename devices that are up, and sets it up again", func() {
			name := nodetest.IFBName(veth)
			index := node.AddIFB(name)
			kernel.beforeRename = func(link netlink.Link, to string) error {
				if node.Link(link.Attrs().Name).Attrs().RawFlags&unix.IFF_UP != 0 {
					return unix.EBUSY
				}
				if to != name {
					node.AddVeth(veth, nil)
				}
				return nil
			}
			Expect(outcomes(run())).To(Equal(map[string]sweep.Outcome{name: sweep.Spared}))
			Expect(node.Link(name).Attrs().Index).To(Equal(index))
			Expect(node.Link(name).Attrs().RawFlags & unix.IFF_UP).NotTo(BeZero())
		})
		It("a device that is in use by its ifindex and whose name an agent has given to another", func() {
			name := nodetest.IFBName(veth)
			index := node.AddIFB(name)
			kernel.beforeLook = func(n int) {
				if n == 3 {
					node.AddIFB(name)
					node.Redirect(node.AddVeth(veth, nil), index)
				}
			}
			result := run()
			Expect(outcomes(result)).To(Equal(map[string]sweep.Outcome{name: sweep.Left}))
			Expect(result.Orphans[0].Error).To(ContainSubstring("file exists"))
			Expect(node.Kernel.LinkSetName(node.Link("bwcali."+base36(index)), "ifb9")).To(Succeed())
		})
		It("devices of other prefixes or kinds", func() {
			node.AddIFB("ifb0")
			node.AddIFB("bwp0123456789ab")
			node.AddVeth("bwcali000000001", nil)
			Expect(run().Devices).To(BeZero())
			Expect(node.Links()).To(ContainElements("ifb0", "bwp0123456789ab", "bwcali000000001"))
		})
		It("anything in a dry run, and says for how long it has seen what", func() {
			node.AddIFB("bwcali000000001")
			config.DryRun = true
			result := run()
			Expect(outcomes(result)).To(Equal(map[string]sweep.Outcome{"bwcali000000001": sweep.WouldDelete}))
			Expect(result.Orphans[0].Reason).To(Equal("no filter redirects to it and no interface's IFB has its name"))
			Expect(result.Orphans[0].SeenForSeconds).To(BeNumerically(">=", 0.001))
			Expect(shapers()).To(ConsistOf("bwcali000000001"))
		})
		It("anything where there are more than allowed", func() {
			node.AddIFB("bwcali000000001")
			node.AddIFB("bwcali000000002")
			config.Max = 1
			result, err := try(GinkgoT().Context())
			Expect(err).To(MatchError(sweep.ErrTooMany))
			Expect(result.Count(sweep.Kept)).To(Equal(2))
			Expect(shapers()).To(HaveLen(2))
			config.Max = 2
			Expect(run().Count(sweep.Deleted)).To(Equal(2))
		})
		It("anything where it may not, and says what it needs", func() {
			node.AddIFB("bwcali000000001")
			node.AddIFB("bwcali000000002")
			renames := 0
			kernel.beforeRename = func(netlink.Link, string) error {
				if renames++; renames == 2 {
					return unix.EPERM
				}
				return nil
			}
			_, err := try(GinkgoT().Context())
			Expect(err).To(MatchError(ContainSubstring("CAP_NET_ADMIN")))
			Expect(shapers()).To(ConsistOf("bwcali000000001", "bwcali000000002"))
		})
		It("anything where it cannot see whether a device is in use", func() {
			node.AddIFB("bwcali000000001")
			kernel.beforeLook = func(n int) {
				if n == 3 {
					kernel.Kernel = blind{node.Kernel}
				}
			}
			_, err := try(GinkgoT().Context())
			Expect(err).To(MatchError(unix.ENOMEM))
			Expect(shapers()).To(ConsistOf("bwcali000000001"))
		})
	})

	It("can be interrupted while it waits", func() {
		node.AddIFB("bwcali000000001")
		config.Grace = time.Hour
		ctx, cancel := context.WithCancel(GinkgoT().Context())
		kernel.beforeLook = func(int) { cancel() }
		_, err := try(ctx)
		Expect(err).To(MatchError(context.Canceled))
		Expect(shapers()).To(HaveLen(1))
	})
	It("can be interrupted while it deletes: what it has begun ends, the rest stays", func() {
		for n := range 130 {
			node.AddIFB("bwcali" + string(rune('a'+n/26)) + string(rune('a'+n%26)))
		}
		ctx, cancel := context.WithCancel(GinkgoT().Context())
		config.Progress = func(int) func(int) { return func(int) { cancel() } }
		result, err := try(ctx)
		Expect(err).To(MatchError(context.Canceled))
		Expect(result.Count(sweep.Deleted)).To(Equal(64))
		Expect(result.Count(sweep.Kept)).To(Equal(66))
		Expect(shapers()).To(HaveLen(66))
		Expect(shapers()).NotTo(ContainElement(ContainSubstring(".")))
	})
	It("does not wait for ever for a delete that does not come back", func() {
		node.AddIFB("bwcali000000001")
		release := make(chan struct{})
		config.StuckAfter = 20 * time.Millisecond
		open := config.OpenReaper
		config.OpenReaper = func() (qos.ReaperKernel, error) {
			kernel, err := open()
			return hanging{kernel, release}, err
		}
		result := run()
		close(release)
		Expect(result.Count(sweep.Left)).To(Equal(1))
		Expect(result.Orphans[0].Error).To(ContainSubstring("does not come back"))
	})
	DescribeTable("refuses settings that make no sense",
		func(change func(*sweep.Config)) {
			change(&config)
			_, err := sweep.New(config)
			Expect(err).To(HaveOccurred())
		},
		Entry("a prefix that fits nearly everything", func(c *sweep.Config) { c.Prefix = "bw" }),
		Entry("a prefix longer than a name", func(c *sweep.Config) { c.Prefix = "bwcali6514ff3bb0" }),
		Entry("a negative maximum", func(c *sweep.Config) { c.Max = -1 }),
		Entry("a negative grace", func(c *sweep.Config) { c.Grace = -1 }),
	)
})

func clsact(index int) netlink.Qdisc {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: index, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0),
	}}
}

// blind cannot list qdiscs.
type blind struct{ sweep.Kernel }

func (blind) QdiscList() ([]netlink.Qdisc, error) { return nil, unix.ENOMEM }

// hanging does not come back from deletes before it is released.
type hanging struct {
	qos.ReaperKernel
	release chan struct{}
}

func (h hanging) LinkDel(link netlink.Link) error {
	<-h.release
	return h.ReaperKernel.LinkDel(link)
}

func (h hanging) LinkDelGroup(group int) error {
	<-h.release
	return h.ReaperKernel.LinkDelGroup(group)
}

func base36(n int) string { return strconv.FormatInt(int64(n), 36) }
