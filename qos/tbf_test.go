package qos

import (
	"math"
	"math/big"
	"testing"

	"github.com/vishvananda/netlink"
	"pgregory.net/rapid"
)

func drawLimit(t *rapid.T) Limit {
	logUniform := func(low, high float64, label string) uint64 {
		x := rapid.Float64Range(math.Log(low), math.Log(high)).Draw(t, label)
		return uint64(min(max(math.Exp(x), low), high))
	}
	limit := Limit{
		RateBits:  logUniform(MinBandwidth, MaxBandwidth, "rate"),
		BurstBits: logUniform(MinBurst, MaxBurst, "burst"),
	}
	if rapid.Bool().Draw(t, "peak") {
		limit.PeakRateBits = logUniform(max(float64(limit.RateBits)+1, MinPeakrate), MaxPeakrate, "peakrate")
		if rapid.Bool().Draw(t, "min") {
			limit.MinBurstBytes = uint32(logUniform(MinMinburst, MaxMinburst, "minburst"))
		}
	}
	return limit
}

// TestShaperHoldsItsPromises checks the integer arithmetic against exact
// rationals: tc shows 25 ms, the bucket is what was asked, and a full frame always
// fits.
func TestShaperHoldsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := drawLimit(t)
		mtu := rapid.IntRange(68, 9216).Draw(t, "mtu")
		veth := &Interface{MTU: mtu, GSOMaxSize: rapid.SampledFrom([]int{0, 65_536, 185_000}).Draw(t, "gso_max_size")}
		s := newShaper(limit, veth)
		frame := uint64(mtu + 14)

		if s.Rate != limit.RateBits/8 {
			t.Fatalf("rate %d for %d bits/s", s.Rate, limit.RateBits)
		}
		seconds := func(bytes uint64, rate uint64) *big.Rat {
			return new(big.Rat).SetFrac(new(big.Int).SetUint64(bytes), new(big.Int).SetUint64(rate))
		}
		tick := big.NewRat(64, 1_000_000_000)
		burst := max(limit.BurstBits/8, frame)
		bufferTime := new(big.Rat).Mul(tick, new(big.Rat).SetInt64(int64(s.Buffer)))
		longest := new(big.Rat).Mul(tick, new(big.Rat).SetInt64(math.MaxUint32-1))
		asked := seconds(burst, s.Rate)
		if asked.Cmp(longest) > 0 {
			oneByteMore := new(big.Rat).Add(bufferTime, seconds(1, s.Rate))
			if oneByteMore.Cmp(longest) <= 0 {
				t.Fatalf("buffer %d is not the largest", s.Buffer)
			}
		} else if bufferTime.Cmp(asked) < 0 || new(big.Rat).Sub(bufferTime, asked).Cmp(tick) >= 0 {
			t.Fatalf("buffer %d ticks for %d bytes at %d bytes/s", s.Buffer, burst, s.Rate)
		}
		if seconds(frame, s.Rate).Cmp(bufferTime) > 0 {
			t.Fatalf("a frame of %d bytes does not fit", frame)
		}
		// What tc prints: limit/rate - buffer, or the same of the peak rate if longer.
		shown := new(big.Rat).Sub(seconds(uint64(s.Limit), s.Rate), bufferTime)
		if s.Peakrate > 0 {
			atPeak := new(big.Rat).Sub(seconds(uint64(s.Limit), s.Peakrate), seconds(uint64(s.Minburst), s.Peakrate))
			if atPeak.Cmp(shown) > 0 {
				shown = atPeak
			}
		}
		milliseconds, _ := new(big.Rat).Mul(shown, big.NewRat(1000, 1)).Float64()
		oneByte := 1000/float64(s.Rate) + 0.001
		if s.Limit < math.MaxUint32 && math.Abs(milliseconds-25) > 2*oneByte {
			t.Fatalf("latency %.3f ms", milliseconds)
		}
		// The queue holds 25 ms, and any packet that the TBF does not cut.
		whole := min(uint64(max(veth.GSOMaxSize, 65_536)+max(veth.GSOMaxSize, 65_536)/4), burst, longestBurst(s.Rate))
		if s.Peakrate > 0 {
			whole = min(whole, uint64(s.Minburst))
		}
		if want := min(max(s.Rate/40, whole), math.MaxUint32); uint64(s.queue) != want || s.queue > s.Limit {
			t.Fatalf("queue of %d bytes, want %d; limit %d", s.queue, want, s.Limit)
		}
		if s.raisedBurst != (limit.BurstBits/8 < frame) {
			t.Fatal("raising a burst is not said")
		}
		if limit.PeakRateBits == 0 {
			return
		}
		if s.Peakrate <= s.Rate {
			t.Fatalf("peakrate %d not above rate %d", s.Peakrate, s.Rate)
		}
		least := max(frame, min(s.Peakrate/1000, MaxMinburst)) // 1 ms
		if limit.MinBurstBytes != 0 {
			least = max(frame, uint64(limit.MinBurstBytes))
		}
		if want := min(least, longestBurst(s.Peakrate)); uint64(s.Minburst) != want {
			t.Fatalf("minburst %d, want %d", s.Minburst, want)
		}
	})
}

// longestBurst is how much passes in 2^32-2 ticks.
func longestBurst(rate uint64) uint64 {
	ticks := new(big.Int).Mul(new(big.Int).SetUint64(rate), big.NewInt(math.MaxUint32-1))
	return new(big.Int).Div(ticks, big.NewInt(15_625_000)).Uint64()
}

// TestSameShapingSeesChanges: limits that differ by a per mille are not the same.
func TestSameShapingSeesChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.Uint64Range(1e6, 1e11).Draw(t, "rate")
		a := newShaper(Limit{RateBits: rate, BurstBits: 8e6, PeakRateBits: 2 * rate, MinBurstBytes: 2e6}, &Interface{MTU: 1500})
		for _, other := range []Limit{
			{RateBits: rate + rate/1000, BurstBits: 8e6, PeakRateBits: 2 * rate, MinBurstBytes: 2e6},
			{RateBits: rate, BurstBits: 8.1e6, PeakRateBits: 2 * rate, MinBurstBytes: 2e6},
			{RateBits: rate, BurstBits: 8e6, PeakRateBits: 2*rate + rate/1000, MinBurstBytes: 2e6},
			{RateBits: rate, BurstBits: 8e6, PeakRateBits: 2 * rate, MinBurstBytes: 2.2e6},
			{RateBits: rate, BurstBits: 8e6},
		} {
			if b := newShaper(other, &Interface{MTU: 1500}); sameShaping(&a.Tbf, &b.Tbf) {
				t.Fatalf("%+v passes for %+v", b.Tbf, a.Tbf)
			}
		}
	})
}

func TestIFBNameIsFelixs(t *testing.T) {
	if name := IFBName("cali0027f0645a2"); name != "bwcali6514ff3bb" {
		t.Error(name)
	}
}

var _ netlink.Qdisc = &shaper{}
