package rtnl

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// This file is the wire format of routes, see rtnetlink(7) and
// linux/rtnetlink.h. The netlink library has it too, but sends one message per
// system call, and allocates a dozen objects for each route it reads.

// appendRouteDump appends a request for a dump.
func appendRouteDump(b []byte, seq uint32, filter RouteFilter) []byte {
	b, done := appendHeader(b, unix.RTM_GETROUTE, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, seq)
	b = append(b, byte(filter.Family), 0, 0, 0, tableByte(filter.Table), 0, 0, 0, 0, 0, 0, 0)
	b = appendUint32(b, unix.RTA_TABLE, uint32(filter.Table))
	if filter.IfIndex != 0 {
		b = appendUint32(b, unix.RTA_OIF, uint32(filter.IfIndex))
	}
	return done(b)
}

// appendRouteOp appends the message for one operation. It fails with EINVAL where
// the route cannot be said in a message; then it returns b as it was.
func appendRouteOp(b []byte, seq uint32, op *RouteOp) ([]byte, error) {
	r := &op.Route
	if err := checkRoute(r); err != nil {
		return b, err
	}
	kind, flags := uint16(unix.RTM_NEWROUTE), uint16(unix.NLM_F_REQUEST|unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	switch {
	case op.Delete:
		kind, flags = unix.RTM_DELROUTE, unix.NLM_F_REQUEST
	case op.Exclusive:
		flags = unix.NLM_F_REQUEST | unix.NLM_F_CREATE | unix.NLM_F_EXCL
	}
	dstLen := 0
	if r.Dst != nil {
		dstLen, _ = r.Dst.Mask.Size()
	}
	routeType := r.Type
	if routeType == 0 {
		routeType = unix.RTN_UNICAST
	}
	b, done := appendHeader(b, kind, flags, seq)
	b = append(b, byte(r.Family), byte(dstLen), 0, byte(r.Tos), tableByte(r.Table), byte(r.Protocol), byte(r.Scope), byte(routeType))
	b = binary.NativeEndian.AppendUint32(b, uint32(r.Flags))
	if dstLen > 0 {
		b = appendAttribute(b, unix.RTA_DST, addressBytes(r.Family, r.Dst.IP))
	}
	b = appendUint32(b, unix.RTA_TABLE, uint32(r.Table))
	if r.Priority != 0 {
		b = appendUint32(b, unix.RTA_PRIORITY, uint32(r.Priority))
	}
	if r.LinkIndex != 0 {
		b = appendUint32(b, unix.RTA_OIF, uint32(r.LinkIndex))
	}
	if r.Gw != nil {
		b = appendAttribute(b, unix.RTA_GATEWAY, addressBytes(r.Family, r.Gw))
	}
	if r.Src != nil {
		b = appendAttribute(b, unix.RTA_PREFSRC, addressBytes(r.Family, r.Src))
	}
	if r.MTU != 0 {
		metrics, done := openAttribute(b, unix.RTA_METRICS)
		b = done(appendUint32(metrics, unix.RTAX_MTU, uint32(r.MTU)))
	}
	if !op.Delete {
		b = appendHops(b, r)
	}
	return done(b), nil
}

func appendHops(b []byte, r *netlink.Route) []byte {
	if len(r.MultiPath) == 0 {
		return b
	}
	b, done := openAttribute(b, unix.RTA_MULTIPATH)
	for _, hop := range r.MultiPath {
		start := len(b)
		b = append(b, 0, 0, byte(hop.Flags), byte(hop.Hops))
		b = binary.NativeEndian.AppendUint32(b, uint32(hop.LinkIndex))
		if hop.Gw != nil {
			b = appendAttribute(b, unix.RTA_GATEWAY, addressBytes(r.Family, hop.Gw))
		}
		binary.NativeEndian.PutUint16(b[start:], uint16(len(b)-start))
	}
	return done(b)
}

// checkRoute says whether the route's fields fit the message.
func checkRoute(r *netlink.Route) error {
	bits := 32
	switch r.Family {
	case unix.AF_INET:
	case unix.AF_INET6:
		bits = 128
	default:
		return fmt.Errorf("%w: address family %d", unix.EINVAL, r.Family)
	}
	if r.Dst != nil {
		if _, size := r.Dst.Mask.Size(); size != bits {
			return fmt.Errorf("%w: destination %s is not of the route's family", unix.EINVAL, r.Dst)
		}
	}
	addresses := []struct {
		what string
		ip   net.IP
	}{{"gateway", r.Gw}, {"source", r.Src}}
	for _, a := range addresses {
		if a.ip != nil && addressBytes(r.Family, a.ip) == nil {
			return fmt.Errorf("%w: %s %s is not of the route's family", unix.EINVAL, a.what, a.ip)
		}
	}
	numbers := []struct {
		what   string
		value  int
		lo, hi int
	}{
		{"table", r.Table, 1, math.MaxUint32},
		{"TOS", r.Tos, 0, math.MaxUint8},
		{"protocol", int(r.Protocol), 0, math.MaxUint8},
		{"type", r.Type, 0, math.MaxUint8},
		{"priority", r.Priority, 0, math.MaxUint32},
		{"MTU", r.MTU, 0, math.MaxInt32},
		{"ifindex", r.LinkIndex, 0, math.MaxInt32},
	}
	for _, n := range numbers {
		if n.value < n.lo || n.value > n.hi {
			return fmt.Errorf("%w: %s %d is not from %d to %d", unix.EINVAL, n.what, n.value, n.lo, n.hi)
		}
	}
	for _, hop := range r.MultiPath {
		if hop.Gw != nil && addressBytes(r.Family, hop.Gw) == nil {
			return fmt.Errorf("%w: next hop %s is not of the route's family", unix.EINVAL, hop.Gw)
		}
		if hop.Hops < 0 || hop.Hops > math.MaxUint8 {
			return fmt.Errorf("%w: weight %d is not from 1 to 256", unix.EINVAL, hop.Hops+1)
		}
	}
	return nil
}

// routeDecoder turns messages into a netlink.Route that it owns, without
// allocating once it has grown.
type routeDecoder struct {
	route netlink.Route
	dst   net.IPNet
	hops  []*netlink.NexthopInfo
	masks [129]net.IPMask // made when first needed; the first four bytes serve IPv4
	zero  [net.IPv6len]byte
}

// decode reads the body of an RTM_NEWROUTE message: what RouteOp knows of, metrics
// and realm. An encapsulation and a next hop of the other family are only marked,
// by a non-nil Encap or Via. The result points into body and is overwritten by the
// next call.
func (d *routeDecoder) decode(body []byte) (*netlink.Route, error) {
	if len(body) < unix.SizeofRtMsg {
		return nil, fmt.Errorf("%w: short route message", unix.EBADMSG)
	}
	d.route = netlink.Route{
		Family:   int(body[0]),
		Tos:      int(body[3]),
		Table:    int(body[4]),
		Protocol: netlink.RouteProtocol(body[5]),
		Scope:    netlink.Scope(body[6]),
		Type:     int(body[7]),
		Flags:    int(binary.NativeEndian.Uint32(body[8:])),
	}
	if err := d.decodeDst(body); err != nil {
		return nil, err
	}
	// Not by attributes, whose function would be an allocation per route.
	for rest := body[unix.SizeofRtMsg:]; ; {
		kind, value, next, ok := nextAttribute(rest)
		if !ok {
			return &d.route, nil
		}
		if err := d.decodeAttribute(kind, value); err != nil {
			return nil, err
		}
		rest = next
	}
}

// forSource reports whether the route is for packets of certain sources only.
func forSource(body []byte) bool { return len(body) > 2 && body[2] != 0 }

// decodeDst makes the destination of a message that has no RTA_DST, which the
// kernel leaves out for the default route.
func (d *routeDecoder) decodeDst(body []byte) error {
	size := net.IPv6len
	if d.route.Family == unix.AF_INET {
		size = net.IPv4len
	}
	if int(body[1]) > 8*size {
		return fmt.Errorf("%w: destination length %d", unix.EBADMSG, body[1])
	}
	ones := int(body[1])
	if d.masks[ones] == nil {
		d.masks[ones] = net.CIDRMask(ones, 8*net.IPv6len)
	}
	d.dst = net.IPNet{IP: d.zero[:size:size], Mask: d.masks[ones][:size:size]}
	d.route.Dst = &d.dst
	return nil
}

func (d *routeDecoder) decodeAttribute(kind uint16, value []byte) error {
	var number uint32
	if len(value) >= 4 {
		number = binary.NativeEndian.Uint32(value)
	}
	switch kind {
	case unix.RTA_DST:
		if len(value) != len(d.dst.Mask) {
			return fmt.Errorf("%w: destination of %d bytes", unix.EBADMSG, len(value))
		}
		d.dst.IP = value
	case unix.RTA_TABLE:
		d.route.Table = int(number)
	case unix.RTA_PRIORITY:
		d.route.Priority = int(number)
	case unix.RTA_OIF:
		d.route.LinkIndex = int(number)
	case unix.RTA_GATEWAY:
		d.route.Gw = value
	case unix.RTA_PREFSRC:
		d.route.Src = value
	case unix.RTA_FLOW:
		d.route.Realm = int(number)
	case unix.RTA_METRICS:
		for metric, value := range attributes(value) {
			if len(value) >= 4 {
				d.decodeMetric(metric, binary.NativeEndian.Uint32(value))
			}
		}
	case unix.RTA_ENCAP:
		d.route.Encap = &netlink.MPLSEncap{}
	case unix.RTA_VIA:
		d.route.Via = &netlink.Via{}
	case unix.RTA_MULTIPATH:
		return d.decodeHops(value)
	}
	return nil
}

func (d *routeDecoder) decodeMetric(metric uint16, value uint32) {
	r := &d.route
	fields := [...]*int{
		unix.RTAX_MTU: &r.MTU, unix.RTAX_WINDOW: &r.Window, unix.RTAX_RTT: &r.Rtt, unix.RTAX_RTTVAR: &r.RttVar,
		unix.RTAX_SSTHRESH: &r.Ssthresh, unix.RTAX_CWND: &r.Cwnd, unix.RTAX_ADVMSS: &r.AdvMSS,
		unix.RTAX_REORDERING: &r.Reordering, unix.RTAX_HOPLIMIT: &r.Hoplimit, unix.RTAX_INITCWND: &r.InitCwnd,
		unix.RTAX_FEATURES: &r.Features, unix.RTAX_RTO_MIN: &r.RtoMin, unix.RTAX_INITRWND: &r.InitRwnd,
		unix.RTAX_QUICKACK: &r.QuickACK,
	}
	switch {
	case metric == unix.RTAX_LOCK:
		r.MTULock, r.RtoMinLock = value&(1<<unix.RTAX_MTU) != 0, value&(1<<unix.RTAX_RTO_MIN) != 0
	case int(metric) < len(fields) && fields[metric] != nil:
		*fields[metric] = int(value)
	}
}

func (d *routeDecoder) decodeHops(rest []byte) error {
	count := 0
	for len(rest) >= unix.SizeofRtNexthop {
		length := int(binary.NativeEndian.Uint16(rest))
		if length < unix.SizeofRtNexthop || length > len(rest) {
			return fmt.Errorf("%w: next hop of %d bytes", unix.EBADMSG, length)
		}
		if count == len(d.hops) {
			d.hops = append(d.hops, &netlink.NexthopInfo{})
		}
		hop := d.hops[count]
		count++
		*hop = netlink.NexthopInfo{
			Flags:     int(rest[2]),
			Hops:      int(rest[3]),
			LinkIndex: int(binary.NativeEndian.Uint32(rest[4:])),
		}
		for kind, value := range attributes(rest[unix.SizeofRtNexthop:length]) {
			switch kind {
			case unix.RTA_GATEWAY:
				hop.Gw = value
			case unix.RTA_ENCAP:
				hop.Encap = &netlink.MPLSEncap{}
			case unix.RTA_VIA:
				hop.Via = &netlink.Via{}
			}
		}
		rest = rest[min(align4(length), len(rest)):]
	}
	d.route.MultiPath = d.hops[:count]
	return nil
}

// addressBytes returns the address in the family's length, or nil where it is of
// the other family.
func addressBytes(family int, ip net.IP) []byte {
	v4 := ip.To4()
	switch {
	case family == unix.AF_INET:
		return v4
	case v4 == nil || len(ip) == net.IPv6len:
		return ip.To16()
	}
	return nil
}

// tableByte is the table's number where the message's header has room for it;
// else RTA_TABLE alone says it.
func tableByte(table int) byte {
	if table > math.MaxUint8 {
		return unix.RT_TABLE_UNSPEC
	}
	return byte(table)
}

func align4(n int) int { return (n + 3) &^ 3 }

// appendHeader appends a message header, to be completed by done once the rest of
// the message is there.
func appendHeader(b []byte, kind, flags uint16, seq uint32) (_ []byte, done func([]byte) []byte) {
	start := len(b)
	b = append(b, 0, 0, 0, 0)
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = append(b, 0, 0, 0, 0)
	return b, func(b []byte) []byte {
		binary.NativeEndian.PutUint32(b[start:], uint32(len(b)-start))
		return b
	}
}

// openAttribute starts an attribute, to be completed by done once its content is
// there.
func openAttribute(b []byte, kind uint16) (_ []byte, done func([]byte) []byte) {
	start := len(b)
	b = append(b, 0, 0)
	b = binary.NativeEndian.AppendUint16(b, kind)
	return b, func(b []byte) []byte {
		binary.NativeEndian.PutUint16(b[start:], uint16(len(b)-start))
		return b
	}
}

// appendAttribute appends an attribute whose value is a multiple of four bytes
// long, as all of a route are.
func appendAttribute(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	return append(b, value...)
}

func appendUint32(b []byte, kind uint16, value uint32) []byte {
	b = binary.NativeEndian.AppendUint16(b, unix.SizeofRtAttr+4)
	b = binary.NativeEndian.AppendUint16(b, kind)
	return binary.NativeEndian.AppendUint32(b, value)
}

// attributes yields the attributes in b, up to one that does not fit.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for {
			kind, value, rest, ok := nextAttribute(b)
			if !ok || !yield(kind, value) {
				return
			}
			b = rest
		}
	}
}

// nextAttribute takes the first attribute off b, without the nested and byte order
// flags of its type. It fails where there is none, or one that does not fit.
func nextAttribute(b []byte) (kind uint16, value, rest []byte, ok bool) {
	if len(b) < unix.SizeofRtAttr {
		return 0, nil, nil, false
	}
	length := int(binary.NativeEndian.Uint16(b))
	if length < unix.SizeofRtAttr || length > len(b) {
		return 0, nil, nil, false
	}
	kind = binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
	return kind, b[unix.SizeofRtAttr:length:length], b[min(align4(length), len(b)):], true
}
