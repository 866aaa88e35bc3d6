package fv_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/fv/infra"
)

// fullMatrix makes every operation crash on every kind of node, and adds agents that
// die again and again. By default it is every operation on one kind.
var fullMatrix = os.Getenv("MANX_CRASH_MATRIX") == "full"

// An operation is something that the agent carries out with kernel writes.
type operation struct {
	name string
	// begin brings the scene to where the operation starts.
	begin func(s *scene)
	// act makes the operation due.
	act func(s *scene)
	// done returns nil once the agent has carried it out.
	done func(s *scene) error
	// always, where set, returns nil as long as what must hold throughout does, also
	// after a crash.
	always func(s *scene) error
	// atStart: the agent is down while act happens, and carries it out when it starts.
	atStart bool
	// everyKind: crashes on every kind of node also outside the full matrix.
	everyKind bool
	// grace: done only after the grace period, so part of the full matrix only.
	grace bool
}

// patience is how long a running agent may take for it.
func (op operation) patience() time.Duration {
	if op.grace {
		return gracePeriod + convergence
	}
	return convergence
}

// gracePeriod is how long what is ours stays on an interface that exists and that no
// endpoint claims.
const gracePeriod = 10 * time.Second

var _ = onEachKind("SIGKILL before each kernel write, then a restart", func(kind infra.Kind) {
	for _, op := range operations() {
		if !fullMatrix && (op.grace || !op.everyKind && kind != infra.PlainNamespace) {
			continue
		}
		It("of "+op.name+" converges, leaves nothing and touches nothing foreign", func() {
			rig := newCrashRig(kind)
			writes := rig.count(op)
			Expect(writes).NotTo(BeEmpty())
			AddReportEntry(fmt.Sprintf("%d writes", len(writes)), strings.Join(writes, "\n"))
			for n := range writes {
				By(fmt.Sprintf("killing it before write %d, %s", n+1, writes[n]))
				rig.crashAt(op, n+1)
			}
		})
		if fullMatrix {
			It("of "+op.name+" converges, also after a number of crashes, each one write later", func() {
				newCrashRig(kind).dieEverLater(op)
			})
		}
	}
})

// crashRig is a node with bystanders, whose state must never change, and the
// directory that controls crashmanx.
type crashRig struct {
	node   *infra.Node
	dir    string
	uplink netlink.Link
	serial int // of pods and addresses
}

// scene is one run of an operation, with pods of its own.
type scene struct {
	*crashRig
	pods []*infra.Pod
	// index is that of the first pod's IFB before the operation, where it matters.
	index int
	// devices are others', to be removed at the end.
	devices []string
	// foreign is others' state before the operation.
	foreign []string
	// mayChange are beginnings of lines of the foreign state that need not stay.
	mayChange []string
}

func newCrashRig(kind infra.Kind) *crashRig {
	GinkgoHelper()
	node := suite.NewNode(kind)
	c := &crashRig{node: node, dir: filepath.Join(node.Dir, "crash")}
	Expect(os.Mkdir(c.dir, 0o755)).To(Succeed())
	bystander := node.StartPod("bystander")
	node.RunBandwidthPlugin(bystander, infra.PluginTBF, 10e6)
	c.uplink = node.AddIFB("eth0")
	for _, prefix := range uplinkPrefixes {
		node.AddRoute(c.uplink.Attrs().Index, prefix, netip.Addr{})
	}
	return c
}

// count carries the operation out undisturbed and returns its kernel writes.
func (c *crashRig) count(op operation) []string {
	GinkgoHelper()
	s := &scene{crashRig: c}
	agent := c.perform(op, s, "0")
	s.eventuallyDone(op)
	agent.Kill()
	s.cleanUp()
	return c.writes()
}

// writes returns those since the rig was armed.
func (c *crashRig) writes() []string {
	GinkgoHelper()
	data, err := os.ReadFile(filepath.Join(c.dir, "writes"))
	Expect(err).NotTo(HaveOccurred())
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

// crashAt carries the operation out with an agent that dies before its n-th write.
// Where the agent was done with fewer writes than in the count (it works on several
// goroutines, so what is one batch at one time can be two at another) it does it
// over.
func (c *crashRig) crashAt(op operation, n int) {
	GinkgoHelper()
	for range 5 {
		s := &scene{crashRig: c}
		agent := c.perform(op, s, strconv.Itoa(n))
		died := s.dies(op, agent) || eventuallyExits(agent)
		if died {
			Expect(agent.Wait(convergence)).To(Equal(128 + int(unix.SIGKILL)))
			s.checkAlways(op)
			s.checkForeign()
			agent = c.node.StartAgent()
		}
		s.eventuallyDone(op)
		s.checkForeign()
		agent.Kill()
		s.cleanUp()
		if died {
			return
		}
	}
	Fail(fmt.Sprintf("the agent has never made %d writes again", n))
}

// dieEverLater carries the operation out with agents of which the first dies before
// its first write, the second before its second, and so on. (Agents that all die
// after one write could go on for ever: an IFB that nothing redirects to yet is
// replaced, not adopted.)
func (c *crashRig) dieEverLater(op operation) {
	GinkgoHelper()
	enough := 2*len(c.count(op)) + 10
	s := &scene{crashRig: c}
	agent := c.perform(op, s, "1")
	lives := 1
	for ; s.dies(op, agent); lives++ {
		s.checkAlways(op)
		s.checkForeign()
		Expect(lives).To(BeNumerically("<", enough), func() string {
			return fmt.Sprintf("no progress: %s\nwrites:\n%s", s.whatIsMissing(op), strings.Join(c.writes(), "\n"))
		})
		infra.WriteFile(filepath.Join(c.dir, "at"), []byte(strconv.Itoa(lives+1)))
		agent = c.runCrashing()
	}
	AddReportEntry("lives", lives)
	s.eventuallyDone(op)
	s.checkForeign()
	s.cleanUp()
}

// perform brings a scene to the operation's start and carries it out with an agent
// that does what at says.
func (c *crashRig) perform(op operation, s *scene, at string) *infra.Agent {
	GinkgoHelper()
	agent := c.runCrashing()
	agent.WaitReady()
	eventuallyIFBs(c.node) // the scene before is gone
	op.begin(s)
	s.foreign = c.node.Foreign()
	if op.atStart {
		agent.Kill()
		op.act(s)
		c.arm(at)
		return c.runCrashing()
	}
	c.arm(at)
	op.act(s)
	return agent
}

func (c *crashRig) runCrashing() *infra.Agent {
	GinkgoHelper()
	return c.node.Run(infra.RunSpec{
		Binary:    "crashmanx",
		Args:      []string{"--config", c.node.ConfigFile, "--endpoints", c.node.EndpointsDir},
		Env:       []string{"CRASH_DIR=" + c.dir},
		SharePIDs: true,
	})
}

func (c *crashRig) arm(at string) {
	GinkgoHelper()
	Expect(os.WriteFile(filepath.Join(c.dir, "writes"), nil, 0o644)).To(Succeed())
	infra.WriteFile(filepath.Join(c.dir, "at"), []byte(at))
}

// startPod makes a pod and waits until the agent serves it.
func (s *scene) startPod(annotations map[string]string, limits infra.Limits) *infra.Pod {
	GinkgoHelper()
	s.serial++
	pod := s.node.StartPod(fmt.Sprintf("crash-%d", s.serial))
	s.pods = append(s.pods, pod)
	pod.Publish(annotations)
	eventuallyLimited(s.node, pod, limits)
	Eventually(s.reachable).WithArguments(pod).Should(Succeed())
	return pod
}

// dies waits until the agent has died, or is done instead.
func (s *scene) dies(op operation, agent *infra.Agent) bool {
	GinkgoHelper()
	Eventually(func() bool { return agent.Exited() || s.isDone(op) }).WithTimeout(infra.StartTimeout+op.patience()).
		Should(BeTrue(), func() string { return s.whatIsMissing(op) })
	return agent.Exited()
}

func (s *scene) isDone(op operation) bool { return op.done(s) == nil }

func (s *scene) whatIsMissing(op operation) string {
	return fmt.Sprintf("%s is not done: %v", op.name, op.done(s))
}

func (s *scene) eventuallyDone(op operation) {
	GinkgoHelper()
	Eventually(op.done).WithArguments(s).WithTimeout(op.patience()).Should(Succeed())
	s.checkAlways(op)
}

func (s *scene) checkAlways(op operation) {
	GinkgoHelper()
	if op.always != nil {
		Expect(op.always(s)).To(Succeed())
	}
}

// checkForeign expects that nothing of others' came, went or changed, but for the
// pods' interfaces themselves, which are the operation's business.
func (s *scene) checkForeign() {
	GinkgoHelper()
	mayChange := slices.Clone(s.mayChange)
	for _, pod := range s.pods {
		mayChange = append(mayChange, "link veth "+pod.Veth+" ")
	}
	mustStay := func(lines []string) []string {
		return slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
			return slices.ContainsFunc(mayChange, func(begin string) bool { return strings.HasPrefix(line, begin) })
		})
	}
	Expect(mustStay(s.node.Foreign())).To(Equal(mustStay(s.foreign)), "something foreign was touched")
	for _, prefix := range uplinkPrefixes {
		routes, err := s.node.RoutesTo(prefix)
		Expect(err).NotTo(HaveOccurred())
		Expect(routes).To(HaveLen(1), "a foreign route went, or was doubled")
		Expect(routes[0].LinkIndex).To(Equal(s.uplink.Attrs().Index))
	}
}

// cleanUp removes the scene, with no agent running. What an agent would have to do
// is done by the next scene's.
func (s *scene) cleanUp() {
	GinkgoHelper()
	Expect(os.Remove(filepath.Join(s.dir, "at"))).To(Succeed())
	s.node.WriteConfig(nil)
	for _, pod := range s.pods {
		if err := os.Remove(pod.File()); err != nil {
			Expect(errors.Is(err, os.ErrNotExist)).To(BeTrue(), "%v", err)
		}
		if s.node.LinkExists(pod.Veth) {
			pod.Delete()
		}
	}
	for _, device := range s.devices {
		Expect(s.node.RT.LinkDel(s.node.Link(device))).To(Succeed())
	}
}

// eventuallyExits waits a moment for an agent that should die, and that may do so
// only after what it was doing is seen to be done.
func eventuallyExits(agent *infra.Agent) bool {
	const moment = 300 * time.Millisecond
	deadline := time.Now().Add(moment)
	for !agent.Exited() && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	return agent.Exited()
}

// uplinkPrefixes are routed through an interface that is no workload's.
var uplinkPrefixes = []netip.Prefix{
	netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8:1::/64"),
}
