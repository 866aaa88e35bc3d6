package config

import (
	"errors"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The defaults, from the comments of the API's FelixConfigurationSpec and, where
// those say nothing, from Felix.
const (
	defaultInterfacePrefix          = "cali"
	defaultInterfaceExclude         = "kube-ipvs0"
	defaultRefreshInterval          = 90 * time.Second
	defaultNetlinkTimeout           = 10 * time.Second
	defaultDeviceRouteProtocol      = 80
	defaultBurstBits                = 4 << 30
	defaultHealthHost               = "localhost"
	defaultHealthPort               = 9099
	defaultPrometheusMetricsPort    = 9091
	defaultEndpointStatusPathPrefix = "/var/run/calico"
)

// Load makes a Config of a FelixConfiguration manifest, which may be empty, and an
// environment in os.Environ's form, whose FELIX_ variables override the manifest's
// fields. It also returns, sorted, the names of the fields and variables that are
// set but of no use here; a caller should say so once. The error joins one error for
// each bad field or variable, and there is no Config then.
func Load(data []byte, environ []string) (*Config, []string, error) {
	s, keys, err := parseManifest(data)
	if err != nil {
		return nil, nil, err
	}
	c := &checker{source: make(map[string]string)}
	honoured := honouredFields()
	var unused []string
	for _, key := range keys {
		if !honoured[key] {
			unused = append(unused, key)
		}
		c.source[key] = "spec." + key
	}
	for _, o := range readEnvironment(environ) {
		if !honoured[o.field] {
			unused = append(unused, o.variable)
			continue
		}
		c.source[o.field] = o.variable
		if err := o.set(s); err != nil {
			c.errs = append(c.errs, err)
		}
	}
	config := c.build(s)
	if len(c.errs) > 0 {
		return nil, nil, errors.Join(c.errs...)
	}
	slices.Sort(unused)
	return config, slices.Compact(unused), nil
}

// Defaults returns the Config of an empty manifest and an empty environment.
func Defaults() *Config {
	return new(checker).build(&spec{})
}

// honouredFields returns the names of the fields that build asks for.
func honouredFields() map[string]bool {
	c := &checker{honoured: make(map[string]bool)}
	c.build(&spec{})
	return c.honoured
}

// build checks each field that is honoured and returns the Config that they make.
// It is the one place that says which fields those are.
func (c *checker) build(s *spec) *Config {
	return &Config{
		InterfacePrefixes:        c.prefixes("interfacePrefix", s.InterfacePrefix, defaultInterfacePrefix),
		InterfaceExclude:         c.patterns("interfaceExclude", s.InterfaceExclude, defaultInterfaceExclude),
		InterfaceRefreshInterval: c.interval("interfaceRefreshInterval", s.InterfaceRefreshInterval, defaultRefreshInterval),
		RouteRefreshInterval:     c.interval("routeRefreshInterval", s.RouteRefreshInterval, defaultRefreshInterval),
		NetlinkTimeout:           c.timeout("netlinkTimeout", s.NetlinkTimeout, defaultNetlinkTimeout),

		DeviceRouteSourceAddress:     c.address("deviceRouteSourceAddress", s.DeviceRouteSourceAddress, ipv4),
		DeviceRouteSourceAddressIPv6: c.address("deviceRouteSourceAddressIPv6", s.DeviceRouteSourceAddressIPv6, ipv6),
		DeviceRouteProtocol:          c.protocol("deviceRouteProtocol", s.DeviceRouteProtocol, defaultDeviceRouteProtocol),
		RemoveExternalRoutes:         c.flag("removeExternalRoutes", s.RemoveExternalRoutes, true),
		RouteSyncDisabled:            c.flag("routeSyncDisabled", s.RouteSyncDisabled, false),

		IPv6Support: c.flag("ipv6Support", s.IPv6Support, true),
		FloatingIPs: c.enabled("floatingIPs", text(s.FloatingIPs), false),

		QoSControls:              c.enabled("qosControls", s.QoSControls, true),
		QoSKubernetesAnnotations: c.enabled("qosKubernetesAnnotations", s.QoSKubernetesAnnotations, true),
		QoSRefreshInterval:       c.interval("qosRefreshInterval", s.QoSRefreshInterval, defaultRefreshInterval),
		QoSDefaultBurstBits:      c.burst("qosDefaultBurst", s.QoSDefaultBurst, defaultBurstBits),
		QoSRemoveExternalShapers: c.enabled("qosRemoveExternalShapers", s.QoSRemoveExternalShapers, false),

		LogSeverityScreen: c.severity("logSeverityScreen", s.LogSeverityScreen),

		HealthEnabled: c.flag("healthEnabled", s.HealthEnabled, false),
		HealthHost:    c.host("healthHost", text(s.HealthHost), defaultHealthHost),
		HealthPort:    c.port("healthPort", s.HealthPort, defaultHealthPort),

		PrometheusMetricsEnabled: c.flag("prometheusMetricsEnabled", s.PrometheusMetricsEnabled, false),
		PrometheusMetricsHost:    c.host("prometheusMetricsHost", s.PrometheusMetricsHost, ""),
		PrometheusMetricsPort:    c.port("prometheusMetricsPort", s.PrometheusMetricsPort, defaultPrometheusMetricsPort),

		PrometheusWorkloadMetricsEnabled: c.flag("prometheusWorkloadMetricsEnabled", s.PrometheusWorkloadMetricsEnabled, false),

		EndpointStatusPathPrefix: c.directory("endpointStatusPathPrefix", s.EndpointStatusPathPrefix, defaultEndpointStatusPathPrefix),
	}
}

// text returns the string that p points to; empty for nil.
func text[T ~string](p *T) string {
	if p == nil {
		return ""
	}
	return string(*p)
}

// orDefault returns the duration; fallback for nil.
func orDefault(d *metav1.Duration, fallback time.Duration) time.Duration {
	if d == nil {
		return fallback
	}
	return d.Duration
}
