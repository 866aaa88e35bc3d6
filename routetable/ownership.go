package routetable

import (
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ObservedRoute is a route of the kernel's table, as an OwnershipPolicy sees it.
type ObservedRoute struct {
	CIDR netip.Prefix
	// Type is the route's type (unix.RTN_*) and Protocol its protocol (RTPROT_*).
	Type     int
	Protocol int
	// IfaceName is the interface that the route goes through: empty where it goes
	// through none or several.
	IfaceName string
}

// OwnershipPolicy decides what in the kernel's table is ours. Its answers for the
// same arguments must not change. It is called by Apply.
//
// Whatever it says, routes of protocol "kernel" and IPv6 link-local and multicast
// routes are never ours, and what the RouteTable itself has written is.
type OwnershipPolicy interface {
	// RouteIsOurs reports whether a route may be removed or replaced where it is not
	// wanted.
	RouteIsOurs(route ObservedRoute) bool
	// IfaceIsOurs reports whether an interface is one of those whose routes are for
	// us to set. On such an interface a wanted route replaces one that is in its
	// place whoever made it, and a route of ours that nobody wants, while nobody has
	// any route there, waits out the grace period.
	IfaceIsOurs(name string) bool
}

// WorkloadPolicy is the policy for a table that is shared with other programs, as
// the main table is.
type WorkloadPolicy struct {
	// WorkloadPrefixes are the name prefixes of workload interfaces, such as
	// "cali". Names are ours by prefix.
	WorkloadPrefixes []string
	// OwnIfaces are further interfaces that are ours alone, such as
	// "vxlan.calico": every route through them is ours.
	OwnIfaces []string
	// Protocols are the route protocols that mark a route as ours, through
	// whatever interface or none. Protocols that others use as well, such as
	// RTPROT_BOOT and RTPROT_STATIC, count only on workload interfaces.
	Protocols []int
	// RemoveExternalRoutes makes every route through a workload interface ours,
	// whatever its protocol.
	RemoveExternalRoutes bool
}

// RouteIsOurs implements OwnershipPolicy.
func (p WorkloadPolicy) RouteIsOurs(route ObservedRoute) bool {
	if slices.Contains(p.OwnIfaces, route.IfaceName) {
		return true
	}
	ourProtocol := slices.Contains(p.Protocols, route.Protocol)
	if p.isWorkload(route.IfaceName) {
		return p.RemoveExternalRoutes || ourProtocol
	}
	return ourProtocol && !sharedProtocol(route.Protocol)
}

// IfaceIsOurs implements OwnershipPolicy.
func (p WorkloadPolicy) IfaceIsOurs(name string) bool {
	return p.isWorkload(name) || slices.Contains(p.OwnIfaces, name)
}

func (p WorkloadPolicy) isWorkload(name string) bool {
	return slices.ContainsFunc(p.WorkloadPrefixes, func(prefix string) bool {
		return prefix != "" && strings.HasPrefix(name, prefix)
	})
}

// sharedProtocol reports whether a protocol is one that ip(8), the kernel and
// boot scripts use, so that it marks nobody's routes.
func sharedProtocol(protocol int) bool {
	return protocol <= unix.RTPROT_STATIC
}

// ExclusivePolicy is the policy for a table that is ours alone, as a numbered one
// usually is: every route in it is ours, and no interface is, so that nothing
// waits for a grace period.
type ExclusivePolicy struct{}

// RouteIsOurs implements OwnershipPolicy.
func (ExclusivePolicy) RouteIsOurs(ObservedRoute) bool { return true }

// IfaceIsOurs implements OwnershipPolicy.
func (ExclusivePolicy) IfaceIsOurs(string) bool { return false }
