package fv_test

import (
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/manx-dataplane/manx/fv/infra"
)

// suite is set before any spec runs.
var suite *infra.Suite

func TestFV(t *testing.T) {
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(convergence)
	SetDefaultEventuallyPollingInterval(10 * time.Millisecond)
	SetDefaultConsistentlyPollingInterval(10 * time.Millisecond)
	RunSpecs(t, "functional verification")
	goleak.VerifyNone(t, goleak.IgnoreAnyFunction(
		"github.com/onsi/ginkgo/v2/internal/interrupt_handler.(*InterruptHandler).registerForInterrupts.func2"))
}

var _ = BeforeSuite(func() {
	infra.RequireRoot()
	suite = infra.NewSuite("cmd/manx", "fv/crashmanx")
	DeferCleanup(suite.Close)
})

// convergence is "within seconds" for a running agent on a busy two-core machine:
// below every refresh interval and the grace period, so that none of those can be
// what made something right.
const convergence = 5 * time.Second

// onEachKind describes something that must hold on every kind of node.
func onEachKind(text string, body func(kind infra.Kind)) bool {
	for _, kind := range infra.Kinds() {
		Describe(text+", on a node in a "+string(kind), func() { body(kind) })
	}
	return true
}

// egress and ingress are Limits of one direction, both of the two.
func egress(limit infra.Limit) infra.Limits  { return infra.Limits{Egress: &limit} }
func ingress(limit infra.Limit) infra.Limits { return infra.Limits{Ingress: &limit} }
func both(limit infra.Limit) infra.Limits    { return infra.Limits{Ingress: &limit, Egress: &limit} }

// mbit is a limit in Mbit/s with the default burst.
func mbit(n uint64) infra.Limit { return infra.Limit{RateBits: n * 1e6} }

// eventuallyLimited waits until the pod is limited to exactly that.
func eventuallyLimited(node *infra.Node, pod *infra.Pod, limits infra.Limits) {
	GinkgoHelper()
	Eventually(node.CheckLimits).WithArguments(pod, limits).Should(Succeed())
}

// eventuallyRouted waits until the pod's addresses are routed through its present
// interface.
func eventuallyRouted(node *infra.Node, pod *infra.Pod) {
	GinkgoHelper()
	Eventually(node.CheckRoutes).WithArguments(pod).Should(Succeed())
}

// ifindexOf returns the interface index of a link that must exist.
func ifindexOf(node *infra.Node, name string) int {
	GinkgoHelper()
	return node.Link(name).Attrs().Index
}

// eventuallyIFBs waits until the agent's IFB devices are exactly these pods'.
func eventuallyIFBs(node *infra.Node, pods ...*infra.Pod) {
	GinkgoHelper()
	Eventually(func() error { return node.CheckIFBs(pods...) }).Should(Succeed())
}
