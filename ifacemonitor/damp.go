package ifacemonitor

import (
	"net/netip"
	"slices"
	"time"
)

// addresses are the local addresses by interface index, whether or not a link of
// that index is known. Removals may be damped: an address that comes back within
// the delay was never away. Changing a netmask or a label makes the kernel remove
// an address and add it again.
type addresses struct {
	delay   time.Duration
	all     map[addrKey]time.Time // when to remove it; zero: not
	byIndex map[int][]netip.Addr  // sorted
	// removals are in order of time, because the delay is the same for all. Those
	// that were called off are still in it.
	removals []removal
}

type removal struct {
	key addrKey
	at  time.Time
}

func newAddresses(delay time.Duration) addresses {
	return addresses{delay: delay, all: map[addrKey]time.Time{}, byIndex: map[int][]netip.Addr{}}
}

// of returns the addresses of an interface, sorted and never nil; those whose
// removal is damped included. The caller must not change the result.
func (a *addresses) of(index int) []netip.Addr {
	if addrs, ok := a.byIndex[index]; ok {
		return addrs
	}
	return []netip.Addr{}
}

// add adds an address or calls off its removal, and reports whether of changes.
func (a *addresses) add(key addrKey) bool {
	_, known := a.all[key]
	a.all[key] = time.Time{}
	if known {
		return false
	}
	addrs := a.byIndex[key.index]
	i, _ := slices.BinarySearchFunc(addrs, key.addr, netip.Addr.Compare)
	a.byIndex[key.index] = slices.Insert(slices.Clip(addrs), i, key.addr)
	return true
}

// remove removes an address, at once or damped, and reports whether of changes.
func (a *addresses) remove(key addrKey, now time.Time, damped bool) bool {
	at, known := a.all[key]
	switch {
	case !known:
		return false
	case !damped || a.delay <= 0:
		a.delete(key)
		return true
	case at.IsZero():
		at = now.Add(a.delay)
		a.all[key] = at
		a.removals = append(a.removals, removal{key, at})
	}
	return false
}

// drop removes all addresses of an interface, at once.
func (a *addresses) drop(index int) {
	for _, addr := range a.byIndex[index] {
		delete(a.all, addrKey{index, addr})
	}
	delete(a.byIndex, index)
}

// expire carries out the removals that are due and returns the interfaces whose
// addresses change by that.
func (a *addresses) expire(now time.Time) (changed []int) {
	for {
		at, ok := a.next()
		if !ok || at.After(now) {
			return changed
		}
		key := a.removals[0].key
		a.delete(key)
		changed = append(changed, key.index)
	}
}

// next returns when the next removal is due, if there is one.
func (a *addresses) next() (time.Time, bool) {
	for len(a.removals) > 0 {
		head := a.removals[0]
		if at, ok := a.all[head.key]; ok && at.Equal(head.at) && !at.IsZero() {
			return head.at, true
		}
		a.removals = a.removals[1:]
	}
	a.removals = nil
	return time.Time{}, false
}

func (a *addresses) delete(key addrKey) {
	delete(a.all, key)
	addrs := a.byIndex[key.index]
	i, _ := slices.BinarySearchFunc(addrs, key.addr, netip.Addr.Compare)
	if len(addrs) == 1 {
		delete(a.byIndex, key.index)
		return
	}
	// A copy: the slice may have been handed out.
	a.byIndex[key.index] = slices.Concat(addrs[:i], addrs[i+1:])
}
