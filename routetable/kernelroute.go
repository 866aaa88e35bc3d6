package routetable

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/rtnl"
)

// family is the IP version of a table: 4 or 6.
type family int

const (
	ipv6DefaultPriority = 1024 // IP6_RT_PRIO_USER: what the kernel makes of no priority
	loopbackIndex       = 1    // where the kernel hangs IPv6 routes that go nowhere
)

func (f family) af() int {
	if f == 6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// owns reports whether the address is of the family, or unset.
func (f family) owns(addr netip.Addr) bool {
	return !addr.IsValid() || addr.Is4() == (f == 4)
}

// routeKey is what the kernel's table is keyed by.
type routeKey struct {
	cidr     netip.Prefix
	priority uint32
	tos      uint8
}

func (k routeKey) variant() tosPriority { return tosPriority{tos: k.tos, priority: k.priority} }

// addr returns the only address of the key's destination.
func (k routeKey) addr() (netip.Addr, bool) { return k.cidr.Addr(), k.cidr.IsSingleIP() }

func (k routeKey) compare(other routeKey) int {
	return cmp.Or(
		k.cidr.Addr().Compare(other.cidr.Addr()),
		cmp.Compare(k.cidr.Bits(), other.cidr.Bits()),
		cmp.Compare(k.priority, other.priority),
		cmp.Compare(k.tos, other.tos),
	)
}

// keyOf returns the key of a target whose CIDR is masked.
func (f family) keyOf(target *Target) routeKey {
	key := routeKey{cidr: target.CIDR, priority: uint32(target.Priority), tos: target.TOS}
	if f == 6 && key.priority == 0 {
		key.priority = ipv6DefaultPriority
	}
	return key
}

// kernelRoute is all of a route that its key leaves open, in one canonical form:
// two are equal exactly where the kernel would treat them alike.
type kernelRoute struct {
	kind     uint8 // RTN_*
	scope    uint8 // IPv4 only
	protocol uint8
	onLink   bool
	// opaque marks a route with properties that no target can have.
	opaque bool
	// index is the interface; zero where there is none or hops say it.
	index int32
	mtu   uint32
	gw    netip.Addr
	src   netip.Addr
	// hops are the sorted next hops of a multi-path route, encoded by hopList so
	// that they can be compared; empty for others. A single hop is no multi-path
	// route: the kernel dumps it as a plain one.
	hops string
}

// isLocal reports whether the route leads to an address on the link itself.
func (r *kernelRoute) isLocal() bool {
	return r.kind == unix.RTN_UNICAST && r.index != 0 && !r.gw.IsValid() && r.hops == ""
}

// agrees reports whether the kernel may take the other route of an IPv4 table for
// this one when it is asked to remove this one (fib_table_delete).
func (r *kernelRoute) agrees(other *kernelRoute) bool {
	return r.kind == other.kind && r.scope == other.scope && r.protocol == other.protocol &&
		(r.index == 0 || other.hops != "" || r.index == other.index) &&
		(!r.gw.IsValid() || other.hops != "" || r.gw == other.gw) &&
		(!r.src.IsValid() || r.src == other.src) && (r.mtu == 0 || r.mtu == other.mtu)
}

// uses reports whether the route goes through an interface that match accepts.
func (r *kernelRoute) uses(match func(index int) bool) bool {
	if r.hops == "" {
		return r.index != 0 && match(int(r.index))
	}
	return slices.ContainsFunc(decodeHops(r.hops), func(h hop) bool { return match(int(h.index)) })
}

// hop is one next hop. The weight is the kernel's: less one.
type hop struct {
	index  int32
	weight uint8
	onLink bool
	gw     netip.Addr
}

func encodeHops(hops []hop) string {
	slices.SortFunc(hops, func(a, b hop) int {
		return cmp.Or(cmp.Compare(a.index, b.index), a.gw.Compare(b.gw), cmp.Compare(a.weight, b.weight))
	})
	var b []byte
	for _, h := range hops {
		flag := byte(0)
		if h.onLink {
			flag = 1
		}
		gw := h.gw.AsSlice()
		b = binary.BigEndian.AppendUint32(b, uint32(h.index))
		b = append(b, h.weight, flag, byte(len(gw)))
		b = append(b, gw...)
	}
	return string(b)
}

func decodeHops(s string) []hop {
	var hops []hop
	for b := []byte(s); len(b) > 0; {
		h := hop{index: int32(binary.BigEndian.Uint32(b)), weight: b[4], onLink: b[5] == 1}
		size := int(b[6])
		h.gw, _ = netip.AddrFromSlice(b[7 : 7+size])
		hops = append(hops, h)
		b = b[7+size:]
	}
	return hops
}

// setHops makes the route a multi-path route, or a plain one where there is but
// one hop.
func (r *kernelRoute) setHops(hops []hop) {
	if len(hops) == 1 {
		r.index, r.gw, r.onLink = hops[0].index, hops[0].gw, hops[0].onLink
		return
	}
	r.index, r.gw, r.onLink, r.hops = 0, netip.Addr{}, false, encodeHops(hops)
}

// routeFromTarget returns what the kernel should hold for a target whose
// interface has the given index (zero where it needs none or several).
func (t *RouteTable) routeFromTarget(target *Target, index int) (kernelRoute, error) {
	route := kernelRoute{
		protocol: uint8(cmp.Or(target.Protocol, t.config.Protocol)),
		index:    int32(index),
		mtu:      uint32(target.MTU),
		gw:       target.GW.WithZone(""),
		src:      target.Src,
	}
	if err := t.checkTarget(target); err != nil {
		return route, err
	}
	switch target.Type {
	case TargetTypeLocal:
		route.kind, route.scope = unix.RTN_LOCAL, unix.RT_SCOPE_HOST
	case TargetTypeLinkLocalUnicast:
		route.kind, route.scope = unix.RTN_UNICAST, unix.RT_SCOPE_LINK
	case TargetTypeGlobalUnicast, TargetTypeNoEncap:
		route.kind = unix.RTN_UNICAST
	case TargetTypeOnLink, TargetTypeVXLAN:
		route.kind, route.onLink = unix.RTN_UNICAST, true
	case TargetTypeBlackhole:
		return t.routeToNowhere(route, unix.RTN_BLACKHOLE), nil
	case TargetTypeProhibit:
		return t.routeToNowhere(route, unix.RTN_PROHIBIT), nil
	case TargetTypeThrow:
		return t.routeToNowhere(route, unix.RTN_THROW), nil
	case TargetTypeUnreachable:
		return t.routeToNowhere(route, unix.RTN_UNREACHABLE), nil
	default:
		return route, fmt.Errorf("unknown target type %q", target.Type)
	}
	if t.family == 6 {
		route.scope = 0
	}
	if !route.src.IsValid() {
		route.src = t.config.SourceAddress
	}
	if len(target.MultiPath) > 0 {
		route.setHops(t.usableHops(target, route.onLink))
	}
	return route, nil
}

// routeToNowhere completes a route whose packets are not sent anywhere.
func (t *RouteTable) routeToNowhere(route kernelRoute, kind uint8) kernelRoute {
	route = kernelRoute{kind: kind, protocol: route.protocol, mtu: route.mtu}
	if t.family == 6 {
		route.index = loopbackIndex
	}
	return route
}

func (t *RouteTable) usableHops(target *Target, onLink bool) []hop {
	var hops []hop
	for _, nextHop := range target.MultiPath {
		if index, up := t.ifaces.upIndex(nextHop.IfaceName); up {
			weight := uint8(max(nextHop.Weight, 1) - 1)
			hops = append(hops, hop{index: int32(index), weight: weight, onLink: onLink, gw: nextHop.GW.WithZone("")})
		}
	}
	return hops
}

// checkTarget refuses what could not be said to the kernel, or would be
// misunderstood. The rest is for the kernel to judge.
func (t *RouteTable) checkTarget(target *Target) error {
	switch {
	case !target.CIDR.IsValid() || !t.family.owns(target.CIDR.Addr()):
		return fmt.Errorf("destination %s is not an IPv%d prefix", target.CIDR, t.family)
	case !t.family.owns(target.GW) || !t.family.owns(target.Src):
		return fmt.Errorf("gateway %s or source %s is not an IPv%d address", target.GW, target.Src, t.family)
	case target.TOS != 0 && t.family == 6:
		return fmt.Errorf("TOS %d: IPv6 routes have none", target.TOS)
	case target.Priority < 0 || int64(target.Priority) > math.MaxUint32:
		return fmt.Errorf("priority %d is not from 0 to %d", target.Priority, uint32(math.MaxUint32))
	case target.Protocol < 0 || target.Protocol > math.MaxUint8:
		return fmt.Errorf("protocol %d is not from 0 to 255", target.Protocol)
	case target.MTU < 0 || target.MTU > maxMTU:
		return fmt.Errorf("MTU %d is not from 0 to %d", target.MTU, maxMTU)
	}
	for _, nextHop := range target.MultiPath {
		switch {
		case !t.family.owns(nextHop.GW):
			return fmt.Errorf("next hop %s is not an IPv%d address", nextHop.GW, t.family)
		case t.family == 6 && !nextHop.GW.IsValid():
			// The kernel would make a route of its own of each.
			return fmt.Errorf("next hop through %s has no gateway, which IPv6 multi-path routes need", nextHop.IfaceName)
		case nextHop.Weight < 0 || nextHop.Weight > 256:
			return fmt.Errorf("weight %d is not from 1 to 256", nextHop.Weight)
		}
	}
	return nil
}

// maxMTU is what the kernel silently lowers larger MTU metrics to
// (fib_convert_metrics): 65535 less 15.
const maxMTU = 65520

// routeFromKernel takes a dumped route apart.
func (f family) routeFromKernel(r *netlink.Route) (routeKey, kernelRoute, bool) {
	addr, ok := netip.AddrFromSlice(r.Dst.IP)
	if !ok {
		return routeKey{}, kernelRoute{}, false
	}
	bits, _ := r.Dst.Mask.Size()
	key := routeKey{cidr: netip.PrefixFrom(addr, bits), priority: uint32(r.Priority), tos: uint8(r.Tos)}
	route := kernelRoute{
		kind:     uint8(r.Type),
		scope:    uint8(r.Scope),
		protocol: uint8(r.Protocol),
		onLink:   r.Flags&unix.RTNH_F_ONLINK != 0,
		opaque:   r.Encap != nil || r.Via != nil || hasMetrics(r),
		index:    int32(r.LinkIndex),
		mtu:      uint32(r.MTU),
	}
	route.gw, _ = netip.AddrFromSlice(r.Gw)
	route.src, _ = netip.AddrFromSlice(r.Src)
	if len(r.MultiPath) > 0 {
		hops := make([]hop, 0, len(r.MultiPath))
		for _, h := range r.MultiPath {
			gw, _ := netip.AddrFromSlice(h.Gw)
			hops = append(hops, hop{
				index: int32(h.LinkIndex), weight: uint8(h.Hops), onLink: h.Flags&unix.RTNH_F_ONLINK != 0, gw: gw,
			})
			route.opaque = route.opaque || h.Encap != nil || h.Via != nil
		}
		route.setHops(hops)
	}
	return key, route, true
}

// hasMetrics reports whether the route has metrics that no target can have.
func hasMetrics(r *netlink.Route) bool {
	return r.MTULock || r.RtoMinLock || r.Realm|r.Window|r.Rtt|r.RttVar|r.Ssthresh|r.Cwnd|r.AdvMSS|
		r.Reordering|r.Hoplimit|r.InitCwnd|r.Features|r.RtoMin|r.InitRwnd|r.QuickACK != 0
}

// fill makes op say the route, in the table.
func (t *RouteTable) fill(op *rtnl.RouteOp, key routeKey, route *kernelRoute) {
	op.Route = netlink.Route{
		Family:    t.family.af(),
		Table:     t.config.Table,
		Dst:       &net.IPNet{IP: key.cidr.Addr().AsSlice(), Mask: net.CIDRMask(key.cidr.Bits(), key.cidr.Addr().BitLen())},
		Tos:       int(key.tos),
		Priority:  int(key.priority),
		Type:      int(route.kind),
		Scope:     netlink.Scope(route.scope),
		Protocol:  netlink.RouteProtocol(route.protocol),
		LinkIndex: int(route.index),
		Gw:        route.gw.AsSlice(),
		Src:       route.src.AsSlice(),
		MTU:       int(route.mtu),
	}
	if route.onLink {
		op.Route.Flags = unix.RTNH_F_ONLINK
	}
	for _, h := range decodeHops(route.hops) {
		info := &netlink.NexthopInfo{LinkIndex: int(h.index), Hops: int(h.weight), Gw: h.gw.AsSlice()}
		if h.onLink {
			info.Flags = unix.RTNH_F_ONLINK
		}
		op.Route.MultiPath = append(op.Route.MultiPath, info)
	}
}
