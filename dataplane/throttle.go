package dataplane

import "time"

// throttle is a bucket of tokens, one of which each apply takes. It starts full,
// so that the first applies are immediate.
type throttle struct {
	interval time.Duration // in which one token is added
	burst    int           // the most it holds
	tokens   int
	refilled time.Time // when the last whole token was added
}

func newThrottle(interval time.Duration, burst int, now time.Time) throttle {
	return throttle{interval: interval, burst: burst, tokens: burst, refilled: now}
}

// take takes a token, if there is one.
func (t *throttle) take(now time.Time) bool {
	t.refill(now)
	if t.tokens == 0 {
		return false
	}
	t.tokens--
	return true
}

// readyAt returns when take will next succeed: now, or later.
func (t *throttle) readyAt(now time.Time) time.Time {
	t.refill(now)
	if t.tokens > 0 {
		return now
	}
	return t.refilled.Add(t.interval)
}

func (t *throttle) refill(now time.Time) {
	earned := int64(now.Sub(t.refilled) / t.interval)
	if earned <= 0 {
		return
	}
	if earned >= int64(t.burst-t.tokens) {
		t.tokens = t.burst
		t.refilled = now
		return
	}
	t.tokens += int(earned)
	t.refilled = t.refilled.Add(time.Duration(earned) * t.interval)
}
