package ifacemonitor

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are a Monitor's. Monitors that are given the same registerer share them.
type metrics struct {
	events   prometheus.Counter
	resyncs  *prometheus.CounterVec
	overruns prometheus.Counter
}

func newMetrics(registerer prometheus.Registerer) metrics {
	m := metrics{
		events: register(registerer, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "manx_ifacemonitor_events_total",
			Help: "Link and address events received, entries of dumps not included.",
		})),
		resyncs: register(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "manx_ifacemonitor_resyncs_total",
			Help: "Times that interfaces and addresses were dumped anew, by reason.",
		}, []string{"reason"})),
		overruns: register(registerer, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "manx_ifacemonitor_overruns_total",
			Help: "Times that events were lost because the receive buffer overran.",
		})),
	}
	for _, why := range allReasons() {
		m.resyncs.WithLabelValues(string(why))
	}
	return m
}

// register registers a collector, or returns the equal one that is registered
// already. One that cannot be registered still counts, unseen.
func register[C prometheus.Collector](registerer prometheus.Registerer, collector C) C {
	if registerer == nil {
		return collector
	}
	var registered prometheus.AlreadyRegisteredError
	if err := registerer.Register(collector); errors.As(err, &registered) {
		if existing, ok := registered.ExistingCollector.(C); ok {
			return existing
		}
	}
	return collector
}
