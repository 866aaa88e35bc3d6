package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"github.com/manx-dataplane/manx/config"
	"github.com/manx-dataplane/manx/dataplane"
	"github.com/manx-dataplane/manx/endpointmgr"
	"github.com/manx-dataplane/manx/endpointmgr/statusfile"
	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/internal/workloadmetrics"
	"github.com/manx-dataplane/manx/qos"
	"github.com/manx-dataplane/manx/routetable"
	"github.com/manx-dataplane/manx/rtnl"
)

// DataplaneOptions are what NewDataplane needs. Config and Kernel are required.
type DataplaneOptions struct {
	Config *config.Config
	Kernel Kernel
	// Conntrack deletes the flows of addresses that move or go. The caller closes it,
	// after Run. Nil leaves flows alone.
	Conntrack routetable.Conntrack
	// Clock nil means the real one.
	Clock clock.Clock
	// Log nil means that nothing is logged.
	Log logrus.FieldLogger
	// Registerer nil means that metrics are not registered.
	Registerer prometheus.Registerer
}

// Dataplane is the interface monitor, the reference driver, the endpoint manager,
// the route tables, the shapers and their reaper, plugged into one another. It takes
// the messages of package dataplane and knows nothing of where they come from.
type Dataplane struct {
	options DataplaneOptions
	cfg     *config.Config
	handle  Handle // of the shapers

	monitor *ifacemonitor.Monitor
	reaper  *qos.Reaper
	tables  []*routetable.RouteTable
	driver  *dataplane.Driver
}

// NewDataplane builds the parts. Nothing runs yet, and nothing was asked of the
// kernel but a socket. Run must be called, once, for the socket to be closed.
func NewDataplane(options DataplaneOptions) (*Dataplane, error) {
	cfg := options.Config
	d := &Dataplane{options: options, cfg: cfg}
	d.driver = dataplane.NewDriver(dataplane.Config{
		Clock:                options.Clock,
		Log:                  options.Log,
		Registerer:           options.Registerer,
		RouteRefreshInterval: cfg.RouteRefreshInterval,
		QoSRefreshInterval:   cfg.QoSRefreshInterval,
	})
	d.monitor = ifacemonitor.New(ifacemonitor.Config{
		Open: func() (ifacemonitor.EventSocket, error) {
			return options.Kernel.Events(rtnl.EventOptions{Options: d.netlinkOptions()})
		},
		StateCallback:   d.driver.OnIfaceState,
		AddrCallback:    d.driver.OnIfaceAddrs,
		MTUCallback:     d.driver.OnIfaceMTU,
		InSyncCallback:  d.driver.OnIfaceInSync,
		LostCallback:    d.driver.OnIfaceEventsLost,
		Exclude:         cfg.InterfaceExclude,
		RefreshInterval: cfg.InterfaceRefreshInterval,
		Clock:           options.Clock,
		Log:             options.Log,
		Registerer:      options.Registerer,
	})
	d.reaper = qos.NewReaper(qos.ReaperConfig{
		Open:       func() (qos.ReaperKernel, error) { return d.open() },
		Clock:      options.Clock,
		Log:        options.Log,
		Registerer: options.Registerer,
	})
	var err error
	if d.handle, err = d.open(); err != nil {
		return nil, err
	}
	d.addManagers()
	if cfg.PrometheusWorkloadMetricsEnabled && options.Registerer != nil {
		options.Registerer.MustRegister(workloadmetrics.New(workloadmetrics.Config{
			Open:            func() (workloadmetrics.Kernel, error) { return d.open() },
			IsWorkloadIface: d.isWorkloadIface,
			Log:             options.Log,
		}))
	}
	return d, nil
}

// addManagers builds what writes to the kernel on the driver's goroutine: the
// shapers, the route tables, and the endpoint manager that says what they should
// hold.
func (d *Dataplane) addManagers() {
	shapers := qos.New(qos.Config{
		Kernel:          d.handle,
		Reaper:          d.reaper,
		Sysctls:         d.options.Kernel.Sysctls(),
		Clock:           d.options.Clock,
		Log:             d.options.Log,
		Registerer:      d.options.Registerer,
		Enabled:         d.cfg.QoSControls,
		RemoveExternal:  d.cfg.QoSRemoveExternalShapers,
		IsWorkloadIface: d.isWorkloadIface,
		Wake:            d.driver.Wake,
	})
	endpoints := endpointmgr.Config{
		QoS:                   shapers,
		Sysctls:               d.options.Kernel.Sysctls(),
		Status:                statusfile.NewWriter(d.cfg.EndpointStatusPathPrefix),
		IsWorkloadIface:       d.isWorkloadIface,
		IPv6Support:           d.cfg.IPv6Support,
		FloatingIPs:           d.cfg.FloatingIPs,
		KubernetesAnnotations: d.cfg.QoSKubernetesAnnotations,
		DefaultBurstBits:      d.cfg.QoSDefaultBurstBits,
		Log:                   d.options.Log,
		Registerer:            d.options.Registerer,
	}
	if !d.cfg.RouteSyncDisabled {
		endpoints.RoutesV4 = d.addRouteTable(4, d.cfg.DeviceRouteSourceAddress)
		if d.cfg.IPv6Support {
			endpoints.RoutesV6 = d.addRouteTable(6, d.cfg.DeviceRouteSourceAddressIPv6)
		}
	}
	d.driver.RegisterManager(shaperSwitch{shapers})
	d.driver.RegisterManager(endpointmgr.New(endpoints))
	d.driver.RegisterSyncer("qos", shapers)
}

// addRouteTable builds the main table of an IP version.
func (d *Dataplane) addRouteTable(ipVersion int, source netip.Addr) *routetable.RouteTable {
	table := routetable.New(routetable.Config{
		Open:      func() (routetable.Kernel, error) { return d.open() },
		IPVersion: ipVersion,
		Ownership: routetable.WorkloadPolicy{
			WorkloadPrefixes:     d.cfg.InterfacePrefixes,
			Protocols:            []int{d.cfg.DeviceRouteProtocol},
			RemoveExternalRoutes: d.cfg.RemoveExternalRoutes,
		},
		Protocol:      d.cfg.DeviceRouteProtocol,
		SourceAddress: source,
		StaticARP:     ipVersion == 4, // IPv6 workloads answer neighbour discovery themselves
		Conntrack:     d.options.Conntrack,
		Wake:          d.driver.Wake,
		Clock:         d.options.Clock,
		Log:           d.options.Log,
		Registerer:    d.options.Registerer,
	})
	d.tables = append(d.tables, table)
	return table
}

// Send hands a message to the managers; see dataplane.Driver.
func (d *Dataplane) Send(ctx context.Context, message any) error {
	return d.driver.Send(ctx, message)
}

// Health says how the driver and its parts are. Any goroutine may call it.
func (d *Dataplane) Health() dataplane.Report { return d.driver.Health() }

// HealthHandler serves Health as /liveness and /readiness.
func (d *Dataplane) HealthHandler() http.Handler { return d.driver.HealthHandler() }

// Run runs all parts until ctx is done, and then returns nil with kernel state left
// in place, or until one of them fails. It waits for kernel requests of the driver
// that are under way.
func (d *Dataplane) Run(ctx context.Context) error {
	defer d.close()
	parts := newParts(ctx)
	parts.start("dataplane driver", d.driver.Run)
	parts.start("interface monitor", d.monitor.Run)
	parts.start("reaper", d.reaper.Run)
	return parts.Wait()
}

// close closes the sockets of the parts that do not do so themselves.
func (d *Dataplane) close() {
	d.handle.Close()
	for _, table := range d.tables {
		table.Close()
	}
}

func (d *Dataplane) open() (Handle, error) { return d.options.Kernel.Handle(d.netlinkOptions()) }

func (d *Dataplane) netlinkOptions() rtnl.Options {
	return rtnl.Options{Timeout: d.cfg.NetlinkTimeout}
}

func (d *Dataplane) isWorkloadIface(name string) bool {
	for _, prefix := range d.cfg.InterfacePrefixes {
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
	if update, ok := msg.(dataplane.ConfigUpdate); ok && update.Config != nil {
		s.shapers.SetEnabled(update.Config.QoSControls)
	}
}

func (s shaperSwitch) CompleteDeferredWork() error { return nil }

// parts are goroutines that end together: when the context is done, or as soon as
// one fails.
type parts struct {
	*errgroup.Group
	ctx context.Context
}

func newParts(ctx context.Context) parts {
	group, ctx := errgroup.WithContext(ctx)
	return parts{Group: group, ctx: ctx}
}

// start starts a part. That its context is done is no failure of a part.
func (p parts) start(name string, part func(context.Context) error) {
	p.Go(func() error {
		if err := part(p.ctx); err != nil && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
}
