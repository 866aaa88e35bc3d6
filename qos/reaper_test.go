package qos_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/manx-dataplane/manx/mocks"
	"github.com/manx-dataplane/manx/qos"
)

var _ = Describe("Reaper", func() {
	var (
		clock   *clocktesting.FakeClock
		metrics *prometheus.Registry
		log     *logBuffer
		reaper  *qos.Reaper
		stop    func()
	)
	start := func(b *backend) {
		clock = clocktesting.NewFakeClock(time.Unix(1e9, 0))
		metrics = prometheus.NewRegistry()
		log = &logBuffer{}
		reaper = qos.NewReaper(qos.ReaperConfig{
			Open: func() (qos.ReaperKernel, error) { return b.open(), nil }, Clock: clock, Log: log.logger(), Registerer: metrics,
		})
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { Expect(reaper.Run(ctx)).To(Succeed()) })
		stop = func() { cancel(); running.Wait() }
		DeferCleanup(func() { stop() })
	}
	devices := func(b *backend, count int) []qos.Device {
		GinkgoHelper()
		var all []qos.Device
		for n := range count {
			ifb := b.addIFB(fmt.Sprintf("bwcali%09x", n), 1500)
			all = append(all, qos.Device{Name: ifb.Name, Index: ifb.Index})
		}
		return all
	}
	deletions := func(reason qos.Reason) (sum float64) {
		families, err := metrics.Gather()
		Expect(err).NotTo(HaveOccurred())
		for _, family := range families {
			for _, metric := range family.GetMetric() {
				if family.GetName() == "manx_qos_deletions_total" && metric.GetLabel()[0].GetValue() == string(reason) {
					sum += metric.GetCounter().GetValue()
				}
			}
		}
		return sum
	}
	pending := func() int { return reaper.Pending() }

	onBoth(func(newBackend func() *backend) {
		It("deletes what was named, by index and name and kind, and nothing else", func() {
			b := newBackend()
			start(b)
			all := devices(b, 150)
			bystander := b.addIFB("bwcaliffffffff", 1500)
			b.addPod("cali1")
			doomed := append([]qos.Device{
				{Name: "bwcali000000000", Index: bystander.Index}, // another's index now
				{Name: "cali1", Index: b.index("cali1")},          // not an IFB
				{Name: "bwcali111111111", Index: 4242},            // gone
			}, all...)
			reaper.Delete(qos.ReasonStartup, false, doomed...)
			Eventually(pending, 5*time.Second).Should(BeZero())
			Expect(b.ifbs()).To(ConsistOf(bystander.Name))
			Expect(b.index("cali1")).NotTo(BeZero())
			Expect(b.observe().ByName(bystander.Name).Group).To(BeZero())
			Expect(deletions(qos.ReasonStartup)).To(BeEquivalentTo(150))
		})

		It("never deletes a foreign device that is in the group it chose first", func() {
			b := newBackend()
			start(b)
			foreign := b.addIFB("foreign", 1500)
			Expect(b.outside.LinkSetGroup(foreign, 0x6d616e78)).To(Succeed())
			reaper.Delete(qos.ReasonStartup, false, devices(b, 5)...)
			Eventually(pending, 5*time.Second).Should(BeZero())
			Expect(b.ifbs()).To(BeEmpty())

			By("a foreign device in the group that it has used since")
			Expect(b.outside.LinkSetGroup(foreign, 0x6d616e79)).To(Succeed())
			reaper.Delete(qos.ReasonStartup, false, devices(b, 5)...)
			Eventually(pending, 5*time.Second).Should(BeZero())
			Expect(b.ifbs()).To(BeEmpty())
			Expect(b.index("foreign")).NotTo(BeZero())
		})
	})

	Context("on mocks", func() {
		var b *backend
		BeforeEach(func() {
			b = newMock()
			start(b)
		})

		It("uses one request for up to 64 devices", func() {
			reaper.Delete(qos.ReasonStartup, false, devices(b, 130)...)
			Eventually(pending, 5*time.Second).Should(BeZero())
			Expect(b.mock.Count(mocks.OpLinkDelGroup)).To(Equal(3))
			Expect(b.mock.Count(mocks.OpLinkDel)).To(BeZero())
		})

		It("deletes one by one where the kernel refuses the group", func() {
			b.setFault(func(c mocks.Call) error {
				if c.Op == mocks.OpLinkDelGroup || c.Op == mocks.OpLinkSetGroup {
					return unix.EOPNOTSUPP
				}
				return nil
			})
			reaper.Delete(qos.ReasonPeriodic, false, devices(b, 70)...)
			Eventually(pending, 5*time.Second).Should(BeZero())
			Expect(b.ifbs()).To(BeEmpty())
			Expect(deletions(qos.ReasonPeriodic)).To(BeEquivalentTo(70))
		})

		It("retries what fails, with backoff, while others go on", func() {
			all := devices(b, 2)
			b.setFault(func(c mocks.Call) error {
				if c.Op == mocks.OpLinkDelGroup || c.Op == mocks.OpLinkDel && c.Index == all[0].Index {
					return unix.EBUSY
				}
				return nil
			})
			reaper.Delete(qos.ReasonStartup, false, all...)
			Eventually(pending).Should(Equal(1))
			Eventually(func() bool { return clock.HasWaiters() }).Should(BeTrue())
			tries := b.mock.Count(mocks.OpLinkDel)
			Expect(reaper.Reserved(all[0].Name)).To(BeTrue())
			Consistently(func() int { return b.mock.Count(mocks.OpLinkDel) }, 20*time.Millisecond).Should(Equal(tries))
			Eventually(func() int { clock.Step(time.Second); return b.mock.Count(mocks.OpLinkDel) }).Should(BeNumerically(">", tries+3))
			b.setFault(nil)
			clock.Step(time.Minute)
			Eventually(pending).Should(BeZero())
			Expect(log.all()).To(ConsistOf(ContainSubstring("Cannot delete a device")))
		})

		It("retries when no handle can be opened", func() {
			failing := qos.NewReaper(qos.ReaperConfig{Open: func() (qos.ReaperKernel, error) { return nil, unix.EMFILE }, Log: log.logger(), Clock: clock})
			ctx, cancel := context.WithCancel(context.Background())
			var running sync.WaitGroup
			running.Go(func() { _ = failing.Run(ctx) })
			failing.Delete(qos.ReasonStartup, false, devices(b, 3)...)
			Eventually(func() string { return strings.Join(log.all(), "") }).Should(ContainSubstring("too many open files"))
			Expect(failing.Pending()).To(Equal(3))
			cancel()
			running.Wait()
		})

		// The rule of case D, at each place where a delete may hang.
		DescribeTable("leaves a stuck delete behind, says which device it is, and goes on",
			func(op mocks.Op, at mocks.HangPoint, count int, listed bool) {
				all := devices(b, count)
				culprit := all[count-1]
				release := b.mock.Hang(at, func(c mocks.Call) bool {
					return c.Op == mocks.OpLinkDelGroup && op == mocks.OpLinkDelGroup || c.Op == mocks.OpLinkDel && c.Index == culprit.Index
				})
				DeferCleanup(release)
				reaper.Delete(qos.ReasonStartup, false, all...)
				Eventually(b.mock.Hung).Should(Equal(1))
				Expect(reaper.Stuck()).To(BeEmpty())
				Eventually(clock.HasWaiters).Should(BeTrue())
				clock.Step(10 * time.Second)
				Eventually(func() string { return strings.Join(log.all(), "") }).Should(ContainSubstring("does not come back"))

				others := b.addIFB("bwcaliabcdef012", 1500)
				reaper.Delete(qos.ReasonPeriodic, false, qos.Device{Name: others.Name, Index: others.Index})
				Eventually(func() int { clock.Step(time.Second); return b.index(others.Name) }).Should(BeZero(), "others go on")
				step := func() bool { clock.Step(time.Second); return reaper.Pending() <= 1 }
				Eventually(step, 5*time.Second, 5*time.Millisecond).Should(BeTrue())
				if listed {
					Eventually(func() []qos.StuckDevice { clock.Step(time.Second); return reaper.Stuck() }).Should(ConsistOf(And(
						HaveField("Device", culprit), HaveField("Listed", true), HaveField("Candidates", 1))))
					Expect(reaper.Reserved(culprit.Name)).To(BeTrue())
				} else {
					Eventually(func() bool { return reaper.Reserved(culprit.Name) }).Should(BeFalse(), "the name is free again")
					Expect(reaper.Stuck()).To(HaveLen(count))
					Expect(reaper.Stuck()[count-1]).To(And(
						HaveField("Device", culprit), HaveField("Listed", false), HaveField("Candidates", count)))
				}
				release()
				Eventually(func() int { clock.Step(time.Second); return len(reaper.Stuck()) + reaper.Pending() }, 5*time.Second).Should(BeZero())
				Expect(b.ifbs()).To(BeEmpty())
			},
			Entry("one device, the request waits", mocks.OpLinkDel, mocks.BeforeEffect, 1, true),
			Entry("one device, the kernel waits for its last reference", mocks.OpLinkDel, mocks.AfterEffect, 1, false),
			Entry("a group, the request waits", mocks.OpLinkDelGroup, mocks.BeforeEffect, 5, true),
			Entry("a group, the kernel waits for a last reference", mocks.OpLinkDelGroup, mocks.AfterEffect, 5, false),
		)

		It("does not have others wait for the sum of several stuck deletes", func() {
			all := devices(b, 5)
			healthy := all[4]
			release := b.mock.Hang(mocks.BeforeEffect, func(c mocks.Call) bool {
				return c.Op == mocks.OpLinkDel && c.Index != healthy.Index
			})
			DeferCleanup(release)
			b.setFault(func(c mocks.Call) error {
				if c.Op == mocks.OpLinkDelGroup {
					return unix.EOPNOTSUPP
				}
				return nil
			})
			start := clock.Now()
			reaper.Delete(qos.ReasonStartup, false, all...)
			Eventually(func() int { clock.Step(50 * time.Millisecond); return b.index(healthy.Name) }, 5*time.Second).Should(BeZero())
			Expect(clock.Since(start)).To(BeNumerically("<", 10*time.Second), "before the first counts as stuck")
			Expect(reaper.Stuck()).To(BeEmpty())
			Expect(pending()).To(Equal(4))
			release()
			Eventually(pending).Should(BeZero())
			Eventually(b.mock.OpenHandles, 5*time.Second).Should(BeNumerically("<=", 1))
		})

		It("never puts devices into the group of a delete that may yet come", func() {
			groups := func() (used []string) {
				for _, c := range b.mock.Writes() {
					if c.Op == mocks.OpLinkDelGroup {
						used = append(used, c.Detail)
					}
				}
				return used
			}
			asked := false
			release := b.mock.Hang(mocks.BeforeEffect, func(c mocks.Call) bool {
				first := c.Op == mocks.OpLinkDelGroup && !asked
				asked = asked || first
				return first
			})
			DeferCleanup(release)
			reaper.Delete(qos.ReasonStartup, false, devices(b, 3)...)
			Eventually(func() int { clock.Step(time.Second); return pending() }, 5*time.Second).Should(BeZero())
			reaper.Delete(qos.ReasonStartup, false, devices(b, 3)...)
			Eventually(pending).Should(BeZero())
			Expect(groups()).To(HaveLen(2))
			Expect(groups()[0]).NotTo(Equal(groups()[1]))
		})

		It("bounds the threads that stuck deletes hold", func() {
			hang := b.mock.Hang(mocks.BeforeEffect, func(c mocks.Call) bool { return true })
			DeferCleanup(hang)
			for n, device := range devices(b, 40) {
				reaper.Delete(qos.ReasonStartup, false, device)
				Eventually(func() int { clock.Step(time.Second); return b.mock.Hung() }, 5*time.Second, time.Millisecond).Should(BeNumerically(">=", min(n+1, 32)))
			}
			for range 100 {
				clock.Step(10 * time.Second)
			}
			Consistently(b.mock.Hung, 50*time.Millisecond).Should(Equal(32))
			hang()
			Eventually(func() int { clock.Step(time.Second); return pending() }, 5*time.Second).Should(BeZero())
		})

		It("stops at once with a stuck delete, and closes all handles in the end", func() {
			release := b.mock.Hang(mocks.BeforeEffect, func(c mocks.Call) bool { return c.Op == mocks.OpLinkDel })
			reaper.Delete(qos.ReasonStartup, false, devices(b, 1)...)
			Eventually(b.mock.Hung).Should(Equal(1))
			stopped := make(chan struct{})
			go func() { stop(); close(stopped) }()
			Eventually(stopped).Should(BeClosed())
			release()
			Eventually(b.mock.OpenHandles).Should(BeZero())
			Eventually(pending).Should(BeZero())
		})

		It("has the endpoint whose name is being reaped wait, serves others, and wakes the driver", func() {
			b.addPod(vethName)
			b.addPod("cali2")
			stale := b.addIFB(ifbName, 1500)
			release := b.mock.Hang(mocks.BeforeEffect, func(c mocks.Call) bool { return c.Op == mocks.OpLinkDel && c.Index == stale.Index })
			DeferCleanup(release)
			a := startAgent(b)
			a.SetLimits(vethName, qos.Limits{Ingress: mbit(3), Egress: mbit(30)})
			a.SetLimits("cali2", qos.Limits{Egress: mbit(30)})
			Expect(a.Apply()).To(Succeed())
			Eventually(b.mock.Hung).Should(Equal(1))
			Expect(a.Apply()).To(Succeed())
			Expect(b.rate(vethName)).To(BeEquivalentTo(3e6))
			Expect(b.rate(qos.IFBName("cali2"))).To(BeEquivalentTo(30e6))
			Expect(b.rate(ifbName)).To(BeZero())
			Expect(a.woken).NotTo(Receive())
			release()
			Eventually(a.woken).Should(Receive())
			Expect(a.Apply()).To(Succeed())
			Expect(b.rate(ifbName)).To(BeEquivalentTo(30e6))
		})

		It("hurries with a device when an endpoint comes to wait for its name", func() {
			// A reaper that does not run until all is queued, and then goes one by one.
			queued := qos.NewReaper(qos.ReaperConfig{Open: func() (qos.ReaperKernel, error) { return b.open(), nil }, Clock: clock})
			for n := range 20 {
				b.addIFB(fmt.Sprintf("bwcali%09x", n), 1500)
			}
			b.addIFB(ifbName, 1500)
			b.addPod(vethName)
			a := startAgent(b, func(c *qos.Config) { c.Reaper = queued })
			Expect(a.Apply()).To(Succeed(), "all are orphans")
			a.SetLimits(vethName, qos.Limits{Egress: mbit(30)})
			Expect(a.Apply()).To(Succeed())
			index := b.index(ifbName)
			var mu sync.Mutex
			var order []int
			b.setFault(func(c mocks.Call) error {
				mu.Lock()
				defer mu.Unlock()
				if c.Op == mocks.OpLinkSetGroup {
					order = append(order, c.Index)
				}
				return nil
			})
			ctx, cancel := context.WithCancel(context.Background())
			var running sync.WaitGroup
			running.Go(func() { _ = queued.Run(ctx) })
			Eventually(queued.Pending).Should(BeZero())
			cancel()
			running.Wait()
			Expect(order).To(HaveLen(21))
			Expect(order[0]).To(Equal(index))
		})

		It("serves devices that someone waits for first", func() {
			var order []string
			var mu sync.Mutex
			all := devices(b, 3)
			release := b.mock.Hang(mocks.BeforeEffect, func(c mocks.Call) bool { return c.Index == all[0].Index })
			DeferCleanup(release)
			b.setFault(func(c mocks.Call) error {
				mu.Lock()
				defer mu.Unlock()
				if c.Op == mocks.OpLinkDelGroup || c.Op == mocks.OpLinkSetGroup {
					return unix.EOPNOTSUPP
				}
				if c.Op == mocks.OpLinkDel {
					link, err := b.outside.LinkByIndex(c.Index)
					if err == nil {
						order = append(order, link.Attrs().Name)
					}
				}
				return nil
			})
			reaper.Delete(qos.ReasonStartup, false, all[0])
			Eventually(b.mock.Hung).Should(Equal(1))
			reaper.Delete(qos.ReasonStartup, false, all[1])
			reaper.Delete(qos.ReasonStale, true, all[2])
			release()
			Eventually(pending).Should(BeZero())
			Expect(order).To(Equal([]string{all[0].Name, all[2].Name, all[1].Name}))
		})
	})
})
