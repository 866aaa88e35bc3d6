package qos

import (
	"errors"
	"fmt"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
)

// When is a bwcali device deleted?
//
//  1. When it is an orphan: an IFB of ours that is not the IFB of an existing
//     interface that an endpoint claims with an egress limit (isWanted). Three
//     things make the Syncer look, all by way of sweep:
//     - the first Apply, which is not called before all sides are in sync;
//     - each resync;
//     - what may make an orphan: an interface's end, a limit's end, an endpoint's end,
//     shaping being disabled.
//     It waits while an existing workload interface that no endpoint claims still
//     redirects to it, for Config.GracePeriod at most: the endpoint may be about to be
//     announced. When that interface ends, the device goes at once.
//  2. When it is stale: wanted by name, but not what the current interface of its
//     owner's name redirects to, so it is left over from an earlier one. The Syncer
//     replaces it (syncEgress), so that no tokens, backlog or MTU carry over.
//
// In both cases retire does it: whatever still redirects to the device is
// detached first, since a redirect to a deleted device drops every packet; then
// the Reaper deletes it.

// sweepLater has the next Apply sweep. The startup sweep keeps its name.
func (s *Syncer) sweepLater(reason Reason) {
	if s.todo.sweep == "" || s.todo.sweep == ReasonPeriodic {
		s.todo.sweep = reason
	}
}

// sweepIsDue reports whether to sweep now.
func (s *Syncer) sweepIsDue() bool {
	if next, ok := s.NextRecheck(); ok && !next.After(s.config.Clock.Now()) {
		s.sweepLater(ReasonEndpointGone)
	}
	return s.todo.sweep != ""
}

// sweep removes all that is ours and not wanted, and returns how much that was.
func (s *Syncer) sweep() (removed int, errs []error) {
	start := s.config.Clock.Now()
	reason := s.todo.sweep
	inGrace, removed, errs := s.sweepUnclaimed()

	attached := s.attachments()
	doubtful := s.doubtful()
	orphans, spared := 0, false
	for _, ifb := range s.shapers() {
		if s.isWanted(ifb.Name) || s.config.Reaper.Reserved(ifb.Name) || anyIn(inGrace, attached[ifb.Index]) {
			continue
		}
		if doubtful[ifb.Name] {
			spared = true
			continue
		}
		orphans++
		if !s.enabled {
			s.await(ifb.Name)
		}
		why := reason
		if better, known := s.todo.reasons[ifb.Name]; known && s.enabled {
			why = better
		}
		if err := s.retire(ifb, attached[ifb.Index], why, false); err != nil {
			errs = append(errs, err)
		}
	}
	s.metrics.sweepTime.Observe(s.config.Clock.Since(start).Seconds())
	s.metrics.sweepSize.Set(float64(orphans))
	if orphans > 0 {
		s.log.WithFields(logrus.Fields{"reason": reason, "devices": orphans}).Info("Deleting IFB devices that no endpoint wants")
	}
	if len(errs) > 0 {
		s.todo.resync = true // what went wrong may be what we believe
		return removed + orphans, errs
	}
	s.metrics.lastSweep.Set(float64(s.config.Clock.Now().Unix()))
	if !spared {
		s.todo.sweep = ""
		clear(s.todo.reasons)
	}
	return removed + orphans, nil
}

// doubtful returns the names of IFBs that interfaces may redirect to, unknown to us,
// since these are still to be looked up: by their name, or since the IFB was made for
// what has another name now. They are swept for again once it has been.
func (s *Syncer) doubtful() map[string]bool {
	doubtful := make(map[string]bool, len(s.todo.appeared))
	for name := range s.todo.appeared {
		doubtful[IFBName(name)] = true
	}
	for index, veth := range s.memory.unused {
		ifb, user := s.snapshot.Interfaces[index], s.snapshot.Interfaces[veth]
		if ifb == nil || user == nil {
			continue
		}
		if _, pending := s.todo.appeared[user.Name]; pending {
			doubtful[ifb.Name] = true
		}
	}
	return doubtful
}

// sweepUnclaimed removes what is ours on interfaces that no endpoint claims, once
// their grace period is over, and returns those that it is not over for and how
// many it has changed.
func (s *Syncer) sweepUnclaimed() (inGrace map[int]bool, changed int, errs []error) {
	inGrace = make(map[int]bool)
	now := s.config.Clock.Now()
	for _, iface := range s.snapshot.Interfaces {
		_, claimed := s.desired[iface.Name]
		_, borrowed := s.memory.borrowed[iface.Index]
		ours := isOurRoot(iface.Root) || borrowed || s.snapshot.hasFiltersOfOurs(iface) || s.hasEmptyHookOfOurs(iface)
		if iface.IsShaper() || !ours || claimed && s.enabled {
			delete(s.memory.unclaimed, iface.Index)
			continue
		}
		if s.enabled && s.config.IsWorkloadIface(iface.Name) {
			since, known := s.memory.unclaimed[iface.Index]
			if !known {
				since = now
				s.memory.unclaimed[iface.Index] = now
			}
			if now.Before(since.Add(s.config.GracePeriod)) {
				inGrace[iface.Index] = true
				continue
			}
		}
		err := errors.Join(s.clearIngress(iface), s.detach(iface, 0))
		if err != nil && !s.confirmGone(iface) {
			errs = append(errs, fmt.Errorf("interface %s (ifindex %d): %w", iface.Name, iface.Index, err))
			continue
		}
		changed++
		delete(s.memory.unclaimed, iface.Index)
	}
	return inGrace, changed, errs
}

// retire detaches an IFB of ours from the interfaces it is attached to and gives
// it to the Reaper. On error the device is kept.
func (s *Syncer) retire(ifb *Interface, attached []*Interface, reason Reason, urgent bool) error {
	for _, veth := range attached {
		if err := s.detach(veth, ifb.Index); err != nil && !s.confirmGone(veth) {
			return fmt.Errorf("detach %s from interface %s (ifindex %d): %w", ifb.Name, veth.Name, veth.Index, err)
		}
	}
	s.log.WithFields(logrus.Fields{"ifb": ifb.Name, "ifindex": ifb.Index, "reason": reason}).Debug("Retiring an IFB device")
	s.config.Reaper.Delete(reason, urgent, Device{Name: ifb.Name, Index: ifb.Index})
	return nil
}

// hasEmptyHookOfOurs reports whether the interface has an ingress qdisc that we are
// known to have made, and nothing in it.
func (s *Syncer) hasEmptyHookOfOurs(iface *Interface) bool {
	return iface.Hook == HookIngress && len(iface.Filters) == 0 && s.memory.hookIsOurs[iface.Index]
}

// attachments returns, by ifindex of the IFB, the interfaces that redirect to it,
// and the one whose empty ingress qdisc it witnesses.
func (s *Syncer) attachments() map[int][]*Interface {
	attached := s.snapshot.Redirectors()
	for _, iface := range s.snapshot.Interfaces {
		if iface.Hook != HookIngress || len(iface.Filters) > 0 {
			continue
		}
		if ifb := s.witness(iface); ifb != nil {
			attached[ifb.Index] = append(attached[ifb.Index], iface)
		}
	}
	return attached
}

// witness returns the IFB of ours that has the interface's name, or nil.
func (s *Syncer) witness(iface *Interface) *Interface {
	ifb := s.snapshot.ByName(IFBName(iface.Name))
	if ifb == nil || !ifb.IsShaper() {
		return nil
	}
	return ifb
}

// shapers returns our IFB devices.
func (s *Syncer) shapers() []*Interface {
	var shapers []*Interface
	for _, iface := range s.snapshot.Interfaces {
		if iface.IsShaper() {
			shapers = append(shapers, iface)
		}
	}
	return shapers
}

func isOurRoot(root netlink.Qdisc) bool {
	return root != nil && root.Type() == "tbf" && root.Attrs().Handle == tbfHandle
}

func anyIn(set map[int]bool, interfaces []*Interface) bool {
	for _, iface := range interfaces {
		if set[iface.Index] {
			return true
		}
	}
	return false
}
