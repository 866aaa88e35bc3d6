package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"github.com/manx-dataplane/manx/config"
	"github.com/manx-dataplane/manx/dataplane"
	"github.com/manx-dataplane/manx/endpointmgr"
	"github.com/manx-dataplane/manx/endpointmgr/statusfile"
	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/manifests"
	"github.com/manx-dataplane/manx/qos"
	"github.com/manx-dataplane/manx/routetable"
	"github.com/manx-dataplane/manx/rtnl"
)

// pipeline is everything that one configuration runs. It is built, run once, and
// thrown away.
type pipeline struct {
	cfg      *config.Config
	log      *logrus.Logger
	registry *prometheus.Registry
	handle   Handle // of the shapers

	monitor *ifacemonitor.Monitor
	reaper  *qos.Reaper
	tables  []*routetable.RouteTable
	driver  *dataplane.Driver
	source  *manifests.Source
}

// newPipeline builds the parts and plugs them into one another. Nothing runs yet
// and nothing was asked of the kernel.
func newPipeline(options Options, source *manifests.Source, cfg *config.Config) (*pipeline, error) {
	p := &pipeline{cfg: cfg, log: options.Log, registry: prometheus.NewRegistry(), source: source}
	p.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	p.driver = dataplane.NewDriver(dataplane.Config{
		Log:                  p.log,
		Registerer:           p.registry,
		RouteRefreshInterval: cfg.RouteRefreshInterval,
		QoSRefreshInterval:   cfg.QoSRefreshInterval,
	})
	p.monitor = ifacemonitor.New(ifacemonitor.Config{
		Open: func() (ifacemonitor.EventSocket, error) {
			return options.Kernel.Events(rtnl.EventOptions{Options: p.netlinkOptions()})
		},
		StateCallback:   p.driver.OnIfaceState,
		AddrCallback:    p.driver.OnIfaceAddrs,
		MTUCallback:     p.driver.OnIfaceMTU,
		InSyncCallback:  p.driver.OnIfaceInSync,
		Exclude:         cfg.InterfaceExclude,
		RefreshInterval: cfg.InterfaceRefreshInterval,
		Log:             p.log,
		Registerer:      p.registry,
	})
	source.SetInterfacePrefixes(cfg.InterfacePrefixes)
	if err := p.addManagers(options.Kernel); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// addManagers builds what writes to the kernel: route tables, shapers, and the
// endpoint manager that says what they should hold.
func (p *pipeline) addManagers(kernel Kernel) error {
	var err error
	if p.handle, err = kernel.Handle(p.netlinkOptions()); err != nil {
		return err
	}
	p.reaper = qos.NewReaper(qos.ReaperConfig{
		Open:       func() (qos.ReaperKernel, error) { return kernel.Handle(p.netlinkOptions()) },
		Log:        p.log,
		Registerer: p.registry,
	})
	shapers := qos.New(qos.Config{
		Kernel:          p.handle,
		Reaper:          p.reaper,
		Log:             p.log,
		Registerer:      p.registry,
		Enabled:         p.cfg.QoSControls,
		RemoveExternal:  p.cfg.QoSRemoveExternalShapers,
		IsWorkloadIface: p.isWorkloadIface,
		Wake:            p.driver.Wake,
	})
	endpoints := endpointmgr.Config{
		QoS:                   shapers,
		Sysctls:               kernel.Sysctls(),
		Status:                statusfile.NewWriter(p.cfg.EndpointStatusPathPrefix),
		IsWorkloadIface:       p.isWorkloadIface,
		IPv6Support:           p.cfg.IPv6Support,
		FloatingIPs:           p.cfg.FloatingIPs,
		KubernetesAnnotations: p.cfg.QoSKubernetesAnnotations,
		DefaultBurstBits:      p.cfg.QoSDefaultBurstBits,
		Log:                   p.log,
		Registerer:            p.registry,
	}
	if !p.cfg.RouteSyncDisabled {
		endpoints.RoutesV4 = p.addRouteTable(kernel, 4, p.cfg.DeviceRouteSourceAddress)
		if p.cfg.IPv6Support {
			endpoints.RoutesV6 = p.addRouteTable(kernel, 6, p.cfg.DeviceRouteSourceAddressIPv6)
		}
	}
	p.driver.RegisterManager(shaperSwitch{shapers})
	p.driver.RegisterManager(endpointmgr.New(endpoints))
	p.driver.RegisterSyncer("qos", shapers)
	return nil
}

// addRouteTable builds the main table of an IP version.
func (p *pipeline) addRouteTable(kernel Kernel, ipVersion int, source netip.Addr) *routetable.RouteTable {
	table := routetable.New(routetable.Config{
		Open:      func() (routetable.Kernel, error) { return kernel.Handle(p.netlinkOptions()) },
		IPVersion: ipVersion,
		Ownership: routetable.WorkloadPolicy{
			WorkloadPrefixes:     p.cfg.InterfacePrefixes,
			Protocols:            []int{p.cfg.DeviceRouteProtocol},
			RemoveExternalRoutes: p.cfg.RemoveExternalRoutes,
		},
		Protocol:      p.cfg.DeviceRouteProtocol,
		SourceAddress: source,
		Wake:          p.driver.Wake,
		Log:           p.log,
		Registerer:    p.registry,
	})
	p.tables = append(p.tables, table)
	return table
}

// run runs all parts until ctx is done or one of them fails.
func (p *pipeline) run(ctx context.Context) error {
	defer p.close()
	group, ctx := errgroup.WithContext(ctx)
	start := func(name string, part func(context.Context) error) {
		group.Go(func() error {
			if err := part(ctx); err != nil && !errors.Is(err, context.Canceled) {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	start("dataplane driver", p.driver.Run)
	start("interface monitor", p.monitor.Run)
	start("reaper", p.reaper.Run)
	start("endpoint manifests", func(ctx context.Context) error {
		err := p.source.Run(ctx, p.driver.Send)
		if errors.Is(err, dataplane.ErrStopped) {
			return nil // why it stopped is the driver's to say
		}
		return err
	})
	if p.cfg.HealthEnabled {
		start("health", func(ctx context.Context) error {
			return serveHTTP(ctx, "health", p.cfg.HealthHost, p.cfg.HealthPort, p.driver.HealthHandler())
		})
	}
	if p.cfg.PrometheusMetricsEnabled {
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", promhttp.HandlerFor(p.registry, promhttp.HandlerOpts{}))
		start("metrics", func(ctx context.Context) error {
			return serveHTTP(ctx, "metrics", p.cfg.PrometheusMetricsHost, p.cfg.PrometheusMetricsPort, mux)
		})
	}
	return group.Wait()
}

// close closes the sockets of the parts that have none of their own to close.
func (p *pipeline) close() {
	if p.handle != nil {
		p.handle.Close()
	}
	for _, table := range p.tables {
		table.Close()
	}
}

func (p *pipeline) netlinkOptions() rtnl.Options {
	return rtnl.Options{Timeout: p.cfg.NetlinkTimeout}
}

func (p *pipeline) isWorkloadIface(name string) bool {
	for _, prefix := range p.cfg.InterfacePrefixes {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// shaperSwitch turns bandwidth control on and off with the configuration.
type shaperSwitch struct {
	shapers *qos.Syncer
}

func (s shaperSwitch) OnUpdate(msg any) {
	if update, ok := msg.(dataplane.ConfigUpdate); ok {
		s.shapers.SetEnabled(update.Config.QoSControls)
	}
}

func (s shaperSwitch) CompleteDeferredWork() error { return nil }
