package traffic_test

import (
	"os"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/manx-dataplane/manx/fv/infra"
)

// campaign is whether to measure everything.
var campaign = os.Getenv("MANX_TRAFFIC") == "1"

// suite is set before any spec runs.
var suite *infra.Suite

func TestTraffic(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "traffic")
	goleak.VerifyNone(t, goleak.IgnoreAnyFunction(
		"github.com/onsi/ginkgo/v2/internal/interrupt_handler.(*InterruptHandler).registerForInterrupts.func2"))
}

var _ = BeforeSuite(func() {
	infra.RequireRoot()
	suite = infra.NewSuite("cmd/manx")
	DeferCleanup(suite.Close)
})
