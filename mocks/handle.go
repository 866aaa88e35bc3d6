package mocks

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/rtnl"
)

// Handle makes requests to a Kernel; it has the methods of [rtnl.Handle], with the
// same contracts.
type Handle struct {
	k       *Kernel
	outside bool
	closed  bool
}

// NewHandle opens a handle for an agent: its calls are counted, recorded and subject
// to the Kernel's hooks. Each should be closed in the end, see OpenHandles.
func (k *Kernel) NewHandle() *Handle {
	k.lock()
	defer k.unlock()
	k.handles++
	return &Handle{k: k}
}

// Outside returns a handle for everybody else: its calls are neither counted nor
// recorded, and never made to fail. It need not be closed.
func (k *Kernel) Outside() *Handle { return &Handle{k: k, outside: true} }

// Close closes the handle; calls after it fail with EBADF.
func (h *Handle) Close() {
	h.k.lock()
	defer h.k.unlock()
	if !h.closed && !h.outside {
		h.k.handles--
	}
	h.closed = true
}

func (h *Handle) call(call Call, effect func() error) error {
	return h.k.call(h.outside, call, func() error {
		if h.closed {
			return errClosed
		}
		return effect()
	})
}

// onLink makes a call about an existing link.
func (h *Handle) onLink(op Op, nl netlink.Link, detail string, effect func(l *link) error) error {
	attrs := nl.Attrs()
	return h.call(Call{Op: op, Index: attrs.Index, Name: attrs.Name, Detail: detail}, func() error {
		l, err := h.k.find(attrs)
		if err != nil {
			return err
		}
		return effect(l)
	})
}

// LinkList dumps all links, by index.
func (h *Handle) LinkList() ([]netlink.Link, error) {
	var links []netlink.Link
	err := h.call(Call{Op: OpLinkList}, func() error {
		for _, l := range h.k.sortedLinks() {
			links = append(links, l.netlink())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return links, nil
}

// LinkByName returns the link of that name, or ENODEV.
func (h *Handle) LinkByName(name string) (netlink.Link, error) {
	return h.get(netlink.LinkAttrs{Name: name})
}

// LinkByIndex returns the link of that index, or ENODEV.
func (h *Handle) LinkByIndex(index int) (netlink.Link, error) {
	return h.get(netlink.LinkAttrs{Index: index})
}

func (h *Handle) get(attrs netlink.LinkAttrs) (found netlink.Link, err error) {
	err = h.onLink(OpLinkGet, &netlink.GenericLink{LinkAttrs: attrs}, "", func(l *link) error {
		found = l.netlink()
		return nil
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// LinkAdd creates a link and sets its Attrs().Index. EEXIST: the name or the index
// is taken. EOPNOTSUPP: the kernel lacks that kind.
func (h *Handle) LinkAdd(link netlink.Link) error {
	attrs := link.Attrs()
	return h.call(Call{Op: OpLinkAdd, Index: attrs.Index, Name: attrs.Name, Kind: link.Type()}, func() error {
		return h.k.addLink(link)
	})
}

// LinkDel deletes the link of that index. ENODEV: it is gone already.
func (h *Handle) LinkDel(nl netlink.Link) error {
	return h.onLink(OpLinkDel, nl, "", func(l *link) error { return h.k.deleteLinks(l) })
}

// LinkSetUp sets IFF_UP.
func (h *Handle) LinkSetUp(nl netlink.Link) error {
	return h.onLink(OpLinkSetUp, nl, "", func(l *link) error { l.setUp(); return nil })
}

// LinkSetDown clears IFF_UP.
func (h *Handle) LinkSetDown(nl netlink.Link) error {
	return h.onLink(OpLinkSetDown, nl, "", func(l *link) error { l.setDown(); return nil })
}

// LinkSetMTU sets the MTU in bytes. EINVAL: outside what the device takes.
func (h *Handle) LinkSetMTU(nl netlink.Link, mtu int) error {
	return h.onLink(OpLinkSetMTU, nl, "", func(l *link) error { return l.setMTU(mtu) })
}

// LinkSetName renames a link. EEXIST: the name is taken.
func (h *Handle) LinkSetName(nl netlink.Link, name string) error {
	return h.onLink(OpLinkSetName, nl, "", func(l *link) error { return l.rename(name) })
}

// LinkSetNamespace moves a link out of sight, into a namespace that nothing else is
// in. Which one is asked for does not matter, ns may be nil; see Kernel.MoveLink for
// a destination that can be looked into.
func (h *Handle) LinkSetNamespace(nl netlink.Link, _ *rtnl.Namespace) error {
	return h.onLink(OpLinkSetNamespace, nl, "", func(l *link) error { return l.move(newNamespace(h.k.machine)) })
}

// MoveLink moves a link of k into another namespace of the same kernel. EEXIST: its
// name is taken there.
func (k *Kernel) MoveLink(nl netlink.Link, to *Kernel) error {
	return k.Outside().onLink(OpLinkSetNamespace, nl, "", func(l *link) error { return l.move(to) })
}

// LinkSetGroup puts a link into a link group.
func (h *Handle) LinkSetGroup(nl netlink.Link, group int) error {
	return h.onLink(OpLinkSetGroup, nl, fmt.Sprintf("(to %d)", group), func(l *link) error {
		l.setGroup(uint32(group))
		return nil
	})
}

// LinkDelGroup deletes every link of a group. ENODEV: it is empty. EOPNOTSUPP: one of
// them cannot be deleted, so none was. EINVAL: group 0.
func (h *Handle) LinkDelGroup(group int) error {
	return h.call(Call{Op: OpLinkDelGroup, Detail: fmt.Sprintf("group %d", group)}, func() error {
		return h.k.deleteGroup(group)
	})
}

// NamespaceID returns the number that links here show for a namespace which has the
// other end of one of them; -1 where it has none.
func (h *Handle) NamespaceID(fd int) (id int, err error) {
	id = -1
	err = h.call(Call{Op: OpNamespaceID}, func() error {
		ns := h.k.machine.namespaces[fd]
		if ns == nil {
			return unix.EBADF
		}
		for _, l := range h.k.links {
			if l.peer != nil && l.peer.ns == ns && ns != h.k {
				id = ns.fd
			}
		}
		return nil
	})
	return id, err
}
