package qos

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type reaperMetrics struct {
	deletions *prometheus.CounterVec
	queue     prometheus.Gauge
	stuck     prometheus.Gauge
}

func newReaperMetrics(registerer prometheus.Registerer) reaperMetrics {
	return reaperMetrics{
		deletions: register(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "manx_qos_deletions_total", Help: "IFB devices deleted, by reason.",
		}, []string{"reason"})),
		queue: register(registerer, prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "manx_qos_reaper_queue", Help: "IFB devices waiting to be deleted or being deleted.",
		})),
		stuck: register(registerer, prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "manx_qos_stuck_devices", Help: "IFB devices whose deletion does not come back.",
		})),
	}
}

type syncerMetrics struct {
	devices     *prometheus.GaugeVec
	unsupported *prometheus.GaugeVec
	sweepTime   prometheus.Histogram
	sweepSize   prometheus.Gauge
}

func newSyncerMetrics(registerer prometheus.Registerer) syncerMetrics {
	return syncerMetrics{
		devices: register(registerer, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "manx_qos_devices",
			Help: "IFB devices: wanted by a local endpoint's egress limit, present in the kernel, and orphaned (present but not wanted).",
		}, []string{"state"})),
		unsupported: register(registerer, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "manx_qos_unsupported", Help: "1 for each kind of kernel object that bandwidth limits need and the kernel lacks.",
		}, []string{"kind"})),
		sweepTime: register(registerer, prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "manx_qos_sweep_duration_seconds", Help: "Time that a sweep for orphaned devices took on the main loop.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 8),
		})),
		sweepSize: register(registerer, prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "manx_qos_sweep_devices", Help: "Orphaned IFB devices that the last sweep found.",
		})),
	}
}

// register registers a collector, or returns the equal one that was registered
// before. Where that is not possible the collector works unregistered.
func register[C prometheus.Collector](registerer prometheus.Registerer, collector C) C {
	if registerer == nil {
		return collector
	}
	var already prometheus.AlreadyRegisteredError
	if err := registerer.Register(collector); errors.As(err, &already) {
		if existing, ok := already.ExistingCollector.(C); ok {
			return existing
		}
	}
	return collector
}
