package qos

import (
	"errors"
	"fmt"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/rtnl"
)

// syncIngress makes the veth's root qdisc shape what goes to the workload.
func (s *Syncer) syncIngress(veth *Interface, limit *Limit) error {
	if limit == nil {
		return s.clearIngress(veth)
	}
	if s.memory.unsupported["tbf"] {
		return nil
	}
	s.borrow(veth, *limit)
	return s.unlessLacking("tbf", s.setTBF(veth, *limit, veth.MTU))
}

// borrow remembers the parameters of a TBF that is not ours and about to be
// changed.
func (s *Syncer) borrow(veth *Interface, limit Limit) {
	root, ok := veth.Root.(*netlink.Tbf)
	if !ok || isOurRoot(root) || s.memory.borrowed[veth.Index] != nil {
		return
	}
	if want := newShaper(limit, veth.MTU); sameShaping(root, &want.Tbf) {
		return
	}
	s.memory.borrowed[veth.Index] = root
	s.log.WithFields(logrus.Fields{"iface": veth.Name, "ifindex": veth.Index}).
		Info("Taking over another program's TBF for an ingress limit")
}

// clearIngress ends what syncIngress did. A TBF that was there before, and still is,
// is given its parameters back, or is removed where we alone shape.
func (s *Syncer) clearIngress(veth *Interface) error {
	_, claimed := s.desired[veth.Name]
	external := s.config.RemoveExternal && s.enabled && claimed && isForeignShaper(veth.Root)
	was := s.memory.borrowed[veth.Index]
	switch have, isTBF := veth.Root.(*netlink.Tbf); {
	case isOurRoot(veth.Root), external:
		if err := s.kernel.QdiscDel(rootRef(veth.Root)); err != nil {
			return fmt.Errorf("remove ingress limit: %w", err)
		}
		veth.Root = nil
		s.log.WithFields(logrus.Fields{"iface": veth.Name, "ifindex": veth.Index}).Debug("Removed ingress limit")
	case was != nil && isTBF && have.Handle == was.Handle:
		if err := s.kernel.QdiscChange(was); err != nil && !rtnl.IsAbsent(err) {
			return fmt.Errorf("give back another program's TBF: %w", err)
		}
		veth.Root = was
	}
	delete(s.memory.borrowed, veth.Index)
	return nil
}

// setTBF makes the interface's root qdisc a TBF for the limit: a TBF is changed in
// place, with its handle, so that no packet is lost; all else is replaced by one
// with our handle. One that has gone since it was seen is not created anew under its
// handle: nobody could tell then that it is ours.
func (s *Syncer) setTBF(iface *Interface, limit Limit, mtu int) error {
	want := newShaper(limit, mtu)
	want.QdiscAttrs = netlink.QdiscAttrs{LinkIndex: iface.Index, Parent: netlink.HANDLE_ROOT, Handle: tbfHandle}
	have, isTBF := iface.Root.(*netlink.Tbf)
	if isTBF && sameShaping(have, &want.Tbf) {
		return nil
	}
	s.sayRaised(iface, limit, want)
	err := error(unix.ENOENT)
	if isTBF {
		want.Handle = have.Handle
		err = s.kernel.QdiscChange(&want.Tbf)
	}
	if errors.Is(err, unix.ENOENT) {
		want.Handle = tbfHandle
		err = s.kernel.QdiscReplace(&want.Tbf)
	}
	if err != nil {
		return fmt.Errorf("set TBF: %w", err)
	}
	iface.Root = &want.Tbf
	return nil
}

// sayRaised says, once for each interface and limit, that a bucket was raised.
func (s *Syncer) sayRaised(iface *Interface, limit Limit, want shaper) {
	if !want.raisedBurst && !want.raisedMinburst || s.memory.raised[iface.Index] == limit {
		return
	}
	s.memory.raised[iface.Index] = limit
	s.log.WithFields(logrus.Fields{
		"iface": iface.Name, "ifindex": iface.Index,
		"burstBits": limit.BurstBits, "minburstBytes": limit.MinBurstBytes,
	}).Warn("A burst below one frame would pass nothing; raised it to one frame")
}

// isForeignShaper reports whether the root qdisc is what Felix or the CNI
// bandwidth plugin makes.
func isForeignShaper(root netlink.Qdisc) bool {
	return root != nil && root.Attrs().Handle == foreignRoot && (root.Type() == "tbf" || root.Type() == "htb")
}

// rootRef names a root qdisc for its deletion.
func rootRef(root netlink.Qdisc) netlink.Qdisc {
	attrs := root.Attrs()
	return &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: attrs.LinkIndex, Parent: netlink.HANDLE_ROOT, Handle: attrs.Handle},
		QdiscType:  root.Type(),
	}
}
