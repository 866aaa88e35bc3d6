package rtnl

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// PschedTick is the unit of netlink.Tbf.Buffer: PSCHED_SHIFT in the kernel's
// include/net/pkt_sched.h makes it 64 ns, as /proc/net/psched says too.
const PschedTick = 64 * time.Nanosecond

// Bfifo is a queue of limited length, such as a TBF has below it
// (kind "bfifo", tc-bfifo(8)).
type Bfifo struct {
	netlink.QdiscAttrs
	Limit uint32 // bytes, counted as the kernel counts a packet's length
}

// Attrs implements netlink.Qdisc.
func (b *Bfifo) Attrs() *netlink.QdiscAttrs { return &b.QdiscAttrs }

// Type implements netlink.Qdisc.
func (b *Bfifo) Type() string { return "bfifo" }

// QdiscList dumps the qdiscs of all links, a link's root before what is below it;
// the kernel's dump knows nothing narrower. Types tbf, ingress and clsact come as
// the library's types, bfifo as *Bfifo, all others as *netlink.GenericQdisc, each
// with Statistics where the kernel sends them. The queue that the kernel itself
// puts below a TBF is not listed.
//
// The kernel does not dump TCA_TBF_PBURST, so a *netlink.Tbf's Minburst is worked
// out from TCA_TBF_PARMS: bytes, exact to one PschedTick at the peak rate. An
// interrupted dump is an error (EINTR) with no qdiscs: the caller retries.
func (h *Handle) QdiscList() ([]netlink.Qdisc, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETQDISC, unix.NLM_F_DUMP)
	req.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL})
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: h.raw}
	messages, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWQDISC)
	if err != nil {
		return nil, opError("list qdiscs", "", err)
	}
	qdiscs := make([]netlink.Qdisc, 0, len(messages))
	for _, message := range messages {
		qdisc, err := parseQdisc(message)
		if err != nil {
			return nil, opError("parse qdisc", "", err)
		}
		qdiscs = append(qdiscs, qdisc)
	}
	return qdiscs, nil
}

// QdiscAdd creates a qdisc. EEXIST: its place is taken. ENODEV: its link is gone.
// EOPNOTSUPP or ENOENT: this kernel lacks that kind. For parameters see QdiscReplace.
func (h *Handle) QdiscAdd(qdisc netlink.Qdisc) error {
	return h.write("add qdisc", qdiscObject(qdisc), func() error {
		return h.newQdisc(qdisc, unix.NLM_F_CREATE|unix.NLM_F_EXCL, h.nl.QdiscAdd)
	})
}

// QdiscReplace creates a qdisc, changes the one of the same handle and kind in
// place, or grafts it over another. Without a handle it changes any of the same kind.
//
// Of a *netlink.Tbf, Rate and Peakrate are bytes per second, Limit and Minburst
// bytes, Buffer is in PschedTicks. Minburst must be set where Peakrate is.
//
// Of a *Bfifo, Parent may be a TBF's class, such as ca11:1. ENOENT: there is no such
// TBF.
func (h *Handle) QdiscReplace(qdisc netlink.Qdisc) error {
	return h.write("replace qdisc", qdiscObject(qdisc), func() error {
		return h.newQdisc(qdisc, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, h.nl.QdiscReplace)
	})
}

// QdiscChange changes a *netlink.Tbf in place, and never creates one: ENOENT where
// its place has none of that handle. EINVAL: it is of another kind.
//
// Whenever a TBF is changed, here or by QdiscReplace, the kernel gives its Limit to the
// queue below it, if that is a bfifo, or a pfifo, to which it is a number of packets.
// If the queue was deleted, it makes one.
func (h *Handle) QdiscChange(tbf *netlink.Tbf) error {
	return h.write("change qdisc", qdiscObject(tbf), func() error {
		return h.sendQdisc(tbf, tbfOptions(tbf), unix.NLM_F_REPLACE)
	})
}

// QdiscDel deletes a qdisc. ENOENT or EINVAL: there is no such qdisc.
func (h *Handle) QdiscDel(qdisc netlink.Qdisc) error {
	return h.write("delete qdisc", qdiscObject(qdisc), func() error { return h.nl.QdiscDel(qdisc) })
}

// FilterList lists the filters at one parent of one link, such as
// netlink.HANDLE_MIN_INGRESS, which serves an ingress qdisc as well as a clsact
// qdisc. A link or qdisc that is not there has none: no error.
func (h *Handle) FilterList(ifindex int, parent uint32) ([]netlink.Filter, error) {
	link := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: ifindex}}
	filters, err := h.nl.FilterList(link, parent)
	if err != nil {
		return nil, opError("list filters", fmt.Sprintf("ifindex %d parent %s", ifindex, netlink.HandleStr(parent)), err)
	}
	return filters, nil
}

// FilterAdd adds a filter. EEXIST: its handle is taken. A u32 filter whose handle
// is a node number only (1 to 0xfff) goes into the hash table of its priority, in
// front of all nodes of higher number.
func (h *Handle) FilterAdd(filter netlink.Filter) error {
	return h.write("add filter", filterObject(filter), func() error { return h.nl.FilterAdd(filter) })
}

// FilterReplace adds a filter or replaces the one of the same handle.
func (h *Handle) FilterReplace(filter netlink.Filter) error {
	return h.write("replace filter", filterObject(filter), func() error { return h.nl.FilterReplace(filter) })
}

// FilterDel deletes a filter. ENOENT: it is gone already. Handle zero deletes
// every filter of that priority.
func (h *Handle) FilterDel(filter netlink.Filter) error {
	return h.write("delete filter", filterObject(filter), func() error { return h.nl.FilterDel(filter) })
}

// IsAbsent reports whether err says that the object of a delete is gone already:
// ENODEV, ENOENT, ESRCH or EADDRNOTAVAIL.
func IsAbsent(err error) bool {
	return isAny(err, unix.ENODEV, unix.ENOENT, unix.ESRCH, unix.EADDRNOTAVAIL)
}

// newQdisc sends the kinds that have parameters here, and leaves others to the library.
func (h *Handle) newQdisc(qdisc netlink.Qdisc, flags int, other func(netlink.Qdisc) error) error {
	switch qdisc := qdisc.(type) {
	case *netlink.Tbf:
		return h.sendQdisc(qdisc, tbfOptions(qdisc), flags)
	case *Bfifo:
		// struct tc_fifo_qopt is one number.
		return h.sendQdisc(qdisc, nl.NewRtAttr(nl.TCA_OPTIONS, nl.Uint32Attr(qdisc.Limit)), flags)
	}
	return other(qdisc)
}

// tbfOptions encodes a TBF as iproute2 does. The library's own encoding will not do: it
// cuts rates to 32 bits, so that a peak rate of exactly 2^32 bytes/s becomes
// none, and it leaves out TCA_TBF_BURST, without which tbf_change works the
// largest packet out from at most 4.29 s of transmit time: at 1 kbit/s it would
// drop everything above 536 bytes whatever the burst.
func tbfOptions(tbf *netlink.Tbf) *nl.RtAttr {
	params := nl.TcTbfQopt{Limit: tbf.Limit, Buffer: tbf.Buffer}
	params.Rate.Rate = saturate32(tbf.Rate)
	params.Peakrate.Rate = saturate32(tbf.Peakrate)
	if tbf.Peakrate > 0 {
		params.Mtu = transmitTicks(tbf.Peakrate, tbf.Minburst)
	}
	options := nl.NewRtAttr(nl.TCA_OPTIONS, nil)
	options.AddRtAttr(nl.TCA_TBF_PARMS, params.Serialize())
	options.AddRtAttr(nl.TCA_TBF_BURST, nl.Uint32Attr(burstBytes(tbf)))
	if tbf.Rate > math.MaxUint32 {
		options.AddRtAttr(nl.TCA_TBF_RATE64, nl.Uint64Attr(tbf.Rate))
	}
	if tbf.Peakrate > 0 {
		options.AddRtAttr(nl.TCA_TBF_PBURST, nl.Uint32Attr(tbf.Minburst))
	}
	if tbf.Peakrate > math.MaxUint32 {
		options.AddRtAttr(nl.TCA_TBF_PRATE64, nl.Uint64Attr(tbf.Peakrate))
	}

	return options
}

// sendQdisc sends a qdisc with the options of its kind.
func (h *Handle) sendQdisc(qdisc netlink.Qdisc, options *nl.RtAttr, flags int) error {
	attrs := qdisc.Attrs()
	req := nl.NewNetlinkRequest(unix.RTM_NEWQDISC, flags|unix.NLM_F_ACK)
	req.AddData(&nl.TcMsg{
		Family:  nl.FAMILY_ALL,
		Ifindex: int32(attrs.LinkIndex),
		Handle:  attrs.Handle,
		Parent:  attrs.Parent,
	})
	req.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated(qdisc.Type())))
	req.AddData(options)
	return h.execute(req)
}

// parseQdisc reads one RTM_NEWQDISC message.
func parseQdisc(message []byte) (netlink.Qdisc, error) {
	if len(message) < nl.SizeofTcMsg {
		return nil, unix.EBADMSG
	}
	header := nl.DeserializeTcMsg(message)
	attrs, err := nl.ParseRouteAttr(message[nl.SizeofTcMsg:])
	if err != nil {
		return nil, err
	}
	base := netlink.QdiscAttrs{
		LinkIndex: int(header.Ifindex),
		Handle:    header.Handle,
		Parent:    header.Parent,
		Refcnt:    header.Info,
	}
	var kind string
	var options []byte
	for _, attr := range attrs {
		switch attr.Attr.Type {
		case nl.TCA_KIND:
			kind = string(bytes.TrimRight(attr.Value, "\x00"))
		case nl.TCA_OPTIONS:
			options = attr.Value
		case nl.TCA_INGRESS_BLOCK:
			if len(attr.Value) >= 4 {
				block := binary.NativeEndian.Uint32(attr.Value)
				base.IngressBlock = &block
			}
		case nl.TCA_STATS2:
			if base.Statistics, err = parseStatistics(attr.Value); err != nil {
				return nil, err
			}
		}
	}
	switch kind {
	case "tbf":
		tbf := &netlink.Tbf{QdiscAttrs: base}
		return tbf, parseTBF(tbf, options)
	case "bfifo":
		bfifo := &Bfifo{QdiscAttrs: base}
		if len(options) >= 4 {
			bfifo.Limit = binary.NativeEndian.Uint32(options)
		}
		return bfifo, nil
	case "ingress":
		return &netlink.Ingress{QdiscAttrs: base}, nil
	case "clsact":
		return &netlink.Clsact{QdiscAttrs: base}, nil
	}
	return &netlink.GenericQdisc{QdiscAttrs: base, QdiscType: kind}, nil
}

func parseTBF(tbf *netlink.Tbf, options []byte) error {
	attrs, err := nl.ParseRouteAttr(options)
	if err != nil {
		return err
	}
	var mtuTicks uint32
	for _, attr := range attrs {
		switch {
		case attr.Attr.Type == nl.TCA_TBF_PARMS && len(attr.Value) >= nl.SizeofTcTbfQopt:
			params := nl.DeserializeTcTbfQopt(attr.Value)
			tbf.Limit, tbf.Buffer, mtuTicks = params.Limit, params.Buffer, params.Mtu
			tbf.Rate = max(tbf.Rate, uint64(params.Rate.Rate))
			tbf.Peakrate = max(tbf.Peakrate, uint64(params.Peakrate.Rate))
		case attr.Attr.Type == nl.TCA_TBF_RATE64 && len(attr.Value) >= 8:
			tbf.Rate = binary.NativeEndian.Uint64(attr.Value)
		case attr.Attr.Type == nl.TCA_TBF_PRATE64 && len(attr.Value) >= 8:
			tbf.Peakrate = binary.NativeEndian.Uint64(attr.Value)
		}
	}
	if tbf.Peakrate > 0 {
		tbf.Minburst = ticksToBytes(tbf.Peakrate, mtuTicks)
	}
	return nil
}

// parseStatistics reads struct gnet_stats_basic and gnet_stats_queue of
// include/uapi/linux/gen_stats.h.
func parseStatistics(data []byte) (*netlink.QdiscStatistics, error) {
	attrs, err := nl.ParseRouteAttr(data)
	if err != nil {
		return nil, err
	}
	stats := &netlink.QdiscStatistics{Basic: &netlink.GnetStatsBasic{}, Queue: &netlink.GnetStatsQueue{}}
	native := binary.NativeEndian
	for _, attr := range attrs {
		switch value := attr.Value; {
		case attr.Attr.Type == nl.TCA_STATS_BASIC && len(value) >= 12:
			stats.Basic.Bytes, stats.Basic.Packets = native.Uint64(value), native.Uint32(value[8:])
		case attr.Attr.Type == nl.TCA_STATS_QUEUE && len(value) >= 20:
			*stats.Queue = netlink.GnetStatsQueue{
				Qlen:       native.Uint32(value),
				Backlog:    native.Uint32(value[4:]),
				Drops:      native.Uint32(value[8:]),
				Requeues:   native.Uint32(value[12:]),
				Overlimits: native.Uint32(value[16:]),
			}
		}
	}
	return stats, nil
}

// transmitTicks is the time that size bytes take at rate bytes/s, rounded up.
func transmitTicks(rate uint64, size uint32) uint32 {
	hi, lo := bits.Mul64(uint64(size), uint64(time.Second/PschedTick))
	return saturate32(divideUp(hi, lo, rate))
}

// ticksToBytes is what passes at rate bytes/s in that many ticks, rounded to the
// nearest byte: the kernel rounds times down, and rounding down again would make
// sizes shrink from one read and write to the next.
func ticksToBytes(rate uint64, ticks uint32) uint32 {
	hi, lo := bits.Mul64(rate, uint64(ticks)*uint64(PschedTick))
	lo, carry := bits.Add64(lo, uint64(time.Second/2), 0)
	hi += carry
	if hi >= uint64(time.Second) {
		return math.MaxUint32
	}
	quotient, _ := bits.Div64(hi, lo, uint64(time.Second))
	return saturate32(quotient)
}

// burstBytes is the size of a TBF's bucket. Rounding must not make it one whose
// transmit time, which the kernel dumps in 32 bits, wraps around.
func burstBytes(tbf *netlink.Tbf) uint32 {
	size := ticksToBytes(tbf.Rate, tbf.Buffer)
	if transmitTicks(tbf.Rate, size) == math.MaxUint32 && size > 1 {
		size--
	}
	return size
}

// divideUp divides a 128-bit number, rounding up and saturating at 64 bits, also
// where the divisor is zero.
func divideUp(hi, lo, divisor uint64) uint64 {
	if hi >= divisor {
		return math.MaxUint64
	}
	quotient, rest := bits.Div64(hi, lo, divisor)
	if rest > 0 && quotient < math.MaxUint64 {
		quotient++
	}
	return quotient
}

func saturate32(n uint64) uint32 { return uint32(min(n, math.MaxUint32)) }

func qdiscObject(q netlink.Qdisc) string {
	attrs := q.Attrs()
	return fmt.Sprintf("%s %s (ifindex %d)", q.Type(), netlink.HandleStr(attrs.Handle), attrs.LinkIndex)
}

func filterObject(f netlink.Filter) string {
	attrs := f.Attrs()
	return fmt.Sprintf("%s prio %d parent %s (ifindex %d)", f.Type(), attrs.Priority, netlink.HandleStr(attrs.Parent), attrs.LinkIndex)
}
