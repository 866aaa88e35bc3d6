package qos_test

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/mocks"
	"github.com/manx-dataplane/manx/qos"
)

var _ = Describe("What is pending", func() {
	var (
		b *backend
		a *agent
	)
	BeforeEach(func() {
		b = newMock()
		b.addPod("cali1")
		b.addPod("cali2")
		a = startAgent(b)
	})
	limited := qos.Limits{Egress: &qos.Limit{RateBits: 30_000_000, BurstBits: qos.DefaultBurst}}

	It("is what was set and not applied", func() {
		Expect(a.Pending("cali1")).To(BeFalse(), "nobody claims it")
		a.SetLimits("cali1", limited)
		Expect(a.Pending("cali1")).To(BeTrue())
		Expect(a.Apply()).To(Succeed())
		Expect(a.Pending("cali1")).To(BeFalse())
		a.RemoveLimits("cali1")
		Expect(a.Pending("cali1")).To(BeFalse())
	})

	It("is what failed, and no other interface's", func() {
		b.setFault(func(c mocks.Call) error {
			if c.Op == mocks.OpLinkAdd && strings.Contains(c.Name, qos.IFBName("cali1")) {
				return unix.ENOMEM
			}
			return nil
		})
		a.SetLimits("cali1", limited)
		a.SetLimits("cali2", limited)
		Expect(a.Apply()).To(MatchError(unix.ENOMEM))
		Expect(a.Pending("cali1")).To(BeTrue())
		Expect(a.Pending("cali2")).To(BeFalse())
		b.setFault(nil)
		Expect(a.Apply()).To(Succeed())
		Expect(a.Pending("cali1")).To(BeFalse())
	})

	It("is a limit whose device's name is still being reaped", func() {
		a = startAgent(b, func(c *qos.Config) {
			c.Reaper = qos.NewReaper(qos.ReaperConfig{}) // that is not run
		})
		a.SetLimits("cali1", limited)
		Expect(a.Apply()).To(Succeed())
		a.SetLimits("cali1", qos.Limits{})
		Expect(a.Apply()).To(Succeed())
		a.SetLimits("cali1", limited)
		Expect(a.Apply()).To(Succeed(), "waiting is no error")
		Expect(a.Pending("cali1")).To(BeTrue())
	})

	It("is nothing where limits are off", func() {
		a.SetLimits("cali1", limited)
		a.SetEnabled(false)
		Expect(a.Pending("cali1")).To(BeFalse())
	})
})
