// Package audit compares pairs of numbers that should agree on a node, and names
// what stands on one side only: the logic of "manx audit".
//
// A level says little: 254 addresses in use is fine with 254 workloads, and a node
// that is about to fail with 44. So every check here counts the same thing twice,
// from two sources, and the test is equality: more and less are both a gap, and so
// are two equal numbers of different things.
//
// An audit only reads. The one thing here that deletes is [Release], which carries
// out a plan that was written down before, entry by entry, each checked again.
package audit
