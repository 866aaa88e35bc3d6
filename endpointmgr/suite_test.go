package endpointmgr_test

import (
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction( // Ginkgo's own, for the life of the process
		"github.com/onsi/ginkgo/v2/internal/interrupt_handler.(*InterruptHandler).registerForInterrupts.func2"))
}

func TestEndpointManager(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "Endpoint manager")
}
