package config

import (
	"net/netip"
	"reflect"
	"regexp"
	"time"

	"github.com/sirupsen/logrus"
)

// Config is everything that can be configured, checked, with defaults filled in. It
// is a value that nobody changes after it was loaded; it may be read from any
// goroutine.
type Config struct {
	// InterfacePrefixes are the name prefixes of workload interfaces; at least one.
	InterfacePrefixes []string
	// InterfaceExclude matches interfaces without address callbacks.
	InterfaceExclude []*regexp.Regexp
	// InterfaceRefreshInterval is how often the monitor dumps anew; 0 means never.
	InterfaceRefreshInterval time.Duration
	// RouteRefreshInterval is how often route tables resync; 0 means never.
	RouteRefreshInterval time.Duration
	// NetlinkTimeout bounds one send or receive on a netlink socket.
	NetlinkTimeout time.Duration

	// DeviceRouteSourceAddress and …IPv6 are the preferred source addresses of
	// workload routes; invalid means none.
	DeviceRouteSourceAddress     netip.Addr
	DeviceRouteSourceAddressIPv6 netip.Addr
	// DeviceRouteProtocol marks the routes that are ours (RTPROT_*): 3 to 255.
	DeviceRouteProtocol int
	// RemoveExternalRoutes removes routes of other protocols from workload
	// interfaces.
	RemoveExternalRoutes bool
	// RouteSyncDisabled leaves all routes alone.
	RouteSyncDisabled bool

	// IPv6Support is whether IPv6 addresses of workloads are handled.
	IPv6Support bool
	// FloatingIPs is whether the floating addresses of workloads are handled.
	FloatingIPs bool

	// QoSControls is the switch for all bandwidth control.
	QoSControls bool
	// QoSKubernetesAnnotations is whether kubernetes.io/*-bandwidth count.
	QoSKubernetesAnnotations bool
	// QoSRefreshInterval is how often shapers are re-read, repaired and swept; 0
	// means only at the start.
	QoSRefreshInterval time.Duration
	// QoSDefaultBurstBits is the burst of a limit that gives none: 1000 to
	// 34359738360.
	QoSDefaultBurstBits uint64
	// QoSRemoveExternalShapers says that nobody else shapes workload interfaces, so
	// that shapers which cannot be told apart from another program's are removed
	// where an endpoint has no limit.
	QoSRemoveExternalShapers bool

	// LogSeverityScreen is the level from which on messages are logged.
	LogSeverityScreen logrus.Level

	// HealthEnabled is whether liveness and readiness are served, at HealthHost and
	// HealthPort; port 0 lets the kernel choose.
	HealthEnabled bool
	HealthHost    string
	HealthPort    int

	// PrometheusMetricsEnabled is whether metrics are served, at
	// PrometheusMetricsHost (empty: all addresses) and PrometheusMetricsPort; port 0
	// lets the kernel choose.
	PrometheusMetricsEnabled bool
	PrometheusMetricsHost    string
	PrometheusMetricsPort    int

	// PrometheusWorkloadMetricsEnabled adds metrics of each workload's limits: series
	// for every interface that has one.
	PrometheusWorkloadMetricsEnabled bool

	// EndpointStatusPathPrefix is the directory below which endpoint-status is
	// written; empty means no status files.
	EndpointStatusPathPrefix string
}

// Equal tells whether both say the same.
func (c *Config) Equal(o *Config) bool {
	return reflect.DeepEqual(c.comparison(), o.comparison())
}

// RestartEqual tells whether both say the same in all fields that shape the
// dataplane's pipeline when it is built. Where it returns true, a running pipeline
// takes the new Config over as it is; where it returns false, the pipeline has to be
// built anew (in the same process, with kernel state left in place) for the new
// Config to take effect.
func (c *Config) RestartEqual(o *Config) bool {
	return reflect.DeepEqual(c.withoutRuntimeFields().comparison(), o.withoutRuntimeFields().comparison())
}

// withoutRuntimeFields returns a copy without the fields that take effect on a
// running pipeline.
func (c *Config) withoutRuntimeFields() *Config {
	fixed := *c
	fixed.RouteRefreshInterval = 0
	fixed.FloatingIPs = false
	fixed.QoSControls = false
	fixed.QoSKubernetesAnnotations = false
	fixed.QoSRefreshInterval = 0
	fixed.QoSDefaultBurstBits = 0
	fixed.LogSeverityScreen = 0
	return &fixed
}

// comparison is a Config that reflect.DeepEqual compares by meaning: regular
// expressions by their text.
type comparison struct {
	config  Config
	exclude []string
}

func (c *Config) comparison() comparison {
	compared := comparison{config: *c}
	compared.config.InterfaceExclude = nil
	for _, exclude := range c.InterfaceExclude {
		compared.exclude = append(compared.exclude, exclude.String())
	}
	return compared
}
