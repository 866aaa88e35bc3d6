package ifacemonitor_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/rtnl"
)

// run runs a monitor until the test ends.
func run(t *testing.T, config ifacemonitor.Config) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- ifacemonitor.New(config).Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	synctest.Wait()
}

// rig is a monitor over a script.
type rig struct {
	*testing.T
	source   *script
	seen     *recorder
	registry *prometheus.Registry
	config   ifacemonitor.Config
}

// withRig runs a test in a bubble of its own time.
func withRig(t *testing.T, test func(*rig)) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{T: t, source: newScript(), seen: newRecorder(), registry: prometheus.NewRegistry()}
		r.config = ifacemonitor.Config{Open: r.source.open, Registerer: r.registry}
		r.seen.configure(&r.config)
		test(r)
		synctest.Wait()
		for _, violation := range r.seen.broken() {
			t.Error(violation)
		}
	})
}

func (r *rig) passes(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (r *rig) say(messages ...rtnl.Message) {
	r.source.say(messages...)
	synctest.Wait()
}

func (r *rig) expectDumps(want int) {
	r.Helper()
	if got := r.source.dumps(); got != want {
		r.Errorf("%d dumps requested, want %d", got, want)
	}
}

func (r *rig) expectStates(name string, want ...string) {
	r.Helper()
	if got := r.seen.states(name); !slices.Equal(got, want) {
		r.Errorf("%s was reported %v, want %v", name, got, want)
	}
}

func (r *rig) expectInSync(want bool) {
	r.Helper()
	if got := r.seen.isInSync(); got != want {
		r.Errorf("in sync: %v, want %v", got, want)
	}
}

func (r *rig) expectResyncs(reason string, want float64) {
	r.Helper()
	if got := counter(r.registry, "manx_ifacemonitor_resyncs_total", reason); got != want {
		r.Errorf("%v resyncs for %s, want %v", got, reason, want)
	}
}

func TestTheFirstSyncNeedsThreeDumpsWhateverTheNumberOfInterfaces(t *testing.T) {
	withRig(t, func(r *rig) {
		for i := range 500 {
			r.source.holds = append(r.source.holds, newLink(i+1, "cali"+string(rune('a'+i)), true))
		}
		run(r.T, r.config)
		r.expectDumps(3)
		r.expectInSync(true)
		if got := len(r.seen.names()); got != 500 {
			r.Errorf("%d interfaces", got)
		}
		r.passes(24 * time.Hour)
		r.expectDumps(3)
	})
}

func TestInSyncIsReportedOnceAfterAllThatExists(t *testing.T) {
	withRig(t, func(r *rig) {
		r.config.RefreshInterval = time.Minute
		r.source.holds = []rtnl.Message{newLink(1, "lo", true),
			{Type: rtnl.MessageNewAddr, Index: 1, Addr: netip.MustParseAddr("127.0.0.1")}}
		run(r.T, r.config)
		r.passes(time.Hour)
		want := []string{"lo up 1", "lo [127.0.0.1]", "in sync"}
		if !slices.Equal(r.seen.log, want) {
			r.Errorf("reported %v, want %v", r.seen.log, want)
		}
	})
}

func TestWhatChangedDuringTheFirstGenerationIsReportedBeforeInSync(t *testing.T) {
	withRig(t, func(r *rig) {
		r.source.mute = true
		run(r.T, r.config)
		r.say(rtnl.Message{Type: rtnl.MessageDumpDone, DumpSeq: 1})
		r.say(rtnl.Message{Type: rtnl.MessageDumpDone, DumpSeq: 2})
		entry := newLink(1, "lo", true)
		entry.DumpSeq = 3
		r.say(entry,
			rtnl.Message{Type: rtnl.MessageNewAddr, Index: 1, Addr: netip.MustParseAddr("127.0.0.1")},
			rtnl.Message{Type: rtnl.MessageDumpDone, DumpSeq: 3})
		want := []string{"lo up 1", "lo []", "lo [127.0.0.1]", "in sync"}
		if !slices.Equal(r.seen.log, want) {
			r.Errorf("reported %v, want %v", r.seen.log, want)
		}
	})
}

func TestAnInterruptedDumpIsRepeatedWithGrowingPausesAndRemovesNothing(t *testing.T) {
	withRig(t, func(r *rig) {
		r.source.dumpErr = unix.EINTR
		run(r.T, r.config)
		r.say(newLink(3, "eth0", true))
		r.expectDumps(1)
		r.passes(10 * time.Millisecond)
		r.expectDumps(2)
		r.passes(20 * time.Millisecond)
		r.expectDumps(3)
		r.passes(time.Minute)
		if n := r.source.dumps(); n < 50 || n > 75 {
			r.Errorf("%d dumps in a minute, want about one a second", n)
		}
		r.expectInSync(false)
		r.expectStates("eth0", "up 3")
		r.source.do(func() { r.source.dumpErr, r.source.holds = nil, []rtnl.Message{newLink(3, "eth0", true)} })
		r.passes(2 * time.Second)
		r.expectInSync(true)
		r.expectStates("eth0", "up 3")
	})
}

func TestLostEventsAreToldAfterTheDumpThatMakesUpForThem(t *testing.T) {
	withRig(t, func(r *rig) {
		r.config.RefreshInterval = time.Minute
		r.source.holds = []rtnl.Message{newLink(3, "eth0", true)}
		told := 0
		r.config.LostCallback = func() {
			told++
			r.expectStates("eth1", "up 4") // what the dump found has been reported
		}
		expectTold := func(want int) {
			r.Helper()
			if told != want {
				r.Errorf("told %d times, want %d", told, want)
			}
		}
		run(r.T, r.config)
		expectTold(0)
		r.source.do(func() { r.source.holds = []rtnl.Message{newLink(3, "eth0", true), newLink(4, "eth1", true)} })
		r.source.fail(unix.ENOBUFS)
		synctest.Wait()
		expectTold(1)
		r.passes(time.Hour) // with refreshes, which lose nothing
		expectTold(1)
		r.source.fail(unix.EBADF) // the socket is dead
		r.passes(time.Minute)
		expectTold(2)
	})
}

func TestAnOverrunStartsAGenerationThatFindsWhatWasLost(t *testing.T) {
	withRig(t, func(r *rig) {
		r.source.holds = []rtnl.Message{newLink(3, "eth0", true)}
		run(r.T, r.config)
		r.source.do(func() { r.source.holds = []rtnl.Message{newLink(4, "eth1", true)} })
		r.source.fail(unix.ENOBUFS)
		synctest.Wait()
		r.expectDumps(6)
		r.expectStates("eth0", "up 3", "absent 3")
		r.expectStates("eth1", "up 4")
		r.expectResyncs("overrun", 1)
	})
}

func TestWhatWasQueuedBeforeALossDoesNotCountAsSinceTheRequest(t *testing.T) {
	withRig(t, func(r *rig) {
		addr := rtnl.Message{Type: rtnl.MessageNewAddr, Index: 3, Addr: netip.MustParseAddr("10.0.0.1")}
		gone := addr
		gone.Type = rtnl.MessageDelAddr
		r.source.holds = []rtnl.Message{newLink(3, "eth0", true), addr}
		run(r.T, r.config)
		// Queued: down, and the address gone. Lost: both back. Without draining first,
		// the address's removal would beat the dump.
		r.source.do(func() {
			r.source.err = unix.ENOBUFS
			r.source.queue = append(r.source.queue, newLink(3, "eth0", false), gone)
		})
		r.passes(time.Second)
		want := []string{"up 3", "[10.0.0.1]", "down 3", "up 3"}
		if got := r.seen.of("eth0"); !slices.Equal(got, want) {
			r.Errorf("reported %v, want %v", got, want)
		}
	})
}

func TestAConflictWhileAGenerationRunsIsSettledByTheNext(t *testing.T) {
	withRig(t, func(r *rig) {
		r.source.holds = []rtnl.Message{newLink(83, "cali0", true)}
		r.source.mute = true
		run(r.T, r.config)
		r.say(newLink(204, "cali0", true), newLink(83, "cali0", true))
		r.source.do(func() { r.source.mute = false })
		r.say(rtnl.Message{Type: rtnl.MessageDumpDone, DumpSeq: 1})
		r.expectDumps(3)
		r.passes(time.Second)
		r.expectDumps(6)
		r.expectResyncs("conflict", 1)
	})
}

func TestALossDuringTheFirstGenerationDelaysInSync(t *testing.T) {
	withRig(t, func(r *rig) {
		r.source.mute = true
		run(r.T, r.config)
		r.source.do(func() {
			r.source.err, r.source.mute = unix.ENOBUFS, false
			r.source.queue = append(r.source.queue, rtnl.Message{Type: rtnl.MessageDumpDone, DumpSeq: 1})
		})
		synctest.Wait()
		r.expectInSync(false)
		r.expectDumps(1)
		r.passes(10 * time.Millisecond)
		r.expectInSync(true)
		r.expectDumps(4)
	})
}

func TestRepliesToADumpThatNobodyWaitsForAreIgnored(t *testing.T) {
	withRig(t, func(r *rig) {
		r.source.holds = []rtnl.Message{newLink(3, "eth0", true)}
		run(r.T, r.config)
		entry := newLink(3, "eth0", false)
		entry.DumpSeq = 77
		r.say(entry, rtnl.Message{Type: rtnl.MessageDumpDone, DumpSeq: 77}, rtnl.Message{Type: rtnl.MessageDumpDone})
		r.expectStates("eth0", "up 3")
		r.expectDumps(3)
	})
}

func TestTheTimerStartsAGenerationAfterEachInterval(t *testing.T) {
	withRig(t, func(r *rig) {
		r.config.RefreshInterval = 90 * time.Second
		run(r.T, r.config)
		r.passes(89 * time.Second)
		r.expectDumps(3)
		r.passes(time.Second)
		r.expectDumps(6)
		r.passes(900 * time.Second)
		r.expectDumps(36)
		r.expectResyncs("timer", 11)
	})
}

func TestConflictingClaimsAreSettledByADumpButNotMoreThanTenTimesASecond(t *testing.T) {
	withRig(t, func(r *rig) {
		r.source.holds = []rtnl.Message{newLink(204, "cali0", true)}
		run(r.T, r.config)
		r.passes(time.Second)
		for range 1000 {
			r.say(newLink(83, "cali0", false))
			r.passes(time.Millisecond)
		}
		r.passes(time.Second)
		if n := r.source.dumps() / 3; n < 5 || n > 13 {
			r.Errorf("%d generations for a second of stale messages", n)
		}
		r.expectStates("cali0", "up 204")
		r.source.do(func() { r.source.holds = []rtnl.Message{newLink(83, "cali0", false)} })
		r.say(newLink(83, "cali0", false))
		r.expectStates("cali0", "up 204", "absent 204", "down 83") // the dump has the last word
	})
}

func TestADeadSocketIsReopenedAndEverythingIsDumpedAnew(t *testing.T) {
	withRig(t, func(r *rig) {
		r.source.holds = []rtnl.Message{newLink(3, "eth0", true)}
		run(r.T, r.config)
		r.source.do(func() { r.source.holds = []rtnl.Message{newLink(3, "eth0", false)} })
		r.source.fail(unix.EIO)
		r.passes(99 * time.Millisecond)
		r.expectDumps(3)
		r.passes(time.Millisecond)
		r.expectDumps(6)
		r.expectStates("eth0", "up 3", "down 3")
		r.expectResyncs("reopened", 1)
		r.expectResyncs("start", 1)
	})
}

func TestASourceThatCannotBeOpenedIsTriedAgainWithGrowingPauses(t *testing.T) {
	withRig(t, func(r *rig) {
		var tries atomic.Int32
		r.config.Open = func() (ifacemonitor.EventSocket, error) {
			if tries.Add(1) <= 5 {
				return nil, errors.New("no")
			}
			return r.source.open()
		}
		run(r.T, r.config)
		r.passes(100*time.Millisecond + 200*time.Millisecond + 400*time.Millisecond + 800*time.Millisecond)
		if n := tries.Load(); n != 5 {
			r.Errorf("%d tries", n)
		}
		r.passes(1600 * time.Millisecond)
		r.expectInSync(true)
		r.expectResyncs("start", 1)
		r.expectResyncs("reopened", 0)
	})
}

func TestADumpThatNeverEndsCostsTheSocket(t *testing.T) {
	withRig(t, func(r *rig) {
		r.source.mute = true
		run(r.T, r.config)
		for range 9 {
			r.passes(time.Second)
			r.say(newLink(3, "eth0", true)) // events alone are no answer
		}
		r.source.do(func() { r.source.mute = false })
		if n := r.source.opens(); n != 1 {
			r.Errorf("opened %d times", n)
		}
		r.passes(1200 * time.Millisecond)
		if n := r.source.opens(); n != 2 {
			r.Errorf("opened %d times", n)
		}
		r.expectInSync(true)
	})
}

func TestASlowCallbackDoesNotMakeADumpLookSilent(t *testing.T) {
	withRig(t, func(r *rig) {
		r.source.holds = []rtnl.Message{newLink(3, "eth0", true)}
		callback := r.config.StateCallback
		r.config.StateCallback = func(name string, state ifacemonitor.State, index int) {
			time.Sleep(time.Minute)
			callback(name, state, index)
		}
		run(r.T, r.config)
		r.say(newLink(4, "eth1", true))
		r.passes(10 * time.Minute)
		r.expectInSync(true)
		if n := r.source.opens(); n != 1 {
			r.Errorf("opened %d times", n)
		}
	})
}

func TestABusySocketIsAskedAgain(t *testing.T) {
	withRig(t, func(r *rig) {
		r.source.refuse = unix.EBUSY
		run(r.T, r.config)
		r.passes(100 * time.Millisecond)
		r.expectInSync(false)
		r.source.do(func() { r.source.refuse = nil })
		r.passes(time.Second)
		r.expectInSync(true)
		if n := r.source.opens(); n != 1 {
			r.Errorf("opened %d times", n)
		}
	})
}

func TestMetricsCountEventsOverrunsAndResyncsAndAreWellNamed(t *testing.T) {
	withRig(t, func(r *rig) {
		r.source.holds = []rtnl.Message{newLink(3, "eth0", true)}
		run(r.T, r.config)
		r.say(newLink(3, "eth0", false), newLink(3, "eth0", true))
		r.source.fail(unix.ENOBUFS)
		synctest.Wait()
		for name, want := range map[string]float64{
			"manx_ifacemonitor_events_total":   2,
			"manx_ifacemonitor_overruns_total": 1,
		} {
			if got := counter(r.registry, name); got != want {
				r.Errorf("%s is %v, want %v", name, got, want)
			}
		}
		problems, err := testutil.GatherAndLint(r.registry)
		if err != nil || len(problems) > 0 {
			r.Errorf("%v %v", problems, err)
		}
	})
}

func TestTwoMonitorsMayShareARegistererAndLiveInOneProcess(t *testing.T) {
	withRig(t, func(r *rig) {
		run(r.T, r.config)
		other := ifacemonitor.Config{Open: newScript().open, Registerer: r.registry}
		run(r.T, other)
		r.expectResyncs("start", 2)
	})
}

func TestRunIsForOnce(t *testing.T) {
	monitor := ifacemonitor.New(ifacemonitor.Config{Open: newScript().open})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := monitor.Run(ctx); err != nil {
		t.Error(err)
	}
	if err := monitor.Run(ctx); err == nil {
		t.Error("a second Run was let through")
	}
}
