package sweep

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/qos"
	"github.com/manx-dataplane/manx/rtnl"
)

// chunkSize is how many devices are set aside at a time: one batch of the reaper.
const chunkSize = 64

const (
	// pollInterval is how often to ask the reaper how far it is.
	pollInterval = 5 * time.Millisecond
	// windUp is how long an interrupted sweep waits for the chunk under way.
	windUp = 2 * time.Second
)

// aside is a device that has been set aside.
type aside struct {
	orphan  *Orphan
	name    string // the one it has now
	setDown bool   // it had to be set down to be renamed
}

// delete deletes orphans, chunk by chunk, and notes what became of each.
func (s *Sweeper) delete(ctx context.Context, orphans []Orphan) error {
	// The reaper outlives ctx by the chunk that is under way.
	reaping, stop := context.WithCancel(context.WithoutCancel(ctx))
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		_ = s.reaper.Run(reaping)
	}()
	defer func() {
		stop()
		<-stopped
	}()
	done := func(int) {}
	if s.config.Progress != nil {
		done = s.config.Progress(len(orphans))
	}
	for start := 0; start < len(orphans); start += chunkSize {
		if err := ctx.Err(); err != nil {
			return err
		}
		chunk := orphans[start:min(start+chunkSize, len(orphans))]
		if err := s.deleteChunk(ctx, chunk, func(n int) { done(start + n) }); err != nil {
			return err
		}
		done(start + len(chunk))
	}
	return nil
}

func (s *Sweeper) deleteChunk(ctx context.Context, orphans []Orphan, done func(int)) error {
	set, failure := s.setAside(orphans)
	view, err := Look(s.config.Kernel)
	if err = errors.Join(failure, err); err != nil {
		for _, a := range set {
			s.giveBack(a)
		}
		return err
	}
	var condemned []aside
	for _, a := range set {
		iface := view.Interfaces[a.orphan.Index]
		switch now := view.device(a.orphan.Name, a.orphan.Index); {
		case iface == nil || iface.Name != a.name:
			a.orphan.Outcome = Gone
		case !now.Orphan():
			s.giveBack(a)
			if a.orphan.Outcome == Spared {
				a.orphan.Device, a.orphan.Reason = now, now.Reason()
			}
		default:
			condemned = append(condemned, a)
		}
	}
	for _, a := range condemned {
		a.orphan.Outcome = unsettled
		s.reaper.Delete(reason, false, qos.Device{Name: a.name, Index: a.orphan.Index})
	}
	s.await(ctx, condemned, done)
	return nil
}

// setAside renames the devices so that nobody finds them. It stops at an error
// that says that nothing may be changed at all.
func (s *Sweeper) setAside(orphans []Orphan) ([]aside, error) {
	var set []aside
	for i := range orphans {
		a := aside{orphan: &orphans[i], name: s.asideName(orphans[i].Index)}
		err := s.rename(&a, orphans[i].Name, a.name)
		switch {
		case err == nil:
			set = append(set, a)
		case rtnl.IsAbsent(err):
			a.orphan.Outcome = Gone
		case errors.Is(err, unix.EPERM):
			return set, fmt.Errorf("deleting devices needs CAP_NET_ADMIN: %w", err)
		default:
			a.orphan.Outcome, a.orphan.Error = Left, err.Error()
		}
	}
	return set, nil
}

// asideName is a name that is no interface's IFB's, and that sweeps of the same
// prefix, or of all of Calico's, still find: those names have no dot.
func (s *Sweeper) asideName(index int) string {
	const room = 8 // what 15 bytes leave beside a dot and the largest ifindex in base 36
	return s.config.Prefix[:min(len(s.config.Prefix), room)] + "." + strconv.FormatInt(int64(index), 36)
}

// rename renames a device by its ifindex, if the one of that index still is it.
// Kernels before 6.2 do not rename a device that is up (EBUSY): it is set down for
// it.
func (s *Sweeper) rename(a *aside, from, to string) error {
	link, err := s.config.Kernel.LinkByIndex(a.orphan.Index)
	if err != nil {
		return err
	}
	if link.Attrs().Name != from || link.Type() != "ifb" {
		return fmt.Errorf("ifindex %d is another device now: %w", a.orphan.Index, unix.ENODEV)
	}
	if from == to { // set aside by a sweep that was killed
		return nil
	}
	if err = s.config.Kernel.LinkSetName(link, to); !errors.Is(err, unix.EBUSY) {
		return err
	}
	if err := s.config.Kernel.LinkSetDown(link); err != nil {
		return err
	}
	if err := s.config.Kernel.LinkSetName(link, to); err != nil {
		return errors.Join(err, s.config.Kernel.LinkSetUp(link))
	}
	a.setDown = true
	return nil
}

// giveBack undoes setAside. Where the name has been taken meanwhile (an agent that
// could not find the device made another), the device keeps the one it has, and the
// next sweep looks at it again.
func (s *Sweeper) giveBack(a aside) {
	err := s.rename(&a, a.name, a.orphan.Name)
	if err == nil && a.setDown {
		err = s.config.Kernel.LinkSetUp(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: a.orphan.Name, Index: a.orphan.Index}})
	}
	switch {
	case err == nil:
		a.orphan.Outcome = Spared
	case rtnl.IsAbsent(err):
		a.orphan.Outcome = Gone
	default:
		a.orphan.Outcome, a.orphan.Error = Left, fmt.Sprintf("named %s now, for the next sweep: %v", a.name, err)
	}
}

// await waits until the reaper is done with the devices, makes no progress any
// more, or has had time to wind up after an interruption.
func (s *Sweeper) await(ctx context.Context, condemned []aside, done func(int)) {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	limit := s.config.StuckAfter + windUp
	patience := time.NewTimer(limit)
	defer patience.Stop()
	interrupted := ctx.Done()
	finished := 0
	for {
		now := s.settle(condemned)
		if now > finished {
			finished = now
			patience.Reset(limit)
			done(finished)
		}
		if finished == len(condemned) {
			return
		}
		select {
		case <-ticker.C:
		case <-interrupted:
			interrupted, limit = nil, windUp
			patience.Reset(limit)
		case <-patience.C:
			s.giveUp(condemned)
			return
		}
	}
}

// settle notes which devices are gone, and returns how many have been settled.
func (s *Sweeper) settle(condemned []aside) int {
	stuck := make(map[int]bool)
	for _, device := range s.reaper.Stuck() {
		stuck[device.Index] = true
	}
	settled := 0
	for _, a := range condemned {
		if a.orphan.Outcome == unsettled && !s.reaper.Reserved(a.name) {
			a.orphan.Outcome = Deleted
			if stuck[a.orphan.Index] {
				a.orphan.Outcome = Left
				a.orphan.Error = "the kernel has taken it out of sight but cannot finish: see \"manx audit stuck\""
			}
		}
		if a.orphan.Outcome != unsettled {
			settled++
		}
	}
	return settled
}

// giveUp says of the devices that are still there why that is.
func (s *Sweeper) giveUp(condemned []aside) {
	for _, a := range condemned {
		if a.orphan.Outcome == unsettled {
			a.orphan.Outcome = Left
			a.orphan.Error = fmt.Sprintf("its deletion has failed or does not come back (named %s now): see the log, and \"manx audit stuck\"", a.name)
		}
	}
}
