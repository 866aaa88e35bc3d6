package qos_test

import (
	"context"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/manx-dataplane/manx/mocks"
	"github.com/manx-dataplane/manx/qos"
)

var _ = Describe("Metrics and health", func() {
	var (
		b        *backend
		a        *agent
		registry *prometheus.Registry
	)
	BeforeEach(func() {
		b = newMock()
		registry = prometheus.NewRegistry()
	})
	start := func() {
		a = startAgent(b, func(config *qos.Config) { config.Registerer = registry })
	}
	gauge := func(name string) float64 {
		GinkgoHelper()
		families, err := registry.Gather()
		Expect(err).NotTo(HaveOccurred())
		for _, family := range families {
			if family.GetName() == name {
				return family.GetMetric()[0].GetGauge().GetValue()
			}
		}
		Fail("no metric " + name)
		return 0
	}
	// gap is what is present and not wanted, and what is wanted and not there.
	gap := func() []float64 {
		GinkgoHelper()
		return []float64{gauge("manx_qos_orphaned_devices"), gauge("manx_qos_missing_devices")}
	}

	It("show the gap closed as soon as the reaper is done, without waiting for a resync", func() {
		for _, name := range []string{"bwcali000000001", "bwcali000000002", "bwcali000000003"} {
			b.addIFB(name, 1500)
		}
		start()
		Expect(a.Apply()).To(Succeed())
		Expect(gauge("manx_qos_sweep_devices")).To(Equal(3.0))
		Eventually(a.reaper.Pending).Should(BeZero())
		// A driver applies when it is woken, and only then.
		Eventually(func() []float64 {
			select {
			case <-a.woken:
				Expect(a.Apply()).To(Succeed())
			default:
			}
			return gap()
		}).Should(Equal([]float64{0, 0}))
		Expect(gauge("manx_qos_present_devices")).To(BeZero())
		Expect(gauge("manx_qos_last_sweep_timestamp_seconds")).To(Equal(float64(a.clock.Now().Unix())))
	})

	It("count a wanted device that cannot be made as missing, though the totals are equal", func() {
		b.addPod(vethName)
		b.addIFB("bwcali000000001", 1500)
		release := b.mock.Hang(mocks.BeforeEffect, func(c mocks.Call) bool { return c.Op == mocks.OpLinkDel })
		defer release()
		b.mock.Lack("ifb")
		start()
		a.SetLimits(vethName, qos.Limits{Egress: mbit(30)})
		Expect(a.Apply()).To(Succeed())
		Expect(gauge("manx_qos_wanted_devices")).To(Equal(gauge("manx_qos_present_devices")))
		Expect(gap()).To(Equal([]float64{1, 1}))
		Expect(a.HealthDetail()).To(ConsistOf(ContainSubstring("lacks ifb")))
	})

	DescribeTable("name a device whose deletion does not come back, and say what the kernel still shows of it",
		func(at mocks.HangPoint, want string) {
			index := b.addIFB("bwcali000000001", 1500).Index
			release := b.mock.Hang(at, func(c mocks.Call) bool { return c.Op == mocks.OpLinkDel && c.Index == index })
			reaper := qos.NewReaper(qos.ReaperConfig{
				Open:       func() (qos.ReaperKernel, error) { return b.open(), nil },
				StuckAfter: 20 * time.Millisecond,
			})
			ctx, cancel := context.WithCancel(context.Background())
			var running sync.WaitGroup
			running.Go(func() { _ = reaper.Run(ctx) })
			DeferCleanup(func() { cancel(); running.Wait(); release() })
			kernel := b.open()
			DeferCleanup(kernel.Close)
			syncer := qos.New(qos.Config{Kernel: kernel, Reaper: reaper, Enabled: true})
			Expect(syncer.HealthDetail()).To(BeEmpty())
			Expect(syncer.Apply()).To(Succeed())
			Eventually(syncer.HealthDetail).Should(ConsistOf(And(
				ContainSubstring("deletion of bwcali000000001"), HaveSuffix(want))))
			release()
			Eventually(syncer.HealthDetail).Should(BeEmpty())
		},
		Entry("the request waits", mocks.BeforeEffect, "; the device is still there"),
		Entry("the kernel waits for its last reference", mocks.AfterEffect, "; its name is free, the kernel waits for the last reference to it"),
	)
})
