// Package traffic measures what limits do to traffic: TCP and UDP throughput against
// the limit, and the queueing delay under overload, over rates, bursts, peak rates,
// directions, IP versions and MTUs; and that a change of a limit under load loses
// nothing.
//
// By default it measures a few cases. All of them take half an hour and want a
// machine that does nothing else: MANX_TRAFFIC=1. MANX_TRAFFIC_REPORT is the
// Markdown file to write. MANX_TRAFFIC_RATES narrows the rates: "10M,1G".
package traffic
