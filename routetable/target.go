package routetable

import (
	"net"
	"net/netip"
)

// RouteClass ranks routes to the same destination: the lower one wins.
type RouteClass int

// The classes, in Felix's order of preference.
const (
	RouteClassLocalWorkload RouteClass = iota
	RouteClassBPFSpecial
	RouteClassWireguard
	RouteClassVXLANSameSubnet
	RouteClassVXLANTunnel
	RouteClassIPIPSameSubnet
	RouteClassIPIPTunnel
	RouteClassNoEncap
	RouteClassVXLANBlackhole
	RouteClassIPIPBlackhole
	RouteClassNoEncapBlackhole
)

// TargetType says what becomes of a packet that matches the route.
type TargetType string

// The target types.
const (
	// TargetTypeLocal: type local, scope host; this host is the destination.
	TargetTypeLocal TargetType = "local"
	// TargetTypeLinkLocalUnicast: unicast, scope link, with a static ARP entry where
	// DestMAC is set. A workload's own address.
	TargetTypeLinkLocalUnicast TargetType = "link-local-unicast"
	// TargetTypeGlobalUnicast: unicast, scope universe.
	TargetTypeGlobalUnicast TargetType = "global-unicast"
	// TargetTypeOnLink: unicast through GW with the onlink flag.
	TargetTypeOnLink TargetType = "on-link"
	// TargetTypeVXLAN: unicast through GW on a VXLAN device, onlink.
	TargetTypeVXLAN TargetType = "vxlan"
	// TargetTypeNoEncap: unicast through GW on the node's own network.
	TargetTypeNoEncap TargetType = "noencap"
	// TargetTypeBlackhole, …Prohibit, …Throw and …Unreachable use InterfaceNone.
	TargetTypeBlackhole   TargetType = "blackhole"
	TargetTypeProhibit    TargetType = "prohibit"
	TargetTypeThrow       TargetType = "throw"
	TargetTypeUnreachable TargetType = "unreachable"
)

// InterfaceNone is the interface name for targets that need no interface.
const InterfaceNone = "*NoOIF*"

// Target is one desired route. The zero value of each optional field means "the
// table's default" or "none". A target that the table's kernel cannot hold, such
// as one of the other address family, never gets there: Apply's error names it.
type Target struct {
	Type TargetType
	// CIDR is the destination. Bits below the prefix are dropped.
	CIDR netip.Prefix
	// TOS is the type of service that the route is for; IPv4 only.
	TOS uint8
	// GW is the gateway; Src the preferred source address.
	GW  netip.Addr
	Src netip.Addr
	// DestMAC, where set, becomes a permanent neighbour entry for CIDR's address, if
	// that is one address, on the link itself.
	DestMAC net.HardwareAddr
	// Protocol is the route protocol (RTPROT_*); zero means the table's default.
	Protocol int
	// Priority is the route's metric; zero means the kernel's default, which is 0 in
	// IPv4 and 1024 in IPv6.
	Priority int
	// MTU in bytes; zero means none.
	MTU int
	// MultiPath, where not empty, lists the next hops of a multi-path route. They
	// replace GW and the interface that the target is set on, which only serves as
	// the owner's name and may be InterfaceNone. Hops whose interface is not up are
	// left out; without any the target counts as down. IPv6 hops need a GW.
	MultiPath []NextHop
}

// NextHop is one path of a multi-path route.
type NextHop struct {
	// GW is the gateway; the zero value means that destinations are on the link.
	GW        netip.Addr
	IfaceName string
	// Weight from 1 to 256; zero means 1.
	Weight int
}
