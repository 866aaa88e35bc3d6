package traffic_test

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"

	"github.com/manx-dataplane/manx/fv/infra"
	"github.com/manx-dataplane/manx/rtnl"
)

// kase is one combination.
type kase struct {
	rate    uint64 // bit/s
	burst   burst
	peak    bool // a peak rate of twice the rate
	egress  bool
	ipv6    bool
	mtu     int
	unknown bool // no limit at all: the path alone
}

// burst is how the burst is chosen.
type burst string

const (
	oneFrame     burst = "one frame"
	tenMillis    burst = "10 ms"
	defaultBurst burst = "default"
)

var (
	allRates = []uint64{1e6, 10e6, 100e6, 1e9, 10e9}
	mtus     = []int{1280, 1500, 9000}
)

// cases are every rate, burst, peak rate, direction and IP version at an MTU of 1500,
// and fewer bursts at the others. By default they are what goes wrong first: large
// packets and long queues, where the burst is much and the rate is little.
func cases() []kase {
	if !campaign {
		return []kase{
			{rate: 10e6, burst: defaultBurst, mtu: 1500, egress: true},
			{rate: 100e6, burst: defaultBurst, mtu: 1500, ipv6: true},
		}
	}
	var all []kase
	for _, mtu := range mtus {
		for _, rate := range rates() {
			for _, burst := range []burst{oneFrame, tenMillis, defaultBurst} {
				for _, variant := range variants() {
					k := kase{rate: rate, burst: burst, mtu: mtu, peak: variant[0], egress: variant[1], ipv6: variant[2]}
					if mtu == 1500 || !k.peak && burst == tenMillis {
						all = append(all, k)
					}
				}
			}
		}
	}
	return all
}

// variants are all combinations of peak rate, egress and IPv6.
func variants() [][3]bool {
	var all [][3]bool
	for n := range 8 {
		all = append(all, [3]bool{n&4 != 0, n&2 != 0, n&1 != 0})
	}
	return all
}

func rates() []uint64 {
	wanted := os.Getenv("MANX_TRAFFIC_RATES")
	if wanted == "" {
		return allRates
	}
	return slices.DeleteFunc(slices.Clone(allRates), func(rate uint64) bool {
		return !slices.Contains(strings.Split(wanted, ","), quantity(rate))
	})
}

// frame is what a full packet counts for in the shaper.
func (k kase) frame() uint64 { return uint64(k.mtu) + 14 }

// burstBytes is the burst in bytes; that of the default is a saturated number of the
// kernel's where the rate is low.
func (k kase) burstBytes() uint64 {
	switch k.burst {
	case oneFrame:
		return k.frame()
	case tenMillis:
		return max(k.frame(), k.rate/8/100)
	}
	const ticks = 1 << 32 // of 64 ns
	return min(infra.DefaultBurstBits/8, uint64(ticks*64e-9*float64(k.rate/8)))
}

// limit is what the pod is limited to in the case's direction.
func (k kase) limit() (map[string]string, infra.Limits) {
	if k.unknown {
		return nil, infra.Limits{}
	}
	direction := "ingress"
	if k.egress {
		direction = "egress"
	}
	limit := &infra.Limit{RateBits: k.rate}
	annotations := map[string]string{"qos.projectcalico.org/" + direction + "Bandwidth": fmt.Sprint(k.rate)}
	if k.burst != defaultBurst {
		limit.BurstBits = k.burstBytes() * 8
		annotations["qos.projectcalico.org/"+direction+"Burst"] = fmt.Sprint(limit.BurstBits)
	}
	if k.peak {
		limit.PeakBits = 2 * k.rate
		annotations["qos.projectcalico.org/"+direction+"Peakrate"] = fmt.Sprint(limit.PeakBits)
	}
	if k.egress {
		return annotations, infra.Limits{Egress: limit}
	}
	return annotations, infra.Limits{Ingress: limit}
}

// expected is the rate at which frames should pass.
func (k kase) expected() uint64 {
	if k.atPeak() {
		return 2 * k.rate
	}
	return k.rate
}

// atPeak reports whether it is the peak rate that counts, since the burst, which is spent
// at the difference of both rates, lasts for longer than anyone measures.
func (k kase) atPeak() bool {
	const long = 4 // seconds
	return k.peak && k.burst == defaultBurst && k.burstBytes()*8 > long*k.rate
}

// spending is what passes before the rate is what it stays, in packets of that payload.
func (k kase) spending(payload int) infra.Burst {
	const settling = 400 * time.Millisecond // for TCP to recover from the overshoot
	if k.unknown || k.atPeak() {
		return infra.Burst{Settling: settling}
	}
	burst := infra.Burst{Bytes: k.burstBytes(), Settling: settling}
	if k.burst == defaultBurst {
		burst.Refill, burst.Overhead = k.rate/8, float64(k.frame())/float64(payload)
	}
	return burst
}

// queue is how many bytes may wait: those of 25 ms, or the largest packet that is not
// cut before it is queued: one of 64 KiB with all its headers (80 KiB) if the burst
// lets that pass, and with a peak rate what that lets pass in 1 ms.
func (k kase) queue() uint64 {
	whole := min(k.burstBytes(), 80<<10)
	if k.peak {
		whole = min(whole, max(k.frame(), 2*k.rate/8/1000))
	}
	return max(k.rate/8/40, whole)
}

// delay is how long a full queue takes to pass at a rate.
func (k kase) delay(rate float64) time.Duration {
	if k.unknown {
		return 0
	}
	return time.Duration(float64(k.queue()*8) / rate * float64(time.Second))
}

// window is how long a flow is measured: long enough for many packets, of 64 KiB where
// the burst lets such pass.
func (k kase) window() time.Duration {
	if k.rate == 1e6 {
		return 6 * time.Second
	}
	return 1500 * time.Millisecond
}

// tcpPayload and udpPayload are the payload of a full packet. TCP has timestamps.
func (k kase) tcpPayload() int { return k.ipPayload() - 20 - 12 }
func (k kase) udpPayload() int { return k.ipPayload() - 8 }

func (k kase) ipPayload() int {
	if k.ipv6 {
		return k.mtu - 40
	}
	return k.mtu - 20
}

// path says between which namespaces the pod's traffic flows, and to which address.
func (k kase) path(node *infra.Node, pod *infra.Pod) (from, to *rtnl.Namespace, dst netip.Addr) {
	switch {
	case k.egress && k.ipv6:
		return pod.NS, node.NS, node.IPv6
	case k.egress:
		return pod.NS, node.NS, node.IPv4
	case k.ipv6:
		return node.NS, pod.NS, pod.IPv6
	}
	return node.NS, pod.NS, pod.IPv4
}

// result is what was measured of a case.
type result struct {
	kase
	tcp, udp    float64 // payload bit/s
	tcpWire     float64 // bit/s of frames, as the shaper counts them
	udpWire     float64
	udpOffered  float64       // wire, too
	median, p99 time.Duration // of UDP's delay under overload
}

// measure measures TCP and UDP, each on a pod of its own, so that nobody finds the
// burst of the other spent, or its queue full.
func (k kase) measure(node *infra.Node, serial func() int) result {
	GinkgoHelper()
	r := result{kase: k}
	k.onPod(node, serial, func(pod *infra.Pod) {
		from, to, dst := k.path(node, pod)
		r.tcp = infra.MeasureTCP(from, to, dst, k.spending(k.tcpPayload()), k.window())
		r.tcpWire = r.tcp * float64(k.frame()) / float64(k.tcpPayload())
	})
	k.onPod(node, serial, func(pod *infra.Pod) {
		from, to, dst := k.path(node, pod)
		flow := overload{
			payload: k.udpPayload(), batched: k.unknown || k.rate >= 1e9, burst: k.spending(k.udpPayload()),
			settling: 300*time.Millisecond + k.delay(float64(k.expected())), window: k.window(),
		}
		if !k.unknown {
			flow.offered = 1.5 * float64(k.expected())
		}
		m := flow.run(from, to, dst)
		r.udp, r.median, r.p99 = m.rate, m.median, m.p99
		overhead := float64(k.frame()) / float64(k.udpPayload())
		r.udpWire, r.udpOffered = m.rate*overhead, m.offered*overhead
	})
	return r
}

// wrong says what is wrong with a result, given what the path alone does.
func (r result) wrong(path result) []string {
	var faults []string
	expected := float64(r.expected())
	// Less than a millisecond's worth of tokens is less than a timer can be relied upon
	// to refill in time.
	steady := float64(r.burstBytes()*8) >= expected/1000
	const reserve = 1.3 // that the path must have for the shaper to be what limits
	for _, protocol := range []struct {
		name      string
		got, path float64
		steady    bool
	}{
		// TCP needs a queue of some packets to hold a rate.
		{"TCP", r.tcpWire, path.tcpWire, steady && r.queue() >= 10*r.frame()},
		{"UDP", r.udpWire, path.udpWire, steady && r.overloaded()},
	} {
		ratio := protocol.got / expected
		// What a window sees may be off by what passes at its ends: two frames, a queue, and
		// a burst.
		ends := 2*r.frame() + r.queue()
		if r.burst != defaultBurst {
			ends += r.burstBytes()
		}
		slack := float64(ends*8) / expected / r.window().Seconds()
		switch {
		case ratio > 1.03+slack:
			faults = append(faults, fmt.Sprintf("%s exceeds the limit: %.1f %%", protocol.name, 100*ratio))
		case ratio < 0.9-slack && protocol.steady && protocol.path >= reserve*expected:
			faults = append(faults, fmt.Sprintf("%s falls short of the limit: %.1f %%", protocol.name, 100*ratio))
		}
	}
	if !r.overloaded() {
		return faults
	}
	// Timers are late by a millisecond or more, and the last packet is not a whole one.
	const late = 5 * time.Millisecond
	switch want := r.delay(min(expected, r.udpWire)); {
	case r.median > want+late+want/10:
		faults = append(faults, fmt.Sprintf("a packet waits for %s, more than %s", r.median, want))
	case r.median < want/2-late:
		faults = append(faults, fmt.Sprintf("a packet waits for %s, less than %s", r.median, want))
	}
	return faults
}

// overloaded reports whether more was sent than may pass, as it should be.
func (r result) overloaded() bool { return r.udpOffered >= 1.2*float64(r.expected()) }

// note says what a reader must know of a result.
func (r result) note(path result) string {
	var notes []string
	for _, protocol := range []struct {
		name string
		path float64
	}{{"TCP", path.tcpWire}, {"UDP", path.udpWire}} {
		if protocol.path < 1.3*float64(r.expected()) {
			notes = append(notes, fmt.Sprintf("the unshaped path does %s in %s", bits(protocol.path), protocol.name))
		}
	}
	if !r.overloaded() {
		notes = append(notes, fmt.Sprintf("no more than %s of UDP were sent", bits(r.udpOffered)))
	}
	if r.atPeak() {
		notes = append(notes, "the burst passes at the peak rate")
	}
	return strings.Join(notes, "; ")
}

// quantity writes a rate as in an annotation.
func quantity(rate uint64) string {
	if rate >= 1e9 {
		return fmt.Sprintf("%dG", rate/1e9)
	}
	return fmt.Sprintf("%dM", rate/1e6)
}

// bits writes a rate for people.
func bits(rate float64) string {
	if rate >= 1e9 {
		return fmt.Sprintf("%.2f Gbit/s", rate/1e9)
	}
	return fmt.Sprintf("%.2f Mbit/s", rate/1e6)
}
