package dataplane

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are the driver's own. They count whether or not they are registered.
type metrics struct {
	applySeconds  prometheus.Histogram
	applies       prometheus.Counter
	applyErrors   *prometheus.CounterVec // by part
	retries       prometheus.Counter
	messages      *prometheus.CounterVec // by type
	batchMessages prometheus.Histogram
	inSync        *prometheus.GaugeVec // by source
	refresh       *prometheus.GaugeVec // by what is refreshed
	lastRound     prometheus.Gauge
	lastApply     prometheus.Gauge
	lastSuccess   prometheus.Gauge
}

// Values of labels.
const (
	sourceDatastore  = "datastore"
	sourceInterfaces = "interfaces"
	partResolve      = "resolve"
	partManagers     = "managers"
	partStatus       = "status"
	refreshRoutes    = "routes"
	refreshShapers   = "shapers"
)

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg) // a nil Registerer registers nothing
	m := &metrics{
		applySeconds: f.NewHistogram(prometheus.HistogramOpts{
			Name: "manx_dataplane_apply_duration_seconds",
			Help: "Time one apply took, from resolving the batch to reporting status.",
			// 0.1 ms (nothing to do) to 26 s (a kernel that is stuck).
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 10),
		}),
		applies: f.NewCounter(prometheus.CounterOpts{
			Name: "manx_dataplane_applies_total",
			Help: "Number of applies, failed ones included.",
		}),
		applyErrors: f.NewCounterVec(prometheus.CounterOpts{
			Name: "manx_dataplane_apply_errors_total",
			Help: "Number of applies in which this part failed.",
		}, []string{"part"}),
		retries: f.NewCounter(prometheus.CounterOpts{
			Name: "manx_dataplane_retries_total",
			Help: "Number of applies made only because an earlier one failed.",
		}),
		messages: f.NewCounterVec(prometheus.CounterOpts{
			Name: "manx_dataplane_messages_total",
			Help: "Number of messages handled, by type.",
		}, []string{"type"}),
		batchMessages: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "manx_dataplane_batch_messages",
			Help:    "Number of messages handled in one batch.",
			Buckets: prometheus.ExponentialBuckets(1, 4, 8),
		}),
		inSync: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "manx_dataplane_in_sync",
			Help: "Whether this source has said that it is in sync (1) or not yet (0).",
		}, []string{"source"}),
		refresh: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "manx_dataplane_refresh_interval_seconds",
			Help: "How often this is read from the kernel anew; 0: never.",
		}, []string{"what"}),
		lastRound: f.NewGauge(prometheus.GaugeOpts{
			Name: "manx_dataplane_last_round_timestamp_seconds",
			Help: "When the main loop last came round, which it does every few seconds if it lives.",
		}),
		lastApply: f.NewGauge(prometheus.GaugeOpts{
			Name: "manx_dataplane_last_apply_timestamp_seconds",
			Help: "When the last apply ended; 0: there was none.",
		}),
		lastSuccess: f.NewGauge(prometheus.GaugeOpts{
			Name: "manx_dataplane_last_successful_apply_timestamp_seconds",
			Help: "When the last apply in which nothing failed ended; 0: there was none.",
		}),
	}
	// Series that are there from the start can be alerted on.
	for _, part := range []string{partResolve, partManagers, partStatus} {
		m.applyErrors.WithLabelValues(part)
	}
	for _, msg := range []any{
		WorkloadEndpointUpdate{}, WorkloadEndpointRemove{}, InSync{}, IfaceStateUpdate{}, IfaceAddrsUpdate{},
		IfaceMTUUpdate{}, IfacesInSync{}, ConfigUpdate{}, nil,
	} {
		m.messages.WithLabelValues(messageType(msg))
	}
	for _, source := range []string{sourceDatastore, sourceInterfaces} {
		m.inSync.WithLabelValues(source)
	}
	return m
}

// messageType returns the label for a message. Types that are not ours share one,
// so that an embedder's messages cannot make the label set grow.
func messageType(msg any) string {
	switch msg.(type) {
	case WorkloadEndpointUpdate:
		return "WorkloadEndpointUpdate"
	case WorkloadEndpointRemove:
		return "WorkloadEndpointRemove"
	case InSync:
		return "InSync"
	case IfaceStateUpdate:
		return "IfaceStateUpdate"
	case IfaceAddrsUpdate:
		return "IfaceAddrsUpdate"
	case IfaceMTUUpdate:
		return "IfaceMTUUpdate"
	case IfacesInSync:
		return "IfacesInSync"
	case ConfigUpdate:
		return "ConfigUpdate"
	default:
		return "other"
	}
}
