package dataplane_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	logrustest "github.com/sirupsen/logrus/hooks/test"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/manx-dataplane/manx/config"
	"github.com/manx-dataplane/manx/dataplane"
	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/routetable"
)

func TestNothingIsAppliedBeforeBothSidesAreInSync(t *testing.T) {
	for name, sides := range map[string][2]func(r *rig){
		"datastore first": {
			func(r *rig) { r.send(dataplane.InSync{}) },
			func(r *rig) { r.driver.OnIfaceInSync() },
		},
		"interfaces first": {
			func(r *rig) { r.driver.OnIfaceInSync() },
			func(r *rig) { r.send(dataplane.InSync{}) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, dataplane.Config{RouteRefreshInterval: time.Second}, func(r *rig) {
				r.run()
				sides[0](r)
				r.driver.OnIfaceState("cali1", ifacemonitor.StateUp, 7)
				r.driver.Wake()
				r.sleep(time.Hour)
				r.Expect(r.take()).To(ContainElement("table iface cali1 7 \"up\""))
				r.Expect(r.timesOf("table apply")).To(BeEmpty())

				sides[1](r)
				synctest.Wait()
				r.Expect(r.take()).To(ContainElements("manager work", "table apply", "qos apply"))
			})
		})
	}
}

func TestAnApplyResolvesThenWorksThenSyncsThenReports(t *testing.T) {
	inBubble(t, dataplane.Config{}, func(r *rig) {
		second := &fakeManager{journal: r.journal, name: "second"}
		r.driver.RegisterManager(second)
		r.runInSync()
		r.driver.Wake()
		synctest.Wait()

		lines := r.take()
		slices.Sort(lines[4:6]) // in parallel
		r.Expect(lines).To(Equal([]string{
			"manager resolve", "second resolve",
			"manager work", "second work",
			"qos apply", "table apply",
			"manager applied", "second applied",
		}))
	})
}

func TestSyncersAreAppliedInParallel(t *testing.T) {
	inBubble(t, dataplane.Config{}, func(r *rig) {
		r.qos.apply = func() error { time.Sleep(time.Second); return nil }
		r.table.apply = func() error { time.Sleep(time.Second); return nil }
		r.run()
		r.send(dataplane.InSync{})
		r.driver.OnIfaceInSync()
		r.sleep(999 * time.Millisecond)
		r.Expect(r.take()).NotTo(ContainElement("manager applied"))
		r.sleep(time.Millisecond)
		r.Expect(r.take()).To(ContainElement("manager applied"))
	})
}

func TestMessagesAndInterfaceEventsKeepTheirOrderAndNoneIsMerged(t *testing.T) {
	inBubble(t, dataplane.Config{}, func(r *rig) {
		// Queued before the loop runs, so that they make one batch.
		r.driver.OnIfaceState("cali1", ifacemonitor.StateUp, 83)
		r.driver.OnIfaceMTU("cali1", 83, 1500)
		r.driver.OnIfaceAddrs("cali1", []netip.Addr{netip.MustParseAddr("10.0.0.1")})
		r.driver.OnIfaceState("cali1", ifacemonitor.StateNotPresent, 83)
		r.driver.OnIfaceAddrs("cali1", nil)
		r.driver.OnIfaceState("cali1", ifacemonitor.StateUp, 83)
		r.send("anything")
		r.run()
		r.Expect(r.take()).To(Equal([]string{
			`table iface cali1 83 "up"`, `qos iface cali1 83 "up"`, "manager update {cali1 up 83}",
			"table mtu cali1 83 1500", "qos mtu cali1 83 1500", "manager update {cali1 83 1500}",
			"manager update {cali1 [10.0.0.1]}",
			`table iface cali1 83 ""`, `qos iface cali1 83 ""`, "manager update {cali1  83}",
			"manager update {cali1 []}",
			`table iface cali1 83 "up"`, `qos iface cali1 83 "up"`, "manager update {cali1 up 83}",
			"manager update anything",
		}))
	})
}

func TestAfterLostInterfaceEventsEverythingIsReadAnewButNotAllTheTime(t *testing.T) {
	inBubble(t, dataplane.Config{}, func(r *rig) {
		r.runInSync()
		r.sleep(time.Minute)
		r.take()
		r.driver.OnIfaceEventsLost()
		r.sleep(time.Millisecond)
		r.Expect(r.take()).To(ContainElements("table resync", "qos resync", "table apply", "qos apply"))
		for range 10 {
			r.driver.OnIfaceEventsLost()
			r.sleep(10 * time.Millisecond)
		}
		r.Expect(r.take()).NotTo(ContainElement("table resync"))
		r.sleep(time.Second)
		r.Expect(r.timesOf("table resync")).To(HaveLen(1))
		r.take()
		r.sleep(time.Hour)
		r.Expect(r.take()).NotTo(ContainElement("table resync"))
	})
}

func TestWhatIsQueuedIsAppliedAsOneBatch(t *testing.T) {
	inBubble(t, dataplane.Config{}, func(r *rig) {
		r.send(dataplane.InSync{})
		r.driver.OnIfaceInSync()
		for range 1000 {
			r.send("message")
		}
		r.run()
		r.Expect(r.timesOf("manager update message")).To(HaveLen(1000))
		r.Expect(r.timesOf("table apply")).To(HaveLen(1))
	})
}

func TestAFloodOfMessagesDoesNotPutOffTheApply(t *testing.T) {
	inBubble(t, dataplane.Config{}, func(r *rig) {
		flood := 1000
		r.manager.onUpdate = func(msg any) { // for each that is taken another one comes
			if flood--; flood > 0 && msg == "drop" {
				r.send("drop")
			}
		}
		r.runInSync()
		r.send("drop")
		synctest.Wait()
		lines := r.take()
		r.Expect(slices.Index(lines, "table apply")).To(BeNumerically("<", 10))
		r.Expect(flood).To(BeZero())
	})
}

func TestAppliesAreThrottledButTheFirstAreImmediate(t *testing.T) {
	cfg := dataplane.Config{ApplyInterval: 100 * time.Millisecond, ApplyBurst: 3}
	inBubble(t, cfg, func(r *rig) {
		r.runInSync()
		r.sleep(time.Second) // the bucket is full again
		r.mark()
		for range 50 { // a message each 10 ms
			r.driver.Wake()
			r.sleep(10 * time.Millisecond)
		}
		r.sleep(time.Second)
		at := r.timesOf("table apply")
		r.Expect(at[:3]).To(Equal([]time.Duration{0, 10 * time.Millisecond, 20 * time.Millisecond}))
		r.Expect(at).To(HaveLen(3 + 5))
		for i := 3; i+1 < len(at); i++ {
			r.Expect(at[i+1] - at[i]).To(BeNumerically("==", 100*time.Millisecond))
		}
	})
}

func TestAFailedApplyIsRetriedWithBackoffUntilItSucceeds(t *testing.T) {
	inBubble(t, dataplane.Config{RetryMax: time.Second}, func(r *rig) {
		r.runInSync()
		r.mark()
		r.qos.apply = func() error { return errInjected }
		r.driver.Wake()
		r.sleep(3600 * time.Millisecond)
		ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
		r.Expect(r.timesOf("qos apply")).To(Equal([]time.Duration{0, ms(100), ms(300), ms(700), ms(1500), ms(2500), ms(3500)}))

		r.set(func() { r.qos.apply = nil })
		r.take()
		r.sleep(time.Hour)
		r.Expect(r.timesOf("qos apply")).To(Equal([]time.Duration{ms(4500)}))

		// The backoff starts anew.
		r.set(func() { r.qos.apply = func() error { return errInjected } })
		r.mark()
		r.driver.Wake()
		r.sleep(ms(350))
		r.Expect(r.timesOf("qos apply")[1:]).To(Equal([]time.Duration{0, ms(100), ms(300)}))
	})
}

func TestABackoffStartsAnewAfterASuccess(t *testing.T) {
	inBubble(t, dataplane.Config{RouteRefreshInterval: 20 * time.Second}, func(r *rig) {
		r.runInSync()
		r.table.apply = func() error { return errInjected }
		r.driver.Wake()
		r.sleep(5 * time.Second)
		r.set(func() { r.table.apply = nil })
		r.sleep(14 * time.Second)
		r.set(func() { r.table.apply = func() error { return errInjected } })
		r.sleep(2 * time.Second) // the refresh fails
		r.take()
		r.sleep(3 * time.Second)
		r.Expect(len(r.timesOf("table apply"))).To(BeNumerically(">=", 1), "not only after the longest time")
	})
}

func TestRetriesAndRechecksAreThrottledToo(t *testing.T) {
	inBubble(t, dataplane.Config{ApplyInterval: time.Second, ApplyBurst: 1, RetryMax: 100 * time.Millisecond}, func(r *rig) {
		r.runInSync()
		r.set(func() {
			r.manager.recheck = time.Now().Add(-time.Hour) // always due
			r.qos.apply = func() error { return errInjected }
		})
		r.sleep(time.Second)
		r.driver.Wake()
		r.sleep(500 * time.Millisecond)
		r.take()
		r.sleep(10 * time.Second)
		r.Expect(r.timesOf("qos apply")).To(HaveLen(10))
	})
}

func TestARecheckThatFailsIsRetriedWithBackoffLikeAllElse(t *testing.T) {
	inBubble(t, dataplane.Config{}, func(r *rig) {
		r.runInSync()
		r.set(func() {
			r.qos.recheck = time.Now() // and stays due, because it fails
			r.qos.apply = func() error { return errInjected }
		})
		r.driver.Wake()
		synctest.Wait()
		r.mark()
		r.sleep(time.Second)
		r.Expect(r.timesOf("qos apply")).To(Equal([]time.Duration{0,
			100 * time.Millisecond, 300 * time.Millisecond, 700 * time.Millisecond}))
	})
}

func TestAnyPartThatFailsIsRetriedAndStopsNoOther(t *testing.T) {
	for name, fail := range map[string]func(r *rig){
		"manager": func(r *rig) { r.manager.work = failOnce() },
		"table":   func(r *rig) { r.table.apply = failOnce() },
		"qos":     func(r *rig) { r.qos.apply = failOnce() },
		"status":  func(r *rig) { f := failOnce(); r.manager.onApplied = func(error) error { return f() } },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, dataplane.Config{}, func(r *rig) {
				r.runInSync()
				fail(r)
				r.driver.Wake()
				synctest.Wait()
				r.Expect(r.take()).To(ContainElements("manager work", "table apply", "qos apply", "manager applied"))
				r.sleep(time.Second)
				r.Expect(r.timesOf("table apply")).To(HaveLen(1), "one retry")
			})
		})
	}
}

func TestStatusIsToldWhatTheSyncersFailedWithAndNotWhatManagersDid(t *testing.T) {
	inBubble(t, dataplane.Config{}, func(r *rig) {
		r.runInSync()
		var got error
		r.manager.onApplied = func(err error) error { got = err; return nil }
		r.manager.work = failOnce()
		r.driver.Wake()
		synctest.Wait()
		r.Expect(got).NotTo(HaveOccurred())

		r.qos.apply = failOnce()
		r.driver.Wake()
		synctest.Wait()
		r.Expect(got).To(MatchError(errInjected))
		r.Expect(got).To(MatchError("qos: injected"))
	})
}

func TestABackoffNeverDelaysWhatIsNew(t *testing.T) {
	inBubble(t, dataplane.Config{}, func(r *rig) {
		r.runInSync()
		r.table.apply = func() error { return errInjected }
		r.driver.Wake()
		r.sleep(time.Minute) // the backoff is at its longest
		r.take()
		r.mark()
		r.send("new")
		synctest.Wait()
		r.Expect(r.timesOf("table apply")).To(Equal([]time.Duration{0}))
		r.sleep(100 * time.Millisecond)
		r.Expect(r.timesOf("table apply")).To(Equal([]time.Duration{0, 100 * time.Millisecond}),
			"its second attempt does not wait for old failures either")
	})
}

func TestRefreshTimersResyncTablesAndOtherSyncersEachAtTheirOwnInterval(t *testing.T) {
	cfg := dataplane.Config{RouteRefreshInterval: 10 * time.Second, QoSRefreshInterval: 25 * time.Second}
	inBubble(t, cfg, func(r *rig) {
		r.runInSync()
		r.mark()
		r.sleep(59 * time.Second)
		seconds := func(at ...int) (d []time.Duration) {
			for _, s := range at {
				d = append(d, time.Duration(s)*time.Second)
			}
			return d
		}
		r.Expect(r.timesOf("table resync")).To(Equal(seconds(10, 20, 30, 40, 50)))
		r.Expect(r.timesOf("manager resync")).To(Equal(seconds(10, 20, 30, 40, 50)))
		r.Expect(r.timesOf("qos resync")).To(Equal(seconds(25, 50)))
		r.Expect(r.timesOf("table apply")).To(Equal(seconds(10, 20, 25, 30, 40, 50)))
	})
}

func TestTimeIsTheClocksThatWasHandedIn(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Unix(1000, 0))
	inBubble(t, dataplane.Config{Clock: clk, RouteRefreshInterval: 10 * time.Second}, func(r *rig) {
		r.runInSync()
		r.sleep(time.Minute)
		r.Expect(r.take()).To(BeEmpty(), "no time passes on the clock that counts")
		clk.Step(10 * time.Second)
		synctest.Wait()
		r.Expect(r.timesOf("table resync")).To(HaveLen(1))
	})
}

func TestAnErrorIsLoggedWhenItChangesNotAtEveryRetry(t *testing.T) {
	logger, hook := logrustest.NewNullLogger()
	inBubble(t, dataplane.Config{Log: logger}, func(r *rig) {
		r.runInSync()
		r.table.apply = func() error { return errInjected }
		r.driver.Wake()
		r.sleep(time.Minute)
		r.Expect(hook.AllEntries()).To(HaveLen(1))
		r.Expect(hook.LastEntry().Data).To(HaveKeyWithValue("error", "table: injected"))
		r.set(func() { r.table.apply = func() error { return errors.New("other") } })
		r.sleep(time.Minute)
		r.Expect(hook.AllEntries()).To(HaveLen(2))
		r.set(func() { r.table.apply = nil })
		r.sleep(time.Minute)
		r.Expect(hook.AllEntries()).To(HaveLen(3))
		r.Expect(hook.LastEntry().Message).To(Equal("Applied without error again"))
	})
}

func TestAConfigUpdateChangesTheRefreshTimersAndZeroTurnsThemOff(t *testing.T) {
	inBubble(t, dataplane.Config{RouteRefreshInterval: time.Second}, func(r *rig) {
		r.runInSync()
		r.send(dataplane.ConfigUpdate{Config: &config.Config{QoSRefreshInterval: 5 * time.Second}})
		r.mark()
		r.sleep(12 * time.Second)
		r.Expect(r.timesOf("table resync")).To(BeEmpty())
		r.Expect(r.timesOf("qos resync")).To(Equal([]time.Duration{5 * time.Second, 10 * time.Second}))
	})
}

func TestNothingHappensWhileNothingIsDue(t *testing.T) {
	inBubble(t, dataplane.Config{}, func(r *rig) {
		r.runInSync()
		r.sleep(24 * time.Hour)
		r.Expect(r.take()).To(BeEmpty())
	})
}

func TestARecheckThatAManagerOrASyncerAsksForIsMade(t *testing.T) {
	for name, ask := range map[string]func(r *rig, at time.Time){
		"manager": func(r *rig, at time.Time) { r.manager.recheck = at },
		"syncer":  func(r *rig, at time.Time) { r.qos.recheck = at },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, dataplane.Config{}, func(r *rig) {
				r.runInSync()
				r.mark()
				r.set(func() { ask(r, time.Now().Add(10*time.Second)) })
				r.driver.Wake()
				synctest.Wait()
				r.take()
				r.set(func() { r.qos.apply = func() error { r.set(func() { ask(r, time.Time{}) }); return nil } })
				r.sleep(time.Minute)
				r.Expect(r.timesOf("qos apply")).To(Equal([]time.Duration{10 * time.Second}))
			})
		})
	}
}

func TestWakeNeverBlocksAndAppliesOnce(t *testing.T) {
	inBubble(t, dataplane.Config{}, func(r *rig) {
		r.send(dataplane.InSync{})
		r.driver.OnIfaceInSync()
		for range 1000 {
			r.driver.Wake() // nobody is listening yet
		}
		r.run()
		r.Expect(len(r.timesOf("table apply"))).To(BeNumerically("<=", 2))
		r.take()
		r.driver.Wake()
		synctest.Wait()
		r.Expect(r.timesOf("table apply")).To(HaveLen(1))
	})
}

func TestAFullQueueHoldsTheSenderAndLosesNothing(t *testing.T) {
	inBubble(t, dataplane.Config{}, func(r *rig) {
		const n = 20_000 // more than the queue holds
		sent := 0
		go func() {
			for i := range n {
				r.driver.OnIfaceState("cali1", ifacemonitor.StateDown, i)
				sent++
			}
		}()
		synctest.Wait()
		r.Expect(sent).To(BeNumerically("<", n), "it waits")
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		r.Expect(r.driver.Send(ctx, "x")).To(MatchError(context.DeadlineExceeded))

		r.run()
		r.Expect(sent).To(Equal(n))
		r.Expect(r.take()).To(HaveLen(3 * n)) // one manager, two syncers
	})
}

func TestStoppingReturnsAtOnceAndTouchesNothing(t *testing.T) {
	inBubble(t, dataplane.Config{}, func(r *rig) {
		r.runInSync()
		r.mark()
		r.cancel()
		r.Expect(<-r.done).To(Succeed())
		r.Expect(time.Since(r.start)).To(BeZero())
		r.Expect(r.take()).To(BeEmpty())

		r.Expect(r.driver.Send(context.Background(), "late")).To(MatchError(dataplane.ErrStopped))
		for range 20_000 { // more than the queue holds: the monitor must not hang either
			r.driver.OnIfaceState("cali1", ifacemonitor.StateUp, 1)
		}
		r.driver.Wake()
		r.Expect(r.driver.Run(context.Background())).To(MatchError("driver was started before"))
	})
}

func TestNothingIsWrittenOnceRunHasReturned(t *testing.T) {
	inBubble(t, dataplane.Config{}, func(r *rig) {
		r.runInSync()
		ended := false
		r.set(func() { r.qos.apply = func() error { time.Sleep(time.Minute); ended = true; return nil } })
		r.driver.Wake()
		synctest.Wait()
		r.cancel()
		r.Expect(<-r.done).To(Succeed())
		r.Expect(ended).To(BeTrue())
	})
}

func TestASyncerWithoutANameIsNumbered(t *testing.T) {
	inBubble(t, dataplane.Config{}, func(r *rig) {
		nameless := struct{ routetable.SyncerInterface }{&fakeSyncer{journal: r.journal, apply: func() error { return errInjected }}}
		r.driver.RegisterManager(&fakeManager{journal: r.journal, tables: []routetable.SyncerInterface{nameless}})
		r.runInSync()
		r.Expect(r.driver.Health().Details).To(ContainElement("last apply: routetable-2: injected"))
	})
}

func TestMetricsCountMessagesAppliesErrorsAndRetries(t *testing.T) {
	reg := prometheus.NewRegistry()
	inBubble(t, dataplane.Config{Registerer: reg}, func(r *rig) {
		r.runInSync()
		r.table.apply = failOnce()
		r.send("foreign")
		r.send(struct{}{})
		r.driver.OnIfaceState("cali1", ifacemonitor.StateUp, 1)
		r.sleep(time.Second)
		for metric, want := range map[string]float64{
			`manx_dataplane_messages_total{type="other"}`:            2,
			`manx_dataplane_messages_total{type="IfaceStateUpdate"}`: 1,
			`manx_dataplane_messages_total{type="InSync"}`:           1,
			`manx_dataplane_apply_errors_total{part="table"}`:        1,
			`manx_dataplane_retries_total`:                           1,
			`manx_dataplane_in_sync{source="datastore"}`:             1,
			`manx_dataplane_in_sync{source="interfaces"}`:            1,
			`manx_dataplane_apply_duration_seconds_count`:            float64(len(r.timesOf("table apply")) + 1),
			`manx_dataplane_applies_total`:                           float64(len(r.timesOf("table apply")) + 1),
		} {
			r.Expect(sampleOf(reg, metric)).To(Equal(want), metric)
		}
		problems, err := testutil.GatherAndLint(reg)
		r.Expect(err).NotTo(HaveOccurred())
		r.Expect(problems).To(BeEmpty())
	})
}

func TestMetricsTellSinceWhenAppliesFail(t *testing.T) {
	reg := prometheus.NewRegistry()
	config := dataplane.Config{Registerer: reg, RouteRefreshInterval: time.Minute}
	inBubble(t, config, func(r *rig) {
		last := func(what string) float64 { return sampleOf(reg, "manx_dataplane_last_"+what+"_timestamp_seconds") }
		r.runInSync()
		r.sleep(time.Second)
		success := last("successful_apply")
		r.Expect(success).To(BeNumerically(">", 0))
		r.Expect(last("apply")).To(Equal(success))

		r.journal.set(func() { r.table.apply = func() error { return errInjected } })
		r.driver.OnIfaceState("cali1", ifacemonitor.StateUp, 1)
		r.sleep(30 * time.Second)
		r.Expect(last("apply")).To(BeNumerically(">", success))
		r.Expect(last("successful_apply")).To(Equal(success))
		r.Expect(last("round")).To(BeNumerically(">=", last("apply")))

		r.journal.set(func() { r.table.apply = nil })
		r.sleep(time.Minute)
		r.Expect(last("successful_apply")).To(And(BeNumerically(">", success), Equal(last("apply"))))
		r.Expect(sampleOf(reg, `manx_dataplane_refresh_interval_seconds{what="routes"}`)).To(Equal(60.0))
		r.Expect(sampleOf(reg, `manx_dataplane_refresh_interval_seconds{what="shapers"}`)).To(BeZero())
	})
}

func failOnce() func() error {
	failed := false
	return func() error {
		if failed {
			return nil
		}
		failed = true
		return errInjected
	}
}
