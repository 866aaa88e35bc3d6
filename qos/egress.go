package qos

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// syncEgress makes an IFB shape what comes from the workload. The order of
// operations loses no packet and leaves no moment without the limit:
//
//	set:   IFB → TBF on it, its queue → up → ingress qdisc → filter (which switches over)
//	clear: filter → ingress qdisc → IFB
//	fresh: clear; wait until the IFB is gone; set
//
// The TBF comes before "up" since the kernel has to wait for RCU to change the
// root qdisc of a device that is up.
func (s *Syncer) syncEgress(veth *Interface, limit *Limit) error {
	name := IFBName(veth.Name)
	ifb := s.snapshot.ByName(name)
	if limit == nil {
		// The IFB, now an orphan, goes with the sweep that this Apply ends with.
		if s.witness(veth) == nil && !s.snapshot.hasFiltersOfOurs(veth) && !s.hasEmptyHookOfOurs(veth) {
			return nil
		}
		s.sweepLater(ReasonLimitCleared)
		s.todo.reasons[name] = ReasonLimitCleared
		return s.detach(veth, 0)
	}
	if s.lacksAny() || s.mustAwait(name) {
		return nil
	}
	switch {
	case ifb == nil:
		var err error
		if ifb, err = s.createIFB(veth, name); err != nil {
			return s.unlessLacking("ifb", fmt.Errorf("create IFB device: %w", err))
		}
	case ifb.Kind != "ifb":
		return fmt.Errorf("the name %s is taken by a device of kind %q (ifindex %d): %w", name, ifb.Kind, ifb.Index, unix.EEXIST)
	case !veth.RedirectsTo(ifb.Index) && s.memory.unused[ifb.Index] != veth.Index:
		s.log.WithFields(logrus.Fields{"iface": veth.Name, "ifindex": veth.Index, "ifb": name, "reason": ReasonStale}).
			Info("Replacing an IFB device of an earlier interface of this name")
		s.await(name)
		return s.retire(ifb, s.attachments()[ifb.Index], ReasonStale, true)
	}
	kind, err := s.setUpShaper(veth, ifb, *limit)
	if err == nil {
		delete(s.memory.unused, ifb.Index)
		return nil
	}
	if err := s.unlessLacking(kind, err); err != nil {
		return err
	}
	if veth.RedirectsTo(ifb.Index) {
		return nil
	}
	return s.retire(ifb, []*Interface{veth}, ReasonStale, false) // with the hook that was made for it
}

// createIFB makes the device, which nothing redirects to yet. If what comes after
// fails, the next attempt goes on with it.
func (s *Syncer) createIFB(veth *Interface, name string) (*Interface, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	attrs.MTU = veth.MTU
	link := &netlink.Ifb{LinkAttrs: attrs}
	if err := s.kernel.LinkAdd(link); err != nil {
		if !isUnsupported("ifb", err) {
			s.todo.resync = true // it may be there all the same, and nothing else would find it
		}
		return nil, err
	}
	ifb := &Interface{Name: name, Index: link.Attrs().Index, Kind: "ifb", MTU: veth.MTU}
	s.addInterface(ifb)
	s.memory.unused[ifb.Index] = veth.Index
	s.disableIPv6(name)
	s.log.WithFields(logrus.Fields{"iface": veth.Name, "ifindex": veth.Index, "ifb": name}).Debug("Created IFB device")
	return ifb, nil
}

// disableIPv6 spares a new IFB an address and routes. It needs none to pass IPv6
// packets on, and the kernel keeps the multicast and link-local routes of all
// devices in one list each, which it walks whenever a device comes up: with a
// thousand IFBs that is most of what "up" costs. So it is worth trying, and no
// reason to fail.
func (s *Syncer) disableIPv6(ifb string) {
	if s.config.Sysctls == nil {
		return
	}
	err := s.config.Sysctls.WriteSysctl("net/ipv6/conf/"+ifb+"/disable_ipv6", "1")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.WithField("ifb", ifb).WithError(err).Debug("Could not turn IPv6 off on an IFB device")
	}
}

// setUpShaper makes an IFB shape what the veth sends, and does nothing where it
// does. With an error it says what kind of object the kernel refused to create, if
// it was that.
func (s *Syncer) setUpShaper(veth, ifb *Interface, limit Limit) (kind string, err error) {
	ref := linkRef(ifb.Name, ifb.Index)
	if ifb.MTU != veth.MTU {
		if err := s.kernel.LinkSetMTU(ref, veth.MTU); err != nil {
			return "", fmt.Errorf("set MTU of IFB device: %w", err)
		}
		ifb.MTU = veth.MTU
	}
	if kind, err := s.shape(ifb, limit, veth); err != nil {
		return kind, err
	}
	if !ifb.Up {
		if err := s.kernel.LinkSetUp(ref); err != nil {
			return "", fmt.Errorf("set up IFB device: %w", err)
		}
		ifb.Up = true
	}
	if s.isRedirected(veth, ifb) {
		return "", nil
	}
	created, err := s.ensureHook(veth)
	if err != nil {
		return "ingress", err
	}
	return s.redirect(veth, ifb, created)
}

// ensureHook makes an ingress qdisc where the veth has none, and reports whether
// it did.
func (s *Syncer) ensureHook(veth *Interface) (created bool, err error) {
	if veth.Hook != HookNone {
		if _, known := s.memory.hookIsOurs[veth.Index]; !known {
			s.memory.hookIsOurs[veth.Index] = s.snapshot.hasFiltersOfOurs(veth)
		}
		return false, nil
	}
	hook := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: veth.Index, Parent: netlink.HANDLE_INGRESS, Handle: hookHandle,
	}}
	err = s.kernel.QdiscAdd(hook)
	if !errors.Is(err, unix.EEXIST) && !isUnsupported("ingress", err) {
		s.memory.hookIsOurs[veth.Index] = true // if it failed it may have taken effect all the same
	}
	if err != nil {
		return false, fmt.Errorf("add ingress qdisc: %w", err)
	}
	veth.Hook, veth.Filters = HookIngress, nil
	return true, nil
}

// isRedirected reports whether the veth has exactly the filter that redirect
// would leave.
func (s *Syncer) isRedirected(veth, ifb *Interface) bool {
	good, others := false, false
	for _, filter := range veth.Filters {
		switch {
		case !s.snapshot.isOurs(filter):
		case !good && filter.Marked && filter.Target == ifb.Index && !s.isHidden(filter, veth.Filters):
			good = true
		default:
			others = true
		}
	}
	return good && !others
}

// redirect adds our filter, if there is none in its place, and then deletes all
// others that are ours: those of other implementations with our device as their
// target, and those whose device is gone. At a new hook there are none. With an
// error it says what kind of object the kernel refused to create, if it was that.
func (s *Syncer) redirect(veth, ifb *Interface, newHook bool) (kind string, err error) {
	if !newHook {
		filters, err := listFilters(s.kernel, veth.Index)
		if err != nil {
			return "", err
		}
		veth.Filters = filters
	}
	filters := veth.Filters
	isGood := func(filter Filter) bool {
		return filter.Marked && filter.Target == ifb.Index && !s.isHidden(filter, filters)
	}
	keep := slices.IndexFunc(filters, isGood)
	if keep < 0 {
		add := s.placeFilter(veth.Index, ifb.Index, filters)
		if err := s.kernel.FilterAdd(add); err != nil {
			return "u32", fmt.Errorf("add redirect filter: %w", err)
		}
		veth.Filters = append(slices.Clone(filters), newFilter(add))
	}
	for n, filter := range filters {
		if n == keep || !s.snapshot.isOurs(filter) {
			continue
		}
		if err := s.deleteFilter(veth, filter); err != nil {
			return "", err
		}
	}
	return "", nil
}

// placeFilter returns our filter for the place that doc.go promises.
func (s *Syncer) placeFilter(veth, ifb int, filters []Filter) *netlink.U32 {
	attrs := netlink.FilterAttrs{
		LinkIndex: veth,
		Parent:    netlink.HANDLE_MIN_INGRESS,
		Priority:  filterPriority,
		Protocol:  unix.ETH_P_ALL,
	}
	used := make(map[uint16]bool)
	nodes := make(map[uint32]bool)
	for _, filter := range filters {
		if !s.snapshot.isOurs(filter) {
			used[filter.Priority] = true
		}
	}
	for used[attrs.Priority] && attrs.Priority > 0 {
		attrs.Priority++
	}
	if rival, ok := s.rival(filters); ok {
		attrs.Priority = rival.Priority
		for _, filter := range filters {
			if filter.Priority == rival.Priority {
				nodes[u32Node(filter.Handle)] = true
			}
		}
		for attrs.Handle = 1; nodes[attrs.Handle]; attrs.Handle++ {
		}
	}
	return &netlink.U32{
		FilterAttrs: attrs,
		ClassId:     filterMark,
		Actions:     []netlink.Action{netlink.NewMirredAction(ifb)},
	}
}

// rival returns the first filter by which the CNI bandwidth plugin redirects to a
// device of its own.
func (s *Syncer) rival(filters []Filter) (first Filter, ok bool) {
	for _, filter := range filters {
		target := s.snapshot.Interfaces[filter.Target]
		if filter.Kind != "u32" || filter.Protocol != unix.ETH_P_ALL || filter.Marked ||
			target == nil || target.Kind != "ifb" || !isPluginIFBName(target.Name) {
			continue
		}
		if !ok || filter.before(first) {
			first, ok = filter, true
		}
	}
	return first, ok
}

// isHidden reports whether the plugin's filter takes the packets before this one
// sees them.
func (s *Syncer) isHidden(filter Filter, filters []Filter) bool {
	rival, ok := s.rival(filters)
	return ok && rival.before(filter)
}

// detach deletes filters of ours from an interface: those that redirect to the
// target, or all where that is zero. It then deletes the ingress qdisc, if that is
// ours and empty.
func (s *Syncer) detach(veth *Interface, target int) error {
	if veth.Hook == HookNone {
		return nil
	}
	filters, err := listFilters(s.kernel, veth.Index)
	if err != nil {
		return err
	}
	veth.Filters = filters
	left := 0
	for _, filter := range filters {
		if !s.snapshot.isOurs(filter) || target != 0 && filter.Target != target && filter.Target != 0 {
			left++
			continue
		}
		if err := s.deleteFilter(veth, filter); err != nil {
			return err
		}
	}
	mine, known := s.memory.hookIsOurs[veth.Index]
	if !known {
		mine = left < len(filters) || s.witness(veth) != nil
	}
	if left > 0 || !mine || veth.Hook != HookIngress {
		return nil
	}
	s.memory.hookIsOurs[veth.Index] = true // which nothing tells once its filters are gone
	hook := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: veth.Index, Parent: netlink.HANDLE_INGRESS, Handle: hookHandle,
	}}
	if err := s.kernel.QdiscDel(hook); err != nil {
		return fmt.Errorf("delete ingress qdisc: %w", err)
	}
	veth.Hook = HookNone
	return nil
}

// deleteFilter deletes one filter by its full handle: a handle of zero would
// delete all of its priority.
func (s *Syncer) deleteFilter(veth *Interface, filter Filter) error {
	if filter.Handle == 0 {
		return errors.New("the kernel lists a filter without a handle")
	}
	attrs := netlink.FilterAttrs{
		LinkIndex: veth.Index,
		Parent:    netlink.HANDLE_MIN_INGRESS,
		Priority:  filter.Priority,
		Protocol:  filter.Protocol,
		Handle:    filter.Handle,
	}
	if filter.Chain != 0 {
		attrs.Chain = &filter.Chain
	}
	if err := s.kernel.FilterDel(&netlink.GenericFilter{FilterAttrs: attrs, FilterType: filter.Kind}); err != nil {
		return fmt.Errorf("delete redirect filter: %w", err)
	}
	if n := slices.Index(veth.Filters, filter); n >= 0 {
		veth.Filters = slices.Concat(veth.Filters[:n], veth.Filters[n+1:])
	}
	return nil
}

// before reports whether the kernel asks f first: by priority, then, among u32
// filters, by node number.
func (f Filter) before(other Filter) bool {
	if f.Priority != other.Priority {
		return f.Priority < other.Priority
	}
	return u32Node(f.Handle) < u32Node(other.Handle)
}

// u32Node is TC_U32_NODE.
func u32Node(handle uint32) uint32 { return handle & 0xfff }
