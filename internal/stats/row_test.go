package stats

import (
	"testing"

	"github.com/vishvananda/netlink"
)

// As tc prints it: the larger of the waits at the rate and at the peak rate.
func TestLatencyCountsThePeakRate(t *testing.T) {
	const rate, peak = 50_000_000 / 8, 60_000_000 / 8 // bytes a second
	shaping := newShaping(&netlink.Tbf{
		Rate: rate, Buffer: 1 << 31, Peakrate: peak, Minburst: 1514,
		Limit: peak*25/1000 + 1514,
	})
	if shaping.LatencySeconds != 0.025 {
		t.Errorf("latency %v s, want 0.025", shaping.LatencySeconds)
	}
}
