package qos_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/mocks"
	"github.com/manx-dataplane/manx/qos"
	"github.com/manx-dataplane/manx/rtnl"
)

func TestQoS(t *testing.T) {
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(5 * time.Second) // a bound for busy machines
	RunSpecs(t, "qos")
}

// The goroutine that is let pass is Ginkgo's own.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/onsi/ginkgo/v2/internal/interrupt_handler.(*InterruptHandler).registerForInterrupts.func2"))
}

var (
	_ qos.Kernel       = (*rtnl.Handle)(nil)
	_ qos.Kernel       = (*mocks.Handle)(nil)
	_ qos.ReaperKernel = (*rtnl.Handle)(nil)
	_ qos.ReaperKernel = (*mocks.Handle)(nil)
)

const (
	vethName = "cali0027f0645a2" // of default/ifb-repro
	ifbName  = "bwcali6514ff3bb"
)

// handle is what the tests use to change the world behind the Syncer's back.
type handle interface {
	qos.Kernel
	qos.ReaperKernel
	LinkSetDown(netlink.Link) error
	LinkSetName(netlink.Link, string) error
}

// backend is a kernel to run the tests on.
type backend struct {
	name    string
	outside handle
	open    func() handle                          // an agent's handle
	addPod  func(veth string) (remove func())      // a veth pair, its other end elsewhere
	mock    *mocks.Kernel                          // nil: the real kernel
	ns      *rtnl.Namespace                        // of the real kernel
	fault   atomic.Pointer[func(mocks.Call) error] // of the mock; see setFault
}

// setFault sets what is asked at each of the agent's calls to the mock, and at the
// reaper's; nil: nothing.
func (b *backend) setFault(fault func(mocks.Call) error) {
	if fault == nil {
		b.fault.Store(nil)
		return
	}
	b.fault.Store(&fault)
}

// guard fails where a call of the agent loses packets or opens an unshaped window:
// where a device is deleted that something redirects to, or traffic is redirected
// to a device that is not up and shaping.
func (b *backend) guard() {
	b.mock.OnCall(func(c mocks.Call) error {
		if fault := b.fault.Load(); fault != nil {
			if err := (*fault)(c); err != nil {
				return err
			}
		}
		if c.Op != mocks.OpLinkDel && c.Op != mocks.OpLinkDelGroup {
			return nil
		}
		snapshot, err := qos.Observe(b.outside)
		if err != nil {
			return err
		}
		for target, from := range snapshot.Redirectors() {
			device := snapshot.Interfaces[target]
			doomed := c.Index == target || c.Op == mocks.OpLinkDelGroup && c.Detail == fmt.Sprint("group ", device.Group)
			if doomed && device.IsShaper() {
				panic(fmt.Sprintf("%s while %s redirects to it", c, from[0].Name))
			}
		}
		return nil
	})
	b.mock.AfterCall(func(c mocks.Call, err error) error {
		if c.Op != mocks.OpFilterAdd || err != nil {
			return err
		}
		snapshot, err := qos.Observe(b.outside)
		if err != nil {
			return err
		}
		for _, filter := range snapshot.Interfaces[c.Index].Filters {
			if !filter.Marked || filter.Target == 0 {
				continue
			}
			target := snapshot.Interfaces[filter.Target]
			if _, shapes := target.Root.(*netlink.Tbf); !target.Up || !shapes || target.Queue == nil {
				panic("redirected to a device that does not shape, or with the kernel's queue")
			}
		}
		return nil
	})
}

func newMock() *backend {
	k := mocks.NewKernel()
	b := &backend{
		name:    "mocks",
		mock:    k,
		outside: k.Outside(),
		open:    func() handle { return k.NewHandle() },
		addPod: func(veth string) func() {
			pod, err := k.AddPod(veth)
			Expect(err).NotTo(HaveOccurred())
			return pod.Destroy
		},
	}
	b.guard()
	return b
}

func newReal() *backend {
	requireRoot()
	ns, err := rtnl.NewNamespace()
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(ns.Close)
	open := func() handle {
		h, err := rtnl.Open(rtnl.Options{Namespace: ns})
		Expect(err).NotTo(HaveOccurred())
		return h
	}
	outside := open()
	DeferCleanup(outside.Close)
	pods, err := rtnl.NewNamespace()
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(pods.Close)
	n := 0
	return &backend{
		name:    "kernel",
		ns:      ns,
		outside: outside,
		open:    open,
		addPod: func(veth string) func() {
			n++
			link := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: fmt.Sprintf("eth%d", n), PeerNamespace: netlink.NsFd(pods.FD())}
			link.Name = veth
			Expect(outside.LinkAdd(link)).To(Succeed())
			Expect(outside.LinkSetUp(link)).To(Succeed())
			return func() { Expect(outside.LinkDel(link)).To(Succeed()) }
		},
	}
}

func requireRoot() {
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") != "" {
		Fail("these tests need root")
	}
	Skip("NOT RUN: needs root")
}

// onBoth runs specs on the in-memory kernel and on the real one.
func onBoth(specs func(newBackend func() *backend)) {
	Context("on mocks", func() { specs(newMock) })
	Context("on the kernel", func() { specs(newReal) })
}

// agent is one life of a Syncer with its Reaper.
type agent struct {
	*qos.Syncer
	reaper *qos.Reaper
	clock  *clocktesting.FakeClock
	log    *logBuffer
	woken  chan struct{}
	stop   func()
}

func startAgent(b *backend, options ...func(*qos.Config)) *agent {
	a := &agent{log: &logBuffer{}, woken: make(chan struct{}, 100), clock: clocktesting.NewFakeClock(time.Unix(1e9, 0))}
	a.reaper = qos.NewReaper(qos.ReaperConfig{
		Open: func() (qos.ReaperKernel, error) { return b.open(), nil },
		Log:  a.log.logger(),
	})
	kernel := b.open()
	config := qos.Config{
		Kernel: kernel, Reaper: a.reaper, Clock: a.clock, Log: a.log.logger(), Enabled: true,
		IsWorkloadIface: func(name string) bool { return len(name) > 4 && name[:4] == "cali" },
		Wake:            func() { a.woken <- struct{}{} },
	}
	for _, option := range options {
		option(&config)
	}
	a.Syncer = qos.New(config)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = a.reaper.Run(ctx) })
	a.stop = func() {
		cancel()
		running.Wait()
	}
	DeferCleanup(kernel.Close)
	DeferCleanup(a.stop)
	return a
}

// settle applies until nothing is left to do or to delete.
func (a *agent) settle() {
	GinkgoHelper()
	Eventually(func() error {
		err := a.Apply()
		if err == nil && a.reaper.Pending() > 0 {
			err = errors.New("the reaper is busy")
		}
		return err
	}, 10*time.Second, 2*time.Millisecond).Should(Succeed())
	Expect(a.Apply()).To(Succeed())
}

func (a *agent) up(b *backend, veth string) {
	GinkgoHelper()
	link, err := b.outside.LinkByName(veth)
	Expect(err).NotTo(HaveOccurred())
	a.OnIfaceStateChanged(veth, link.Attrs().Index, ifacemonitor.StateUp)
	a.OnIfaceMTUChanged(veth, link.Attrs().Index, link.Attrs().MTU)
}

func (a *agent) gone(veth string, index int) {
	a.OnIfaceStateChanged(veth, index, ifacemonitor.StateNotPresent)
}

// index returns the ifindex of that name, zero if there is none.
func (b *backend) index(name string) int {
	link, err := b.outside.LinkByName(name)
	if rtnl.IsAbsent(err) {
		return 0
	}
	Expect(err).NotTo(HaveOccurred())
	return link.Attrs().Index
}

// calls counts the agent's kernel calls; of the real kernel's nothing is known.
func (b *backend) calls() int {
	if b.mock == nil {
		return 0
	}
	return b.mock.Calls()
}

func (b *backend) writes() []mocks.Call {
	if b.mock == nil {
		return nil
	}
	return b.mock.Writes()
}

func (b *backend) resetWrites() {
	if b.mock != nil {
		b.mock.ResetWrites()
	}
}

func (b *backend) observe() *qos.Snapshot {
	GinkgoHelper()
	snapshot, err := qos.Observe(b.outside)
	Expect(err).NotTo(HaveOccurred())
	for _, iface := range snapshot.Interfaces {
		for _, qdisc := range []netlink.Qdisc{iface.Root, iface.Queue} {
			if qdisc != nil {
				qdisc.Attrs().Statistics = nil // so that snapshots can be compared
			}
		}
	}
	return snapshot
}

// ifbs returns the names of our devices.
func (b *backend) ifbs() (names []string) {
	for _, iface := range b.observe().Interfaces {
		if iface.IsShaper() {
			names = append(names, iface.Name)
		}
	}
	return names
}

func (b *backend) addIFB(name string, mtu int) *netlink.Ifb {
	GinkgoHelper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, mtu
	link := &netlink.Ifb{LinkAttrs: attrs}
	Expect(b.outside.LinkAdd(link)).To(Succeed())
	Expect(b.outside.LinkSetUp(link)).To(Succeed())
	return link
}

func (b *backend) addHook(kind, veth string) {
	GinkgoHelper()
	attrs := netlink.QdiscAttrs{LinkIndex: b.index(veth), Parent: netlink.HANDLE_INGRESS, Handle: netlink.MakeHandle(0xffff, 0)}
	var qdisc netlink.Qdisc = &netlink.Ingress{QdiscAttrs: attrs}
	if kind == "clsact" {
		attrs.Parent = netlink.HANDLE_CLSACT
		qdisc = &netlink.Clsact{QdiscAttrs: attrs}
	}
	Expect(b.outside.QdiscAdd(qdisc)).To(Succeed())
}

// redirect adds a filter as another program would.
func (b *backend) redirect(veth string, prio uint16, target int) {
	GinkgoHelper()
	Expect(b.outside.FilterAdd(&netlink.U32{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: b.index(veth), Parent: netlink.HANDLE_MIN_INGRESS, Priority: prio, Protocol: unix.ETH_P_ALL,
		},
		Actions: []netlink.Action{netlink.NewMirredAction(target)},
	})).To(Succeed())
}

// setRoot gives an interface a root TBF as another program would.
func (b *backend) setRoot(iface string, handle uint32, bits uint64) {
	GinkgoHelper()
	Expect(b.outside.QdiscReplace(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: b.index(iface), Parent: netlink.HANDLE_ROOT, Handle: handle},
		Rate:       bits / 8, Limit: 1 << 20, Buffer: 1_562_500, // 100 ms
	})).To(Succeed())
}

// rate returns the rate of an interface's root TBF in bits/s, zero if none.
func (b *backend) rate(iface string) uint64 {
	GinkgoHelper()
	known := b.observe().ByName(iface)
	if known == nil {
		return 0
	}
	tbf, ok := known.Root.(*netlink.Tbf)
	if !ok {
		return 0
	}
	return tbf.Rate * 8
}

// queue returns the length in bytes of the queue of an interface's root TBF, whether
// that is ours or the kernel's own; zero without a TBF.
func (b *backend) queue(iface string) uint32 {
	GinkgoHelper()
	known := b.observe().ByName(iface)
	if known == nil {
		return 0
	}
	switch queue := known.Queue.(type) {
	case nil:
		if tbf, ok := known.Root.(*netlink.Tbf); ok {
			return tbf.Limit
		}
		return 0
	case *rtnl.Bfifo:
		return queue.Limit
	default:
		Fail(fmt.Sprintf("%s has a queue of kind %s", iface, queue.Type()))
		return 0
	}
}

// queueFor is the length of the queue for a rate with the default burst: 25 ms, or
// one GSO packet.
func queueFor(bits uint64) uint32 {
	if bits == 0 {
		return 0
	}
	return uint32(max(bits/8/40, 80<<10))
}

// setQueue puts a qdisc below an interface's root TBF as another program would.
func (b *backend) setQueue(iface string, handle uint32, kind string) {
	GinkgoHelper()
	root := b.observe().ByName(iface).Root.Attrs()
	Expect(b.outside.QdiscReplace(&netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: root.LinkIndex, Parent: root.Handle | 1, Handle: handle}, QdiscType: kind,
	})).To(Succeed())
}

func mbit(n uint64) *qos.Limit { return &qos.Limit{RateBits: n * 1e6, BurstBits: qos.DefaultBurst} }

// logBuffer keeps log lines.
type logBuffer struct {
	mu    sync.Mutex
	lines []string
}

func (l *logBuffer) logger() logrus.FieldLogger {
	log := logrus.New()
	log.SetOutput(l)
	log.SetLevel(logrus.InfoLevel)
	return log
}

func (l *logBuffer) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(line))
	return len(line), nil
}

func (l *logBuffer) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.lines...)
}
