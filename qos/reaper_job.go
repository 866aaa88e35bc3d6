package qos

import (
	"errors"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/rtnl"
)

// job is one turn of a worker: a batch to delete with one request, a single
// device to delete, or devices to look at. While it runs its fields belong to
// its goroutine, except those below the line.
type job struct {
	items     []*item
	look      bool
	kernel    ReaperKernel
	group     int // link group; zero means to choose one from groupBase
	groupBase int
	started   time.Time
	done      chan struct{}

	// Guarded by the Reaper's lock.
	abandoned bool     // nobody waits for it; it closes its handle
	left      bool     // its devices are others' now
	finished  bool     // its outcomes have been settled
	suspects  []Device // once stuck: those that may be what it is stuck on
}

// result is what became of one device.
type result int

const (
	deleted result = iota // by us
	absent                // it was gone, or another device has its index now
	refused               // not deleted in a batch, to be tried by itself
	present               // looked at: still there
	failed                // with an error
)

type outcome struct {
	result result
	err    error
}

// run does the job's kernel calls; any of them may never return.
func (j *job) run() []outcome {
	devices := make([]Device, len(j.items))
	for n, it := range j.items {
		devices[n] = it.Device
	}
	switch {
	case j.look:
		return each(devices, j.lookAt)
	case len(devices) == 1:
		return each(devices, j.deleteOne)
	}
	return j.deleteBatch(devices)
}

func each(devices []Device, do func(Device) outcome) []outcome {
	outcomes := make([]outcome, len(devices))
	for n, device := range devices {
		outcomes[n] = do(device)
	}
	return outcomes
}

// lookAt checks that the device of that index still is the one that was meant:
// present, or what else to say of it.
func (j *job) lookAt(device Device) outcome {
	link, err := j.kernel.LinkByIndex(device.Index)
	switch {
	case err != nil && rtnl.IsAbsent(err):
		return outcome{result: absent}
	case err != nil:
		return outcome{result: failed, err: err}
	case !device.is(link):
		return outcome{result: absent}
	}
	return outcome{result: present}
}

func (j *job) deleteOne(device Device) outcome {
	if o := j.lookAt(device); o.result != present {
		return o
	}
	err := j.kernel.LinkDel(linkRef(device.Name, device.Index))
	switch {
	case err == nil:
		return outcome{result: deleted}
	case rtnl.IsAbsent(err):
		return outcome{result: absent}
	}
	return outcome{result: failed, err: err}
}

// deleteBatch deletes devices as one link group. Whatever goes wrong on the way
// makes it refuse those that are left, so that each is tried by itself.
func (j *job) deleteBatch(devices []Device) []outcome {
	outcomes := each(devices, j.lookAt)
	for n := range outcomes {
		if outcomes[n].result == failed {
			outcomes[n] = outcome{result: refused}
		}
	}
	settle := func(to result) []outcome {
		for n := range outcomes {
			if outcomes[n].result == present {
				outcomes[n].result = to
			}
		}
		return outcomes
	}
	if !slices.ContainsFunc(outcomes, func(o outcome) bool { return o.result == present }) {
		return outcomes
	}
	if err := j.isolate(devices, outcomes); err != nil {
		return settle(refused)
	}
	if err := j.kernel.LinkDelGroup(j.group); err != nil {
		return settle(refused)
	}
	return settle(deleted)
}

// isolate puts the devices that are present into a link group and makes sure
// that nothing else is in it.
func (j *job) isolate(devices []Device, outcomes []outcome) error {
	if j.group == 0 {
		links, err := rtnl.RetryInterrupted(j.kernel.LinkList)
		if err != nil {
			return err
		}
		j.group = unusedGroup(links, j.groupBase)
	}
	const attempts = 3
	for range attempts {
		members := make(map[int]Device, len(devices))
		for n, device := range devices {
			if outcomes[n].result != present {
				continue
			}
			err := j.kernel.LinkSetGroup(linkRef(device.Name, device.Index), j.group)
			if err != nil && rtnl.IsAbsent(err) {
				outcomes[n].result = absent
				continue
			}
			if err != nil {
				return err
			}
			members[device.Index] = device
		}
		links, err := rtnl.RetryInterrupted(j.kernel.LinkList)
		if err != nil {
			return err
		}
		if !anyOther(links, j.group, members) {
			return nil
		}
		j.group = unusedGroup(links, j.groupBase)
	}
	return errors.Join(errGroupShared, unix.EBUSY)
}

var errGroupShared = errors.New("no link group to ourselves")

// anyOther reports whether the group has a link that is not one of the members.
func anyOther(links []netlink.Link, group int, members map[int]Device) bool {
	for _, link := range links {
		attrs := link.Attrs()
		if int(attrs.Group) != group {
			continue
		}
		if member, ok := members[attrs.Index]; !ok || !member.is(link) {
			return true
		}
	}
	return false
}

// Where to look for unused groups: "manx", far from the small numbers that people
// use. Each delete of a group that does not come back moves the base on.
const (
	firstGroup  = 0x6d616e78
	groupStride = 1 << 8
)

// unusedGroup returns the first link group from base that no link is in.
func unusedGroup(links []netlink.Link, base int) int {
	used := make(map[int]bool)
	for _, link := range links {
		used[int(link.Attrs().Group)] = true
	}
	group := base
	for used[group] {
		group++
	}
	return group
}

// is reports whether the link is that device, and an IFB.
func (d Device) is(link netlink.Link) bool {
	attrs := link.Attrs()
	return attrs.Index == d.Index && attrs.Name == d.Name && link.Type() == "ifb"
}
