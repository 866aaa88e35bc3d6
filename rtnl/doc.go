// Package rtnl is the only package of manx that opens a netlink socket.
//
// It offers two things, each in one chosen network namespace:
//
//   - [Handle], requests and their answers: links, qdiscs, filters, routes and
//     neighbours. Every error is an [*OpError] that says what was being done to
//     which object, and unwraps to the kernel's errno.
//   - [EventSocket], the kernel's link and local-address events together with
//     dumps of the same, on one socket and therefore in one order.
//
// The packages above do not import these types to call them: each declares the
// narrow interface it needs, next to the code that uses it. Handle and
// EventSocket satisfy those interfaces, and so does the in-memory kernel of
// package mocks. The types of github.com/vishvananda/netlink cross that seam as
// plain values.
package rtnl
