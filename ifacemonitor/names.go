package ifacemonitor

import (
	"slices"
	"time"
)

// Former owners of a name are remembered so that their late messages are known
// as such. On a socket of the kernel's there are no late messages; an embedder's
// source may be late by seconds. Both bounds only bound memory: of what is
// forgotten a late message is still stale if its index is the older one, and is
// put right by the next dump if not.
const (
	formerOwnersPerName = 8
	formerOwnerMemory   = 10 * time.Minute // counted only while nobody owns the name
)

// name is an interface name: who owns it, and who did.
type name struct {
	owner  int // index of a link; zero: nobody
	former []formerOwner
}

// formerOwner is a link that lost the name or was deleted with it.
type formerOwner struct {
	index int
	since time.Time
}

// had reports whether the link is remembered as a former owner.
func (n *name) had(index int) bool {
	return slices.ContainsFunc(n.former, func(f formerOwner) bool { return f.index == index })
}

func (n *name) forget(index int) {
	n.former = slices.DeleteFunc(n.former, func(f formerOwner) bool { return f.index == index })
}

// owner returns the index of the link that owns a name; zero: nobody.
func (t *table) owner(of string) int {
	if n := t.names[of]; n != nil {
		return n.owner
	}
	return 0
}

// ownName makes a link the owner of a name that nobody owns.
func (t *table) ownName(owned string, index int) {
	n := t.names[owned]
	if n == nil {
		n = &name{}
		t.names[owned] = n
	}
	n.owner = index
	n.forget(index)
}

// formerOwner takes note that a link no longer owns a name, if it ever did.
func (t *table) formerOwner(lost string, index int, now time.Time) {
	n := t.names[lost]
	if n == nil {
		n = &name{}
		t.names[lost] = n
	}
	if n.owner == index {
		n.owner = 0
	}
	n.forget(index)
	if len(n.former) == formerOwnersPerName {
		n.former = slices.Delete(n.former, 0, 1)
	}
	n.former = append(n.former, formerOwner{index, now})
	t.forgetFormerOwners(now)
}

// forgetFormerOwners drops names that nobody owns and nobody has lost lately. It
// looks for them now and then; dumps may be far between.
func (t *table) forgetFormerOwners(now time.Time) {
	if now.Sub(t.forgotAt) < formerOwnerMemory {
		return
	}
	t.forgotAt = now
	for key, n := range t.names {
		if n.owner == 0 && now.Sub(n.former[len(n.former)-1].since) > formerOwnerMemory {
			delete(t.names, key)
		}
	}
}
