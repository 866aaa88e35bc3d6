package demo

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/rtnl"
)

// nothing is how the view says that the kernel has no such thing.
const nothing = "none"

// view reads back from the kernel, in words, what the demo makes claims about.
// It is independent of the code that it checks: it only lists.
type view struct {
	kernel *rtnl.Handle
}

// device says whether a link exists, under which index.
func (v view) device(name string) string {
	link, err := v.kernel.LinkByName(name)
	switch {
	case errors.Is(err, unix.ENODEV):
		return nothing
	case err != nil:
		return err.Error()
	}
	return fmt.Sprintf("%s, ifindex %d", link.Type(), link.Attrs().Index)
}

// shaper says which rate the root TBF of a link enforces.
func (v view) shaper(name string) string {
	link, err := v.kernel.LinkByName(name)
	if err != nil {
		return nothing
	}
	qdiscs, err := v.kernel.QdiscList()
	if err != nil {
		return err.Error()
	}
	for _, qdisc := range qdiscs {
		tbf, ok := qdisc.(*netlink.Tbf)
		if ok && tbf.LinkIndex == link.Attrs().Index && tbf.Parent == netlink.HANDLE_ROOT {
			return fmt.Sprintf("TBF, %g Mbit/s", float64(tbf.Rate)*8/1e6)
		}
	}
	return nothing
}

// redirect says to which link a link's ingress filter sends packets.
func (v view) redirect(name string) string {
	link, err := v.kernel.LinkByName(name)
	if err != nil {
		return nothing
	}
	filters, err := v.kernel.FilterList(link.Attrs().Index, netlink.HANDLE_MIN_INGRESS)
	if err != nil {
		return nothing // the interface has no ingress qdisc
	}
	for _, filter := range filters {
		u32, ok := filter.(*netlink.U32)
		if !ok {
			continue
		}
		for _, action := range u32.Actions {
			if mirred, ok := action.(*netlink.MirredAction); ok {
				target, err := v.kernel.LinkByIndex(mirred.Ifindex)
				if err != nil {
					return fmt.Sprintf("to missing ifindex %d", mirred.Ifindex)
				}
				return "to " + target.Attrs().Name
			}
		}
	}
	return nothing
}

// route says through which link an address is routed.
func (v view) route(dst netip.Prefix) string {
	filter := rtnl.RouteFilter{Family: unix.AF_INET, Table: unix.RT_TABLE_MAIN}
	found := nothing
	err := v.kernel.RouteEach(filter, func(route *netlink.Route) error {
		if !sameNet(route.Dst, dst) {
			return nil
		}
		found = fmt.Sprintf("dead ifindex %d", route.LinkIndex)
		if link, err := v.kernel.LinkByIndex(route.LinkIndex); err == nil {
			found = fmt.Sprintf("%s, ifindex %d", link.Attrs().Name, route.LinkIndex)
		}
		return nil
	})
	if err != nil {
		return err.Error()
	}
	return found
}

// ifbs counts the bwcali devices. A list that a sweep changes while the kernel
// makes it is asked for again.
func (v view) ifbs() (int, error) {
	links, err := rtnl.RetryInterrupted(v.kernel.LinkList)
	if err != nil {
		return 0, err
	}
	count := 0
	for _, link := range links {
		if link.Type() == "ifb" && strings.HasPrefix(link.Attrs().Name, "bwcali") {
			count++
		}
	}
	return count, nil
}

// sameNet compares a destination as the netlink library gives it with a prefix.
func sameNet(n *net.IPNet, prefix netip.Prefix) bool {
	if n == nil {
		return false
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return ok && netip.PrefixFrom(addr.Unmap(), ones) == prefix
}
