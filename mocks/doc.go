// Package mocks is an in-memory Linux kernel, as far as manx talks to one, with
// faults on demand. It is for our own tests and for those of programs that embed
// the library.
//
// A [Kernel] is one network namespace. What an agent does to it goes through a
// [Handle] and an [EventSocket], which have the methods of their namesakes in
// package rtnl; what the world outside does (a runtime that creates and removes
// pods, an operator with tc) goes through [Kernel.Outside], a Handle on which no
// fault is ever injected. Calls return what the kernel returns, down to the errno,
// and have the kernel's side effects: deleting one end of a veth pair deletes the
// other, a link that goes down loses its routes, a filter goes with its qdisc.
// The package's own tests run one behavioural suite, and random sequences of
// operations, against a Kernel and against a real namespace: where they differ,
// the Kernel is wrong.
//
// # Modelled
//
//   - Links: veth pairs, also across namespaces, IFBs, bridges, loopback, any other
//     kind as a generic device; flags, operational state, MTU, name, group, index.
//   - Qdiscs at a link's root and its ingress: default, TBF, ingress, clsact and any
//     classless other; one below a root TBF; filters below ingress and clsact, with
//     mirred targets.
//   - Addresses, routes in any table, static neighbours, conntrack as a count of flows
//     per address, sysctls per interface.
//   - Multicasts and dumps on event sockets, the receive buffer's limit and what
//     happens beyond it, the overtaking of a dump's chunk by a multicast.
//
// # Not modelled
//
// Packets, classes, qdiscs that move from one parent to another, statistics, bridge
// ports, broadcast and multicast routes, nexthop objects, source-specific IPv6 routes, ECMP of
// single IPv6 routes, secondary IPv4 addresses (deleting the first of a subnet
// leaves the others), duplicate address detection (an address is usable at once),
// what an MTU below 1280 does to IPv6, u32 handles that name another priority's
// hash table, and the time that anything takes: a change of carrier, which the
// kernel may report up to a second later, is reported in the call that causes it.
//
// # Concurrency and time
//
// Everything is safe for concurrent use. The package starts no goroutine, never
// sleeps and never looks at a clock, so a scenario whose calls are made in a fixed
// order has one outcome, and a blocked [EventSocket.Receive] counts as blocked for
// testing/synctest.
package mocks
