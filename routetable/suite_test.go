package routetable_test

import (
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/manx-dataplane/manx/routetable"
	"github.com/manx-dataplane/manx/rtnl"
)

var _ routetable.Kernel = (*rtnl.Handle)(nil)

func TestRouteTable(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "routetable")
	goleak.VerifyNone(t, goleak.IgnoreAnyFunction(
		"github.com/onsi/ginkgo/v2/internal/interrupt_handler.(*InterruptHandler).registerForInterrupts.func2"))
}
