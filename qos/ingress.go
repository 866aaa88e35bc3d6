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
	return s.unlessLacking(s.shape(veth, *limit, veth.MTU))
}

// borrow remembers the parameters of a TBF that is not ours and about to be
// changed.
func (s *Syncer) borrow(veth *Interface, limit Limit) {
	root, ok := veth.Root.(*netlink.Tbf)
	if !ok || isOurRoot(root) || s.memory.borrowed[veth.Index] != nil ||
		sameShaping(root, newShaper(limit, veth.MTU).inPlaceOf(root)) {
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
		veth.Root, veth.Queue = nil, nil
		s.log.WithFields(logrus.Fields{"iface": veth.Name, "ifindex": veth.Index}).Debug("Removed ingress limit")
	case was != nil && isTBF && have.Handle == was.Handle:
		if err := s.kernel.QdiscChange(was); err != nil && !rtnl.IsAbsent(err) {
			return fmt.Errorf("give back another program's TBF: %w", err)
		}
		veth.changed(was)
	}
	delete(s.memory.borrowed, veth.Index)
	return nil
}

// shape makes the interface enforce the limit on what it sends. With an error it says
// what kind of object the kernel refused to create, if it was that.
func (s *Syncer) shape(iface *Interface, limit Limit, mtu int) (kind string, err error) {
	want := newShaper(limit, mtu)
	if err := s.setTBF(iface, limit, want); err != nil {
		return "tbf", err
	}
	if !isOurRoot(iface.Root) {
		return "", nil
	}
	return "", s.setQueue(iface, want.queue)
}

// setTBF makes the interface's root qdisc a TBF for the limit: a TBF is changed in
// place, with its handle, so that no packet is lost; all else, and what others put on
// an IFB of ours, is replaced by one with our handle. One that has gone since it was seen is not created anew under its
// handle: nobody could tell then that it is ours.
func (s *Syncer) setTBF(iface *Interface, limit Limit, want shaper) error {
	ours := want.Tbf
	ours.QdiscAttrs = netlink.QdiscAttrs{LinkIndex: iface.Index, Parent: netlink.HANDLE_ROOT, Handle: tbfHandle}
	if have, isTBF := iface.Root.(*netlink.Tbf); isTBF && (isOurRoot(have) || !iface.IsShaper()) {
		changed := want.inPlaceOf(have)
		if sameShaping(have, changed) {
			return nil
		}
		s.sayRaised(iface, limit, want)
		err := s.kernel.QdiscChange(changed)
		if err == nil {
			iface.changed(changed)
			return nil
		}
		if !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("change TBF: %w", err)
		}
	}
	s.sayRaised(iface, limit, want)
	if err := s.kernel.QdiscReplace(&ours); err != nil {
		return fmt.Errorf("set TBF: %w", err)
	}
	iface.Root, iface.Queue = &ours, nil
	return nil
}

// setQueue puts a queue of that many bytes below our TBF. The kernel's own, which is
// as long as the TBF's limit, has room for a whole bucket: once that is spent, whoever
// sends more than the rate fills it, and packets wait not for the latency but for
// burst/rate longer, which is minutes with the default burst.
//
// The queue goes with its TBF and is never deleted alone: a TBF whose queue is deleted
// passes nothing.
func (s *Syncer) setQueue(iface *Interface, length uint32) error {
	if have, ok := iface.Queue.(*rtnl.Bfifo); ok && have.Handle == queueHandle && have.Limit == length {
		return nil
	}
	want := &rtnl.Bfifo{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: iface.Index, Parent: tbfHandle | 1, Handle: queueHandle},
		Limit:      length,
	}
	if err := s.kernel.QdiscReplace(want); err != nil {
		return fmt.Errorf("set queue of TBF: %w", err)
	}
	iface.Queue = want
	return nil
}

// changed takes note of a TBF whose parameters were changed in place. The kernel gives
// its limit to the queue below it (tbf_change).
func (i *Interface) changed(tbf *netlink.Tbf) {
	i.Root = tbf
	if queue, isBfifo := i.Queue.(*rtnl.Bfifo); isBfifo {
		longer := *queue
		longer.Limit = tbf.Limit
		i.Queue = &longer
	}
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
