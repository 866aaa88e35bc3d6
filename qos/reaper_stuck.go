package qos

import (
	"context"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
)

// What the Reaper does about deletes that do not come back.

// StuckDevice is a device whose delete has not come back.
type StuckDevice struct {
	Device
	// Since is when the delete was asked for.
	Since time.Time
	// Listed is whether the device can still be seen. If not, the kernel has taken
	// it out of the namespace, its name is free, and the kernel waits for the last
	// reference to it ("unregister_netdevice: waiting for … to become free").
	Listed bool
	// Candidates is how many devices the unfinished request was for: if more than
	// one, this device is one of those of which at least one is stuck.
	Candidates int
}

// Stuck returns the devices whose delete has not come back for StuckAfter, oldest
// first; none if all is well.
func (r *Reaper) Stuck() []StuckDevice {
	r.mu.Lock()
	defer r.mu.Unlock()
	var devices []StuckDevice
	for _, j := range r.stuck {
		for _, device := range j.suspects {
			devices = append(devices, StuckDevice{
				Device:     device,
				Since:      j.started,
				Listed:     r.items[device] != nil,
				Candidates: len(j.suspects),
			})
		}
	}
	return devices
}

// await waits for a job, but not for long. It returns false where the job is not
// finished: others go on beside it, and it keeps its handle.
func (r *Reaper) await(ctx context.Context, j *job) bool {
	timer := r.clock.NewTimer(min(slowAfter, r.config.StuckAfter))
	defer timer.Stop()
	select {
	case <-j.done:
		return true
	case <-ctx.Done():
	case <-timer.C():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if j.finished {
		return true
	}
	j.abandoned = true
	// A late delete of this job's group must not meet new members.
	r.group = 0
	r.groupBase += groupStride
	return false
}

// watch waits for a job beside which others go on. Where it does not come back, it is
// left behind.
func (r *Reaper) watch(ctx context.Context, j *job) {
	if left := r.config.StuckAfter - r.clock.Since(j.started); left > 0 {
		timer := r.clock.NewTimer(left)
		defer timer.Stop()
		select {
		case <-j.done:
			return
		case <-ctx.Done():
			return
		case <-timer.C():
		}
	}
	r.mu.Lock()
	if !j.finished {
		r.leaveBehind(j)
	}
	r.mu.Unlock()
	r.wakeUp()
}

// settlePresent deals with a device whose delete is stuck and which can still be
// seen. If it was one of a batch it may not be the one that holds the batch up,
// and gets a delete of its own. Called with the lock held.
func (r *Reaper) settlePresent(it *item, now time.Time) {
	r.queue = append(r.queue, it)
	for _, j := range r.stuck {
		at := slices.Index(j.suspects, it.Device)
		switch {
		case at < 0:
			continue
		case len(j.items) == 1:
			it.notBefore = now.Add(r.config.StuckAfter)
			return
		}
		j.suspects = slices.Delete(j.suspects, at, at+1)
		break
	}
	it.single, it.look = true, false
}

// leaveBehind has a new worker look at the devices of a job that does not come
// back. Called with the lock held.
func (r *Reaper) leaveBehind(j *job) {
	j.left = true
	if j.look { // of devices that have been reported already
		for _, it := range j.items {
			it.notBefore = r.clock.Now().Add(r.config.StuckAfter)
		}
		r.queue = append(r.queue, j.items...)
		return
	}
	for _, it := range j.items {
		j.suspects = append(j.suspects, it.Device)
		it.look = true
	}
	r.stuck = append(r.stuck, j)
	r.queue = slices.Insert(r.queue, 0, j.items...)
	r.updateMetrics()
	first := j.items[0]
	r.log.WithFields(logrus.Fields{
		"ifb": first.Name, "ifindex": first.Index, "reason": first.reason, "devices": len(j.items),
	}).Error("Deleting a device does not come back; leaving it behind. If the kernel log says " +
		"\"unregister_netdevice: waiting for\" it, something holds a reference that only the kernel can drop")
}

// comeBack ends a job that was left behind: whatever still waits of its devices
// gets a turn of its own now. Called with the lock held.
func (r *Reaper) comeBack(j *job) {
	if j.look {
		return
	}
	r.stuck = slices.DeleteFunc(r.stuck, func(other *job) bool { return other == j })
	for _, it := range r.queue {
		if it.look && slices.Contains(j.items, it) {
			it.single, it.look, it.notBefore = true, false, time.Time{}
		}
	}
	r.log.WithFields(logrus.Fields{"ifb": j.items[0].Name, "ifindex": j.items[0].Index, "devices": len(j.items)}).
		Info("Deleting a device that was stuck has come back")
}
