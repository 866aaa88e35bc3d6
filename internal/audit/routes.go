package audit

import (
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/rtnl"
)

// hop is one next hop of a route.
type hop struct {
	dst   netip.Prefix
	index int
	dead  bool // the kernel itself says that it cannot be used
}

// readHops reads the next hops of the table's routes, without those that the
// kernel makes for an interface's own addresses.
func (a *audit) readHops() ([]hop, error) {
	var hops []hop
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		read, err := a.readFamily(family)
		if err != nil {
			return nil, err
		}
		hops = append(hops, read...)
	}
	return hops, nil
}

func (a *audit) readFamily(family int) ([]hop, error) {
	return rtnl.RetryInterrupted(func() ([]hop, error) {
		var hops []hop
		err := a.Kernel.RouteEach(rtnl.RouteFilter{Family: family, Table: int(a.Table)}, func(route *netlink.Route) error {
			if route.Protocol == unix.RTPROT_KERNEL {
				return nil
			}
			dst := prefixOf(route.Dst, family)
			add := func(index, flags int) {
				if index != 0 {
					hops = append(hops, hop{dst: dst, index: index, dead: flags&(unix.RTNH_F_DEAD|unix.RTNH_F_LINKDOWN) != 0})
				}
			}
			add(route.LinkIndex, route.Flags)
			for _, next := range route.MultiPath {
				add(next.LinkIndex, next.Flags)
			}
			return nil
		})
		return hops, err
	})
}

func prefixOf(dst *net.IPNet, family int) netip.Prefix {
	if dst == nil {
		if family == unix.AF_INET {
			return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		}
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	addr, _ := netip.AddrFromSlice(dst.IP)
	ones, _ := dst.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), ones)
}

// compareRoutes compares the routes to workload interfaces, and to interfaces that
// do not exist, with those whose interface is up.
func (a *audit) compareRoutes() Pair {
	links, hops, err := a.readRouting()
	if err != nil {
		return noLook(PairRoutes, err)
	}
	p := &Pair{
		Name: PairRoutes,
		Left: Number{Of: "routes to workload interfaces"}, Right: Number{Of: "whose interface is up"},
		Meaning: "Traffic to these addresses goes nowhere: the interface of the route is gone or down. Either the workload " +
			"has ended and nobody removed the route, or it has come back under another interface and the route did not follow.",
		Do: "Look for a live workload with that address. If there is one, have the agent re-read the routes (restart it, or wait " +
			"for routeRefreshInterval). If there is none, the agent that made the route should remove it; see its log for the interface.",
		DoNot: "Do not delete the route by hand while a workload with that address is starting: its interface may be about to come up.",
	}
	for _, h := range hops {
		link := links[h.index]
		if link != nil && !a.isWorkload(link.Name) {
			continue
		}
		p.Left.Count++
		switch {
		case link == nil:
			p.offend(h.dst.String(), "through ifindex %d, which does not exist", h.index)
		case isDown(link):
			p.offend(h.dst.String(), "through %s (ifindex %d), which is down", link.Name, h.index)
		case h.dead:
			p.offend(h.dst.String(), "through %s (ifindex %d): the kernel has marked it dead", link.Name, h.index)
		default:
			p.Right.Count++
		}
	}
	sortOffenders(p)
	return p.settle()
}

func (a *audit) readRouting() (map[int]*netlink.LinkAttrs, []hop, error) {
	// Routes first: an interface that comes meanwhile is no gap.
	hops, err := a.readHops()
	if err != nil {
		return nil, nil, err
	}
	list, err := rtnl.RetryInterrupted(a.Kernel.LinkList)
	if err != nil {
		return nil, nil, err
	}
	links := make(map[int]*netlink.LinkAttrs, len(list))
	for _, link := range list {
		links[link.Attrs().Index] = link.Attrs()
	}
	return links, hops, nil
}

// compareAddresses compares the endpoints' addresses with those that are routed to
// their interface.
func (a *audit) compareAddresses() Pair {
	switch {
	case a.EndpointsDir == "":
		return notAsked(PairAddresses, "--endpoints DIR")
	case a.endptErr != nil:
		return noLook(PairAddresses, a.endptErr)
	}
	links, hops, err := a.readRouting()
	if err != nil {
		return noLook(PairAddresses, err)
	}
	p := &Pair{
		Name: PairAddresses,
		Left: Number{Of: "addresses of endpoints"}, Right: Number{Of: "routed to their interface"},
		Meaning: "The node has a workload with this address and no route to it: the workload cannot be reached, though it may " +
			"report ready. Typical after a workload was re-created under the same interface name.",
		Do: "Have the agent re-read interfaces and routes (restart it), then look again; see its log for the interface's index.",
		DoNot: "Do not delete the pod before its interface, endpoint and the agent's log have been written down: deleting it " +
			"hides the fault until the next time.",
	}
	through := make(map[netip.Prefix][]string)
	for _, h := range hops {
		name := "an interface that does not exist"
		if link := links[h.index]; link != nil {
			name = link.Name
		}
		through[h.dst] = append(through[h.dst], name)
	}
	for name, nets := range a.endpoints.nets {
		for _, prefix := range nets {
			p.Left.Count++
			switch found := through[prefix.Masked()]; {
			case slices.Contains(found, name):
				p.Right.Count++
			case len(found) == 0:
				p.offend(prefix.String(), "no route, for %s of the endpoint %s", name, strings.Join(a.endpoints.ids[name], " and "))
			default:
				p.offend(prefix.String(), "routed through %s instead of %s", strings.Join(found, ", "), name)
			}
		}
	}
	sortOffenders(p)
	return p.settle()
}
