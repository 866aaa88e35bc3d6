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
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg) // a nil Registerer registers nothing
	return &metrics{
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
	}
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
