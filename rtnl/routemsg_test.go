package rtnl

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// FuzzRouteDecoder: no body makes the decoder panic, and what it understands it
// understands the same way once encoded again.
func FuzzRouteDecoder(f *testing.F) {
	_, dst, _ := net.ParseCIDR("10.0.0.0/24")
	_, dst6, _ := net.ParseCIDR("fd00::/64")
	for _, r := range []netlink.Route{
		{Family: unix.AF_INET, Table: 254},
		{Family: unix.AF_INET, Table: 1000, Dst: dst, LinkIndex: 3, Gw: net.IPv4(10, 0, 0, 1), Priority: 9, MTU: 1400, Tos: 16},
		{Family: unix.AF_INET6, Table: 254, Dst: dst6, MultiPath: []*netlink.NexthopInfo{{LinkIndex: 3, Gw: net.ParseIP("fd00::1"), Hops: 4}, {LinkIndex: 9}}},
	} {
		message, err := appendRouteOp(nil, 1, &RouteOp{Route: r})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(message[unix.NLMSG_HDRLEN:])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var first, second routeDecoder
		route, err := first.decode(bytes.Clone(body))
		if err != nil || route.Encap != nil || route.Via != nil {
			return
		}
		route.Flags &= unix.RTNH_F_ONLINK
		message, err := appendRouteOp(nil, 1, &RouteOp{Route: *route})
		if err != nil {
			return // such as a gateway of three bytes
		}
		if int(binary.NativeEndian.Uint32(message)) != len(message) {
			t.Fatalf("length %d in a message of %d bytes", binary.NativeEndian.Uint32(message), len(message))
		}
		again, err := second.decode(message[unix.NLMSG_HDRLEN:])
		if err != nil {
			t.Fatalf("cannot decode what was encoded: %v", err)
		}
		if !sameRoute(route, again) {
			t.Fatalf("decoded %+v, again %+v", route, again)
		}
	})
}

func sameRoute(a, b *netlink.Route) bool {
	if len(a.MultiPath) != len(b.MultiPath) {
		return false
	}
	for i, hop := range a.MultiPath {
		other := b.MultiPath[i]
		if hop.LinkIndex != other.LinkIndex || hop.Hops != other.Hops || hop.Flags != other.Flags || !hop.Gw.Equal(other.Gw) {
			return false
		}
	}
	ones, _ := a.Dst.Mask.Size()
	sameDst := ones == 0 || a.Dst.IP.Equal(b.Dst.IP)
	kind := a.Type
	if kind == 0 {
		kind = unix.RTN_UNICAST
	}
	return sameDst && bytes.Equal(a.Dst.Mask, b.Dst.Mask) && a.LinkIndex == b.LinkIndex && a.Gw.Equal(b.Gw) &&
		a.Src.Equal(b.Src) && a.Priority == b.Priority && a.Tos == b.Tos && a.Protocol == b.Protocol &&
		kind == b.Type && a.Scope == b.Scope && a.MTU == b.MTU && a.Table == b.Table && a.Flags == b.Flags
}
