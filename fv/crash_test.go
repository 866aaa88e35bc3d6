package fv_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/fv/infra"
)

// An operation is a change that the agent carries out with several kernel writes.
type operation struct {
	name   string
	before infra.Limits // limits from which it starts
	after  infra.Limits // and at which it ends
	// annotations are those of the limits above.
	annotationsBefore, annotationsAfter map[string]string
	// podGoes makes the operation the end of the pod instead.
	podGoes bool
}

var operations = []operation{
	{
		name:             "set",
		after:            both(mbit(30)),
		annotationsAfter: infra.KubernetesAnnotations("30M", "30M"),
	},
	{
		name:              "change",
		before:            both(mbit(30)),
		after:             both(mbit(20)),
		annotationsBefore: infra.KubernetesAnnotations("30M", "30M"),
		annotationsAfter:  infra.KubernetesAnnotations("20M", "20M"),
	},
	{
		name:              "clear",
		before:            both(mbit(30)),
		annotationsBefore: infra.KubernetesAnnotations("30M", "30M"),
	},
	{
		name:              "end of the pod",
		before:            both(mbit(30)),
		annotationsBefore: infra.KubernetesAnnotations("30M", "30M"),
		podGoes:           true,
	},
}

var _ = onEachKind("SIGKILL before each kernel write, then a restart", func(kind infra.Kind) {
	for _, op := range operations {
		It("of "+op.name+" converges and leaves nothing", func() {
			c := newCrashRig(kind)
			writes := c.count(op)
			AddReportEntry("writes", strings.Join(writes, "\n"))
			Expect(writes).NotTo(BeEmpty())
			for n := range writes {
				By(fmt.Sprintf("killing it before write %d, %s", n+1, writes[n]))
				c.crashAt(op, n+1)
			}
		})
	}
})

// crashRig is a node with a bystander, whose state must never change, and the
// directory that controls crashmanx.
type crashRig struct {
	node    *infra.Node
	dir     string
	foreign []string
	pods    int
}

func newCrashRig(kind infra.Kind) *crashRig {
	GinkgoHelper()
	node := suite.NewNode(kind)
	c := &crashRig{node: node, dir: filepath.Join(node.Dir, "crash")}
	Expect(os.Mkdir(c.dir, 0o755)).To(Succeed())
	bystander := node.StartPod("bystander")
	node.RunBandwidthPlugin(bystander, infra.PluginTBF, 10e6)
	c.foreign = node.Foreign()
	return c
}

// count carries the operation out undisturbed and returns its kernel writes.
func (c *crashRig) count(op operation) []string {
	GinkgoHelper()
	agent, pod := c.prepare(op)
	c.arm(0)
	c.act(op, pod)
	c.eventuallyDone(op, pod)
	agent.Kill()
	data, err := os.ReadFile(filepath.Join(c.dir, "writes"))
	Expect(err).NotTo(HaveOccurred())
	c.cleanUp(op, pod)
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

func (c *crashRig) crashAt(op operation, n int) {
	GinkgoHelper()
	agent, pod := c.prepare(op)
	c.arm(n)
	c.act(op, pod)
	Expect(agent.Wait(convergence)).To(Equal(128 + int(unix.SIGKILL)))
	if op.name == "change" {
		Expect([]error{c.node.CheckLimits(pod, op.before), c.node.CheckLimits(pod, op.after), c.halfWay(op, pod)}).
			To(ContainElement(BeNil()), "no direction may be unlimited at any time")
	}
	agent = c.node.StartAgent()
	c.eventuallyDone(op, pod)
	Expect(c.node.Foreign()).To(Equal(c.withPod(op, pod)), "something foreign was touched")
	agent.Kill()
	c.cleanUp(op, pod)
}

// halfWay returns nil where one direction has the new limit and the other the old.
func (c *crashRig) halfWay(op operation, pod *infra.Pod) error {
	first := c.node.CheckLimits(pod, infra.Limits{Ingress: op.before.Ingress, Egress: op.after.Egress})
	if first == nil {
		return nil
	}
	return c.node.CheckLimits(pod, infra.Limits{Ingress: op.after.Ingress, Egress: op.before.Egress})
}

// prepare starts crashmanx, unarmed, and brings a new pod to the operation's start.
func (c *crashRig) prepare(op operation) (*infra.Agent, *infra.Pod) {
	GinkgoHelper()
	c.pods++
	pod := c.node.StartPod(fmt.Sprintf("crash-%d", c.pods))
	pod.Publish(op.annotationsBefore)
	agent := c.node.Run(infra.RunSpec{
		Binary:    "crashmanx",
		Args:      []string{"--config", c.node.ConfigFile, "--endpoints", c.node.EndpointsDir},
		Env:       []string{"CRASH_DIR=" + c.dir},
		SharePIDs: true,
	})
	agent.WaitReady()
	eventuallyLimited(c.node, pod, op.before)
	eventuallyRouted(c.node, pod)
	return agent, pod
}

func (c *crashRig) arm(n int) {
	GinkgoHelper()
	Expect(os.WriteFile(filepath.Join(c.dir, "writes"), nil, 0o644)).To(Succeed())
	infra.WriteFile(filepath.Join(c.dir, "at"), []byte(strconv.Itoa(n)))
}

func (c *crashRig) act(op operation, pod *infra.Pod) {
	GinkgoHelper()
	if op.podGoes {
		pod.Unpublish()
		pod.Delete()
		return
	}
	pod.Publish(op.annotationsAfter)
}

func (c *crashRig) eventuallyDone(op operation, pod *infra.Pod) {
	GinkgoHelper()
	if op.podGoes {
		eventuallyIFBs(c.node)
		return
	}
	eventuallyLimited(c.node, pod, op.after)
	eventuallyRouted(c.node, pod)
	if op.after.Egress == nil {
		Eventually(c.node.CheckUnshaped).WithArguments(pod).Should(Succeed())
		eventuallyIFBs(c.node)
	} else {
		eventuallyIFBs(c.node, pod)
	}
}

// withPod is the foreign state plus the pod's own veth.
func (c *crashRig) withPod(op operation, pod *infra.Pod) []string {
	if op.podGoes {
		return c.foreign
	}
	return infra.WithLink(c.foreign, c.node.Link(pod.Veth))
}

func (c *crashRig) cleanUp(op operation, pod *infra.Pod) {
	GinkgoHelper()
	Expect(os.Remove(filepath.Join(c.dir, "at"))).To(Succeed())
	if !op.podGoes {
		pod.Unpublish()
		pod.Delete()
	}
}
