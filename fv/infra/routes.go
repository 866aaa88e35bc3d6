package infra

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// RouteProtocol is the protocol of the agent's routes.
const RouteProtocol = 80

// OurRoutes returns the main table's routes of the agent's protocol, as prefix and
// ifindex, sorted.
func (k *Kernel) OurRoutes() ([]string, error) {
	var texts []string
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := retry(func() ([]netlink.Route, error) {
			filter := &netlink.Route{Protocol: RouteProtocol, Table: unix.RT_TABLE_MAIN}
			return k.nl.RouteListFiltered(family, filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, err
		}
		for _, route := range routes {
			texts = append(texts, fmt.Sprintf("%s dev %d", route.Dst, route.LinkIndex))
		}
	}
	slices.Sort(texts)
	return texts, nil
}

// CheckOurRoutes returns nil where the agent's routes are exactly one for each
// address of each of these pods, through its present interface.
func (k *Kernel) CheckOurRoutes(pods ...*Pod) error {
	got, err := k.OurRoutes()
	if err != nil {
		return err
	}
	var want []string
	for _, pod := range pods {
		for _, addr := range []netip.Addr{pod.IPv4, pod.IPv6} {
			want = append(want, fmt.Sprintf("%s dev %d", netip.PrefixFrom(addr, addr.BitLen()), pod.Index))
		}
	}
	missing := slices.DeleteFunc(slices.Clone(want), func(r string) bool { return slices.Contains(got, r) })
	stale := slices.DeleteFunc(slices.Clone(got), func(r string) bool { return slices.Contains(want, r) })
	if len(missing)+len(stale) == 0 && len(got) == len(want) {
		return nil
	}
	return fmt.Errorf("%d routes, want %d; %d missing: %v; %d stale: %v", len(got), len(want),
		len(missing), firstTen(missing), len(stale), firstTen(stale))
}
