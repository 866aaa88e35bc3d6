package ifacemonitor

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/rtnl"
)

// table is what the monitor believes: links by index, each name owned by at most
// one of them, addresses by index. It is a state machine without goroutines and
// without a clock; what it concludes it reports at once, except for addresses,
// which it reports at flush.
//
// Its three rules about names:
//   - A message of a newer index (a larger one) takes the name from an older
//     one, which is reported absent first.
//   - A message of an index that had the name before, or of an older one, is
//     stale while another index owns the name: it changes nothing.
//   - Either way there were two claims to one name, which a dump has to settle:
//     conflict says so. A dump entry takes the name whatever the indexes are,
//     unless an event since the dump's request speaks for the owner.
type table struct {
	report   reports
	excluded func(name string) bool

	links map[int]*link
	names map[string]*name
	// forgotAt is when names were last looked through for those to forget.
	forgotAt time.Time
	addrs    addresses
	dirty    map[int]bool // links whose addresses are to be reported, if they differ

	dump     *dump // in progress; nil: none
	conflict bool  // two links claimed one name since this was last cleared
}

// reports is where the table's conclusions go. All are called from within the
// table's methods.
type reports struct {
	state func(name string, state State, ifindex int)
	mtu   func(name string, ifindex, mtu int)
	addrs func(name string, addrs []netip.Addr)
}

// link is an interface that exists.
type link struct {
	name  string // that it owns; empty where it has lost it and not claimed another
	state State
	mtu   int
	addrs []netip.Addr // as last reported
}

// dump is what is known about a dump in progress. Within a dump an event beats
// an entry: the kernel may queue an entry after an event that is younger.
type dump struct {
	what rtnl.Dump

	// By an event since the request.
	touchedLinks map[int]bool // by index; deleted ones too
	touchedAddrs map[addrKey]bool

	// By an entry of the dump.
	seenLinks map[int]bool
	seenAddrs map[addrKey]bool
}

type addrKey struct {
	index int
	addr  netip.Addr
}

func newTable(report reports, excluded func(name string) bool, removalDelay time.Duration) *table {
	return &table{
		report:   report,
		excluded: excluded,
		links:    map[int]*link{},
		names:    map[string]*name{},
		addrs:    newAddresses(removalDelay),
		dirty:    map[int]bool{},
	}
}

// beginDump says that a dump was just requested: what comes from now on happened
// since.
func (t *table) beginDump(what rtnl.Dump) {
	t.dump = &dump{
		what:         what,
		touchedLinks: map[int]bool{},
		touchedAddrs: map[addrKey]bool{},
		seenLinks:    map[int]bool{},
		seenAddrs:    map[addrKey]bool{},
	}
}

// endDump ends the dump in progress. Where it was complete, what neither it nor an
// event since its request has confirmed is gone.
func (t *table) endDump(complete bool, now time.Time) {
	d := t.dump
	t.dump = nil
	switch {
	case !complete:
	case d.what == rtnl.DumpLinks:
		for _, index := range slices.Sorted(maps.Keys(t.links)) {
			if !d.seenLinks[index] && !d.touchedLinks[index] {
				t.remove(index, now)
			}
		}
	default:
		for key := range t.addrs.all {
			if dumpOf(key.addr) == d.what && !d.seenAddrs[key] && !d.touchedAddrs[key] {
				t.removeAddr(key, now)
			}
		}
	}
}

// event takes in a message that is not part of a dump.
func (t *table) event(msg rtnl.Message, now time.Time) {
	switch msg.Type {
	case rtnl.MessageNewLink:
		if !wellFormed(msg) || t.isStale(msg) {
			return
		}
		if t.dump != nil && t.dump.what == rtnl.DumpLinks {
			t.dump.touchedLinks[msg.Index] = true
		}
		t.present(msg, now)
	case rtnl.MessageDelLink:
		if msg.Index <= 0 {
			return
		}
		if t.dump != nil {
			t.dump.touchedLinks[msg.Index] = true
		}
		if msg.Name != "" {
			t.formerOwner(msg.Name, msg.Index, now)
		}
		t.remove(msg.Index, now)
	case rtnl.MessageNewAddr, rtnl.MessageDelAddr:
		key, ok := keyOf(msg)
		if !ok {
			return
		}
		if t.dump != nil {
			t.dump.touchedAddrs[key] = true
		}
		if msg.Type == rtnl.MessageNewAddr {
			t.addAddr(key)
		} else {
			t.removeAddr(key, now)
		}
	}
}

// entry takes in an entry of the dump in progress.
func (t *table) entry(msg rtnl.Message, now time.Time) {
	switch {
	case msg.Type == rtnl.MessageNewLink && t.dump.what == rtnl.DumpLinks:
		if !wellFormed(msg) || t.dump.touchedLinks[msg.Index] {
			return
		}
		if owner := t.owner(msg.Name); owner != 0 && owner != msg.Index {
			// Either the owner's claim is from before the dump, which then knows better,
			// or two claims are from its time: another dump has to tell.
			t.conflict = t.conflict || t.dump.touchedLinks[owner] || t.dump.seenLinks[owner]
			if t.dump.touchedLinks[owner] {
				t.dump.seenLinks[msg.Index] = true // it exists, whatever its name
				return
			}
		}
		t.dump.seenLinks[msg.Index] = true
		t.present(msg, now)
	case msg.Type == rtnl.MessageNewAddr:
		key, ok := keyOf(msg)
		// touchedLinks: the link was deleted since the request; the entry may be from before.
		if !ok || dumpOf(key.addr) != t.dump.what || t.dump.touchedAddrs[key] || t.dump.touchedLinks[key.index] {
			return
		}
		t.dump.seenAddrs[key] = true
		t.addAddr(key)
	}
}

// flush reports the addresses that changed, those whose removal is due included.
// It is called after every batch of messages and whenever nextRemoval is due.
func (t *table) flush(now time.Time) {
	for _, index := range t.addrs.expire(now) {
		t.dirty[index] = true
	}
	for _, index := range slices.Sorted(maps.Keys(t.dirty)) {
		if l := t.links[index]; l != nil && l.name != "" {
			t.reportAddrs(index, l, false)
		}
	}
	clear(t.dirty)
}

// nextRemoval returns when flush has to be called next, if at all.
func (t *table) nextRemoval() (time.Time, bool) { return t.addrs.next() }

// isStale reports whether an event's claim to its name is to be ignored, and
// takes note of conflicting claims.
func (t *table) isStale(msg rtnl.Message) bool {
	owner := t.owner(msg.Name)
	if owner == 0 || owner == msg.Index {
		return false
	}
	t.conflict = true
	return msg.Index < owner || t.names[msg.Name].had(msg.Index)
}

// present takes in that a link exists, with a name that it now owns.
func (t *table) present(msg rtnl.Message, now time.Time) {
	if owner := t.owner(msg.Name); owner != 0 && owner != msg.Index {
		t.loseName(owner, now)
	}
	l := t.links[msg.Index]
	if l == nil {
		l = &link{}
		t.links[msg.Index] = l
	}
	if l.name != msg.Name {
		t.loseName(msg.Index, now)
	}
	state := StateDown
	if msg.Flags&unix.IFF_RUNNING != 0 {
		state = StateUp
	}
	isNew, mtuChanged := l.name == "", msg.MTU != 0 && msg.MTU != l.mtu
	stateChanged := isNew || l.state != state
	l.name, l.state = msg.Name, state
	if msg.MTU != 0 { // else the message does not tell
		l.mtu = msg.MTU
	}
	t.ownName(msg.Name, msg.Index)
	if stateChanged {
		t.report.state(l.name, l.state, msg.Index)
	}
	if l.mtu != 0 && (isNew || mtuChanged) {
		t.report.mtu(l.name, msg.Index, l.mtu)
	}
	if isNew {
		t.reportAddrs(msg.Index, l, true)
	}
}

// remove takes in that a link does not exist. Its addresses went with it.
func (t *table) remove(index int, now time.Time) {
	t.addrs.drop(index)
	if t.links[index] != nil {
		t.loseName(index, now)
		delete(t.links, index)
	}
}

// loseName reports the name of a link absent, if it has one, and takes it away.
func (t *table) loseName(index int, now time.Time) {
	l := t.links[index]
	if l.name == "" {
		return
	}
	lost := l.name
	l.name, l.addrs = "", nil
	t.formerOwner(lost, index, now)
	t.report.state(lost, StateNotPresent, index)
	if !t.excluded(lost) {
		t.report.addrs(lost, nil)
	}
}

// reportAddrs reports the addresses of a present link if they changed or if the
// report is due anyway.
func (t *table) reportAddrs(index int, l *link, always bool) {
	delete(t.dirty, index)
	if t.excluded(l.name) {
		return
	}
	addrs := t.addrs.of(index)
	if !always && slices.Equal(addrs, l.addrs) {
		return
	}
	l.addrs = addrs
	t.report.addrs(l.name, slices.Clone(addrs))
}

func (t *table) addAddr(key addrKey) {
	if t.addrs.add(key) {
		t.dirty[key.index] = true
	}
}

// removeAddr damps the removal only where somebody was told of the address.
func (t *table) removeAddr(key addrKey, now time.Time) {
	l := t.links[key.index]
	if t.addrs.remove(key, now, l != nil && l.name != "") {
		t.dirty[key.index] = true
	}
}

// wellFormed guards against what no kernel says but an embedder's socket might.
func wellFormed(msg rtnl.Message) bool { return msg.Index > 0 && msg.Name != "" }

func keyOf(msg rtnl.Message) (addrKey, bool) {
	return addrKey{msg.Index, msg.Addr.Unmap()}, msg.Index > 0 && msg.Addr.IsValid()
}

// dumpOf returns the dump that lists an address.
func dumpOf(addr netip.Addr) rtnl.Dump {
	if addr.Is4() {
		return rtnl.DumpLocalIPv4
	}
	return rtnl.DumpLocalIPv6
}
