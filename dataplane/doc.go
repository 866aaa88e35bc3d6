// Package dataplane is the contract between a driver and the packages that turn
// "these workloads should exist" into kernel state, and a reference driver that
// keeps it.
//
// The contract is shaped like Felix's, so that a Felix-like driver needs an
// adapter of a few lines. A driver
//
//  1. sends every message to every [Manager] (OnUpdate), and every interface event
//     to every syncer (OnIfaceStateChanged);
//  2. does nothing else until the datastore and the interface monitor have both
//     said that they are in sync: until then a missing endpoint may be one that
//     has not been read yet, and deleting what it needs would cut off a running pod;
//  3. then applies: ResolveUpdateBatch of all managers, CompleteDeferredWork of all
//     managers, Apply of all syncers, OnApplied of all managers;
//  4. applies again when something arrives, when something failed, and at times.
//
// [Driver] does this in one goroutine. Nothing that failed is forgotten, since
// managers and syncers keep it dirty; nothing that failed holds up the rest.
//
// # Order of an apply
//
// Route tables and shapers are applied in parallel, each on its own netlink
// socket. Neither needs the other: a pod that is about to start waits for its status,
// and that is reported after both (see [ApplyCompleter]), so it never runs
// unshaped or unrouted; and a pod that is running must not wait for its route
// until a thousand shapers have been read.
package dataplane
