// Package endpointmgr turns workload endpoints into what the kernel needs for
// them: routes, bandwidth limits, per-interface sysctls, and a status that says
// when all of it is there.
//
// # Interfaces, not endpoints
//
// What is programmed belongs to an interface name. An endpoint claims a name; of all
// claimants the one with the lowest ID wins, the others wait in its shadow, reported
// down, until it goes. So everything that can happen (an endpoint comes, changes,
// moves to another interface, goes; an interface comes, goes, comes back under
// another index; the configuration changes) comes down to marking names as dirty, and
// CompleteDeferredWork to one question for each: who wins this name now, and what
// does it want? That the order of events does not matter follows from there.
//
// # Lives of an interface
//
// An event about one index changes nothing about another that has the name (see
// [dataplane.IfaceStateUpdate] and the interface monitor's contract): an older index
// that speaks late is ignored. Each life of an interface, by which is meant the time
// between two absences, gets its sysctls written anew, and its endpoint is
// reported down between two lives, even where nothing else was seen of the end.
//
// # The node's own addresses
//
// An endpoint gets no route for an address of the node's own, nor for a network that
// holds one, for as long as it does: see Config.IsWorkloadIface.
//
// # Status
//
// A CNI plugin starts the pod when it sees the endpoint's status. Hence down is
// reported in CompleteDeferredWork, before anything is taken away, and up only in
// OnApplied, when the syncers say that routes and limits are in the kernel: a driver
// that is not [dataplane.Driver] has to call OnApplied (see
// [dataplane.ApplyCompleter]), or no endpoint is ever reported up. Package statusfile
// writes the files that the plugin looks at.
package endpointmgr
