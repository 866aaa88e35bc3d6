package infra

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/rtnl"
)

// IFBPrefix is how the names of the agent's IFB devices begin.
const IFBPrefix = "bwcali"

// DefaultBurstBits is the burst of a limit that gives none.
const DefaultBurstBits = 4 << 30

// shaperLatency is how long a packet may wait in an overloaded shaper.
const shaperLatency = 25 * time.Millisecond

// Limit is a limit as a user states it.
type Limit struct {
	RateBits  uint64
	BurstBits uint64 // zero means DefaultBurstBits
	PeakBits  uint64 // zero means none
	// Changing is whether the limit is between the two writes of a change: the kernel has
	// made the queue as long as the TBF's limit, and the agent not yet shorter.
	Changing bool
}

// Limits are what a workload should be limited to; nil directions are not
// limited.
type Limits struct{ Ingress, Egress *Limit }

// TBF makes a token bucket as an operator would by hand, with 25 ms of latency.
func TBF(ifindex int, parent, handle uint32, rateBits, burstBytes uint64) *netlink.Tbf {
	rate := rateBits / 8
	return &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: ifindex, Parent: parent, Handle: handle},
		Rate:       rate,
		Limit:      uint32(float64(rate)*shaperLatency.Seconds()) + uint32(burstBytes),
		Buffer:     netlink.Xmittime(rate, uint32(burstBytes)),
	}
}

// Shaper is a TBF with the length in bytes of its queue: the kernel's own, or a bfifo
// below it.
type Shaper struct {
	*netlink.Tbf
	Queue uint32
}

// Shaping is what the kernel says about one host-side veth's limits.
type Shaping struct {
	// Ingress is the veth's root TBF, Egress the IFB's; nil without one.
	Ingress, Egress *Shaper
	// Hook is the kind of the qdisc at the veth's ingress: "", "ingress" or "clsact".
	Hook string
	// Redirects are the names of the devices that filters at the hook redirect to.
	Redirects []string
	// IFB is the device with the veth's IFB name, nil without one.
	IFB *netlink.LinkAttrs
	// MTU is the veth's.
	MTU int
}

// Shaping reads a veth's shaping. A veth that does not exist has an IFB at most.
func (k *Kernel) Shaping(veth string) (Shaping, error) {
	var s Shaping
	links, err := retry(k.RT.LinkList)
	if err != nil {
		return s, err
	}
	names := make(map[int]string)
	var index int
	for _, link := range links {
		attrs := link.Attrs()
		names[attrs.Index] = attrs.Name
		switch {
		case attrs.Name == veth:
			index, s.MTU = attrs.Index, attrs.MTU
		case attrs.Name == IFBName(veth) && link.Type() == "ifb":
			s.IFB = attrs
		}
	}
	qdiscs, err := retry(k.RT.QdiscList)
	if err != nil {
		return s, err
	}
	for _, qdisc := range qdiscs {
		attrs := qdisc.Attrs()
		switch {
		case index != 0 && attrs.LinkIndex == index && attrs.Parent == netlink.HANDLE_INGRESS:
			s.Hook = qdisc.Type()
		case index != 0 && attrs.LinkIndex == index:
			s.Ingress = s.Ingress.with(qdisc)
		case s.IFB != nil && attrs.LinkIndex == s.IFB.Index:
			s.Egress = s.Egress.with(qdisc)
		}
	}
	if s.Hook != "" {
		s.Redirects, err = k.redirects(index, names)
	}
	return s, err
}

// with takes in another of an interface's qdiscs, of which the kernel lists the root
// first.
func (s *Shaper) with(qdisc netlink.Qdisc) *Shaper {
	switch qdisc := qdisc.(type) {
	case *netlink.Tbf:
		if qdisc.Parent == netlink.HANDLE_ROOT {
			return &Shaper{Tbf: qdisc, Queue: qdisc.Limit}
		}
	case *rtnl.Bfifo:
		if s != nil && qdisc.Parent == s.Handle|1 {
			s.Queue = qdisc.Limit
		}
	}
	return s
}

func (k *Kernel) redirects(index int, names map[int]string) ([]string, error) {
	filters, err := retry(func() ([]netlink.Filter, error) {
		return k.RT.FilterList(index, netlink.HANDLE_MIN_INGRESS)
	})
	if errors.Is(err, unix.EINVAL) || rtnl.IsAbsent(err) {
		return nil, nil // the hook went meanwhile
	}
	var targets []string
	for _, filter := range filters {
		u32, ok := filter.(*netlink.U32)
		if !ok {
			continue
		}
		for _, action := range u32.Actions {
			if mirred, ok := action.(*netlink.MirredAction); ok {
				targets = append(targets, cmp.Or(names[mirred.Ifindex], fmt.Sprintf("missing device %d", mirred.Ifindex)))
			}
		}
	}
	return targets, err
}

// CheckLimits returns nil where the pod is limited to exactly these limits, and
// otherwise an error that says all that differs and what the kernel has.
func (k *Kernel) CheckLimits(pod *Pod, want Limits) error {
	got, err := k.Shaping(pod.Veth)
	if err != nil {
		return err
	}
	var wrong []string
	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	for _, direction := range []struct {
		name string
		want *Limit
		got  *Shaper
	}{{"ingress", want.Ingress, got.Ingress}, {"egress", want.Egress, got.Egress}} {
		if diff := compare(direction.want, direction.got, got.MTU); diff != "" {
			complain("%s %s", direction.name, diff)
		}
	}
	redirected := slices.Contains(got.Redirects, pod.IFB())
	switch {
	case want.Egress == nil && redirected:
		complain("a filter still redirects to %s", pod.IFB())
	case want.Egress == nil && got.IFB != nil:
		complain("%s exists", pod.IFB())
	case want.Egress != nil && got.IFB == nil:
		complain("%s does not exist", pod.IFB())
	case want.Egress != nil && !redirected:
		complain("no filter redirects to %s", pod.IFB())
	case want.Egress != nil && got.IFB.MTU != got.MTU:
		complain("MTU of %s is %d, the veth's %d", pod.IFB(), got.IFB.MTU, got.MTU)
	case want.Egress != nil && got.IFB.RawFlags&unix.IFF_UP == 0:
		complain("%s is down", pod.IFB())
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("%s: %s\nkernel: %s", pod, strings.Join(wrong, "; "), got)
}

// CheckUnshaped returns nil where nothing of ours is left of the pod's shaping,
// and the veth, if it exists, has no ingress hook.
func (k *Kernel) CheckUnshaped(pod *Pod) error {
	if err := k.CheckLimits(pod, Limits{}); err != nil {
		return err
	}
	got, err := k.Shaping(pod.Veth)
	if err == nil && got.Hook != "" {
		err = fmt.Errorf("%s: the %s qdisc was left", pod, got.Hook)
	}
	return err
}

// CheckIFBs returns nil where the agent's IFB devices are those of exactly these
// pods.
func (k *Kernel) CheckIFBs(pods ...*Pod) error {
	got, err := k.IFBs(IFBPrefix)
	if err != nil {
		return err
	}
	want := make([]string, 0, len(pods))
	for _, pod := range pods {
		want = append(want, pod.IFB())
	}
	missing := slices.DeleteFunc(slices.Clone(want), func(n string) bool { return slices.Contains(got, n) })
	orphans := slices.DeleteFunc(got, func(n string) bool { return slices.Contains(want, n) })
	if len(missing)+len(orphans) == 0 {
		return nil
	}
	return fmt.Errorf("%d IFB devices missing: %v; %d orphans: %v", len(missing), firstTen(missing), len(orphans), firstTen(orphans))
}

func firstTen(names []string) []string { return names[:min(len(names), 10)] }

// CheckRoutes returns nil where the pod's addresses are each routed through its
// present interface by one route of protocol 80.
func (k *Kernel) CheckRoutes(pod *Pod) error {
	for _, addr := range []netip.Addr{pod.IPv4, pod.IPv6} {
		routes, err := k.RoutesTo(netip.PrefixFrom(addr, addr.BitLen()))
		if err != nil {
			return err
		}
		if len(routes) != 1 || routes[0].LinkIndex != pod.Index || routes[0].Protocol != 80 {
			texts := make([]string, len(routes))
			for i, route := range routes {
				texts[i] = routeText(route)
			}
			return fmt.Errorf("%s: want one route to %s dev %d proto 80, have %q", pod, addr, pod.Index, texts)
		}
	}
	return nil
}

// CheckNoRoutes returns nil where the pod's addresses are not routed.
func (k *Kernel) CheckNoRoutes(pod *Pod) error {
	for _, addr := range []netip.Addr{pod.IPv4, pod.IPv6} {
		routes, err := k.RoutesTo(netip.PrefixFrom(addr, addr.BitLen()))
		if err != nil {
			return err
		}
		if len(routes) > 0 {
			return fmt.Errorf("%s: route left: %s", pod, routeText(routes[0]))
		}
	}
	return nil
}

// compare returns what differs, "" for nothing.
func compare(want *Limit, got *Shaper, mtu int) string {
	switch {
	case want == nil && got == nil:
		return ""
	case want == nil:
		return "is limited but should not be"
	case got == nil:
		return fmt.Sprintf("is not limited but should be to %d bit/s", want.RateBits)
	}
	burst := min(cmp.Or(want.BurstBits, DefaultBurstBits)/8, maxBurst(want.RateBits/8))
	var diffs []string
	if got.Rate != want.RateBits/8 {
		diffs = append(diffs, fmt.Sprintf("rate is %d bit/s, not %d", got.Rate*8, want.RateBits))
	}
	if !near(burstBytes(got.Tbf), burst, got.Rate) {
		diffs = append(diffs, fmt.Sprintf("burst is %d bytes, not %d", burstBytes(got.Tbf), burst))
	}
	if got.Peakrate != want.PeakBits/8 {
		diffs = append(diffs, fmt.Sprintf("peakrate is %d bit/s, not %d", got.Peakrate*8, want.PeakBits))
	}
	// As tc has it: 25 ms at whichever of the two rates lets fewer bytes wait.
	limit, whole := queued(want.RateBits/8)+burst, min(burst, largestPacket)
	if want.PeakBits != 0 {
		minburst := max(uint64(mtu)+ethernetHeader, want.PeakBits/8/1000) // 1 ms
		limit, whole = min(limit, queued(want.PeakBits/8)+minburst), min(whole, minburst)
	}
	queue := max(queued(want.RateBits/8), whole)
	if want.Changing {
		queue = limit
	}
	if !near(uint64(got.Queue), queue, got.Rate) {
		diffs = append(diffs, fmt.Sprintf("queue is of %d bytes, not %d, which is 25 ms at the rate, or one large packet", got.Queue, queue))
	}
	if got.Handle>>16 == ourMajor && !near(uint64(got.Limit), limit, got.Rate) {
		diffs = append(diffs, fmt.Sprintf("limit is %d bytes, not %d, which is 25 ms at the rate plus the burst", got.Limit, limit))
	}
	return strings.Join(diffs, ", ")
}

// largestPacket is room for a packet of 64 KiB that is still to be cut into segments,
// with the header of each.
const largestPacket = 80 << 10

// ethernetHeader is the length of what precedes a packet of MTU size.
const ethernetHeader = 14

// queued is how many bytes pass at a rate in bytes per second within shaperLatency.
func queued(rate uint64) uint64 { return uint64(float64(rate) * shaperLatency.Seconds()) }

// burstBytes is a TBF's burst, which the kernel holds as the time in psched ticks
// that it takes to send it.
func burstBytes(tbf *netlink.Tbf) uint64 {
	return uint64(float64(tbf.Buffer) / netlink.TickInUsec() / 1e6 * float64(tbf.Rate))
}

// maxBurst is the largest burst in bytes that the kernel can hold at a rate in bytes
// per second: the buffer has 32 bits, so the default burst saturates below
// 15.6 Mbit/s.
func maxBurst(rate uint64) uint64 {
	return uint64(math.MaxUint32 / netlink.TickInUsec() / 1e6 * float64(rate))
}

// near allows for the time that bytes take being rounded to microseconds, as older
// tc and the netlink library do.
func near(a, b, rate uint64) bool {
	return max(a, b)-min(a, b) <= 2+rate/1e6
}

// String shows it like tc does.
func (s Shaping) String() string {
	tbf := func(t *Shaper) string {
		if t == nil {
			return "none"
		}
		return fmt.Sprintf("tbf %s rate %d bit/s burst %d B peakrate %d bit/s limit %d B queue %d B",
			netlink.HandleStr(t.Handle), t.Rate*8, burstBytes(t.Tbf), t.Peakrate*8, t.Limit, t.Queue)
	}
	ifb := "none"
	if s.IFB != nil {
		ifb = fmt.Sprintf("%s ifindex %d mtu %d flags %s", s.IFB.Name, s.IFB.Index, s.IFB.MTU, s.IFB.Flags)
	}
	return fmt.Sprintf("veth root %s; hook %q redirects %q; IFB %s, root %s", tbf(s.Ingress), s.Hook, s.Redirects, ifb, tbf(s.Egress))
}
