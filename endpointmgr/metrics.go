package endpointmgr

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are two numbers that should agree: how many endpoints are meant to be up,
// and how many are.
type metrics struct {
	active   prometheus.Gauge
	statuses *prometheus.GaugeVec
}

func newMetrics(registerer prometheus.Registerer) metrics {
	f := promauto.With(registerer) // nil registers nothing
	m := metrics{
		active: f.NewGauge(prometheus.GaugeOpts{
			Name: "manx_dataplane_active_endpoints",
			Help: "Number of workload endpoints that are meant to be up.",
		}),
		statuses: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "manx_dataplane_endpoints",
			Help: "Number of workload endpoints, by the status last reported.",
		}, []string{"status"}),
	}
	for _, status := range []Status{StatusUp, StatusDown} {
		m.statuses.WithLabelValues(string(status))
	}
	return m
}
