package qos_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/mocks"
	"github.com/manx-dataplane/manx/qos"
)

// errDead is what an agent gets from its kernel after it was killed.
var errDead = errors.New("killed")

// life is an agent whose time the test moves on, so that retries cost none.
type life struct {
	*qos.Syncer
	reaper      *qos.Reaper
	clock       *clocktesting.FakeClock
	stop        func()
	ifaces      map[string]int // as an interface monitor would have reported them
	reaperClock *clocktesting.FakeClock
}

func startLife(b *backend) *life {
	now := time.Unix(1e9, 0)
	l := &life{clock: clocktesting.NewFakeClock(now), reaperClock: clocktesting.NewFakeClock(now), ifaces: map[string]int{}}
	l.reaper = qos.NewReaper(qos.ReaperConfig{
		Open: func() (qos.ReaperKernel, error) { return b.open(), nil }, Clock: l.reaperClock, StuckAfter: 1000 * time.Hour,
	})
	l.Syncer = qos.New(qos.Config{Kernel: b.open(), Reaper: l.reaper, Clock: l.clock, Enabled: true})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = l.reaper.Run(ctx) })
	l.stop = func() { cancel(); running.Wait() }
	return l
}

// monitor reports what changed among the interfaces.
func (l *life) monitor(b *backend) {
	seen := map[string]int{}
	for _, iface := range b.observe().Interfaces {
		seen[iface.Name] = iface.Index
	}
	for name, index := range l.ifaces {
		if seen[name] != index {
			l.OnIfaceStateChanged(name, index, ifacemonitor.StateNotPresent)
		}
	}
	for name, index := range seen {
		if l.ifaces[name] != index {
			l.OnIfaceStateChanged(name, index, ifacemonitor.StateUp)
		}
	}
	l.ifaces = seen
}

// settle applies until nothing is left to do, or the agent is dead. It reports
// whether the agent lives.
func (l *life) settle(b *backend, dead func() bool) bool {
	quiet := 0 // what the Reaper has done may be new work
	for range 2000 {
		if dead() {
			return false
		}
		l.monitor(b)
		if l.Apply() != nil || l.reaper.Pending() > 0 {
			quiet = 0
		} else if quiet++; quiet == 2 {
			return !dead()
		}
		l.reaperClock.Step(time.Minute)
		time.Sleep(10 * time.Microsecond) // lets the reaper run; the bound is the loop's
	}
	Fail("does not settle")
	return false
}

func never() bool { return false }

// steps is a pod's life, with an orphan and a neighbour beside it, in steps that
// use every operation there is.
func steps(b *backend) []func(*life) {
	var removePod func()
	return []func(*life){
		func(l *life) { removePod = b.addPod(vethName) },
		func(l *life) { l.SetLimits(vethName, qos.Limits{Ingress: mbit(20), Egress: mbit(30)}) },
		func(l *life) { l.SetLimits(vethName, qos.Limits{Ingress: mbit(2), Egress: mbit(3)}) },
		func(l *life) {
			veth, _ := b.outside.LinkByName(vethName)
			Expect(b.mock.Outside().LinkSetMTU(veth, 9000)).To(Succeed())
			l.OnIfaceMTUChanged(vethName, veth.Attrs().Index, 9000)
		},
		func(l *life) { removePod(); removePod = b.addPod(vethName) },
		func(l *life) { l.SetLimits(vethName, qos.Limits{Egress: mbit(4)}) },
		func(l *life) { l.SetLimits(vethName, qos.Limits{}) },
		func(l *life) { l.SetLimits(vethName, qos.Limits{Egress: mbit(5)}) },
		func(l *life) { l.SetEnabled(false) },
		func(l *life) { l.SetEnabled(true) },
		func(l *life) { removePod() },
	}
}

// expectState compares the kernel with the limits that the steps so far ask for.
func expectState(b *backend, step int, what string) {
	GinkgoHelper()
	want := map[int][2]uint64{0: {0, 0}, 1: {20e6, 30e6}, 2: {2e6, 3e6}, 3: {2e6, 3e6}, 4: {2e6, 3e6}, 5: {0, 4e6}, 6: {0, 0}, 7: {0, 5e6}, 8: {0, 0}, 9: {0, 5e6}, 10: {0, 0}}[step]
	snapshot := b.observe()
	Expect(b.rate(vethName)).To(Equal(want[0]), what)
	Expect(b.rate(ifbName)).To(Equal(want[1]), what)
	Expect(b.queue(vethName)).To(Equal(queueFor(want[0])), what)
	Expect(b.queue(ifbName)).To(Equal(queueFor(want[1])), what)
	veth, ifb := snapshot.ByName(vethName), snapshot.ByName(ifbName)
	Expect(ifb != nil).To(Equal(want[1] != 0), what)
	if ifb != nil {
		Expect(veth.RedirectsTo(ifb.Index)).To(BeTrue(), what)
		Expect(veth.Filters).To(HaveLen(1), what)
		Expect(ifb.MTU).To(Equal(veth.MTU), what)
	} else if veth != nil {
		Expect(veth.Hook).To(Equal(qos.HookNone), what)
	}
	Expect(b.ifbs()).To(HaveLen(min(1, int(want[1]))), what)
}

// desiredAfter has a new life want what the steps so far ask for.
func desiredAfter(l *life, step int) {
	limits := map[int]qos.Limits{
		1: {Ingress: mbit(20), Egress: mbit(30)}, 2: {Ingress: mbit(2), Egress: mbit(3)}, 3: {Ingress: mbit(2), Egress: mbit(3)},
		4: {Ingress: mbit(2), Egress: mbit(3)}, 5: {Egress: mbit(4)}, 6: {}, 7: {Egress: mbit(5)}, 8: {Egress: mbit(5)}, 9: {Egress: mbit(5)},
	}
	if wanted, ok := limits[step]; ok {
		l.SetLimits(vethName, wanted)
	}
	if step == 8 {
		l.SetEnabled(false)
	}
}

var _ = Describe("Syncer under faults", func() {
	It("converges whatever errno any one call fails with", func() {
		errnos := []unix.Errno{unix.EINTR, unix.EBUSY, unix.ENOBUFS, unix.ENODEV, unix.EEXIST, unix.ENOENT, unix.EPERM, unix.ENOMEM, unix.EOPNOTSUPP, unix.EINVAL, unix.ETIMEDOUT}
		runs := 0
		for start := 0; start < len(errnos); start += 4 { // a quarter of all combinations, some of each call and each errno
			for n := 1; ; n++ {
				errno := errnos[(start+n)%len(errnos)]
				b := newMock()
				calls := 0
				var at mocks.Call
				var mu sync.Mutex
				b.setFault(func(c mocks.Call) error {
					mu.Lock()
					defer mu.Unlock()
					if calls++; calls == n {
						at = c
						return errno
					}
					return nil
				})
				l := startLife(b)
				for step, act := range steps(b) {
					act(l)
					l.settle(b, never)
					l.QueueResync()
					l.settle(b, never)
					expectState(b, step, fmt.Sprintf("step %d, %v at call %d, %s", step, errno, n, at))
				}
				l.stop()
				runs++
				if at.Op == "" {
					break
				}
			}
		}
		GinkgoWriter.Println(runs, "runs")
	})

	It("converges after being killed before any of its writes", func() {
		for n := 1; ; n++ {
			b := newMock()
			writes, killed := 0, false
			var mu sync.Mutex
			var at mocks.Call
			b.setFault(func(c mocks.Call) error {
				mu.Lock()
				defer mu.Unlock()
				if c.Op.Write() && !killed {
					if writes++; writes == n {
						at, killed = c, true
					}
				}
				if killed {
					return errDead
				}
				return nil
			})
			dead := func() bool { mu.Lock(); defer mu.Unlock(); return killed }
			l := startLife(b)
			for step, act := range steps(b) {
				act(l)
				if !dead() && l.settle(b, dead) {
					continue
				}
				l.stop()
				mu.Lock()
				killed = false
				mu.Unlock()
				l = startLife(b)
				desiredAfter(l, step)
				l.settle(b, never)
				expectState(b, step, fmt.Sprintf("step %d, killed before write %d, %s", step, n, at))
			}
			l.stop()
			if at.Op == "" {
				break
			}
		}
	})

	DescribeTable("says once that the kernel lacks something, and does the other work",
		func(kind string, ingress, egress bool) {
			b := newMock()
			b.mock.Lack(kind)
			b.addPod(vethName)
			a := startAgent(b)
			a.SetLimits(vethName, qos.Limits{Ingress: mbit(20), Egress: mbit(30)})
			a.settle()
			calls := b.mock.Calls()
			Expect(a.Apply()).To(Succeed())
			Expect(b.mock.Calls()).To(Equal(calls), "it does not try in a loop")
			a.QueueResync()
			a.settle()
			Expect(b.rate(vethName) != 0).To(Equal(ingress))
			Expect(b.rate(ifbName) != 0).To(Equal(egress))
			Expect(b.ifbs()).To(BeEmpty())
			Expect(b.observe().ByName(vethName).Hook).To(Equal(qos.HookNone))
			said := slices.DeleteFunc(a.log.all(), func(line string) bool { return !strings.Contains(line, "lacks") })
			Expect(said).To(HaveLen(1))
		},
		Entry("ifb", "ifb", true, false),
		Entry("tbf", "tbf", false, false),
		Entry("ingress", "ingress", true, false),
		Entry("u32", "u32", true, false),
	)

	It("sweeps the IFB of an interface whose end it sees itself, looking it up after an error", func() {
		b := newMock()
		removePod := b.addPod(vethName)
		a := startAgent(b)
		a.SetLimits(vethName, qos.Limits{Egress: mbit(30)})
		b.setFault(func(c mocks.Call) error {
			if c.Op == mocks.OpQdiscReplace {
				return unix.ENOMEM
			}
			return nil
		})
		Expect(a.Apply()).To(MatchError(unix.ENOMEM))
		Expect(b.ifbs()).To(HaveLen(1))
		index := b.index(vethName)
		removePod()
		b.setFault(nil)
		Expect(a.Apply()).To(Succeed())
		a.OnIfaceStateChanged(vethName, index, ifacemonitor.StateNotPresent)
		a.settle()
		Expect(b.ifbs()).To(BeEmpty())
	})

	It("deletes its ingress qdisc on a renamed interface although that failed when the filter went", func() {
		b := newMock()
		b.addPod(vethName)
		a := startAgent(b)
		a.SetLimits(vethName, qos.Limits{Egress: mbit(30)})
		a.settle()
		link, err := b.outside.LinkByName(vethName)
		Expect(err).NotTo(HaveOccurred())
		Expect(b.mock.Outside().LinkSetName(link, "other0")).To(Succeed())
		b.setFault(func(c mocks.Call) error {
			if c.Op == mocks.OpQdiscDel {
				return unix.EBUSY
			}
			return nil
		})
		a.gone(vethName, link.Attrs().Index)
		Expect(a.Apply()).To(MatchError(unix.EBUSY))
		b.setFault(nil)
		a.settle()
		Expect(b.observe().ByName("other0").Hook).To(Equal(qos.HookNone))
		Expect(b.ifbs()).To(BeEmpty())
	})

	It("does not give another program's TBF back to a new interface of the same index", func() {
		b := newMock()
		removePod := b.addPod(vethName)
		b.setRoot(vethName, 0x10000, 7e6)
		a := startAgent(b)
		a.SetLimits(vethName, qos.Limits{Ingress: mbit(20)})
		a.settle()
		index := b.index(vethName)
		removePod()
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: vethName, Index: index}, PeerName: "peer"}
		Expect(b.mock.Outside().LinkAdd(veth)).To(Succeed())
		a.gone(vethName, index)
		a.up(b, vethName)
		a.SetLimits(vethName, qos.Limits{})
		a.settle()
		Expect(b.rate(vethName)).To(BeZero())
	})

	It("does not lose sight of an interface that is renamed and back while nothing can be looked up", func() {
		b := newMock()
		b.addPod(vethName)
		a := startAgent(b)
		a.SetLimits(vethName, qos.Limits{Ingress: mbit(20)})
		a.SetLimits("cali1", qos.Limits{Egress: mbit(30)})
		a.settle()
		a.RemoveLimits(vethName)
		veth, err := b.outside.LinkByName(vethName)
		Expect(err).NotTo(HaveOccurred())
		index := veth.Attrs().Index
		Expect(b.mock.Outside().LinkSetName(veth, "cali1")).To(Succeed())
		a.gone(vethName, index)
		a.up(b, "cali1")
		broken := func(c mocks.Call) bool { return c.Name == "cali1" }
		b.setFault(func(c mocks.Call) error {
			if broken(c) {
				return unix.EBUSY
			}
			return nil
		})
		Expect(a.Apply()).To(MatchError(unix.EBUSY))
		Expect(b.mock.Outside().LinkSetName(veth, vethName)).To(Succeed())
		a.gone("cali1", index)
		a.up(b, vethName)
		broken = func(c mocks.Call) bool { return c.Index == index }
		Expect(a.Apply()).To(MatchError(unix.EBUSY))
		b.setFault(nil)
		a.settle()
		a.clock.Step(qos.DefaultGracePeriod)
		a.settle()
		Expect(b.rate(vethName)).To(BeZero())
	})

	It("detaches an IFB from an interface that lost its name to another while it could not be looked up", func() {
		b := newMock()
		b.addPod(vethName)
		a := startAgent(b)
		a.SetLimits(vethName, qos.Limits{Egress: mbit(30)})
		a.settle()
		veth, err := b.outside.LinkByName(vethName)
		Expect(err).NotTo(HaveOccurred())
		index := veth.Attrs().Index
		Expect(b.mock.Outside().LinkSetName(veth, "other0")).To(Succeed())
		b.addPod(vethName)
		a.gone(vethName, index)
		a.up(b, vethName)
		b.setFault(func(c mocks.Call) error {
			if c.Op == mocks.OpLinkGet && c.Index == index {
				return unix.EAGAIN
			}
			return nil
		})
		Expect(a.Apply()).To(MatchError(unix.EAGAIN)) // the mock panics at a delete that loses packets
		b.setFault(nil)
		a.settle()
		Expect(b.observe().ByName("other0").Hook).To(Equal(qos.HookNone))
		Expect(b.rate(ifbName)).To(BeEquivalentTo(30e6))
	})

	Context("when a re-created pod's interface cannot be looked up", func() {
		var b *backend
		var a *agent
		BeforeEach(func() {
			b = newMock()
			removePod := b.addPod(vethName)
			a = startAgent(b)
			a.SetLimits(vethName, qos.Limits{Egress: mbit(30)})
			a.settle()
			old := b.index(vethName)
			removePod()
			a.gone(vethName, old)
			b.addPod(vethName)
			a.up(b, vethName)
			b.setFault(func(c mocks.Call) error {
				if c.Op == mocks.OpLinkGet && c.Name == vethName {
					return unix.ENOBUFS
				}
				return nil
			})
			for range 2 {
				Expect(a.Apply()).To(MatchError(unix.ENOBUFS))
			}
		})

		It("says that its limits are pending", func() {
			Expect(a.Pending(vethName)).To(BeTrue())
			b.setFault(nil)
			a.settle()
			Expect(a.Pending(vethName)).To(BeFalse())
			Expect(b.rate(ifbName)).To(BeEquivalentTo(30e6))
		})

		It("sweeps its IFB if the limit goes before it could", func() {
			a.SetLimits(vethName, qos.Limits{})
			b.setFault(nil)
			a.settle()
			Expect(b.ifbs()).To(BeEmpty())
		})
	})

	It("sweeps the IFB of an interface that it finds renamed before that is reported", func() {
		b := newMock()
		b.addPod(vethName)
		a := startAgent(b)
		a.SetLimits(vethName, qos.Limits{Egress: mbit(30)})
		a.settle()
		veth, err := b.outside.LinkByName(vethName)
		Expect(err).NotTo(HaveOccurred())
		Expect(b.mock.Outside().LinkSetName(veth, "cali1")).To(Succeed())
		a.SetLimits("cali1", qos.Limits{Egress: mbit(40)})
		Expect(a.Apply()).To(Succeed())
		a.gone(vethName, veth.Attrs().Index)
		a.up(b, "cali1")
		a.settle()
		Expect(b.ifbs()).To(Equal([]string{qos.IFBName("cali1")}))
	})

	DescribeTable("makes a fresh IFB where the filter of an earlier interface of this index may have been added", func(resync bool) {
		b := newMock()
		removePod := b.addPod(vethName)
		a := startAgent(b)
		a.SetLimits(vethName, qos.Limits{Egress: mbit(30)})
		b.mock.AfterCall(func(c mocks.Call, err error) error {
			if c.Op == mocks.OpFilterAdd && err == nil {
				return unix.ENOBUFS
			}
			return err
		})
		Expect(a.Apply()).To(MatchError(unix.ENOBUFS))
		b.mock.AfterCall(nil)
		index, used := b.index(vethName), b.index(ifbName)
		removePod()
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: vethName, Index: index}, PeerName: "peer"}
		Expect(b.mock.Outside().LinkAdd(veth)).To(Succeed())
		a.gone(vethName, index)
		a.up(b, vethName)
		if resync {
			a.QueueResync()
		}
		a.settle()
		Expect(b.rate(ifbName)).To(BeEquivalentTo(30e6))
		Expect(b.index(ifbName)).NotTo(Equal(used))
	},
		Entry("and is looked up", false),
		Entry("and all is read anew", true),
	)

	It("looks at an interface again that came back with its index while no endpoint claimed it", func() {
		b := newMock()
		removePod := b.addPod(vethName)
		a := startAgent(b)
		a.SetLimits(vethName, qos.Limits{Egress: mbit(30)})
		a.settle()
		index := b.index(vethName)
		a.RemoveLimits(vethName)
		removePod()
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: vethName, Index: index}, PeerName: "peer"}
		Expect(b.mock.Outside().LinkAdd(veth)).To(Succeed())
		a.gone(vethName, index)
		a.up(b, vethName)
		Expect(a.Apply()).To(Succeed())
		a.SetLimits(vethName, qos.Limits{Egress: mbit(40)})
		a.settle()
		Expect(b.rate(ifbName)).To(BeEquivalentTo(40e6))
		Expect(b.observe().ByName(vethName).RedirectsTo(b.index(ifbName))).To(BeTrue())
	})

	It("limits a re-created pod that was reported before it was claimed, and whose former end it notices by an error", func() {
		b := newMock()
		removePod := b.addPod(vethName)
		a := startAgent(b)
		a.SetLimits(vethName, qos.Limits{Ingress: mbit(20), Egress: mbit(30)})
		a.settle()
		a.RemoveLimits(vethName)
		index := b.index(vethName)
		removePod()
		b.addPod(vethName)
		a.gone(vethName, index)
		a.up(b, vethName)
		a.SetLimits(vethName, qos.Limits{Ingress: mbit(40), Egress: mbit(40)})
		asked := false
		b.setFault(func(c mocks.Call) error {
			if c.Op == mocks.OpLinkGet && c.Index == index && !asked {
				asked = true
				return unix.EAGAIN
			}
			return nil
		})
		Expect(a.Apply()).To(MatchError(unix.EAGAIN))
		Expect(a.woken).To(Receive())
		a.settle()
		Expect(b.rate(vethName)).To(BeEquivalentTo(40e6))
		Expect(b.rate(ifbName)).To(BeEquivalentTo(40e6))
		Expect(b.observe().ByName(vethName).RedirectsTo(b.index(ifbName))).To(BeTrue())
	})

	Context("when a write takes effect and its answer is lost", func() {
		var b *backend
		var a *agent
		var removePod func()
		BeforeEach(func() {
			b = newMock()
			removePod = b.addPod(vethName)
			a = startAgent(b)
		})
		loseAnswerOf := func(op mocks.Op) {
			GinkgoHelper()
			lost := false
			b.mock.AfterCall(func(c mocks.Call, err error) error {
				if c.Op == op && err == nil && !lost {
					lost = true
					return unix.ENOBUFS
				}
				return err
			})
			Expect(a.Apply()).To(MatchError(unix.ENOBUFS))
		}

		It("finds an IFB that it made, also when its interface is gone by then", func() {
			a.SetLimits(vethName, qos.Limits{Egress: mbit(30)})
			index := b.index(vethName)
			b.mock.AfterCall(func(c mocks.Call, err error) error {
				if c.Op == mocks.OpLinkAdd && err == nil {
					removePod()
					return unix.ENOBUFS
				}
				return err
			})
			Expect(a.Apply()).To(Succeed())
			a.gone(vethName, index)
			a.settle()
			Expect(b.ifbs()).To(BeEmpty())
		})

		It("knows an ingress qdisc that it made", func() {
			a.SetLimits(vethName, qos.Limits{Egress: mbit(30)})
			loseAnswerOf(mocks.OpQdiscAdd)
			a.settle()
			a.SetEnabled(false)
			a.settle()
			Expect(b.observe().ByName(vethName).Hook).To(Equal(qos.HookNone))
		})

		It("does not delete an IFB whose interface cannot be looked up, and may redirect to it", func() {
			b.addHook("clsact", vethName) // an ingress qdisc of ours would tell
			a.SetLimits(vethName, qos.Limits{Egress: mbit(30)})
			loseAnswerOf(mocks.OpFilterAdd)
			a.RemoveLimits(vethName)
			b.setFault(func(c mocks.Call) error {
				if c.Op == mocks.OpLinkGet && c.Name == vethName {
					return unix.ENOBUFS
				}
				return nil
			})
			Expect(a.Apply()).To(MatchError(unix.ENOBUFS)) // the mock panics at a delete that loses packets
			Consistently(b.ifbs, "50ms").Should(HaveLen(1))
			b.setFault(nil)
			a.settle()
			a.clock.Step(qos.DefaultGracePeriod)
			a.settle()
			Expect(b.ifbs()).To(BeEmpty())
			Expect(b.observe().ByName(vethName).Filters).To(BeEmpty())
		})

		It("does not delete it either if that interface is renamed", func() {
			const renamed = "cali-renamed"
			a.SetLimits(vethName, qos.Limits{Egress: mbit(30)})
			a.SetLimits(renamed, qos.Limits{Egress: mbit(30)})
			loseAnswerOf(mocks.OpFilterAdd)
			veth, err := b.outside.LinkByName(vethName)
			Expect(err).NotTo(HaveOccurred())
			Expect(b.mock.Outside().LinkSetName(veth, renamed)).To(Succeed())
			a.gone(vethName, veth.Attrs().Index)
			a.up(b, renamed)
			b.setFault(func(c mocks.Call) error {
				if c.Op == mocks.OpLinkGet && c.Name == qos.IFBName(renamed) {
					return unix.ENOBUFS
				}
				return nil
			})
			Expect(a.Apply()).To(MatchError(unix.ENOBUFS)) // the mock panics at a delete that loses packets
			Consistently(b.ifbs, "50ms").Should(Equal([]string{ifbName}))
			b.setFault(nil)
			a.settle()
			Expect(b.ifbs()).To(Equal([]string{qos.IFBName(renamed)}))
			Expect(b.observe().ByName(renamed).Filters).To(HaveLen(1))
		})

		It("removes what it made on an interface that is renamed", func() {
			a.SetLimits(vethName, qos.Limits{Ingress: mbit(20)})
			loseAnswerOf(mocks.OpQdiscReplace)
			veth, err := b.outside.LinkByName(vethName)
			Expect(err).NotTo(HaveOccurred())
			Expect(b.mock.Outside().LinkSetName(veth, "other0")).To(Succeed())
			a.gone(vethName, veth.Attrs().Index)
			a.up(b, "other0")
			a.settle()
			Expect(b.rate("other0")).To(BeZero())
		})

		It("removes what it made on an interface that no endpoint claims any more", func() {
			a.SetLimits(vethName, qos.Limits{Ingress: mbit(20)})
			loseAnswerOf(mocks.OpQdiscReplace)
			a.RemoveLimits(vethName)
			a.settle()
			Expect(b.rate(vethName)).To(BeEquivalentTo(20e6), "within the grace period")
			a.clock.Step(qos.DefaultGracePeriod)
			a.settle()
			Expect(b.rate(vethName)).To(BeZero())
		})
	})

	It("gets a whole dump where links come and go all the time, and gives up in the end", func() {
		b := newMock()
		b.addPod(vethName)
		a := startAgent(b)
		interruptions := 15
		b.setFault(func(c mocks.Call) error {
			if c.Op == mocks.OpLinkList && interruptions > 0 {
				interruptions--
				return unix.EINTR
			}
			return nil
		})
		a.SetLimits(vethName, qos.Limits{Egress: mbit(30)})
		Expect(a.Apply()).To(Succeed())
		Expect(b.rate(ifbName)).To(BeEquivalentTo(30e6))
		interruptions = 1 << 30
		a.QueueResync()
		Expect(a.Apply()).To(MatchError(unix.EINTR))
	})

	It("programs all other interfaces when one fails, and caps the error", func() {
		b := newMock()
		a := startAgent(b)
		broken := map[int]bool{}
		for n := range 30 {
			name := fmt.Sprintf("cali%02d", n)
			b.addPod(name)
			a.SetLimits(name, qos.Limits{Ingress: mbit(1)})
			broken[b.index(name)] = n%2 == 0
		}
		b.setFault(func(c mocks.Call) error {
			if c.Op == mocks.OpQdiscReplace && broken[c.Index] {
				return unix.EPERM
			}
			return nil
		})
		err := a.Apply()
		Expect(err).To(MatchError(unix.EPERM))
		Expect(err).To(MatchError(And(ContainSubstring("cali00"), ContainSubstring("and 5 more"))))
		for n := range 30 {
			Expect(b.rate(fmt.Sprintf("cali%02d", n)) != 0).To(Equal(n%2 == 1))
		}
		b.setFault(nil)
		a.settle()
		Expect(b.rate("cali00")).To(BeEquivalentTo(1e6))
	})
})
