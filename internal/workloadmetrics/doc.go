// Package workloadmetrics exposes what the kernel counts about each workload's
// bandwidth limits as Prometheus metrics.
//
// Their number grows with the number of workloads, and with every workload that
// ever lived, so it is off unless asked for, and bounded: interfaces beyond the
// bound are left out and counted.
//
// A scrape costs one dump of links and one of qdiscs, whatever the number of
// workloads. "manx stats" shows more, on demand, without any series.
package workloadmetrics
