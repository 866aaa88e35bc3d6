package mocks

import (
	"fmt"
	"reflect"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/rtnl"
)

// tc is a link's traffic control state.
type tc struct {
	root       netlink.Qdisc // nil: the default one, or none
	queue      netlink.Qdisc // below a root TBF; nil: the kernel's own, which no dump shows
	ingress    netlink.Qdisc // an *Ingress or a *Clsact
	hadIngress bool          // dev_ingress_queue_create has been called
	activated  bool          // the default root qdisc has been attached
	autoHandle uint32
	lastTable  uint32            // see newTable
	protos     []*proto          // in each block by priority
	parents    map[uint32]uint32 // of each block, see shownParent
}

const (
	handleMinor   = 0x0000ffff
	handleMajor   = 0xffff0000
	ingressHandle = 0xffff0000
	ingressParent = uint32(netlink.HANDLE_INGRESS)
)

// QdiscList dumps the qdiscs of all links.
func (h *Handle) QdiscList() ([]netlink.Qdisc, error) {
	var qdiscs []netlink.Qdisc
	err := h.call(Call{Op: OpQdiscList}, func() error {
		for _, l := range h.k.sortedLinks() {
			qdiscs = append(qdiscs, l.qdiscs()...)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return qdiscs, nil
}

// QdiscAdd creates a qdisc. EEXIST: its place is taken. ENODEV: its link is gone.
// ENOENT: this kernel lacks that kind.
func (h *Handle) QdiscAdd(qdisc netlink.Qdisc) error {
	return h.onQdisc(OpQdiscAdd, qdisc, func(l *link) error { return l.modifyQdisc(qdisc, unix.NLM_F_EXCL) })
}

// QdiscReplace creates a qdisc, changes the one of the same handle and kind in
// place, or grafts it over another.
func (h *Handle) QdiscReplace(qdisc netlink.Qdisc) error {
	return h.onQdisc(OpQdiscReplace, qdisc, func(l *link) error { return l.modifyQdisc(qdisc, unix.NLM_F_REPLACE) })
}

// QdiscChange changes a TBF in place: ENOENT where its place has none of that
// handle.
func (h *Handle) QdiscChange(tbf *netlink.Tbf) error {
	return h.onQdisc(OpQdiscChange, tbf, func(l *link) error {
		current, err := l.qdiscAt(tbf.Attrs())
		switch {
		case err != nil:
			return err
		case current == nil || current.Attrs().Handle != tbf.Handle && l.qdiscByHandle(tbf.Handle) == nil:
			return unix.ENOENT
		}
		return l.modifyQdisc(tbf, unix.NLM_F_REPLACE)
	})
}

// QdiscDel deletes a qdisc. ENOENT or EINVAL: there is no such qdisc.
func (h *Handle) QdiscDel(qdisc netlink.Qdisc) error {
	return h.onQdisc(OpQdiscDel, qdisc, func(l *link) error { return l.deleteQdisc(qdisc.Attrs()) })
}

func (h *Handle) onQdisc(op Op, qdisc netlink.Qdisc, effect func(*link) error) error {
	attrs := qdisc.Attrs()
	detail := fmt.Sprintf("%s %s", qdisc.Type(), netlink.HandleStr(attrs.Handle))
	return h.call(Call{Op: op, Index: attrs.LinkIndex, Kind: qdisc.Type(), Detail: detail}, func() error {
		l := h.k.links[attrs.LinkIndex]
		if l == nil {
			return unix.ENODEV
		}
		return effect(l)
	})
}

// qdiscs returns the link's qdiscs as a dump shows them.
func (l *link) qdiscs() (list []netlink.Qdisc) {
	switch {
	case l.tc.root != nil:
		list = append(list, shownQdisc(l.tc.root))
		if l.tc.queue != nil {
			list = append(list, shownQdisc(l.tc.queue))
		}
	case l.tc.activated:
		kind := "noqueue"
		if l.kind == "ifb" {
			kind = "pfifo_fast"
		}
		attrs := netlink.QdiscAttrs{LinkIndex: l.index, Parent: netlink.HANDLE_ROOT, Refcnt: 2}
		list = append(list, shownQdisc(&netlink.GenericQdisc{QdiscAttrs: attrs, QdiscType: kind}))
	}
	if l.tc.ingress != nil {
		list = append(list, shownQdisc(l.tc.ingress))
	}
	return list
}

// shownQdisc copies a qdisc in the form that rtnl gives it.
func shownQdisc(q netlink.Qdisc) netlink.Qdisc {
	switch q.(type) {
	case *netlink.Tbf, *rtnl.Bfifo, *netlink.Ingress, *netlink.Clsact:
		q = clone(q)
	default:
		q = &netlink.GenericQdisc{QdiscAttrs: *q.Attrs(), QdiscType: q.Type()}
	}
	q.Attrs().Statistics = &netlink.QdiscStatistics{Basic: &netlink.GnetStatsBasic{}, Queue: &netlink.GnetStatsQueue{}}
	return q
}

// modifyQdisc is tc_modify_qdisc with NLM_F_CREATE and either of NLM_F_EXCL and
// NLM_F_REPLACE.
func (l *link) modifyQdisc(wanted netlink.Qdisc, flag int) error {
	attrs := wanted.Attrs()
	current, err := l.qdiscAt(attrs)
	if err != nil {
		return err
	}
	exclusive := flag == unix.NLM_F_EXCL
	switch {
	case current == nil && attrs.Handle == 0:
		return l.graft(wanted)
	case attrs.Handle == 0:
		if current.Type() != wanted.Type() {
			return l.graft(wanted)
		}
	case current == nil || current.Attrs().Handle != attrs.Handle:
		if current != nil && exclusive {
			return unix.EEXIST
		}
		if attrs.Handle&handleMinor != 0 {
			return unix.EINVAL
		}
		other := l.qdiscByHandle(attrs.Handle)
		switch {
		case other == nil:
			return l.graft(wanted)
		case exclusive:
			return unix.EEXIST
		}
		return unix.EINVAL // a qdisc cannot be moved to the root or away from it
	}
	switch {
	case exclusive:
		return unix.EEXIST
	case current.Type() != wanted.Type():
		return unix.EINVAL
	}
	return l.changeQdisc(current, wanted)
}

// qdiscAt returns the qdisc at the parent that attrs name, nil where it is the
// default one.
func (l *link) qdiscAt(attrs *netlink.QdiscAttrs) (netlink.Qdisc, error) {
	switch attrs.Parent {
	case netlink.HANDLE_ROOT:
		return l.tc.root, nil
	case ingressParent:
		return l.tc.ingress, nil
	case 0:
		if attrs.Handle == 0 {
			return nil, unix.EINVAL
		}
		if q := l.qdiscByHandle(attrs.Handle); q != nil {
			return q, nil
		}
		return nil, unix.ENOENT
	}
	root := l.qdiscByHandle(attrs.Parent & handleMajor)
	switch {
	case root == nil:
		return nil, unix.ENOENT
	case root.Type() != "tbf":
		return nil, unix.EOPNOTSUPP
	}
	return l.tc.queue, nil // whatever the class: tbf_find finds all
}

func (l *link) qdiscByHandle(handle uint32) netlink.Qdisc {
	for _, q := range []netlink.Qdisc{l.tc.root, l.tc.queue, l.tc.ingress} {
		if q != nil && q.Attrs().Handle == handle {
			return q
		}
	}
	return nil
}

// graft puts a new qdisc into its place.
func (l *link) graft(wanted netlink.Qdisc) error {
	kind := wanted.Type()
	parent := wanted.Attrs().Parent
	atIngress := parent == ingressParent
	isIngress := kind == "ingress" || kind == "clsact"
	switch {
	case l.ns.lacks[kind]:
		return unix.ENOENT
	case atIngress:
		l.tc.hadIngress = true
		if !isIngress {
			return unix.EINVAL
		}
	case isIngress:
		return unix.EINVAL
	}
	if l.kind != "ifb" && l.txQLen == 0 {
		l.txQLen = 1000 // qdisc_create gives a device without a queue its default length
	}
	if err := checkQdisc(wanted); err != nil {
		return err
	}
	q := clone(wanted)
	attrs := q.Attrs()
	attrs.LinkIndex = l.index
	attrs.Refcnt = 2
	if atIngress {
		l.clearFilters()
		attrs.Handle = ingressHandle
		attrs.Refcnt = 1
		l.tc.ingress = q
		return nil
	}
	if attrs.Handle == 0 {
		attrs.Handle = l.newHandle()
	}
	if parent != netlink.HANDLE_ROOT {
		attrs.Refcnt = 1
		l.tc.queue = q
		return nil
	}
	l.tc.root, l.tc.queue = q, nil
	return nil
}

// newHandle is qdisc_alloc_handle.
func (l *link) newHandle() uint32 {
	for {
		l.tc.autoHandle += 1 << 16
		if l.tc.autoHandle < 0x80010000 || l.tc.autoHandle == ingressHandle {
			l.tc.autoHandle = 0x80010000
		}
		if l.qdiscByHandle(l.tc.autoHandle) == nil {
			return l.tc.autoHandle
		}
	}
}

// changeQdisc changes a qdisc's parameters in place.
func (l *link) changeQdisc(current, wanted netlink.Qdisc) error {
	if err := checkQdisc(wanted); err != nil {
		return err
	}
	if wanted.Type() == "ingress" {
		return unix.EINVAL // the library sends it with options, which it has none to change
	}
	attrs := *current.Attrs()
	q := clone(wanted)
	*q.Attrs() = attrs
	switch current {
	case l.tc.root:
		l.tc.root = q
		l.limitQueue()
	case l.tc.queue:
		l.tc.queue = q
	default:
		l.tc.ingress = q
	}
	return nil
}

// limitQueue is fifo_set_limit, which tbf_change calls.
func (l *link) limitQueue() {
	tbf, isTBF := l.tc.root.(*netlink.Tbf)
	bfifo, isBfifo := l.tc.queue.(*rtnl.Bfifo)
	if isTBF && isBfifo {
		bfifo.Limit = tbf.Limit
	}
}

// checkQdisc says what tbf_change refuses.
func checkQdisc(q netlink.Qdisc) error {
	tbf, ok := q.(*netlink.Tbf)
	if !ok {
		return nil
	}
	if tbf.Rate == 0 || tbf.Buffer == 0 || tbf.Peakrate != 0 && tbf.Peakrate <= tbf.Rate {
		return unix.EINVAL
	}
	return nil
}

// deleteQdisc is tc_get_qdisc for RTM_DELQDISC.
func (l *link) deleteQdisc(attrs *netlink.QdiscAttrs) error {
	q, err := l.qdiscAt(attrs)
	switch {
	case err != nil:
		return err
	case attrs.Parent == 0:
		return unix.EINVAL
	case q == nil && attrs.Parent == ingressParent && !l.tc.hadIngress:
		return unix.ENOENT
	case q == nil && attrs.Handle != 0:
		return unix.EINVAL
	case q == nil:
		return unix.ENOENT
	case attrs.Handle != 0 && attrs.Handle != q.Attrs().Handle:
		return unix.EINVAL
	}
	switch q {
	case l.tc.ingress:
		l.clearFilters()
		l.tc.ingress = nil
		return nil
	case l.tc.queue:
		l.tc.queue = nil // the no-op qdisc, until the TBF is changed
		return nil
	}
	l.tc.root, l.tc.queue = nil, nil
	l.tc.activated = l.up() // else the no-op qdisc stays until the link comes up
	return nil
}

// clearTC is dev_shutdown.
func (l *link) clearTC() {
	l.clearFilters()
	l.tc = tc{}
}

// clone copies a qdisc or a filter; what it points to stays shared.
func clone[T any](object T) T {
	value := reflect.ValueOf(object).Elem()
	copied := reflect.New(value.Type())
	copied.Elem().Set(value)
	return copied.Interface().(T)
}
