// Package routetable brings one kernel routing table to a desired state and
// keeps it there while interfaces come and go.
//
// Callers say, in Felix's verbs, which routes should exist through which
// interface, by name, whether or not it exists yet ([RouteTable.SetRoutes],
// [RouteTable.RouteUpdate], [RouteTable.RouteRemove]); the interface monitor's
// callbacks say which interfaces exist, under which index, and whether they are
// up ([RouteTable.OnIfaceStateChanged]). None of these does I/O.
// [RouteTable.Apply] then writes the difference between that and what the kernel
// has.
//
// # Three maps
//
// Everything is keyed as the kernel keys its table, by destination, TOS and
// priority:
//
//   - desired: each key's candidates. The best class among those whose interface
//     is up wins, then the newest interface (the highest index).
//   - observed: what the kernel has, of our own routes, as read by the last
//     resync and as changed by our own writes since.
//   - dirty: the keys whose desired or observed side may have changed. Apply looks
//     at no others, so that doing nothing costs nothing.
//
// # Indexes and names
//
// Desired routes name an interface, the kernel's routes an index. What the table
// believes about an index is never changed by news of another one that has, or
// had, the same name: a "down" or a removal for an index that does not own the
// name is ignored, and two claims to one name are settled by asking the kernel.
//
// # What the kernel removes by itself
//
// A link that goes down or away takes its routes along, without a message for
// each; one that merely loses its carrier keeps them. After such an event nothing
// observed through the link is trusted: removals are written and may find nothing
// to remove; additions insist that nothing is there, and have the interface's
// routes read again where something is.
//
// # Whose route is it
//
// An [OwnershipPolicy] says which routes of the table are ours to remove. What is
// not ours is not replaced either: a wanted route whose place is taken is an
// [ErrConflict], unless the other one goes through an interface that is ours.
//
// # Conntrack
//
// Where an address moves to another interface or goes, its old route is removed,
// then its flows are deleted ([Conntrack]) on a goroutine that ends with that,
// then the new route goes in, in the Apply after Config.Wake. Other routes do not
// wait. A deletion that fails or takes too long ends in a [ConntrackError], and
// the route goes in all the same. An interface that is merely down does not count
// as a move.
package routetable
