// Package stats reads what the kernel counts about the bandwidth limits of
// workloads, and shows it: the logic of "manx stats".
//
// A workload's egress is shaped, and so counted, on an IFB device whose name says
// nothing to a person; it is shown on the row of the workload's own interface.
package stats
