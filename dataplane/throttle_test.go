package dataplane

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestThrottleGivesWhatWasAskedForAndNoMore: in any span of time at most burst plus
// one each interval, and to whoever asks often not less either.
func TestThrottleGivesWhatWasAskedForAndNoMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		interval := time.Duration(rapid.IntRange(1, 1000).Draw(t, "interval")) * time.Millisecond
		burst := rapid.IntRange(1, 20).Draw(t, "burst")
		start := time.Unix(0, 0)
		th := newThrottle(interval, burst, start)
		var taken []time.Time
		now := start
		for range rapid.IntRange(1, 100).Draw(t, "asked") {
			now = now.Add(time.Duration(rapid.IntRange(0, int(2*interval)).Draw(t, "wait")))
			ready := th.readyAt(now)
			if got := th.take(now); got != !ready.After(now) {
				t.Fatalf("took %v though ready at %v, now %v", got, ready, now)
			} else if got {
				taken = append(taken, now)
			} else if ready.Sub(now) > interval {
				t.Fatalf("waits %v, longer than the interval", ready.Sub(now))
			}
		}
		for i, from := range taken {
			for j, to := range taken[i:] {
				if most := burst + 1 + int(to.Sub(from)/interval); j+1 > most {
					t.Fatalf("%d in %v", j+1, to.Sub(from))
				}
			}
		}
		// Asked in steps that do not divide the interval, it loses no fraction. (A bucket
		// of one is full whenever it is asked in vain no longer, and full means capped.)
		burst = max(burst, 2)
		th = newThrottle(interval, burst, now)
		step := max(interval/3-1, 1)
		count := 0
		end := now.Add(100 * interval)
		for ; !now.After(end); now = now.Add(step) {
			if th.take(now) {
				count++
			}
		}
		if count < 99 {
			t.Fatalf("%d in 100 intervals", count)
		}
	})
}
