package qos_test

import (
	"fmt"
	"math"
	"os"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"pgregory.net/rapid"

	"github.com/manx-dataplane/manx/qos"
	"github.com/manx-dataplane/manx/rtnl"
)

// TestWhatWasSetIsLeftAlone: whatever the limits, what the kernel says of them
// afterwards counts as them: neither a resync nor a new life writes anything. The
// kernel rounds and saturates in its own ways, so only the real one can tell.
func TestWhatWasSetIsLeftAlone(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("these tests need root")
		}
		t.Skip("NOT RUN: needs root")
	}
	rapid.Check(t, func(t *rapid.T) {
		ns, err := rtnl.NewNamespace()
		check(t, err)
		defer ns.Close()
		var mu sync.Mutex
		var writes []string
		h, err := rtnl.Open(rtnl.Options{Namespace: ns, BeforeWrite: func(op string) {
			mu.Lock()
			defer mu.Unlock()
			writes = append(writes, op)
		}})
		check(t, err)
		defer h.Close()

		const pods = 6
		limits := make(map[string]qos.Limits)
		for n := range pods {
			link := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: fmt.Sprintf("pod%d", n)}
			link.Name, link.MTU = fmt.Sprintf("cali%d", n), drawEdgy(t, "mtu", 68, 65535)
			check(t, h.LinkAdd(link))
			check(t, h.LinkSetUp(link))
			if n%2 == 0 { // taken over
				check(t, h.QdiscReplace(&netlink.Tbf{
					QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Index, Parent: netlink.HANDLE_ROOT, Handle: 1 << 16},
					Rate:       1_000_000, Buffer: 1_000_000, Limit: 100_000,
				}))
			}
			limits[link.Name] = qos.Limits{Ingress: drawLimit(t), Egress: drawLimit(t)}
		}
		newSyncer := func() *qos.Syncer {
			s := qos.New(qos.Config{Kernel: h, Reaper: qos.NewReaper(qos.ReaperConfig{}), Enabled: true})
			for name, l := range limits {
				s.SetLimits(name, l)
			}
			return s
		}
		writes = nil
		s := newSyncer()
		check(t, s.Apply())
		if len(writes) < 7*pods {
			t.Fatalf("only %d writes", len(writes))
		}
		writes = nil
		s.QueueResync()
		check(t, s.Apply())
		if len(writes) > 0 {
			t.Fatalf("a resync writes: %v\nlimits: %s", writes, describe(limits))
		}
		check(t, newSyncer().Apply())
		if len(writes) > 0 {
			t.Fatalf("a new life writes: %v\nlimits: %s", writes, describe(limits))
		}
	})
}

func check(t *rapid.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// drawLimit draws from all valid limits.
func drawLimit(t *rapid.T) *qos.Limit {
	limit := &qos.Limit{
		RateBits:  uint64(drawEdgy(t, "rate", qos.MinBandwidth, qos.MaxBandwidth)),
		BurstBits: uint64(drawEdgy(t, "burst", qos.MinBurst, qos.MaxBurst)),
	}
	if rapid.Bool().Draw(t, "peak") {
		limit.PeakRateBits = uint64(drawEdgy(t, "peakrate", max(int(limit.RateBits)+1, qos.MinPeakrate), qos.MaxPeakrate))
		if rapid.Bool().Draw(t, "min") {
			limit.MinBurstBytes = uint32(drawEdgy(t, "minburst", qos.MinMinburst, qos.MaxMinburst))
		}
	}
	return limit
}

// drawEdgy draws of each order of magnitude alike, and often of what is near powers
// of two and of ten, and the ends of the range.
func drawEdgy(t *rapid.T, label string, low, high int) int {
	x := math.Exp(rapid.Float64Range(math.Log(float64(low)), math.Log(float64(high))).Draw(t, label))
	switch rapid.IntRange(0, 5).Draw(t, label+" kind") {
	case 0:
		x = math.Pow(2, math.Round(math.Log2(x)))
	case 1:
		x = 8 * math.Pow(2, math.Round(math.Log2(x/8)))
	case 2:
		x = math.Pow(10, math.Round(math.Log10(x)))
	case 3:
		x = float64(rapid.SampledFrom([]int{low, high}).Draw(t, label+" end"))
	}
	return min(max(int(x)+rapid.IntRange(-1, 1).Draw(t, label+" beside"), low), high)
}

func describe(limits map[string]qos.Limits) (text string) {
	for name, l := range limits {
		text += fmt.Sprintf("%s: ingress %+v, egress %+v\n", name, *l.Ingress, *l.Egress)
	}
	return text
}
