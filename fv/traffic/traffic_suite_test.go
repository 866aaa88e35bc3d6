package traffic_test

import (
	"os"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/manx-dataplane/manx/fv/infra"
)

// suite is set before any spec runs.
var suite *infra.Suite

func TestTraffic(t *testing.T) {
	if os.Getenv("MANX_TRAFFIC") != "1" {
		t.Skip("SKIPPED: it measures for minutes; MANX_TRAFFIC=1 (make traffic) runs it")
	}
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
