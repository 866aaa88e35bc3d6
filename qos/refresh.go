package qos

import (
	"errors"
	"fmt"

	"github.com/manx-dataplane/manx/rtnl"
)

// How the Syncer's snapshot keeps up with the kernel: all of it is read anew by a
// resync, and single interfaces are looked up where events or errors say that they
// are not what they were. What a look-up cannot find out stays as it was, to be
// asked again: a failed question must not look like an interface that is gone.

// observe reads everything anew.
func (s *Syncer) observe() error {
	snapshot, err := Observe(s.kernel)
	if err != nil {
		return err
	}
	s.snapshot = snapshot
	s.memory.forget(snapshot)
	for _, ifb := range s.shapers() {
		s.memory.newestIFB = max(s.memory.newestIFB, ifb.Index)
	}
	for kind := range s.memory.unsupported {
		s.memory.unsupported[kind] = false
		s.metrics.unsupported.WithLabelValues(kind).Set(0)
	}
	s.todo.resync = false
	for index := range s.todo.vanished {
		s.memory.another(index)
	}
	clear(s.todo.vanished)
	clear(s.todo.appeared)
	for name := range s.desired {
		s.todo.dirty[name] = struct{}{}
	}
	return nil
}

// checkVanished asks the kernel about interfaces that are said to be gone. One
// that was only renamed still redirects to its IFB, which must not be deleted
// under it.
func (s *Syncer) checkVanished() (errs []error) {
	for index, name := range s.todo.vanished {
		iface := s.snapshot.Interfaces[index]
		if iface == nil || iface.Name != name {
			delete(s.todo.vanished, index)
			continue
		}
		link, err := s.kernel.LinkByIndex(index)
		switch {
		case err == nil && link.Attrs().Name == name:
			s.memory.another(index)
			s.todo.appeared[name] = struct{}{} // which may be claimed later
		case err == nil:
			s.snapshot.remove(index)
			iface.Name = link.Attrs().Name
			s.snapshot.add(iface)
			s.nameGone(name)
			s.lookUpLater(name)
			s.todo.appeared[iface.Name] = struct{}{} // what is known of it may be wrong
		case rtnl.IsAbsent(err):
			s.snapshot.remove(index)
			s.memory.forget(s.snapshot)
			s.nameGone(name)
			s.lookUpLater(name) // it may have a new owner, reported before it was claimed
		default:
			errs = append(errs, fmt.Errorf("check whether interface %s is gone: %w", name, err))
			continue
		}
		delete(s.todo.vanished, index)
	}
	return errs
}

func (s *Syncer) lookUpLater(name string) {
	if _, claimed := s.desired[name]; claimed {
		s.todo.appeared[name] = struct{}{}
	}
}

// nameGone takes note that an interface no longer exists by that name.
func (s *Syncer) nameGone(name string) {
	if isIFBName(name) {
		if owner, ok := s.owners[name]; ok {
			s.todo.dirty[owner] = struct{}{} // deleted under us
		}
		return
	}
	s.sweepLater(ReasonInterfaceGone)
	s.todo.reasons[IFBName(name)] = ReasonInterfaceGone
}

// lookUpAppeared looks up claimed interfaces that the snapshot does not know or
// no longer trusts, and the IFBs that have their names. Where it fails the
// snapshot stays as it was.
func (s *Syncer) lookUpAppeared() (errs []error) {
	found := newSnapshot(2 * len(s.todo.appeared))
	var looked []string
	for name := range s.todo.appeared {
		limits, claimed := s.desired[name]
		unlimited := limits.Equal(Limits{}) && !s.config.RemoveExternal
		if s.snapshot.ByName(name) == nil && (!claimed || unlimited) {
			// On an interface that was not there at the last resync nothing is ours.
			delete(s.todo.appeared, name)
			if s.snapshot.ByName(IFBName(name)) != nil {
				s.nameGone(name) // its IFB is, and was spared while this was not known
			}
			continue
		}
		if err := errors.Join(s.lookUp(name, found), s.lookUp(IFBName(name), found)); err != nil {
			errs = append(errs, err)
			continue
		}
		looked = append(looked, name)
	}
	if len(found.Interfaces) > 0 {
		if err := found.observeQdiscs(s.kernel); err != nil {
			return append(errs, err)
		}
	}
	for _, name := range looked {
		delete(s.todo.appeared, name)
		s.replace(IFBName(name), found)
		iface := found.ByName(name)
		if old := s.snapshot.ByName(name); old != nil && (iface == nil || iface.Index != old.Index) {
			// Gone, or renamed, with its redirect still there: the next Apply asks by index.
			s.todo.vanished[old.Index] = name
			s.config.Wake()
			if iface == nil {
				continue
			}
		}
		if iface != nil {
			if known := s.snapshot.Interfaces[iface.Index]; known != nil && known.Name != name {
				s.nameGone(known.Name) // renamed, which was not reported yet
			}
			s.addInterface(iface)
		}
		if _, claimed := s.desired[name]; claimed {
			s.todo.dirty[name] = struct{}{}
		} else {
			s.sweepLater(ReasonEndpointGone)
		}
		if s.snapshot.ByName(name) == nil && s.snapshot.ByName(IFBName(name)) != nil {
			s.nameGone(name) // seen here before anyone said so
		}
	}
	s.memory.forget(s.snapshot)
	return errs
}

// replace takes the interface of that name over from what was found.
func (s *Syncer) replace(name string, found *Snapshot) {
	if old := s.snapshot.ByName(name); old != nil {
		s.snapshot.remove(old.Index)
	}
	if iface := found.ByName(name); iface != nil {
		s.addInterface(iface)
	}
}

// lookUp adds the interface of that name, if there is one.
func (s *Syncer) lookUp(name string, found *Snapshot) error {
	link, err := s.kernel.LinkByName(name)
	if err == nil {
		found.add(newInterface(link))
		return nil
	}
	if rtnl.IsAbsent(err) {
		return nil
	}
	return fmt.Errorf("look up interface %s: %w", name, err)
}

func (s *Syncer) addInterface(iface *Interface) {
	s.snapshot.add(iface)
	if iface.IsShaper() {
		s.memory.newestIFB = max(s.memory.newestIFB, iface.Index)
	}
}

// confirmGone reports whether the kernel no longer has an interface, after an
// error about it. The snapshot then forgets it, and the next Apply looks for another of
// its name, which may have been reported before it was claimed.
func (s *Syncer) confirmGone(veth *Interface) bool {
	_, err := s.kernel.LinkByIndex(veth.Index)
	if err == nil || !rtnl.IsAbsent(err) {
		return false
	}
	s.snapshot.remove(veth.Index)
	s.memory.forget(s.snapshot)
	s.nameGone(veth.Name)
	s.lookUpLater(veth.Name)
	s.config.Wake()
	return true
}
