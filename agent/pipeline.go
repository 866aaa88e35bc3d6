package agent

import (
	"context"
	"errors"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/sirupsen/logrus"

	"github.com/manx-dataplane/manx/config"
	"github.com/manx-dataplane/manx/dataplane"
	"github.com/manx-dataplane/manx/manifests"
)

// pipeline is everything that one configuration runs: a Dataplane, what feeds it,
// and what reports on it. It is built, run once, and thrown away.
type pipeline struct {
	cfg       *config.Config
	dataplane *Dataplane
	source    *manifests.Source
	registry  *prometheus.Registry
	log       logrus.FieldLogger
}

func newPipeline(options Options, source *manifests.Source, conntrack Conntrack, cfg *config.Config) (*pipeline, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	built, err := NewDataplane(DataplaneOptions{
		Config:     cfg,
		Kernel:     options.Kernel,
		Conntrack:  conntrack,
		Log:        options.Log,
		Registerer: registry,
	})
	if err != nil {
		return nil, err
	}
	source.SetInterfacePrefixes(cfg.InterfacePrefixes)
	return &pipeline{cfg: cfg, dataplane: built, source: source, registry: registry, log: options.Log}, nil
}

// run runs all parts until ctx is done or one of them fails.
func (p *pipeline) run(ctx context.Context) error {
	parts := newParts(ctx)
	parts.start("dataplane", p.dataplane.Run)
	parts.start("endpoint manifests", func(ctx context.Context) error {
		err := p.source.Run(ctx, p.dataplane.Send)
		if errors.Is(err, dataplane.ErrStopped) {
			return nil // why it stopped is the driver's to say
		}
		return err
	})
	if p.cfg.HealthEnabled {
		parts.start("health", func(ctx context.Context) error {
			serveHTTP(ctx, p.log, p.cfg.HealthHost, p.cfg.HealthPort, p.dataplane.HealthHandler())
			return nil
		})
	}
	if p.cfg.PrometheusMetricsEnabled {
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", promhttp.HandlerFor(p.registry, promhttp.HandlerOpts{}))
		parts.start("metrics", func(ctx context.Context) error {
			serveHTTP(ctx, p.log, p.cfg.PrometheusMetricsHost, p.cfg.PrometheusMetricsPort, mux)
			return nil
		})
	}
	return parts.Wait()
}
