package mocks

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// proto is a tcf_proto: the filters of one priority in one block.
type proto struct {
	block    uint32
	prio     uint16
	protocol uint16
	kind     string
	table    uint32 // of u32: the handle of its hash table
	filters  []*filter
}

type filter struct {
	netlink.Filter
	handle uint32
}

// FilterList lists the filters at one parent of one link. A link or a qdisc that is
// not there has none: no error.
func (h *Handle) FilterList(ifindex int, parent uint32) (filters []netlink.Filter, err error) {
	call := Call{Op: OpFilterList, Index: ifindex, Detail: "parent " + netlink.HandleStr(parent)}
	err = h.call(call, func() error {
		l := h.k.links[ifindex]
		if l == nil {
			return nil
		}
		block, err := l.block(parent)
		if err != nil {
			return nil
		}
		for _, p := range l.tc.protos {
			if p.block == block {
				filters = append(filters, p.list(l.index, l.tc.parents[block])...)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return filters, nil
}

// FilterAdd adds a filter. EEXIST: its handle is taken.
func (h *Handle) FilterAdd(f netlink.Filter) error {
	return h.onFilter(OpFilterAdd, f, func(l *link) error { return l.addFilter(f, true) })
}

// FilterReplace adds a filter or replaces the one of the same handle. A filter
// without a handle is always added.
func (h *Handle) FilterReplace(f netlink.Filter) error {
	return h.onFilter(OpFilterReplace, f, func(l *link) error { return l.addFilter(f, false) })
}

// FilterDel deletes a filter, or all of its priority where it has no handle.
// ENOENT: it is gone already. EINVAL: so is its qdisc.
func (h *Handle) FilterDel(f netlink.Filter) error {
	return h.onFilter(OpFilterDel, f, func(l *link) error { return l.deleteFilter(f) })
}

func (h *Handle) onFilter(op Op, f netlink.Filter, effect func(*link) error) error {
	attrs := f.Attrs()
	detail := fmt.Sprintf("%s prio %d parent %s", f.Type(), attrs.Priority, netlink.HandleStr(attrs.Parent))
	return h.call(Call{Op: op, Index: attrs.LinkIndex, Kind: f.Type(), Detail: detail}, func() error {
		if op == OpFilterDel && attrs.Priority == 0 {
			return unix.ENOENT // means all filters, which goes with no kind
		}
		l := h.k.links[attrs.LinkIndex]
		if l == nil {
			return unix.ENODEV
		}
		return effect(l)
	})
}

// block finds the filter block that a parent means: an ingress qdisc has one, a
// clsact qdisc has two.
func (l *link) block(parent uint32) (uint32, error) {
	if l.tc.root != nil && l.tc.root.Attrs().Handle == parent&handleMajor {
		if l.tc.root.Type() == "tbf" {
			return 0, unix.EOPNOTSUPP // it has a class, but no filters
		}
		return 0, unix.EINVAL // not classful
	}
	if l.tc.ingress == nil || parent&handleMajor != ingressHandle {
		return 0, unix.EINVAL
	}
	if l.tc.ingress.Type() == "ingress" {
		return netlink.HANDLE_MIN_INGRESS, nil
	}
	switch parent {
	case netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS:
		return parent, nil
	case ingressHandle:
		return 0, unix.EINVAL // the qdisc itself has no block
	}
	return 0, unix.ENOENT
}

// shownParent remembers under which parent a block's filters are dumped: the one
// that was last named to add any (tcf_block.classid).
func (t *tc) shownParent(block, parent uint32) {
	if t.parents == nil {
		t.parents = map[uint32]uint32{}
	}
	t.parents[block] = parent
}

// addFilter is tc_new_tfilter with NLM_F_CREATE, with or without NLM_F_EXCL.
func (l *link) addFilter(wanted netlink.Filter, exclusive bool) error {
	attrs := wanted.Attrs()
	if l.ns.lacks[wanted.Type()] {
		return unix.ENOENT
	}
	block, err := l.block(attrs.Parent)
	if err != nil {
		return err
	}
	l.tc.shownParent(block, attrs.Parent)
	p, created, err := l.proto(block, wanted)
	if err != nil {
		return err
	}
	handle := attrs.Handle
	i := slices.IndexFunc(p.filters, func(f *filter) bool { return f.handle == handle })
	switch {
	case i >= 0 && exclusive:
		return unix.EEXIST
	case i < 0:
		if handle, err = p.newHandle(handle); err != nil {
			return err
		}
	}
	targets, err := l.ns.mirredTargets(wanted)
	if err != nil {
		return err
	}
	f := &filter{Filter: copyFilter(wanted), handle: handle}
	if created {
		at := slices.IndexFunc(l.tc.protos, func(q *proto) bool { return q.block == block && q.prio > p.prio })
		if at < 0 {
			at = len(l.tc.protos)
		}
		l.tc.protos = slices.Insert(l.tc.protos, at, p)
	}
	if i >= 0 {
		l.ns.forgetRedirects(p.filters[i])
		p.filters[i] = f
	} else {
		p.filters = append(p.filters, f)
	}
	if p.kind == "u32" { // a hash table's nodes are in the order of their numbers
		slices.SortFunc(p.filters, func(a, b *filter) int { return cmp.Compare(a.handle, b.handle) })
	}
	for _, target := range targets {
		l.ns.rememberRedirect(target, f)
	}
	return nil
}

// proto finds the tcf_proto that a filter belongs to, or makes one.
func (l *link) proto(block uint32, wanted netlink.Filter) (p *proto, created bool, err error) {
	attrs := wanted.Attrs()
	prio := attrs.Priority
	if prio == 0 { // tcf_auto_prio
		prio = 0xc000
		for _, p := range l.tc.protos {
			if p.block == block && p.prio >= 0x8000 {
				prio = p.prio - 1
				break
			}
		}
	}
	for _, p := range l.tc.protos {
		if p.block != block || p.prio != prio {
			continue
		}
		if p.protocol != attrs.Protocol && attrs.Protocol != 0 || p.kind != wanted.Type() {
			return nil, false, unix.EINVAL
		}
		return p, false, nil
	}
	p = &proto{block: block, prio: prio, protocol: attrs.Protocol, kind: wanted.Type()}
	if p.kind == "u32" {
		p.table = l.newTable()
	}
	return p, true, nil
}

// newTable is gen_new_htid: the handles of a qdisc's u32 hash tables, 800:, 801: and
// so on, are not re-used as long as any is in use.
func (l *link) newTable() uint32 {
	inUse := func(table uint32) bool {
		return slices.ContainsFunc(l.tc.protos, func(p *proto) bool { return p.table == table })
	}
	if !slices.ContainsFunc(l.tc.protos, func(p *proto) bool { return p.table != 0 }) {
		l.tc.lastTable = 0
		return 0x80000000
	}
	for {
		l.tc.lastTable = l.tc.lastTable%0x7fe + 1
		if table := 0x80000000 | l.tc.lastTable<<20; !inUse(table) {
			return table
		}
	}
}

// newHandle gives a new filter its handle.
func (p *proto) newHandle(wanted uint32) (uint32, error) {
	first := uint32(1)
	if p.kind == "u32" {
		const tableBits, nodeBits = 0xfff00000, 0x00000fff
		if wanted&tableBits != 0 && wanted&tableBits != p.table {
			return 0, unix.EINVAL
		}
		if wanted != 0 {
			handle := p.table | wanted&nodeBits
			if slices.ContainsFunc(p.filters, func(f *filter) bool { return f.handle == handle }) {
				return 0, unix.ENOSPC // idr_alloc_u32 of that one number
			}
			return handle, nil
		}
		first = p.table | 0x800 // gen_new_kid
	}
	if wanted != 0 {
		return wanted, nil
	}
	for slices.ContainsFunc(p.filters, func(f *filter) bool { return f.handle == first }) {
		first++
	}
	return first, nil
}

// deleteFilter is tc_del_tfilter.
func (l *link) deleteFilter(wanted netlink.Filter) error {
	attrs := wanted.Attrs()
	block, err := l.block(attrs.Parent)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(l.tc.protos, func(p *proto) bool { return p.block == block && p.prio == attrs.Priority })
	if at < 0 {
		return unix.ENOENT
	}
	p := l.tc.protos[at]
	if p.protocol != attrs.Protocol && attrs.Protocol != 0 || p.kind != wanted.Type() {
		return unix.EINVAL
	}
	if attrs.Handle == 0 {
		l.dropProto(at)
		return nil
	}
	i := slices.IndexFunc(p.filters, func(f *filter) bool { return f.handle == attrs.Handle })
	if i < 0 {
		return unix.ENOENT
	}
	l.ns.forgetRedirects(p.filters[i])
	p.filters = slices.Delete(p.filters, i, i+1)
	if len(p.filters) == 0 {
		l.dropProto(at)
	}
	return nil
}

func (l *link) dropProto(at int) {
	for _, f := range l.tc.protos[at].filters {
		l.ns.forgetRedirects(f)
	}
	l.tc.protos = slices.Delete(l.tc.protos, at, at+1)
}

func (l *link) clearFilters() {
	for len(l.tc.protos) > 0 {
		l.dropProto(0)
	}
}

// list returns the filters as a dump shows them.
func (p *proto) list(ifindex int, parent uint32) (filters []netlink.Filter) {
	for _, f := range p.filters {
		shown := copyFilter(f.Filter)
		chain := uint32(0)
		*shown.Attrs() = netlink.FilterAttrs{
			LinkIndex: ifindex, Handle: f.handle, Parent: parent,
			Priority: p.prio, Protocol: p.protocol, Chain: &chain,
		}
		if u32, ok := shown.(*netlink.U32); ok {
			u32.RedirIndex = 0
			for _, action := range u32.Actions {
				if mirred, ok := action.(*netlink.MirredAction); ok {
					u32.RedirIndex = mirred.Ifindex
				}
			}
		}
		filters = append(filters, shown)
	}
	return filters
}

// copyFilter copies a filter with its actions, in the form that a dump shows:
// RedirIndex is an action, no selector is the match-all selector.
func copyFilter(f netlink.Filter) netlink.Filter {
	f = clone(f)
	switch f := f.(type) {
	case *netlink.U32:
		f.Actions = copyActions(f.Actions)
		hasMirred := slices.ContainsFunc(f.Actions, func(a netlink.Action) bool { return a.Type() == "mirred" })
		if f.RedirIndex != 0 && !hasMirred {
			f.Actions = append([]netlink.Action{netlink.NewMirredAction(f.RedirIndex)}, f.Actions...)
		}
		if f.Sel == nil {
			f.Sel = &netlink.TcU32Sel{Flags: nl.TC_U32_TERMINAL, Nkeys: 1, Keys: []netlink.TcU32Key{{}}}
		}
	case *netlink.MatchAll:
		f.Actions = copyActions(f.Actions)
	}
	return f
}

func copyActions(actions []netlink.Action) []netlink.Action {
	copied := make([]netlink.Action, len(actions))
	for i, action := range actions {
		copied[i] = clone(action)
	}
	return copied
}

func actionsOf(f netlink.Filter) []netlink.Action {
	switch f := f.(type) {
	case *netlink.U32:
		return f.Actions
	case *netlink.MatchAll:
		return f.Actions
	}
	return nil
}

// mirredTargets returns the links that a filter's actions point to. ENODEV: one is
// not there.
func (k *Kernel) mirredTargets(f netlink.Filter) (targets []*link, err error) {
	for _, action := range actionsOf(copyFilter(f)) {
		if mirred, ok := action.(*netlink.MirredAction); ok {
			target := k.links[mirred.Ifindex]
			if target == nil {
				return nil, unix.ENODEV
			}
			targets = append(targets, target)
		}
	}
	return targets, nil
}

func (k *Kernel) rememberRedirect(target *link, f *filter) {
	all := k.machine.redirects
	if all[target] == nil {
		all[target] = map[*filter]struct{}{}
	}
	all[target][f] = struct{}{}
}

func (k *Kernel) forgetRedirects(f *filter) {
	for _, action := range actionsOf(f.Filter) {
		if mirred, ok := action.(*netlink.MirredAction); ok {
			if target := k.links[mirred.Ifindex]; target != nil {
				delete(k.machine.redirects[target], f)
			}
		}
	}
}

// dropRedirects is mirred_device_event: the actions that point to a link which goes
// stay, point to nothing, and drop what they get.
func (k *Kernel) dropRedirects(gone *link) {
	for f := range k.machine.redirects[gone] {
		for _, action := range actionsOf(f.Filter) {
			if mirred, ok := action.(*netlink.MirredAction); ok && mirred.Ifindex == gone.index {
				mirred.Ifindex = 0
			}
		}
	}
	delete(k.machine.redirects, gone)
}
