package config

import (
	"net/netip"
	"regexp"
	"time"

	"github.com/sirupsen/logrus"
)

// Config is everything that can be configured, checked, with defaults filled in.
type Config struct {
	// InterfacePrefixes are the name prefixes of workload interfaces.
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
	// DeviceRouteProtocol marks the routes that are ours (RTPROT_*).
	DeviceRouteProtocol int
	// RemoveExternalRoutes removes routes of other protocols from workload
	// interfaces.
	RemoveExternalRoutes bool
	// RouteSyncDisabled leaves all routes alone.
	RouteSyncDisabled bool

	IPv6Support bool
	FloatingIPs bool

	// QoSControls is the switch for all bandwidth control.
	QoSControls bool
	// QoSKubernetesAnnotations is whether kubernetes.io/*-bandwidth count.
	QoSKubernetesAnnotations bool
	// QoSRefreshInterval is how often shapers are re-read, repaired and swept; 0
	// means only at the start.
	QoSRefreshInterval time.Duration
	// QoSDefaultBurstBits is the burst of a limit that gives none.
	QoSDefaultBurstBits uint64

	LogSeverityScreen logrus.Level

	HealthEnabled bool
	HealthHost    string
	HealthPort    int

	PrometheusMetricsEnabled bool
	PrometheusMetricsHost    string
	PrometheusMetricsPort    int

	// EndpointStatusPathPrefix is the directory below which endpoint-status is
	// written; empty means no status files.
	EndpointStatusPathPrefix string
}
