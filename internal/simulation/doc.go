// Package simulation runs the whole pipeline (interface monitor, driver, endpoint
// manager, route tables, shapers, reaper, as package agent wires them) on the
// in-memory kernel of package mocks, while a seeded scheduler does to it whatever
// a node does: pods come and go, the agent crashes between any two kernel writes,
// calls fail, events are lost, vandals delete things. It holds tests only.
//
// A scenario is a list of steps made from a seed. While it runs, invariants are
// checked at every kernel call: nothing is written before both sides are in sync, no
// limit is lifted from a running pod that wants it, nothing foreign is touched, no
// device is deleted that something still redirects to. After its last step faults
// stop; once a bounded time has passed, the kernel must hold what an independent model
// says, and so must the status files. A second monitor listens all the while, and its
// callbacks must keep the monitor's contract. In the end no goroutine and no handle may
// be left.
//
// # The scheduler
//
// Each scenario runs in a testing/synctest bubble. The pipeline is made of
// goroutines, channels and timers, and a step loop of our own would need every one
// of them rewritten as a state machine: it would test another program. The bubble
// runs the program as it is, with a clock that jumps to the next timer when everyone
// waits, and it proves at its end that no goroutine is left.
//
// What the bubble does not give is an order: so every kernel call waits, before it
// is made, until the scheduler grants it. The scheduler does that only when all
// goroutines wait, one call at a time, chosen among the waiting ones by the seed;
// between two grants it may take the scenario's next step instead. Two calls never
// overlap, and any two may be interleaved in any order, with the world changing
// between them.
//
// # What a seed reproduces
//
// The steps, the choice among waiting calls, every fault (by seed, operation, object
// and how often that was asked for) and everything that the in-memory kernel and its
// sockets do. Not reproduced are the iteration order of Go's maps and the choice of a
// select among several ready channels, and with -race the order in which runnable
// goroutines get to run. These change which calls are made first where the code leaves
// that open; few failures depend on them, and a replay that passes should be repeated
// with -count=20.
package simulation
