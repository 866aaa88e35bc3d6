package qos

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type reaperMetrics struct {
	deletions *prometheus.CounterVec
	retries   prometheus.Counter
	queue     prometheus.Gauge
	stuck     prometheus.Gauge
}

func newReaperMetrics(registerer prometheus.Registerer) reaperMetrics {
	m := reaperMetrics{
		deletions: register(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "manx_qos_deletions_total", Help: "IFB devices deleted, by reason.",
		}, []string{"reason"})),
		retries: register(registerer, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "manx_qos_deletion_retries_total", Help: "Deletions of an IFB device that failed and were put off.",
		})),
		queue: register(registerer, prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "manx_qos_reaper_queue", Help: "IFB devices waiting to be deleted or being deleted.",
		})),
		stuck: register(registerer, prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "manx_qos_stuck_devices", Help: "IFB devices whose deletion does not come back.",
		})),
	}
	for _, reason := range allReasons() {
		m.deletions.WithLabelValues(string(reason))
	}
	return m
}

// syncerMetrics say how wanted and present devices compare, both ways: orphaned and
// missing are zero where both are the same devices, whatever their number.
type syncerMetrics struct {
	enabled     prometheus.Gauge
	wanted      prometheus.Gauge
	present     prometheus.Gauge
	orphaned    prometheus.Gauge
	missing     prometheus.Gauge
	unsupported *prometheus.GaugeVec
	sweepTime   prometheus.Histogram
	sweepSize   prometheus.Gauge
	lastSweep   prometheus.Gauge
}

func newSyncerMetrics(registerer prometheus.Registerer) syncerMetrics {
	gauge := func(name, help string) prometheus.Gauge {
		return register(registerer, prometheus.NewGauge(prometheus.GaugeOpts{Name: "manx_qos_" + name, Help: help}))
	}
	m := syncerMetrics{
		enabled:  gauge("enabled", "Whether bandwidth control is on (1) or disabled (0)."),
		wanted:   gauge("wanted_devices", "IFB devices that existing interfaces of endpoints with an egress limit want."),
		present:  gauge("present_devices", "IFB devices of ours that the kernel is believed to hold."),
		orphaned: gauge("orphaned_devices", "IFB devices of ours that are present and not wanted."),
		missing:  gauge("missing_devices", "IFB devices that are wanted, and absent or not redirected to."),
		unsupported: register(registerer, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "manx_qos_unsupported", Help: "1 for each kind of kernel object that bandwidth limits need and the kernel lacks.",
		}, []string{"kind"})),
		sweepTime: register(registerer, prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "manx_qos_sweep_duration_seconds", Help: "Time that a sweep for orphaned devices took on the main loop.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 8),
		})),
		sweepSize: gauge("sweep_devices", "Orphaned IFB devices that the last sweep found."),
		lastSweep: gauge("last_sweep_timestamp_seconds", "When a sweep last did all it had to; 0: not yet."),
	}
	for _, kind := range kindsNeeded() {
		m.unsupported.WithLabelValues(kind)
	}
	return m
}

// updateMetrics compares what is wanted with what is there.
func (s *Syncer) updateMetrics() {
	wanted, missing, present, orphaned := 0, 0, 0, 0
	for name, owner := range s.owners {
		if !s.isWanted(name) {
			continue
		}
		wanted++
		veth, ifb := s.snapshot.ByName(owner), s.snapshot.ByName(name)
		if veth == nil || ifb == nil || !veth.RedirectsTo(ifb.Index) {
			missing++
		}
	}
	for _, ifb := range s.shapers() {
		present++
		if !s.isWanted(ifb.Name) {
			orphaned++
		}
	}
	s.metrics.wanted.Set(float64(wanted))
	s.metrics.missing.Set(float64(missing))
	s.metrics.present.Set(float64(present))
	s.metrics.orphaned.Set(float64(orphaned))
	enabled := 0.0
	if s.enabled {
		enabled = 1
	}
	s.metrics.enabled.Set(enabled)
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
