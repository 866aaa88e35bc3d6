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
	return s.unlessLacking(s.shape(veth, *limit, veth))
}

// borrow remembers the parameters of a TBF that is not ours and about to be
// changed.
func (s *Syncer) borrow(veth *Interface, limit Limit) {
	root, ok := veth.Root.(*netlink.Tbf)
	if !ok || isOurRoot(root) || s.memory.borrowed[veth.Index] != nil ||
		sameShaping(root, newShaper(limit, veth).inPlaceOf(root, false)) {
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

// shape makes a device, the veth itself or its IFB, enforce a veth's limit on what it
// sends. With an error it says what kind of object the kernel refused to create, if it
// was that.
func (s *Syncer) shape(device *Interface, limit Limit, veth *Interface) (kind string, err error) {
	want := newShaper(limit, veth)
	if err := s.setTBF(device, limit, want); err != nil {
		return "tbf", err
	}
	if !device.ownsRoot() {
		return "", nil
	}
	return "", s.setQueue(device, want.queue)
}

// setTBF makes the device's root qdisc a TBF for the limit: a TBF is changed in place,
// with its handle, so that no packet is lost; all else is replaced by one with our
// handle. One that has gone since it was seen is not created anew under its handle:
// nobody could tell then that it is ours.
func (s *Syncer) setTBF(device *Interface, limit Limit, want shaper) error {
	if have, isTBF := device.Root.(*netlink.Tbf); isTBF {
		changed := want.inPlaceOf(have, device.ownsRoot())
		if sameShaping(have, changed) {
			return nil
		}
		s.sayRaised(device, limit, want)
		err := s.kernel.QdiscChange(changed)
		if err == nil {
			device.changed(changed)
			return nil
		}
		if !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("change TBF: %w", err)
		}
	}
	s.sayRaised(device, limit, want)
	want.QdiscAttrs = netlink.QdiscAttrs{LinkIndex: device.Index, Parent: netlink.HANDLE_ROOT, Handle: tbfHandle}
	if err := s.kernel.QdiscReplace(&want.Tbf); err != nil {
		return fmt.Errorf("set TBF: %w", err)
	}
	device.Root, device.Queue = &want.Tbf, nil
	return nil
}

// ownsRoot reports whether the root qdisc is ours: by its handle, or as that of a device
// of ours.
func (i *Interface) ownsRoot() bool { return isOurRoot(i.Root) || i.IsShaper() }

// setQueue puts a queue of that many bytes below our TBF. The kernel's own, which is
// as long as the TBF's limit, has room for a whole bucket: once that is spent, whoever
// sends more than the rate fills it, and packets wait not for the latency but for
// burst/rate longer, which is minutes with the default burst.
//
// Without a handle, the kernel changes a queue that is a bfifo, and replaces any other.
// The queue goes with its TBF and is never deleted alone: a TBF whose queue is deleted
// passes nothing.
func (s *Syncer) setQueue(device *Interface, length uint32) error {
	if have, isBfifo := device.Queue.(*rtnl.Bfifo); isBfifo && have.Limit == length {
		return nil
	}
	want := &rtnl.Bfifo{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: device.Index, Parent: device.Root.Attrs().Handle | 1},
		Limit:      length,
	}
	if err := s.kernel.QdiscReplace(want); err != nil {
		return fmt.Errorf("set queue of TBF: %w", err)
	}
	device.Queue = want
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
