// Package ifacemonitor turns the kernel's link and address events into callbacks
// that a driver can act on without looking twice: about one interface name at a
// time, in order, and never about an interface that has lost its name.
//
// # One ordered stream
//
// Events and dumps come from one socket and therefore in one order. A dump
// answers a request on that socket; what neither the dump nor an event has
// confirmed since the request is gone. While a dump runs, an event beats a dump
// entry, because the kernel may queue an entry that it filled earlier after an
// event that came later.
//
// A generation is three dumps, one after the other, whatever the number of
// interfaces: local IPv4 addresses, local IPv6 addresses, links. Addresses come
// first so that a new interface is reported with its addresses and not first
// without. A generation starts when the monitor does, when messages were lost
// (the socket's receive buffer overran), when two links claim one name, when the
// socket had to be reopened, and on a timer. A dump that the kernel says was
// interrupted is repeated, and a generation in which messages were lost starts
// over, both after a pause that doubles from 10 ms to 1 s: a busy node does not
// spin, and each attempt may succeed on its own. A generation that is wanted while
// another runs follows it. Events are processed all the while.
//
// # What the callbacks promise
//
//  1. For one name the sequence of state callbacks is: up or down, any number of
//     times, of one index, then absent, before another index speaks. No repeats.
//  2. A message for an older index never changes what is reported about a name
//     that a newer one owns.
//  3. Once events stop, what is reported is what the kernel has, whatever was
//     lost, repeated, reordered or interrupted before. (Where the source reorders
//     events, as no kernel socket does, once the next generation has ended.)
//  4. A deletion is never coalesced away: a link that is deleted and re-created is
//     reported absent, then present, even under the same name and index. Only
//     removals of addresses are damped.
//  5. Address callbacks come only for present interfaces; absence reports nil
//     addresses after the state callback.
//  6. Excluded interfaces get state callbacks but no address callbacks.
//
// An interface that appears is reported by its state, its MTU and its addresses,
// in this order.
package ifacemonitor
