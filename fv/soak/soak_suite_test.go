package soak_test

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

func TestSoak(t *testing.T) {
	RegisterFailHandler(Fail)
	SetDefaultEventuallyPollingInterval(20 * time.Millisecond)
	RunSpecs(t, "soak")
	goleak.VerifyNone(t, goleak.IgnoreAnyFunction(
		"github.com/onsi/ginkgo/v2/internal/interrupt_handler.(*InterruptHandler).registerForInterrupts.func2"))
}

var _ = BeforeSuite(func() {
	infra.RequireRoot()
	suite = infra.NewSuite("cmd/manx")
	DeferCleanup(suite.Close)
})
