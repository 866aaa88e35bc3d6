package chaos_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/manx-dataplane/manx/fv/infra"
)

const (
	// refresh is every refresh interval of the agent.
	refresh = 2 * time.Second
	// repair is how long what a refresh finds takes to be repaired, on a busy machine.
	repair = 3 * time.Second
	// round is how long pods churn and the vandal is at work before all must be right.
	round = 4 * time.Second
	// defaultDuration is for all rounds.
	defaultDuration = 12 * time.Second
	// slots is the number of pods.
	slots = 64
	// tinyBuffer is as small as the kernel allows.
	tinyBuffer = 1
)

var _ = Describe("Chaos", func() {
	It("is over within one refresh after the vandal stops, and nothing is left when all pods go", func() {
		seed := chosenSeed()
		AddReportEntry("seed", fmt.Sprintf("MANX_CHAOS_SEED=%d", seed))
		By(fmt.Sprintf("running with MANX_CHAOS_SEED=%d", seed))
		node := suite.NewNode(infra.PlainNamespace)
		configure(node)
		c := newChurn(node, rand.New(rand.NewPCG(seed, 1)))
		v := newVandal(node, c.veths(), rand.New(rand.NewPCG(seed, 2)))
		a := &mortal{node: node}
		a.start()
		c.startAll()

		var worst time.Duration
		rounds := int((chosenDuration() + round - 1) / round)
		for n := range rounds {
			stop := time.Now().Add(round)
			var group sync.WaitGroup
			group.Go(func() { defer GinkgoRecover(); c.run(stop) })
			group.Go(func() { defer GinkgoRecover(); v.run(stop) })
			if n%2 == 1 {
				group.Go(func() { defer GinkgoRecover(); a.dieAndComeBack() })
			}
			group.Wait()
			stopped := time.Now()
			want := c.settle()
			Eventually(node.CheckAll).WithArguments(want).WithTimeout(refresh+repair).
				Should(Succeed(), func() string { return fmt.Sprintf("seed %d, round %d of %d", seed, n+1, rounds) })
			worst = max(worst, time.Since(stopped))
			Eventually(node.CheckHealth).WithTimeout(refresh + repair).Should(Succeed())
		}
		a.count()

		By("ending all pods")
		c.endAll()
		Eventually(node.CheckAll).WithArguments(map[*infra.Pod]infra.Limits{}).WithTimeout(refresh+repair).Should(Succeed(), "seed %d", seed)
		Eventually(node.CheckHealth).WithTimeout(refresh + repair).Should(Succeed())
		AddReportEntry("rounds", rounds)
		AddReportEntry("churn", c.report())
		AddReportEntry("vandalism", v.report())
		AddReportEntry("overruns", a.overruns)
		AddReportEntry("all right after", worst.Round(time.Millisecond).String())
		Expect(v.missed()).To(BeEmpty(), "the vandal is not what it seems")
		Expect(a.overruns).To(BeNumerically(">", 0), "the receive buffer was large enough")
	})
})

func configure(node *infra.Node) {
	GinkgoHelper()
	spec := infra.MetricsOn()
	for _, field := range []string{"interfaceRefreshInterval", "routeRefreshInterval", "qosRefreshInterval"} {
		spec[field] = refresh.String()
	}
	spec["logSeverityScreen"] = "Warning"
	node.WriteConfig(spec)
}

// mortal is an agent that is killed and started again.
type mortal struct {
	node     *infra.Node
	agent    *infra.Agent
	overruns float64 // that it has seen in lives that were counted
}

func (m *mortal) start() {
	GinkgoHelper()
	m.agent = m.node.Run(infra.RunSpec{
		Binary: "crashmanx",
		Args:   []string{"--config", m.node.ConfigFile, "--endpoints", m.node.EndpointsDir},
		Env:    []string{"CRASH_DIR=" + m.node.Dir, fmt.Sprintf("EVENT_RECEIVE_BUFFER=%d", tinyBuffer)},
	})
	m.agent.WaitReady()
}

// dieAndComeBack kills the agent in the middle of a round.
func (m *mortal) dieAndComeBack() {
	GinkgoHelper()
	time.Sleep(round / 3)
	m.count()
	m.agent.Kill()
	time.Sleep(round / 6)
	m.start()
}

func (m *mortal) count() {
	GinkgoHelper()
	Eventually(func() error {
		metrics, err := m.node.Metrics()
		if err == nil {
			m.overruns += metrics["manx_ifacemonitor_overruns_total"]
		}
		return err
	}).WithTimeout(infra.StartTimeout).Should(Succeed())
}

func chosenSeed() uint64 {
	GinkgoHelper()
	text := os.Getenv("MANX_CHAOS_SEED")
	if text == "" {
		return rand.Uint64()
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	Expect(err).NotTo(HaveOccurred(), "MANX_CHAOS_SEED")
	return seed
}

func chosenDuration() time.Duration {
	GinkgoHelper()
	text := os.Getenv("MANX_CHAOS_DURATION")
	if text == "" {
		return defaultDuration
	}
	duration, err := time.ParseDuration(text)
	Expect(err).NotTo(HaveOccurred(), "MANX_CHAOS_DURATION")
	return duration
}
