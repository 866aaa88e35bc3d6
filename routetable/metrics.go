package routetable

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics counts what one RouteTable does. All are labelled with the table's
// number and IP version.
type metrics struct {
	wanted    prometheus.Gauge
	routes    prometheus.Gauge
	conflicts prometheus.Gauge
	sets      prometheus.Counter
	deletes   prometheus.Counter
	failures  prometheus.Counter
	resyncs   *prometheus.CounterVec
	conntrack prometheus.Counter
}

// What a resync reads.
const (
	scopeTable     = "table"
	scopeInterface = "interface"
)

func newMetrics(registerer prometheus.Registerer, table, ipVersion int) *metrics {
	labels := prometheus.Labels{"table": strconv.Itoa(table), "ip_version": strconv.Itoa(ipVersion)}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "manx_routetable_" + name, Help: help, ConstLabels: labels})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "manx_routetable_" + name, Help: help, ConstLabels: labels})
	}
	m := &metrics{
		wanted:    gauge("wanted_routes", "Routes that somebody wants, whether or not their interface is up."),
		routes:    gauge("routes", "Routes of ours that the kernel is believed to hold."),
		conflicts: gauge("conflicts", "Wanted routes whose place another program's route has."),
		sets:      counter("route_sets_total", "Routes added or replaced in the kernel."),
		deletes:   counter("route_deletes_total", "Routes removed from the kernel."),
		failures:  counter("write_failures_total", "Writes of routes or neighbour entries that the kernel refused."),
		conntrack: counter("conntrack_failures_total", "Addresses whose old flows could not be deleted in time."),
		resyncs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "manx_routetable_resyncs_total", Help: "Reads of the kernel's routes: of the whole table or of one interface.", ConstLabels: labels,
		}, []string{"scope"}),
	}
	for _, scope := range []string{scopeTable, scopeInterface} {
		m.resyncs.WithLabelValues(scope)
	}
	if registerer != nil {
		registerer.MustRegister(m.wanted, m.routes, m.conflicts, m.sets, m.deletes, m.failures, m.conntrack, m.resyncs)
	}
	return m
}
