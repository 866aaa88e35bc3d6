package rtnl

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// LinkList dumps all links. An interrupted dump is an error (EINTR) with no
// links: the caller retries.
func (h *Handle) LinkList() ([]netlink.Link, error) {
	links, err := h.nl.LinkList()
	if err != nil {
		return nil, opError("list links", "", err)
	}
	return links, nil
}

// LinkByName returns the link of that name, or ENODEV.
func (h *Handle) LinkByName(name string) (netlink.Link, error) {
	link, err := h.nl.LinkByName(name)
	if err != nil {
		return nil, opError("get link", name, err)
	}
	return link, nil
}

// LinkByIndex returns the link of that index, or ENODEV.
func (h *Handle) LinkByIndex(index int) (netlink.Link, error) {
	link, err := h.nl.LinkByIndex(index)
	if err != nil {
		return nil, opError("get link", fmt.Sprintf("ifindex %d", index), err)
	}
	return link, nil
}

// LinkAdd creates a link. On success link.Attrs().Index holds its index. EEXIST:
// the name is taken. EOPNOTSUPP: this kernel lacks that kind of link. ENODEV: it was
// created, and could not be found by its name afterwards.
func (h *Handle) LinkAdd(link netlink.Link) error {
	return h.write("add link", linkObject(link), func() error {
		if err := h.nl.LinkAdd(link); err != nil {
			return err
		}
		if link.Attrs().Index == 0 { // the library keeps the error to itself
			return unix.ENODEV
		}
		return nil
	})
}

// LinkDel deletes the link with link.Attrs().Index; the name is not consulted.
// ENODEV: it is gone already. The kernel may hold the caller for as long as
// something holds a reference to the device.
func (h *Handle) LinkDel(link netlink.Link) error {
	return h.write("delete link", linkObject(link), func() error { return h.nl.LinkDel(link) })
}

// LinkSetUp sets IFF_UP.
func (h *Handle) LinkSetUp(link netlink.Link) error {
	return h.write("set up link", linkObject(link), func() error { return h.nl.LinkSetUp(link) })
}

// LinkSetDown clears IFF_UP.
func (h *Handle) LinkSetDown(link netlink.Link) error {
	return h.write("set down link", linkObject(link), func() error { return h.nl.LinkSetDown(link) })
}

// LinkSetMTU sets the MTU in bytes. EINVAL: outside what the device takes.
func (h *Handle) LinkSetMTU(link netlink.Link, mtu int) error {
	return h.write("set MTU of link", linkObject(link), func() error { return h.nl.LinkSetMTU(link, mtu) })
}

// LinkSetName renames a link. EEXIST: the name is taken.
func (h *Handle) LinkSetName(link netlink.Link, name string) error {
	return h.write("rename link", linkObject(link), func() error { return h.nl.LinkSetName(link, name) })
}

// LinkSetNamespace moves a link into another network namespace.
func (h *Handle) LinkSetNamespace(link netlink.Link, ns *Namespace) error {
	return h.write("move link", linkObject(link), func() error { return h.nl.LinkSetNsFd(link, ns.FD()) })
}

// LinkSetGroup puts a link into a link group (IFLA_GROUP; 0 is the default
// group).
func (h *Handle) LinkSetGroup(link netlink.Link, group int) error {
	return h.write("set group of link", linkObject(link), func() error { return h.nl.LinkSetGroup(link, group) })
}

// LinkDelGroup deletes every link of a group with one request, and so with one
// wait for RCU instead of one a device. ENODEV: the group is empty. Where a
// member cannot be deleted the kernel refuses with EOPNOTSUPP and deletes none.
// Group 0, which every link is in by default, is refused with EINVAL before the
// kernel is asked.
func (h *Handle) LinkDelGroup(group int) error {
	object := fmt.Sprintf("group %d", group)
	if group <= 0 {
		return opError("delete links of", object, unix.EINVAL)
	}
	return h.write("delete links of", object, func() error {
		req := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
		req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
		req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(uint32(group))))
		return h.execute(req)
	})
}
