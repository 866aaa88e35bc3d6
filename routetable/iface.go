package routetable

import (
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/ifacemonitor"
)

// iface is what is believed about the interface that owns a name.
type iface struct {
	index     int
	up        bool
	wasUp     bool // it has been up under this name and index
	firstSeen time.Time
}

// ifaceChange says what is believed anew of an interface.
type ifaceChange struct {
	name string
	// lost, where not zero, is an index whose routes the kernel may have removed.
	lost int
	// firstUp says that the name's owner is up for the first time.
	firstUp bool
}

// interfaces maps names to indexes and back. A name has at most one owner and an
// index at most one name.
type interfaces struct {
	byName  map[string]iface
	byIndex map[int]string
	changed func(ifaceChange)
}

func newInterfaces(changed func(ifaceChange)) *interfaces {
	return &interfaces{byName: map[string]iface{}, byIndex: map[int]string{}, changed: changed}
}

// event takes in what a monitor said, which may come late or out of order. It
// returns whether the kernel should be asked who owns the name.
//
// A newer index (a higher one) that is up takes the name over. Everything else
// that is said about an index which does not own the name changes nothing.
func (is *interfaces) event(name string, index int, state ifacemonitor.State, now time.Time) (disputed bool) {
	owner, owned := is.byName[name]
	other := owned && owner.index != index
	switch {
	case state == ifacemonitor.StateNotPresent:
		if owned && !other {
			is.remove(name)
		}
		return false
	case other && (state != ifacemonitor.StateUp || index < owner.index):
		return true
	}
	is.set(name, index, state == ifacemonitor.StateUp, now)
	return other
}

// confirm takes in what the kernel itself said: this is the owner of the name.
func (is *interfaces) confirm(link netlink.Link, now time.Time) {
	attrs := link.Attrs()
	is.set(attrs.Name, attrs.Index, linkIsUp(attrs), now)
}

// linkIsUp is the monitor's rule. The kernel shows IFF_RUNNING only for devices
// that are administratively up (dev_get_flags).
func linkIsUp(attrs *netlink.LinkAttrs) bool { return attrs.RawFlags&unix.IFF_RUNNING != 0 }

func (is *interfaces) set(name string, index int, up bool, now time.Time) {
	if oldName, ok := is.byIndex[index]; ok && oldName != name {
		is.remove(oldName) // renamed
	}
	before, owned := is.byName[name]
	if owned && before.index != index {
		is.remove(name)
		owned = false
	}
	after := iface{index: index, up: up, wasUp: up, firstSeen: now}
	if owned {
		if before.up == up {
			return
		}
		after.firstSeen, after.wasUp = before.firstSeen, before.wasUp || up
	}
	is.byName[name] = after
	is.byIndex[index] = name
	change := ifaceChange{name: name, firstUp: up && !(owned && before.wasUp)}
	if !up {
		change.lost = index
	}
	is.changed(change)
}

// remove forgets the name and its owner.
func (is *interfaces) remove(name string) {
	owner, ok := is.byName[name]
	if !ok {
		return
	}
	delete(is.byName, name)
	delete(is.byIndex, owner.index)
	is.changed(ifaceChange{name: name, lost: owner.index})
}

// upIndex returns the index of the interface, where it is up.
func (is *interfaces) upIndex(name string) (int, bool) {
	i, ok := is.byName[name]
	return i.index, ok && i.up
}
