package chaos_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/manx-dataplane/manx/fv/infra"
	"github.com/manx-dataplane/manx/rtnl"
)

// slot is a pod's name, addresses and veth name, which one pod after the other has.
type slot struct {
	pod       *infra.Pod
	limits    infra.Limits
	exists    bool
	published bool
}

// churn is everyone whose business pods are: users, the scheduler, the container
// runtime and the CNI plugin. One goroutine at a time.
type churn struct {
	node  *infra.Node
	rand  *rand.Rand
	slots []*slot
	// elsewhere is a namespace that interfaces are moved to.
	elsewhere *rtnl.Namespace
	away      *infra.Kernel
	done      map[string]int
}

func newChurn(node *infra.Node, random *rand.Rand) *churn {
	GinkgoHelper()
	elsewhere := infra.NewNamespace()
	c := &churn{node: node, rand: random, elsewhere: elsewhere, away: infra.OpenKernel(elsewhere), done: make(map[string]int)}
	for i := range slots {
		c.slots = append(c.slots, &slot{pod: node.NewPod(fmt.Sprintf("chaos-%d", i))})
	}
	return c
}

func (c *churn) veths() []string {
	var names []string
	for _, s := range c.slots {
		names = append(names, s.pod.Veth)
	}
	return names
}

// run does random things to random pods until the time comes.
func (c *churn) run(until time.Time) {
	for time.Now().Before(until) {
		s := c.slots[c.rand.IntN(len(c.slots))]
		if !s.exists {
			c.come(s)
		} else {
			actions := c.actions()
			action := actions[c.rand.IntN(len(actions))]
			c.done[action.name]++
			action.do(s)
		}
		time.Sleep(time.Duration(c.rand.IntN(10)) * time.Millisecond)
	}
}

type action struct {
	name string
	do   func(s *slot)
}

func (c *churn) actions() []action {
	return []action{
		{"pod ended", c.goAway},
		{"re-created at once", c.recreate},
		{"limits changed", func(s *slot) { c.publish(s) }},
		{"unpublished", c.unpublish},
		{"flapped", c.flap},
		{"MTU changed", c.changeMTU},
		{"moved to another namespace and back", c.moveAndBack},
		{"moved to another namespace", c.moveForGood},
		{"renamed and back", c.renameAndBack},
	}
}

// come starts a pod: interface first or endpoint first.
func (c *churn) come(s *slot) {
	c.done["pod started"]++
	s.pod.MTU = 1500
	if c.coin() {
		s.pod.Create()
		c.pause()
		c.publish(s)
	} else {
		c.publish(s)
		c.pause()
		s.pod.Create()
	}
	s.exists = true
}

// goAway ends a pod, in either order.
func (c *churn) goAway(s *slot) {
	if c.coin() {
		s.pod.Delete()
		c.pause()
		c.unpublish(s)
	} else {
		c.unpublish(s)
		c.pause()
		s.pod.Delete()
	}
	s.exists = false
}

// recreate has a pod of the same name follow at once, its endpoint unchanged.
func (c *churn) recreate(s *slot) {
	s.pod.Delete()
	s.pod.Create()
}

func (c *churn) publish(s *slot) {
	annotations, limits := c.randomLimits()
	s.pod.Publish(annotations)
	s.limits, s.published = limits, true
}

func (c *churn) unpublish(s *slot) {
	if s.published {
		s.pod.Unpublish()
		s.published = false
	}
}

func (c *churn) flap(s *slot) {
	for range 1 + c.rand.IntN(3) {
		s.pod.SetDown()
		c.pause()
		c.setUp(s)
		c.pause()
	}
}

func (c *churn) changeMTU(s *slot) {
	s.pod.MTU = 1280 + c.rand.IntN(9000-1280+1)
	Expect(c.node.RT.LinkSetMTU(c.node.Link(s.pod.Veth), s.pod.MTU)).To(Succeed())
}

// moveAndBack takes the interface to another namespace. It comes back down, with the
// index it had where that is free.
func (c *churn) moveAndBack(s *slot) {
	Expect(c.node.RT.LinkSetNamespace(c.node.Link(s.pod.Veth), c.elsewhere)).To(Succeed())
	c.pause()
	Expect(c.away.RT.LinkSetNamespace(c.away.Link(s.pod.Veth), c.node.NS)).To(Succeed())
	s.pod.Index = c.node.Link(s.pod.Veth).Attrs().Index
	c.setUp(s)
}

func (c *churn) moveForGood(s *slot) {
	Expect(c.node.RT.LinkSetNamespace(c.node.Link(s.pod.Veth), c.elsewhere)).To(Succeed())
	Expect(c.away.RT.LinkDel(c.away.Link(s.pod.Veth))).To(Succeed())
	Expect(s.pod.NS.Close()).To(Succeed())
	c.unpublish(s)
	s.exists = false
}

func (c *churn) renameAndBack(s *slot) {
	name := s.pod.Veth
	link := c.node.Link(name)
	Expect(c.node.RT.LinkSetName(link, "cali-elsewhere")).To(Succeed())
	c.pause()
	Expect(c.node.RT.LinkSetName(link, name)).To(Succeed())
}

func (c *churn) setUp(s *slot) {
	Expect(c.node.RT.LinkSetUp(c.node.Link(s.pod.Veth))).To(Succeed())
}

// settle publishes every pod that exists, and returns what must be true then.
func (c *churn) settle() map[*infra.Pod]infra.Limits {
	want := make(map[*infra.Pod]infra.Limits)
	for _, s := range c.slots {
		switch {
		case s.exists && !s.published:
			c.publish(s)
		case !s.exists:
			c.unpublish(s)
		}
		if s.exists {
			want[s.pod] = s.limits
		}
	}
	return want
}

func (c *churn) startAll() {
	for _, s := range c.slots {
		c.come(s)
	}
}

func (c *churn) endAll() {
	for _, s := range c.slots {
		if s.exists {
			c.goAway(s)
		}
	}
}

func (c *churn) randomLimits() (map[string]string, infra.Limits) {
	rate := 1 + c.rand.Uint64N(1000)
	text := fmt.Sprintf("%dM", rate)
	limit := &infra.Limit{RateBits: rate * 1e6}
	switch c.rand.IntN(6) {
	case 0:
		return nil, infra.Limits{}
	case 1:
		return infra.KubernetesAnnotations(text, ""), infra.Limits{Ingress: limit}
	case 2:
		return infra.CalicoAnnotations("", text, ""), infra.Limits{Egress: limit}
	case 3:
		limit.BurstBits, limit.PeakBits = 1e6, 2*limit.RateBits
		annotations := infra.CalicoAnnotations("", text, "1M")
		annotations["qos.projectcalico.org/egressPeakrate"] = fmt.Sprintf("%dM", 2*rate)
		return annotations, infra.Limits{Egress: limit}
	}
	return infra.KubernetesAnnotations(text, text), infra.Limits{Ingress: limit, Egress: limit}
}

func (c *churn) coin() bool { return c.rand.IntN(2) == 0 }

// pause is mostly none, so that the agent sees both what is together and what is
// apart.
func (c *churn) pause() {
	if c.rand.IntN(3) == 0 {
		time.Sleep(time.Duration(c.rand.IntN(20)) * time.Millisecond)
	}
}

func (c *churn) report() string { return counts(c.done) }

func counts(of map[string]int) string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		lines = append(lines, fmt.Sprintf("%6d %s", of[name], name))
	}
	return strings.Join(lines, "\n")
}
