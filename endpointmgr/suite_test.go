package endpointmgr_test

import (
	"flag"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// A sequence needs to be long to come to anything; -rapid.checks overrides.
	_ = flag.Set("rapid.checks", "500")
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction( // Ginkgo's own, for the life of the process
		"github.com/onsi/ginkgo/v2/internal/interrupt_handler.(*InterruptHandler).registerForInterrupts.func2"))
}

func TestEndpointManager(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "Endpoint manager")
}
