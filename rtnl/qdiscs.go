package rtnl

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// QdiscList dumps the qdiscs of all links; the kernel offers nothing narrower.
func (h *Handle) QdiscList() ([]netlink.Qdisc, error) {
	qdiscs, err := h.nl.QdiscList(nil)
	if err != nil {
		return nil, opError("list qdiscs", "", err)
	}
	return qdiscs, nil
}

// QdiscAdd creates a qdisc. EEXIST: its place is taken. ENODEV: its link is gone.
// EOPNOTSUPP or ENOENT: this kernel lacks that kind.
func (h *Handle) QdiscAdd(qdisc netlink.Qdisc) error {
	return h.write("add qdisc", qdiscObject(qdisc), func() error { return h.nl.QdiscAdd(qdisc) })
}

// QdiscReplace creates a qdisc, changes the one of the same handle and kind in
// place, or grafts it over another.
func (h *Handle) QdiscReplace(qdisc netlink.Qdisc) error {
	return h.write("replace qdisc", qdiscObject(qdisc), func() error { return h.nl.QdiscReplace(qdisc) })
}

// QdiscDel deletes a qdisc. ENOENT or EINVAL: there is no such qdisc.
func (h *Handle) QdiscDel(qdisc netlink.Qdisc) error {
	return h.write("delete qdisc", qdiscObject(qdisc), func() error { return h.nl.QdiscDel(qdisc) })
}

// FilterList lists the filters at one parent of one link, such as
// netlink.HANDLE_MIN_INGRESS. No such link or qdisc is an error.
func (h *Handle) FilterList(ifindex int, parent uint32) ([]netlink.Filter, error) {
	link := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: ifindex}}
	filters, err := h.nl.FilterList(link, parent)
	if err != nil {
		return nil, opError("list filters", fmt.Sprintf("ifindex %d parent %s", ifindex, netlink.HandleStr(parent)), err)
	}
	return filters, nil
}

// FilterAdd adds a filter. EEXIST: its handle is taken.
func (h *Handle) FilterAdd(filter netlink.Filter) error {
	return h.write("add filter", filterObject(filter), func() error { return h.nl.FilterAdd(filter) })
}

// FilterReplace adds a filter or replaces the one of the same handle.
func (h *Handle) FilterReplace(filter netlink.Filter) error {
	return h.write("replace filter", filterObject(filter), func() error { return h.nl.FilterReplace(filter) })
}

// FilterDel deletes a filter. ENOENT: it is gone already.
func (h *Handle) FilterDel(filter netlink.Filter) error {
	return h.write("delete filter", filterObject(filter), func() error { return h.nl.FilterDel(filter) })
}

func qdiscObject(q netlink.Qdisc) string {
	attrs := q.Attrs()
	return fmt.Sprintf("%s %s (ifindex %d)", q.Type(), netlink.HandleStr(attrs.Handle), attrs.LinkIndex)
}

func filterObject(f netlink.Filter) string {
	attrs := f.Attrs()
	return fmt.Sprintf("%s prio %d parent %s (ifindex %d)", f.Type(), attrs.Priority, netlink.HandleStr(attrs.Parent), attrs.LinkIndex)
}

// IsAbsent reports whether err says that the object of a delete is gone already:
// ENODEV, ENOENT, ESRCH or EADDRNOTAVAIL.
func IsAbsent(err error) bool {
	return isAny(err, unix.ENODEV, unix.ENOENT, unix.ESRCH, unix.EADDRNOTAVAIL)
}
