package routetable_test

import (
	"os"
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
	before := goleak.IgnoreCurrent()
	RunSpecs(t, "routetable")
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
}

// skipOrFail skips where the machine cannot run a test, but never in CI.
func skipOrFail(tb testing.TB, why string) {
	if os.Getenv("CI") != "" {
		tb.Fatal(why)
	}
	tb.Skip(why)
}
