package routetable_test

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/manx-dataplane/manx/mocks"
	"github.com/manx-dataplane/manx/routetable"
	"github.com/manx-dataplane/manx/rtnl"
)

var (
	_ routetable.Conntrack = (*rtnl.Conntrack)(nil)
	_ routetable.Conntrack = (*mocks.Conntrack)(nil)
)

// slowConntrack answers each call with what the test sends.
type slowConntrack struct {
	mutex   sync.Mutex
	calls   []netip.Addr
	answers map[netip.Addr]chan error
}

func newSlowConntrack() *slowConntrack {
	return &slowConntrack{answers: map[netip.Addr]chan error{}}
}

func (c *slowConntrack) answer(a netip.Addr) chan error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.answers[a] == nil {
		c.answers[a] = make(chan error)
	}
	return c.answers[a]
}

func (c *slowConntrack) ConntrackDelete(a netip.Addr) error {
	answer := c.answer(a)
	c.mutex.Lock()
	c.calls = append(c.calls, a)
	c.mutex.Unlock()
	return <-answer
}

func (c *slowConntrack) called() []netip.Addr {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return append([]netip.Addr(nil), c.calls...)
}

var _ = onEachKernel("conntrack clean-up", func(kind worldKind) {
	var f *fixture
	var ct *slowConntrack
	var woken chan struct{}
	var index1, index2 int
	one, two := addr("10.65.0.1"), addr("10.65.0.2")
	via := func(a netip.Addr, iface string) string {
		return a.String() + "/32 dev " + iface + " proto 80 scope link"
	}

	BeforeEach(func() {
		ct, woken = newSlowConntrack(), make(chan struct{}, 100)
		f = newFixture(GinkgoT(), kind, func(c *routetable.Config) {
			c.Conntrack = ct
			c.Wake = func() { woken <- struct{}{} }
		})
		index1, index2 = f.addLink("cali1"), f.addLink("cali2")
		f.want("cali1", "10.65.0.1/32")
		f.apply()
		Expect(ct.called()).To(BeEmpty(), "a new address has no old flows")
	})
	move := func() {
		f.want("cali1")
		f.want("cali2", "10.65.0.1/32", "10.65.0.2/32")
		f.apply()
	}
	finish := func(a netip.Addr, err error) {
		GinkgoHelper()
		select {
		case ct.answer(a) <- err:
		case <-time.After(5 * time.Second):
			Fail("nobody deletes the flows of " + a.String())
		}
	}
	awake := func() {
		GinkgoHelper()
		Eventually(woken, 5*time.Second).Should(Receive())
	}

	It("comes before the moved address's new route, and holds up no other", func() {
		move()
		Expect(f.routes()).To(Equal([]string{via(two, "cali2")}), "the old route is gone, the new one is not there")
		f.apply()
		f.QueueResync()
		f.apply()
		Expect(f.routes()).To(Equal([]string{via(two, "cali2")}))
		finish(one, nil)
		awake()
		f.apply()
		Expect(f.routes()).To(Equal([]string{via(one, "cali2"), via(two, "cali2")}))
		Expect(ct.called()).To(Equal([]netip.Addr{one}))
	})

	It("is made for an address that goes", func() {
		f.want("cali1")
		f.apply()
		finish(one, nil)
		awake()
		f.apply()
		Expect(ct.called()).To(Equal([]netip.Addr{one}))
	})

	It("holds back an address that goes and comes back", func() {
		f.want("cali1")
		f.apply()
		f.want("cali2", "10.65.0.1/32")
		f.apply()
		Expect(f.routes()).To(BeEmpty())
		finish(one, nil)
		awake()
		f.apply()
		Expect(f.routes()).To(Equal([]string{via(one, "cali2")}))
	})

	It("is made for an address whose interface goes away", func() {
		delLink(f.t, f.w, "cali1")
		f.OnIfaceStateChanged("cali1", index1, absent)
		f.apply()
		finish(one, nil)
		awake()
	})

	It("is not made while an interface is only down", func() {
		f.OnIfaceStateChanged("cali1", index1, down)
		f.apply()
		Expect(f.routes()).To(BeEmpty())
		f.OnIfaceStateChanged("cali1", index1, up)
		f.apply()
		Expect(f.routes()).To(Equal([]string{via(one, "cali1")}))
		Expect(ct.called()).To(BeEmpty())
	})

	It("is made where the address moves while its interface is down", func() {
		f.OnIfaceStateChanged("cali1", index1, down)
		f.apply()
		f.want("cali1")
		f.want("cali2", "10.65.0.1/32")
		f.apply()
		Expect(f.routes()).To(BeEmpty())
		finish(one, nil)
		awake()
		f.apply()
		Expect(f.routes()).To(Equal([]string{via(one, "cali2")}))
	})

	It("is made for an address that moved while the agent was down", func() {
		f.restart()
		f.want("cali2", "10.65.0.1/32")
		f.apply()
		finish(one, nil)
		awake()
		f.apply()
		Expect(f.routes()).To(Equal([]string{via(one, "cali2")}))
	})

	It("is made without holding back a route that is there already", func() {
		f.want("cali1")
		f.want("cali2", "10.65.0.1/32")
		addRoute(f.t, f.w, routeVia(tableNumber, "10.65.0.1/32", index2, 3)) // the CNI plugin was here
		f.QueueResync()
		f.apply()
		Expect(f.routes()).To(Equal([]string{via(one, "cali2")}))
		finish(one, nil)
		awake()
	})

	It("that fails delays only its own address and ends in an error that says so", func() {
		move()
		for range 3 {
			finish(one, errInjected)
		}
		awake()
		err := f.Apply()
		var failure *routetable.ConntrackError
		Expect(err).To(MatchError(errInjected))
		Expect(errors.As(err, &failure)).To(BeTrue())
		Expect(failure.Addr).To(Equal(one))
		Expect(f.routes()).To(Equal([]string{via(one, "cali2"), via(two, "cali2")}), "not blocked for ever")
		f.apply()
	})

	It("that succeeds at the second attempt is no error", func() {
		move()
		finish(one, errInjected)
		finish(one, nil)
		awake()
		f.apply()
		Expect(f.routes()).To(HaveLen(2))
	})

	It("that is slow is waited for only so long", func() {
		move()
		at, ok := f.NextRecheck()
		Expect(ok).To(BeTrue())
		Expect(at).To(Equal(f.clock.Now().Add(routetable.DefaultConntrackTimeout)))
		f.clock.SetTime(at)
		err := f.Apply()
		Expect(err).To(MatchError(context.DeadlineExceeded))
		Expect(err).To(MatchError(ContainSubstring("10.65.0.1")))
		Expect(f.routes()).To(Equal([]string{via(one, "cali2"), via(two, "cali2")}))
		_, ok = f.NextRecheck()
		Expect(ok).To(BeFalse())
		f.apply()
		finish(one, nil)
		awake()
		f.apply()
	})

	It("is made again where the address moves once more meanwhile", func() {
		move()
		Eventually(ct.called, 5*time.Second).Should(HaveLen(1))
		f.clock.SetTime(f.clock.Now().Add(routetable.DefaultConntrackTimeout))
		Expect(f.Apply()).To(HaveOccurred()) // given up waiting for: the new route is in
		f.want("cali2", "10.65.0.2/32")
		f.apply()
		finish(one, nil)
		awake()
		f.apply()
		finish(one, nil)
		awake()
		f.apply()
		Expect(ct.called()).To(Equal([]netip.Addr{one, one}))
	})

	It("takes one address's turn while another's never ends", func() {
		f.want("cali1", "10.65.0.1/32", "10.65.0.2/32")
		f.apply()
		f.want("cali1")
		f.want("cali2", "10.65.0.1/32", "10.65.0.2/32")
		f.apply()
		finish(two, nil)
		awake()
		f.apply()
		Expect(f.routes()).To(Equal([]string{via(two, "cali2")}))
		finish(one, nil)
		awake()
	})

	It("is not made for wider routes and routes through a gateway", func() {
		f.want("cali2", "10.70.0.0/24")
		f.SetRoutes(routetable.RouteClassVXLANTunnel, "cali2", []routetable.Target{
			{Type: routetable.TargetTypeVXLAN, CIDR: prefix("10.71.0.1/32"), GW: addr("172.16.0.1")},
		})
		f.apply()
		f.want("cali2")
		f.SetRoutes(routetable.RouteClassVXLANTunnel, "cali2", nil)
		f.apply()
		Expect(ct.called()).To(BeEmpty())
	})
})
