package infra_test

import (
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/manx-dataplane/manx/fv/infra"
)

var suite *infra.Suite

func TestInfra(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "fv harness")
	goleak.VerifyNone(t, goleak.IgnoreAnyFunction(
		"github.com/onsi/ginkgo/v2/internal/interrupt_handler.(*InterruptHandler).registerForInterrupts.func2"))
}

var _ = BeforeSuite(func() {
	suite = infra.NewSuite()
	DeferCleanup(suite.Close)
})
