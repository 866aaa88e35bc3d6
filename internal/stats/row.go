package stats

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/qos"
	"github.com/manx-dataplane/manx/rtnl"
)

// Direction is as the workload sees it.
type Direction string

// The directions.
const (
	Ingress Direction = "ingress" // to the workload
	Egress  Direction = "egress"  // from the workload
)

// Row is what the kernel counts about one direction of one workload.
type Row struct {
	Interface string    `json:"interface"`
	Index     int       `json:"ifindex"`
	Direction Direction `json:"direction"`
	// Device is where that direction is shaped and counted: the interface itself, or
	// the IFB that it redirects to. Empty where that device is gone: the kernel drops
	// all that the workload sends.
	Device string `json:"device"`
	// Qdisc is the kind of the device's root qdisc; empty where there is none.
	Qdisc string `json:"qdisc,omitempty"`
	Counters
	// Shaping is nil where nothing limits the direction, or something does whose
	// parameters are not known here (a qdisc that is no TBF).
	Shaping *Shaping `json:"shaping,omitempty"`
	// Throughput in bits per second since the look before; nil at the first.
	Throughput *uint64 `json:"throughputBitsPerSecond,omitempty"`
}

// Counters are the kernel's, since the qdisc or the interface was made.
type Counters struct {
	Bytes          uint64 `json:"bytes"`
	Packets        uint64 `json:"packets"` // 32 bits wide in the kernel's answer for a qdisc
	Drops          uint64 `json:"drops"`
	Overlimits     uint64 `json:"overlimits"` // how often a packet had to wait
	BacklogBytes   uint32 `json:"backlogBytes"`
	BacklogPackets uint32 `json:"backlogPackets"`
}

// Shaping is how a direction is limited.
type Shaping struct {
	RateBits     uint64 `json:"rateBitsPerSecond"`
	BurstBytes   uint64 `json:"burstBytes"`
	PeakRateBits uint64 `json:"peakRateBitsPerSecond,omitempty"`
	// QueueBytes is how much may wait, and LatencySeconds how long that takes to pass at
	// the rate: the wait of a packet under overload, once the burst is spent. (What tc
	// shows as "lat" is worked out for a full bucket, and without the qdisc below a TBF.)
	// Zero: not known.
	QueueBytes     uint64  `json:"queueBytes,omitempty"`
	LatencySeconds float64 `json:"latencySeconds,omitempty"`
}

// Selection says which workloads to show.
type Selection struct {
	// Prefixes start the names of workload interfaces.
	Prefixes []string
	// Interfaces, where not empty, are the only ones to show, of whatever name.
	Interfaces []string
	// All shows workloads that nothing limits too.
	All bool
}

// Collect reads the rows, by interface, ingress first. ENODEV: one of the named
// interfaces does not exist; the rows of the others come with the error.
func Collect(kernel qos.ReadKernel, selection Selection) ([]Row, error) {
	snapshot, err := qos.Observe(kernel)
	if err != nil {
		return nil, err
	}
	links, err := rtnl.RetryInterrupted(kernel.LinkList)
	if err != nil {
		return nil, err
	}
	counters := make(map[int]*netlink.LinkStatistics, len(links))
	for _, link := range links {
		counters[link.Attrs().Index] = link.Attrs().Statistics
	}
	c := collector{snapshot: snapshot, counters: counters}
	if len(selection.Interfaces) > 0 {
		return c.named(selection.Interfaces)
	}
	for _, iface := range snapshot.Interfaces {
		if !slices.ContainsFunc(selection.Prefixes, func(prefix string) bool { return strings.HasPrefix(iface.Name, prefix) }) {
			continue
		}
		rows := c.rows(iface)
		if selection.All || slices.ContainsFunc(rows, Row.limited) {
			c.collected = append(c.collected, rows...)
		}
	}
	return c.sorted(), nil
}

// limited reports whether something shapes that direction, or is meant to.
func (r Row) limited() bool {
	return r.Device != r.Interface || r.Shaping != nil || r.Qdisc == "htb"
}

type collector struct {
	snapshot  *qos.Snapshot
	counters  map[int]*netlink.LinkStatistics
	collected []Row
}

func (c *collector) named(names []string) ([]Row, error) {
	var missing []string
	for _, name := range names {
		iface := c.snapshot.ByName(name)
		if iface == nil {
			missing = append(missing, name)
			continue
		}
		c.collected = append(c.collected, c.rows(iface)...)
	}
	if len(missing) > 0 {
		return c.sorted(), fmt.Errorf("no such interface: %s: %w", strings.Join(missing, ", "), unix.ENODEV)
	}
	return c.sorted(), nil
}

func (c *collector) sorted() []Row {
	slices.SortStableFunc(c.collected, func(a, b Row) int {
		return cmp.Or(strings.Compare(a.Interface, b.Interface), -strings.Compare(string(a.Direction), string(b.Direction)))
	})
	return slices.CompactFunc(c.collected, func(a, b Row) bool { return a.Index == b.Index && a.Direction == b.Direction })
}

// rows returns both directions of a workload. What it receives is what its
// interface on the host sends.
func (c *collector) rows(iface *qos.Interface) []Row {
	ingress := Row{Interface: iface.Name, Index: iface.Index, Direction: Ingress, Device: iface.Name}
	ingress.read(iface)
	egress := Row{Interface: iface.Name, Index: iface.Index, Direction: Egress, Device: iface.Name}
	redirect := firstRedirect(iface)
	if redirect != nil {
		egress.Device = ""
		if target := c.snapshot.Interfaces[redirect.Target]; target != nil {
			egress.Device = target.Name
			egress.read(target)
		}
	}
	if stats := c.counters[iface.Index]; stats != nil {
		if !ingress.limited() {
			ingress.Counters = Counters{Bytes: stats.TxBytes, Packets: stats.TxPackets, Drops: stats.TxDropped}
		}
		if redirect == nil {
			egress.Counters = Counters{Bytes: stats.RxBytes, Packets: stats.RxPackets, Drops: stats.RxDropped}
		}
	}
	return []Row{ingress, egress}
}

// firstRedirect returns the redirect that packets meet first: it takes them, so
// that later ones see none. In one priority the lower node comes first.
func firstRedirect(iface *qos.Interface) *qos.Filter {
	var first *qos.Filter
	for i := range iface.Filters {
		filter := &iface.Filters[i]
		if filter.Redirect && (first == nil ||
			cmp.Or(cmp.Compare(filter.Priority, first.Priority), cmp.Compare(filter.Handle, first.Handle)) < 0) {
			first = filter
		}
	}
	return first
}

// read takes the counters and parameters of the root qdisc of the device that shapes.
func (r *Row) read(device *qos.Interface) {
	root := device.Root
	if root == nil {
		return
	}
	r.Qdisc = root.Type()
	if stats := root.Attrs().Statistics; stats != nil {
		r.Bytes, r.Packets = stats.Basic.Bytes, uint64(stats.Basic.Packets)
		r.Drops, r.Overlimits = uint64(stats.Queue.Drops), uint64(stats.Queue.Overlimits)
		r.BacklogBytes, r.BacklogPackets = stats.Queue.Backlog, stats.Queue.Qlen
	}
	if tbf, ok := root.(*netlink.Tbf); ok {
		r.Shaping = newShaping(tbf, device.Queue)
	}
}

// newShaping describes a TBF with the qdisc below it; nil means the kernel's own, which is
// as long as the TBF's limit. How much may wait in one that is no bfifo is not known.
func newShaping(tbf *netlink.Tbf, queue netlink.Qdisc) *Shaping {
	shaping := &Shaping{RateBits: tbf.Rate * 8, PeakRateBits: tbf.Peakrate * 8}
	hi, lo := bits.Mul64(tbf.Rate, uint64(tbf.Buffer)*uint64(rtnl.PschedTick))
	if hi < uint64(time.Second) {
		// To the nearest: the kernel keeps the burst as a time.
		quotient, rest := bits.Div64(hi, lo, uint64(time.Second))
		if rest >= uint64(time.Second)/2 && quotient < math.MaxUint64 {
			quotient++
		}
		shaping.BurstBytes = quotient
	}
	switch queue := queue.(type) {
	case nil:
		shaping.QueueBytes = uint64(tbf.Limit)
	case *rtnl.Bfifo:
		shaping.QueueBytes = uint64(queue.Limit)
	}
	if tbf.Rate > 0 {
		shaping.LatencySeconds = float64(shaping.QueueBytes) / float64(tbf.Rate)
	}
	return shaping
}
