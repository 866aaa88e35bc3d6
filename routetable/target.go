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
// table's default" or "none".
type Target struct {
	Type TargetType
	// CIDR is the destination, with its host bits zero.
	CIDR netip.Prefix
	// GW is the gateway; Src the preferred source address.
	GW  netip.Addr
	Src netip.Addr
	// DestMAC, where set, becomes a permanent neighbour entry for CIDR's address.
	DestMAC net.HardwareAddr
	// Protocol is the route protocol (RTPROT_*); zero means the table's default.
	Protocol int
	// Priority is the route's metric; zero means the kernel's default.
	Priority int
	// MTU in bytes; zero means none.
	MTU int
	// MultiPath, where not empty, lists the next hops of a multi-path route.
	MultiPath []NextHop
}

// NextHop is one path of a multi-path route.
type NextHop struct {
	GW        netip.Addr
	IfaceName string
	// Weight from 1 to 256; zero means 1.
	Weight int
}
