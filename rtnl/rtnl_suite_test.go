package rtnl_test

import (
	"os"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/manx-dataplane/manx/rtnl"
)

func TestRTNL(t *testing.T) {
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(10 * time.Second) // a bound for busy machines
	RunSpecs(t, "rtnl")
	goleak.VerifyNone(t, goleak.IgnoreAnyFunction(
		"github.com/onsi/ginkgo/v2/internal/interrupt_handler.(*InterruptHandler).registerForInterrupts.func2"))
}

// newNamespace returns a network namespace that lasts as long as the spec. It
// skips the spec where the process may not make one, except in CI.
func newNamespace() *rtnl.Namespace {
	GinkgoHelper()
	if os.Geteuid() != 0 && os.Getenv("CI") == "" {
		Skip("needs root, to make a network namespace")
	}
	ns, err := rtnl.NewNamespace()
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(ns.Close()).To(Succeed()) })
	return ns
}

// newHandle returns a Handle in ns that lasts as long as the spec.
func newHandle(ns *rtnl.Namespace) *rtnl.Handle {
	GinkgoHelper()
	handle, err := rtnl.Open(rtnl.Options{Namespace: ns})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(handle.Close)
	return handle
}
