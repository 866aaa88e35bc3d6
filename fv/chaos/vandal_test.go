package chaos_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/fv/infra"
	"github.com/manx-dataplane/manx/rtnl"
)

// vandal breaks what the agent has made. It does nothing that would make the result
// someone else's: what is left of it is the agent's to repair. Things go away under
// its hands; what fails is not counted.
type vandal struct {
	node  *infra.Node
	rt    *rtnl.Handle
	rand  *rand.Rand
	veths []string
	done  map[string]int
}

func newVandal(node *infra.Node, veths []string, random *rand.Rand) *vandal {
	GinkgoHelper()
	return &vandal{node: node, rt: infra.OpenKernel(node.NS).RT, rand: random, veths: veths, done: make(map[string]int)}
}

// run breaks random things until the time comes.
func (v *vandal) run(until time.Time) {
	deeds := v.deeds()
	for time.Now().Before(until) {
		deed := deeds[v.rand.IntN(len(deeds))]
		if deed.do(v.veths[v.rand.IntN(len(v.veths))]) == nil {
			v.done[deed.name]++
		}
		time.Sleep(time.Duration(v.rand.IntN(5)) * time.Millisecond)
	}
}

type deed struct {
	name string
	do   func(veth string) error
}

func (v *vandal) deeds() []deed {
	onIFB := func(do func(link netlink.Link) error) func(string) error {
		return func(veth string) error { return v.with(infra.IFBName(veth), do) }
	}
	onVeth := func(do func(link netlink.Link) error) func(string) error {
		return func(veth string) error { return v.with(veth, do) }
	}
	return []deed{
		{"root qdisc of a veth deleted", onVeth(v.deleteRoot)},
		{"root qdisc of a veth changed", onVeth(v.changeRoot)},
		{"queue of a veth changed", onVeth(v.changeQueue)},
		{"queue of a veth deleted", onVeth(v.deleteQueue)},
		{"ingress qdisc deleted", onVeth(v.deleteHook)},
		{"ingress qdisc replaced by a clsact", onVeth(v.replaceHook)},
		{"filters deleted", onVeth(v.deleteFilters)},
		{"filters replaced", v.replaceFilters},
		{"group of a veth changed", onVeth(v.changeGroup)},
		{"root qdisc of an IFB deleted", onIFB(v.deleteRoot)},
		{"root qdisc of an IFB changed", onIFB(v.changeRoot)},
		{"queue of an IFB changed", onIFB(v.changeQueue)},
		{"queue of an IFB deleted", onIFB(v.deleteQueue)},
		{"IFB deleted", onIFB(v.rt.LinkDel)},
		{"IFB set down", onIFB(v.rt.LinkSetDown)},
		{"MTU of an IFB changed", onIFB(func(link netlink.Link) error { return v.rt.LinkSetMTU(link, 1300) })},
		{"group of an IFB changed", onIFB(v.changeGroup)},
		{"IFB renamed", onIFB(func(link netlink.Link) error { return v.rt.LinkSetName(link, v.orphanName()) })},
		{"orphan made", func(string) error { return v.makeOrphan() }},
		{"sysctls changed", v.changeSysctls},
		{"routes flushed", func(string) error { return v.flushRoutes() }},
		{"route bent", onVeth(v.bendRoute)},
		{"stale route added", onVeth(v.addStaleRoute)},
	}
}

func (v *vandal) with(name string, do func(link netlink.Link) error) error {
	link, err := v.rt.LinkByName(name)
	if err != nil {
		return err
	}
	return do(link)
}

func (v *vandal) deleteRoot(link netlink.Link) error {
	return v.rt.QdiscDel(&netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_ROOT,
	}, QdiscType: "tbf"})
}

// changeRoot changes a TBF of the agent's; where there is none the kernel refuses, as
// the TBF would be someone else's.
func (v *vandal) changeRoot(link netlink.Link) error {
	const ours = 0xca11 << 16
	index := link.Attrs().Index
	qdiscs, err := v.rt.QdiscList()
	if err != nil {
		return err
	}
	for _, qdisc := range qdiscs {
		if a := qdisc.Attrs(); a.LinkIndex == index && a.Handle == ours {
			return v.rt.QdiscReplace(infra.TBF(index, netlink.HANDLE_ROOT, ours, 1e6*(1+v.rand.Uint64N(100)), 1<<20))
		}
	}
	return unix.ENOENT
}

// changeQueue changes the queue of a TBF of the agent's, and deleteQueue deletes it, so
// that nothing passes.
func (v *vandal) changeQueue(link netlink.Link) error {
	return v.rt.QdiscReplace(queueOf(link, 1+v.rand.Uint32N(1<<20)))
}

func (v *vandal) deleteQueue(link netlink.Link) error { return v.rt.QdiscDel(queueOf(link, 0)) }

func queueOf(link netlink.Link, length uint32) *rtnl.Bfifo {
	return &rtnl.Bfifo{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Parent: netlink.MakeHandle(0xca11, 1)},
		Limit:      length,
	}
}

func (v *vandal) deleteHook(link netlink.Link) error {
	return v.rt.QdiscDel(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_INGRESS, Handle: netlink.MakeHandle(0xffff, 0),
	}})
}

func (v *vandal) replaceHook(link netlink.Link) error {
	if err := v.deleteHook(link); err != nil {
		return err
	}
	return v.rt.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0),
	}})
}

func (v *vandal) deleteFilters(link netlink.Link) error {
	filters, err := v.rt.FilterList(link.Attrs().Index, netlink.HANDLE_MIN_INGRESS)
	if err == nil && len(filters) == 0 {
		err = unix.ENOENT
	}
	for _, filter := range filters {
		attrs := filter.Attrs()
		err = errors.Join(err, v.rt.FilterDel(&netlink.GenericFilter{FilterType: filter.Type(), FilterAttrs: netlink.FilterAttrs{
			LinkIndex: attrs.LinkIndex, Parent: netlink.HANDLE_MIN_INGRESS, Priority: attrs.Priority,
			Protocol: attrs.Protocol, Handle: attrs.Handle,
		}}))
	}
	return err
}

// replaceFilters has a veth's traffic go to another pod's IFB.
func (v *vandal) replaceFilters(veth string) error {
	return v.with(veth, func(link netlink.Link) error {
		if err := v.deleteFilters(link); err != nil {
			return err
		}
		other := v.veths[v.rand.IntN(len(v.veths))]
		return v.with(infra.IFBName(other), func(ifb netlink.Link) error {
			return v.rt.FilterAdd(&netlink.U32{
				FilterAttrs: netlink.FilterAttrs{
					LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS,
					Priority: uint16(1 + v.rand.IntN(0xffff)), Protocol: unix.ETH_P_ALL,
				},
				ClassId: netlink.MakeHandle(1, 1),
				Actions: []netlink.Action{&netlink.MirredAction{
					ActionAttrs:  netlink.ActionAttrs{Action: netlink.TC_ACT_STOLEN},
					MirredAction: netlink.TCA_EGRESS_REDIR,
					Ifindex:      ifb.Attrs().Index,
				}},
			})
		})
	})
}

func (v *vandal) changeGroup(link netlink.Link) error { return v.rt.LinkSetGroup(link, 77) }

func (v *vandal) orphanName() string {
	return fmt.Sprintf("%s%09x", infra.IFBPrefix, v.rand.Uint64N(1<<36))
}

func (v *vandal) makeOrphan() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = v.orphanName()
	return v.rt.LinkAdd(&netlink.Ifb{LinkAttrs: attrs})
}

func (v *vandal) changeSysctls(veth string) error {
	return v.node.NS.Do(func() error {
		return errors.Join(
			os.WriteFile("/proc/sys/net/ipv4/conf/"+veth+"/rp_filter", []byte("0"), 0),
			os.WriteFile("/proc/sys/net/ipv4/conf/"+veth+"/proxy_arp", []byte("0"), 0),
			os.WriteFile("/proc/sys/net/ipv6/conf/"+veth+"/accept_ra", []byte("2"), 0),
		)
	})
}

// flushRoutes deletes all of the agent's routes.
func (v *vandal) flushRoutes() error {
	var ops []rtnl.RouteOp
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		err := v.rt.RouteEach(rtnl.RouteFilter{Family: family, Table: unix.RT_TABLE_MAIN}, func(route *netlink.Route) error {
			if route.Protocol == infra.RouteProtocol {
				ops = append(ops, rtnl.RouteOp{Delete: true, Route: netlink.Route{
					Family: family, Table: unix.RT_TABLE_MAIN, Scope: route.Scope, Protocol: infra.RouteProtocol,
					Dst: &net.IPNet{IP: slices.Clone(route.Dst.IP), Mask: slices.Clone(route.Dst.Mask)}, LinkIndex: route.LinkIndex,
				}})
			}
			return nil
		})
		if err != nil && !errors.Is(err, unix.EINTR) { // some are enough
			return err
		}
	}
	errs := v.rt.RouteBatch(ops)
	if len(errs) > 0 && !slices.Contains(errs, nil) {
		return errors.Join(errs...)
	}
	return nil
}

// bendRoute replaces some pod's routes by routes through another pod's interface.
func (v *vandal) bendRoute(link netlink.Link) error {
	n := byte(1 + v.rand.IntN(slots))
	return v.replaceRoutes(link, net.IP{10, 65, 0, n}, net.IP{0xfd, 0x65, 15: n})
}

// addStaleRoute routes an address that no pod has through a pod's interface.
func (v *vandal) addStaleRoute(link netlink.Link) error {
	n := byte(1 + v.rand.IntN(slots))
	return v.replaceRoutes(link, net.IP{10, 67, 0, n}, net.IP{0xfd, 0x67, 15: n})
}

func (v *vandal) replaceRoutes(link netlink.Link, v4, v6 net.IP) error {
	protocol := netlink.RouteProtocol(infra.RouteProtocol)
	if v.rand.IntN(2) == 0 {
		protocol = unix.RTPROT_BOOT // someone else's, which on a pod's interface must go all the same
	}
	return errors.Join(v.rt.RouteBatch([]rtnl.RouteOp{
		{Route: netlink.Route{
			Family: unix.AF_INET, Table: unix.RT_TABLE_MAIN, Dst: &net.IPNet{IP: v4, Mask: net.CIDRMask(32, 32)},
			Scope: netlink.SCOPE_LINK, Protocol: protocol, LinkIndex: link.Attrs().Index,
		}},
		{Route: netlink.Route{
			Family: unix.AF_INET6, Table: unix.RT_TABLE_MAIN, Dst: &net.IPNet{IP: v6, Mask: net.CIDRMask(128, 128)},
			Protocol: protocol, LinkIndex: link.Attrs().Index,
		}},
	})...)
}

// missed returns the deeds that were never done.
func (v *vandal) missed() []string {
	var names []string
	for _, deed := range v.deeds() {
		if v.done[deed.name] == 0 {
			names = append(names, deed.name)
		}
	}
	return names
}

func (v *vandal) report() string { return counts(v.done) }
