package qos

import (
	"math"
	"math/bits"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/manx-dataplane/manx/rtnl"
)

const (
	// latency is how long a packet may wait for tokens: what Felix and the CNI
	// bandwidth plugin ask for.
	latency = 25 * time.Millisecond

	// timely is how late a timer may be that waits for tokens. A bucket that fills up
	// sooner does not reach its rate: with one frame, 1 Gbit/s of a peak rate of 2 Gbit/s
	// passed at 0.23 Gbit/s.
	timely = time.Millisecond

	// frameHeader is the Ethernet header, which the kernel counts in a packet's
	// length and the MTU does not (qdisc_pkt_len).
	frameHeader = 14

	// gsoMaxSize is the largest packet that is handed to a device to be cut into segments
	// there, unless the device has a larger one set (GSO_LEGACY_MAX_SIZE).
	gsoMaxSize = 64 << 10

	// ticksPerSecond converts a duration to psched ticks.
	ticksPerSecond = uint64(time.Second / rtnl.PschedTick)

	// tickTolerance is how far a buffer may be from the one asked for and still be
	// it: the kernel works nanoseconds out from bytes with a reciprocal of 31 or 32
	// significant bits (psched_ratecfg_precompute), which is up to 2 ticks of 2^32, and
	// rounds down where we round up, and a size that is read back may be off by the
	// byte (of 4 ticks at most, else rounding mends it) that this makes.
	tickTolerance = 5
)

// shaper is a TBF's parameters, with what had to be raised to make it work.
type shaper struct {
	netlink.Tbf // without LinkIndex, Handle and Parent
	// queue is the length in bytes of the queue that packets wait in.
	queue uint32
	// raisedBurst and raisedMinburst: less than one frame was asked for.
	raisedBurst, raisedMinburst bool
}

// newShaper works out a TBF for what a veth sends or receives, in the way of iproute2:
// its limit is what passes in the latency, plus one full bucket, at the rate or at the
// peak rate, whichever is less. It makes tc show the latency as it was asked for. As the
// length of a queue it would be that latency only while the bucket is full; see
// setQueue.
//
// The bucket is sent as its transmit time, a 32-bit number of ticks; where that
// saturates (275 s, with the default burst below 16 Mbit/s) the bucket is what passes
// in that time.
func newShaper(limit Limit, veth *Interface) shaper {
	frame := uint64(veth.MTU) + frameHeader
	rate := limit.RateBits / 8
	burst := limit.BurstBits / 8
	var s shaper
	if burst < frame {
		burst, s.raisedBurst = frame, true
	}
	s.Rate = rate
	s.Buffer, burst = bucket(rate, burst)
	waiting := rate / uint64(time.Second/latency)
	s.Limit = saturate(waiting + burst)
	whole := burst // what the TBF lets pass without cutting it
	if limit.PeakRateBits > 0 {
		// Rounded up, so that it stays above the rate, which is rounded down.
		s.Peakrate = (limit.PeakRateBits + 7) / 8
		minburst := uint64(limit.MinBurstBytes)
		if minburst == 0 {
			minburst = max(frame, min(s.Peakrate/uint64(time.Second/timely), MaxMinburst))
		} else if minburst < frame {
			minburst, s.raisedMinburst = frame, true
		}
		_, minburst = bucket(s.Peakrate, minburst)
		s.Minburst = saturate(minburst)
		s.Limit = min(s.Limit, saturate(s.Peakrate/uint64(time.Second/latency)+minburst))
		whole = min(whole, minburst)
	}
	s.queue = saturate(max(waiting, min(whole, veth.largestPacket())))
	return s
}

// largestPacket is how many bytes a GSO packet counts for at most: the kernel adds a
// header for each segment (qdisc_pkt_len_init), for which a quarter more is enough
// with segments of 350 bytes or more. A queue that cannot hold a packet never passes
// it, however full the bucket.
func (i *Interface) largestPacket() uint64 {
	return max(gsoMaxSize, uint64(i.GSOMaxSize)) * 5 / 4
}

// inPlaceOf returns the TBF as which one that is there is to go on, with its handle. One
// of another program keeps the kernel's own queue, since there is no way to put that
// back, and its limit is the length of that: tc then shows no latency, or too little.
func (s shaper) inPlaceOf(have *netlink.Tbf, ours bool) *netlink.Tbf {
	tbf := s.Tbf
	tbf.QdiscAttrs = netlink.QdiscAttrs{LinkIndex: have.LinkIndex, Parent: netlink.HANDLE_ROOT, Handle: have.Handle}
	if !ours {
		tbf.Limit = s.queue
	}
	return &tbf
}

// bucket returns the time that size bytes take at rate bytes/s, rounded up to
// ticks so that the last packet still fits, and the size. Where the time is not below
// the largest 32-bit number, both are of the largest size whose time is.
func bucket(rate, size uint64) (ticks uint32, bytes uint64) {
	size = min(size, mulDiv(rate, math.MaxUint32-1, ticksPerSecond, false))
	return saturate(mulDiv(size, ticksPerSecond, rate, true)), size
}

// sameShaping reports whether two TBFs shape alike. What the kernel keeps as time
// is compared as time, so that saturated equals saturated.
func sameShaping(a, b *netlink.Tbf) bool {
	if a.Rate != b.Rate || a.Peakrate != b.Peakrate || a.Limit != b.Limit || !nearTicks(a.Buffer, b.Buffer) {
		return false
	}
	if a.Peakrate == 0 {
		return true
	}
	ticksA, _ := bucket(a.Peakrate, uint64(a.Minburst))
	ticksB, _ := bucket(b.Peakrate, uint64(b.Minburst))
	return nearTicks(ticksA, ticksB)
}

func nearTicks(a, b uint32) bool { return max(a, b)-min(a, b) <= tickTolerance }

// mulDiv returns a*b/c without overflow on the way, saturated.
func mulDiv(a, b, c uint64, up bool) uint64 {
	hi, lo := bits.Mul64(a, b)
	if hi >= c {
		return math.MaxUint64
	}
	quotient, rest := bits.Div64(hi, lo, c)
	if up && rest > 0 && quotient < math.MaxUint64 {
		quotient++
	}
	return quotient
}

func saturate(n uint64) uint32 { return uint32(min(n, math.MaxUint32)) }
