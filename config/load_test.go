package config

import (
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"
	"pgregory.net/rapid"

	"github.com/manx-dataplane/manx/internal/strictyaml"
)

const header = "apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata: {name: default}\n"

// manifestOf returns a manifest whose spec is the given lines.
func manifestOf(lines ...string) []byte {
	return []byte(header + "spec:\n  " + strings.Join(lines, "\n  ") + "\n")
}

func load(data []byte, environ ...string) *Config {
	GinkgoHelper()
	loaded, _, err := Load(data, environ)
	Expect(err).NotTo(HaveOccurred())
	return loaded
}

func loadError(data []byte, environ ...string) string {
	GinkgoHelper()
	loaded, unused, err := Load(data, environ)
	Expect(err).To(HaveOccurred())
	Expect(loaded).To(BeNil())
	Expect(unused).To(BeNil())
	return err.Error()
}

var _ = Describe("Load", func() {
	It("fills in Felix's defaults", func() {
		for _, data := range []string{"", "---\n# nothing\n", header, header + "spec: {}\n", header + "spec:\n"} {
			loaded, unused, err := Load([]byte(data), nil)
			Expect(err).NotTo(HaveOccurred())
			Expect(unused).To(BeEmpty())
			Expect(loaded.Equal(Defaults())).To(BeTrue())
		}
		Expect(Defaults().comparison()).To(Equal(comparison{
			exclude: []string{"^kube-ipvs0$"},
			config: Config{
				InterfacePrefixes:        []string{"cali"},
				InterfaceRefreshInterval: 90 * time.Second,
				RouteRefreshInterval:     90 * time.Second,
				NetlinkTimeout:           10 * time.Second,
				DeviceRouteProtocol:      80,
				RemoveExternalRoutes:     true,
				IPv6Support:              true,
				QoSControls:              true,
				QoSKubernetesAnnotations: true,
				QoSRefreshInterval:       90 * time.Second,
				QoSDefaultBurstBits:      4294967296,
				LogSeverityScreen:        logrus.InfoLevel,
				HealthHost:               "localhost",
				HealthPort:               9099,
				PrometheusMetricsPort:    9091,
				EndpointStatusPathPrefix: "/var/run/calico",
			}}))
	})

	It("reads every honoured field", func() {
		loaded := load(manifestOf(
			"interfacePrefix: cali, tap,cali",
			"interfaceExclude: kube-ipvs0,/^veth[0-9]{1,3}$/, eth.0",
			"interfaceRefreshInterval: 1m30.5s",
			"routeRefreshInterval: 0s",
			"netlinkTimeout: 100ms",
			"deviceRouteSourceAddress: 192.0.2.1",
			"deviceRouteSourceAddressIPv6: 2001:db8::1",
			"deviceRouteProtocol: 3",
			"removeExternalRoutes: false",
			"routeSyncDisabled: true",
			"ipv6Support: false",
			"floatingIPs: Enabled",
			"qosControls: Disabled",
			"qosKubernetesAnnotations: Disabled",
			"qosRefreshInterval: 0",
			"qosDefaultBurst: 10M",
			"qosRemoveExternalShapers: Enabled",
			"logSeverityScreen: Debug",
			"healthEnabled: true",
			"healthHost: 127.0.0.1",
			"healthPort: 0",
			"prometheusMetricsEnabled: true",
			"prometheusMetricsHost: node-1.example.org",
			"prometheusMetricsPort: 65535",
			"prometheusWorkloadMetricsEnabled: true",
			"endpointStatusPathPrefix: /run/manx/",
		))
		Expect(loaded.comparison()).To(Equal(comparison{
			exclude: []string{"^kube-ipvs0$", "^veth[0-9]{1,3}$", `^eth\.0$`},
			config: Config{
				InterfacePrefixes:            []string{"cali", "tap"},
				InterfaceRefreshInterval:     90500 * time.Millisecond,
				NetlinkTimeout:               100 * time.Millisecond,
				DeviceRouteSourceAddress:     netip.MustParseAddr("192.0.2.1"),
				DeviceRouteSourceAddressIPv6: netip.MustParseAddr("2001:db8::1"),
				DeviceRouteProtocol:          3,
				RouteSyncDisabled:            true,
				FloatingIPs:                  true,
				QoSDefaultBurstBits:          10_000_000,
				QoSRemoveExternalShapers:     true,
				LogSeverityScreen:            logrus.DebugLevel,
				HealthEnabled:                true,
				HealthHost:                   "127.0.0.1",
				PrometheusMetricsEnabled:     true,
				PrometheusMetricsHost:        "node-1.example.org",
				PrometheusMetricsPort:        65535,
				EndpointStatusPathPrefix:     "/run/manx",

				PrometheusWorkloadMetricsEnabled: true,
			}}))
	})

	It("takes the custom resource and JSON as well", func() {
		Expect(load([]byte(`{"apiVersion":"crd.projectcalico.org/v1","kind":"FelixConfiguration","metadata":{"name":"node.n1","resourceVersion":"7"},"spec":{"healthPort":1}}`)).HealthPort).To(Equal(1))
	})

	It("names what is set but not used, sorted, and loads", func() {
		_, unused, err := Load(manifestOf(
			"vxlanVNI: 4096", "healthPort: 1", "bpfEnabled: true", "failsafeInboundHostPorts: [{protocol: tcp, port: 22}]",
			"kubeNodePortRanges: ['30000:32767', 80]", "routeTableRanges: [{min: 1, max: 250}]", "natPortRange: null",
		), []string{"FELIX_DATASTORETYPE=kubernetes", "FELIX_BPFENABLED=x", "felix_healthport=2", "HOME=/", "FELIX_EMPTY=", "FELIX_"})
		Expect(err).NotTo(HaveOccurred())
		Expect(unused).To(Equal([]string{"FELIX_BPFENABLED", "FELIX_DATASTORETYPE",
			"bpfEnabled", "failsafeInboundHostPorts", "kubeNodePortRanges", "routeTableRanges", "vxlanVNI"}))
	})

	DescribeTable("refuses a manifest that is not one, and says what is allowed",
		func(data, want string) {
			Expect(loadError([]byte(data))).To(ContainSubstring(want))
		},
		Entry("half-written", header+"spec:\n  healthPort: [", "not valid YAML: line"),
		Entry("another kind", strings.ReplaceAll(header, "FelixConfiguration", "BGPConfiguration")+"spec: {asNumber: 1}", `kind: "BGPConfiguration": must be FelixConfiguration`),
		Entry("another API", "apiVersion: v1\nkind: FelixConfiguration", `apiVersion: "v1": must be projectcalico.org/v3 or crd.projectcalico.org/v1`),
		Entry("no type", "spec: {healthPort: 1}", `apiVersion: "": must be`),
		Entry("two documents", header+"---\n"+header, "too many documents: at most 1 are allowed"),
		Entry("a list", "- a", `apiVersion: "": must be`),
		Entry("binary", "\x00\x01", "not valid YAML"),
	)

	DescribeTable("names the field, its value and what is allowed",
		func(line, want string) {
			Expect(loadError(manifestOf(line))).To(HavePrefix("spec." + want))
		},
		Entry(nil, "qosControl: Disabled", "qosControl: unknown field"),
		Entry(nil, "qoSControls: Disabled", "qoSControls: unknown field; did you mean qosControls?"),
		Entry(nil, "qosControls: Disabled\n  qosControls: Enabled", "qosControls: is given twice"),
		Entry(nil, "qosControls: Off", `qosControls: "Off": must be Enabled or Disabled`),
		Entry(nil, "qosControls: false", "qosControls: false: must be a string"),
		Entry(nil, "qosKubernetesAnnotations: no", `qosKubernetesAnnotations: "no": must be Enabled or Disabled`),
		Entry(nil, "qosRemoveExternalShapers: yes", `qosRemoveExternalShapers: "yes": must be Enabled or Disabled`),
		Entry(nil, "qosRefreshInterval: -1s", `qosRefreshInterval: "-1s": must be 0 (off) or at least 100ms`),
		Entry(nil, "qosRefreshInterval: 90", "qosRefreshInterval: 90: must be a duration with a unit"),
		Entry(nil, "qosDefaultBurst: 999", `qosDefaultBurst: "999": must be from 1k to 34359738360 bits`),
		Entry(nil, "qosDefaultBurst: 34359738361", `qosDefaultBurst: "34359738361": must be from 1k to 34359738360 bits`),
		Entry(nil, "qosDefaultBurst: -1k", `qosDefaultBurst: "-1000": must be from 1k`),
		Entry(nil, "qosDefaultBurst: 4 Gi", `qosDefaultBurst: "4 Gi": must be a number or a quantity`),
		Entry(nil, "qosDefaultBurst: 1000.5", `qosDefaultBurst: 1000.5: must be a whole number`),
		Entry(nil, "qosDefaultBurst: 1e-2147483647", `qosDefaultBurst: 1e-2147483647: must be a number or a quantity`),
		Entry(nil, "interfacePrefix: cali/", `interfacePrefix: "cali/": must be 1 to 15 letters`),
		Entry(nil, "interfacePrefix: 'cali,'", `interfacePrefix: "": must be 1 to 15 letters`),
		Entry(nil, "interfacePrefix: cali1234567890ab", `interfacePrefix: "cali1234567890ab": must be 1 to 15 letters`),
		Entry(nil, "interfacePrefix: bw", `interfacePrefix: "bw": must not take in names that begin with bwcali`),
		Entry(nil, "interfacePrefix: bwcali1", `interfacePrefix: "bwcali1": must not take in names that begin with bwcali`),
		Entry(nil, "interfaceExclude: /[/", `interfaceExclude: "[": must be a regular expression (RE2): error parsing regexp`),
		Entry(nil, "interfaceExclude: /a", `interfaceExclude: "/a": must be closed by a slash`),
		Entry(nil, "interfaceExclude: /a/b", `interfaceExclude: "/a/b": must be closed by a slash`),
		Entry(nil, "interfaceExclude: 'a,,b'", `interfaceExclude: "": must be an interface name`),
		Entry(nil, "interfaceExclude: sixteen-bytes-xx", `interfaceExclude: "sixteen-bytes-xx": must be an interface name`),
		Entry(nil, "interfaceRefreshInterval: soon", `interfaceRefreshInterval: "soon": must be a duration with a unit`),
		Entry(nil, "interfaceRefreshInterval: 1ms", `interfaceRefreshInterval: "1ms": must be 0 (off) or at least 100ms`),
		Entry(nil, "routeRefreshInterval: -90s", `routeRefreshInterval: "-1m30s": must be 0 (off) or at least 100ms`),
		Entry(nil, "routeRefreshInterval: 99999999999h", `routeRefreshInterval: "99999999999h": must be a duration`),
		Entry(nil, "netlinkTimeout: 0", `netlinkTimeout: "0s": must be at least 100ms`),
		Entry(nil, "deviceRouteSourceAddress: 2001:db8::1", `deviceRouteSourceAddress: "2001:db8::1": must be an IPv4 address`),
		Entry(nil, "deviceRouteSourceAddress: 192.0.2.1/24", `deviceRouteSourceAddress: "192.0.2.1/24": must be an IPv4 address`),
		Entry(nil, "deviceRouteSourceAddress: 0.0.0.0", `deviceRouteSourceAddress: "0.0.0.0": must be an address that a packet can come from`),
		Entry(nil, "deviceRouteSourceAddressIPv6: 192.0.2.1", `deviceRouteSourceAddressIPv6: "192.0.2.1": must be an IPv6 address`),
		Entry(nil, "deviceRouteSourceAddressIPv6: fe80::1%eth0", `deviceRouteSourceAddressIPv6: "fe80::1%eth0": must be an IPv6 address`),
		Entry(nil, "deviceRouteSourceAddressIPv6: '::ffff:192.0.2.1'", `deviceRouteSourceAddressIPv6: "::ffff:192.0.2.1": must be an IPv6 address`),
		Entry(nil, "deviceRouteProtocol: 256", `deviceRouteProtocol: "256": must be from 3 to 255`),
		Entry(nil, "deviceRouteProtocol: 2", `deviceRouteProtocol: "2": must be from 3 to 255; 0 to 2 are the kernel's own`),
		Entry(nil, "deviceRouteProtocol: bird", `deviceRouteProtocol: "bird": must be a whole number`),
		Entry(nil, "removeExternalRoutes: 1", "removeExternalRoutes: 1: must be true or false"),
		Entry(nil, "routeSyncDisabled: maybe", `routeSyncDisabled: "maybe": must be true or false`),
		Entry(nil, "ipv6Support: Enabled", `ipv6Support: "Enabled": must be true or false`),
		Entry(nil, "floatingIPs: true", "floatingIPs: true: must be a string"),
		Entry(nil, "floatingIPs: on", `floatingIPs: "on": must be Enabled or Disabled`),
		Entry(nil, "logSeverityScreen: loud", `logSeverityScreen: "loud": must be Trace, Debug, Info, Warning, Error, Fatal or none`),
		Entry(nil, "healthEnabled: 'true'", `healthEnabled: "true": must be true or false`),
		Entry(nil, "healthHost: localhost:80", `healthHost: "localhost:80": must be a host name or an IP address`),
		Entry(nil, "healthHost: '[::1]'", `healthHost: "[::1]": must be a host name or an IP address`),
		Entry(nil, "healthPort: 65536", `healthPort: "65536": must be from 0 to 65535`),
		Entry(nil, "healthPort: -1", `healthPort: "-1": must be from 0 to 65535`),
		Entry(nil, "prometheusMetricsEnabled: []", "prometheusMetricsEnabled: a list: must be true or false"),
		Entry(nil, "prometheusWorkloadMetricsEnabled: Enabled", `prometheusWorkloadMetricsEnabled: "Enabled": must be true or false`),
		Entry(nil, "prometheusMetricsHost: a b", `prometheusMetricsHost: "a b": must be a host name or an IP address`),
		Entry(nil, "prometheusMetricsPort: 70000", `prometheusMetricsPort: "70000": must be from 0 to 65535`),
		Entry(nil, "endpointStatusPathPrefix: run/calico", `endpointStatusPathPrefix: "run/calico": must be an absolute path, or empty for none`),
		Entry("of a field that is not used", "vxlanPort: many", `vxlanPort: "many": must be a whole number`),
	)

	It("reports all errors together, each with what set it", func() {
		problem := loadError(manifestOf("healthPort: 70000", "netlinkTimeout: 1s", "interfaceExclude: /(/,/a"),
			"FELIX_NETLINKTIMEOUTSECS=-1", "FELIX_IPV6SUPPORT=perhaps")
		Expect(strings.Split(problem, "\n")).To(ConsistOf(
			HavePrefix(`spec.healthPort: "70000": `),
			HavePrefix(`spec.interfaceExclude: "(": `),
			HavePrefix(`spec.interfaceExclude: "/a": `),
			HavePrefix(`FELIX_NETLINKTIMEOUTSECS: "-1s": `),
			HavePrefix(`FELIX_IPV6SUPPORT: "perhaps": `),
		))
	})

	It("tells an empty status directory from none given", func() {
		Expect(load(manifestOf(`endpointStatusPathPrefix: ""`)).EndpointStatusPathPrefix).To(BeEmpty())
		Expect(load(manifestOf(`endpointStatusPathPrefix:`)).EndpointStatusPathPrefix).To(Equal("/var/run/calico"))
		Expect(load(nil, "FELIX_ENDPOINTSTATUSPATHPREFIX=none").EndpointStatusPathPrefix).To(BeEmpty())
		Expect(load(nil, "FELIX_ENDPOINTSTATUSPATHPREFIX=").EndpointStatusPathPrefix).To(Equal("/var/run/calico"))
	})

	It("matches excluded interfaces as Felix does: names whole, expressions anywhere", func() {
		patterns := load(manifestOf("interfaceExclude: kube,/^nodelocal/")).InterfaceExclude
		matches := func(name string) bool {
			for _, pattern := range patterns {
				if pattern.MatchString(name) {
					return true
				}
			}
			return false
		}
		Expect(matches("kube")).To(BeTrue())
		Expect(matches("kube-ipvs0")).To(BeFalse())
		Expect(matches("nodelocaldns")).To(BeTrue())
		Expect(load(manifestOf("interfaceExclude: none")).InterfaceExclude).To(BeEmpty())
	})
})

var _ = Describe("The environment", func() {
	It("overrides the manifest, whatever the case of what follows FELIX_", func() {
		data := manifestOf("interfacePrefix: tap", "qosControls: Enabled", "healthPort: 1")
		loaded := load(data, "FELIX_INTERFACEPREFIX=veth", "FELIX_qosControls=disabled", "Felix_HealthPort=2", "PATH=/bin")
		Expect(loaded.InterfacePrefixes).To(Equal([]string{"veth"}))
		Expect(loaded.QoSControls).To(BeFalse())
		Expect(loaded.HealthPort).To(Equal(2))
	})

	It("mends a bad value of the manifest's", func() {
		Expect(load(manifestOf("healthPort: 70000"), "FELIX_HEALTHPORT=7").HealthPort).To(Equal(7))
	})

	DescribeTable("takes Felix's spellings",
		func(entry string, got func(*Config) any, want any) {
			Expect(got(load(nil, entry))).To(Equal(want))
		},
		Entry("small letters", "felix_netlinktimeout=5", func(c *Config) any { return c.NetlinkTimeout }, 5*time.Second),
		Entry("seconds", "FELIX_NETLINKTIMEOUTSECS=5", func(c *Config) any { return c.NetlinkTimeout }, 5*time.Second),
		Entry("seconds, field's own name", "FELIX_NETLINKTIMEOUT=2.5", func(c *Config) any { return c.NetlinkTimeout }, 2500*time.Millisecond),
		Entry("duration", "FELIX_NETLINKTIMEOUT=1m", func(c *Config) any { return c.NetlinkTimeout }, time.Minute),
		Entry("ours, in seconds", "FELIX_QOSREFRESHINTERVAL=0", func(c *Config) any { return c.QoSRefreshInterval }, time.Duration(0)),
		Entry("bool 1", "FELIX_HEALTHENABLED=1", func(c *Config) any { return c.HealthEnabled }, true),
		Entry("bool Yes", "FELIX_HEALTHENABLED=Yes", func(c *Config) any { return c.HealthEnabled }, true),
		Entry("bool no", "FELIX_IPV6SUPPORT=no", func(c *Config) any { return c.IPv6Support }, false),
		Entry("severity in capitals", "FELIX_LOGSEVERITYSCREEN=WARNING", func(c *Config) any { return c.LogSeverityScreen }, logrus.WarnLevel),
		Entry("no log", "FELIX_LOGSEVERITYSCREEN=none", func(c *Config) any { return c.LogSeverityScreen }, logrus.PanicLevel),
		Entry("enumeration", "FELIX_FLOATINGIPS=ENABLED", func(c *Config) any { return c.FloatingIPs }, true),
		Entry("quantity", "FELIX_QOSDEFAULTBURST=1Mi", func(c *Config) any { return c.QoSDefaultBurstBits }, uint64(1<<20)),
		Entry("pointer to a string", "FELIX_HEALTHHOST=::1", func(c *Config) any { return c.HealthHost }, "::1"),
		Entry("no source address", "FELIX_DEVICEROUTESOURCEADDRESS=none", func(c *Config) any { return c.DeviceRouteSourceAddress.IsValid() }, false),
	)

	DescribeTable("names the variable, its value and what is allowed",
		func(entry, want string) {
			Expect(loadError(nil, entry)).To(Equal(want))
		},
		Entry(nil, "FELIX_HealthPort=http", `FELIX_HealthPort: "http": must be a whole number`),
		Entry(nil, "FELIX_HEALTHPORT=-1", `FELIX_HEALTHPORT: "-1": must be from 0 to 65535`),
		Entry(nil, "FELIX_IPV6SUPPORT=ja", `FELIX_IPV6SUPPORT: "ja": must be true or false`),
		Entry(nil, "FELIX_QOSCONTROLS=off", `FELIX_QOSCONTROLS: "off": must be Enabled or Disabled`),
		Entry(nil, "FELIX_QOSDEFAULTBURST=lots", `FELIX_QOSDEFAULTBURST: "lots": must be a number or a quantity such as 10M, 4Gi or 1e9`),
		Entry(nil, "FELIX_ROUTEREFRESHINTERVAL=1e300", `FELIX_ROUTEREFRESHINTERVAL: "1e300": is out of range`),
		Entry(nil, "FELIX_ROUTEREFRESHINTERVAL=NaN", `FELIX_ROUTEREFRESHINTERVAL: "NaN": is out of range`),
		Entry(nil, "FELIX_ROUTEREFRESHINTERVAL=soon", `FELIX_ROUTEREFRESHINTERVAL: "soon": must be a number of seconds or a duration with a unit, such as 90s`),
		Entry(nil, "FELIX_ROUTEREFRESHINTERVAL=-1", `FELIX_ROUTEREFRESHINTERVAL: "-1s": must be 0 (off) or at least 100ms`),
	)

	It("knows every honoured field by its name and by Felix's", func() {
		names := environmentNames()
		fields := strictyaml.FieldsOf(reflect.TypeFor[spec]())
		for field := range honouredFields() {
			Expect(names).To(HaveKeyWithValue(strings.ToLower(field), field))
			if felix := fields[field].Tag.Get("confignamev1"); felix != "" {
				Expect(names).To(HaveKeyWithValue(strings.ToLower(felix), field))
			}
		}
	})
})

var _ = Describe("Config", func() {
	// others gives another valid value for each honoured field.
	others := map[string]string{
		"interfacePrefix": "tap", "interfaceExclude": "x", "interfaceRefreshInterval": "1s", "routeRefreshInterval": "1s",
		"netlinkTimeout": "1s", "deviceRouteSourceAddress": "192.0.2.1", "deviceRouteSourceAddressIPv6": "2001:db8::1",
		"deviceRouteProtocol": "81", "removeExternalRoutes": "false", "routeSyncDisabled": "true", "ipv6Support": "false",
		"floatingIPs": "Enabled", "qosControls": "Disabled", "qosKubernetesAnnotations": "Disabled", "qosRefreshInterval": "1s",
		"qosDefaultBurst": "1M", "qosRemoveExternalShapers": "Enabled", "logSeverityScreen": "Debug", "healthEnabled": "true",
		"healthHost": "h", "healthPort": "1", "prometheusMetricsEnabled": "true", "prometheusMetricsHost": "h",
		"prometheusMetricsPort": "1", "prometheusWorkloadMetricsEnabled": "true", "endpointStatusPathPrefix": "/x",
	}
	running := []string{"routeRefreshInterval", "floatingIPs",
		"qosControls", "qosKubernetesAnnotations", "qosRefreshInterval", "qosDefaultBurst", "logSeverityScreen"}

	It("compares every field, and knows which ones a running pipeline takes over", func() {
		Expect(others).To(HaveLen(len(honouredFields())))
		for field, value := range others {
			changed := load(manifestOf(field + ": " + value))
			Expect(changed.Equal(Defaults())).To(BeFalse(), field)
			Expect(changed.Equal(load(manifestOf(field+": "+value)))).To(BeTrue(), field)
			Expect(changed.RestartEqual(Defaults())).To(Equal(slices.Contains(running, field)), field)
		}
	})

	It("has each field documented, with its default and how it takes effect", func() {
		page, err := os.ReadFile("../docs/configuration.md")
		Expect(err).NotTo(HaveOccurred())
		rows := regexp.MustCompile("(?m)^\\| `([a-zA-Z0-9]+)` \\|.*\\| (at once|rebuild) \\|$").FindAllStringSubmatch(string(page), -1)
		documented := make(map[string]string)
		for _, row := range rows {
			documented[row[1]] = row[2]
		}
		for field := range honouredFields() {
			want := "rebuild"
			if slices.Contains(running, field) {
				want = "at once"
			}
			Expect(documented).To(HaveKeyWithValue(field, want))
			delete(documented, field)
		}
		Expect(documented).To(BeEmpty())
	})
})

var _ = Describe("Any manifest", func() {
	It("gives either a Config whose values are in range or errors, never both", func() {
		rapid.Check(GinkgoT(), func(t *rapid.T) {
			fields := rapid.SliceOfN(rapid.SampledFrom([]string{
				"interfacePrefix", "interfaceExclude", "netlinkTimeout", "qosRefreshInterval", "qosDefaultBurst", "healthPort",
				"deviceRouteProtocol", "deviceRouteSourceAddress", "logSeverityScreen", "healthHost", "endpointStatusPathPrefix",
			}), 0, 4).Draw(t, "fields")
			var lines []string
			for i, field := range fields {
				value := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"90s", "-1s", "1k", "4Gi", "80", "3", "cali", "/a/", "none", "/var"})).Draw(t, fmt.Sprint("value", i))
				lines = append(lines, fmt.Sprintf("%s: %q", field, value))
			}
			loaded, _, err := Load(manifestOf(lines...), nil)
			checkInvariants(t, loaded, err)
		})
	})
})

// checkInvariants says what is true of whatever Load returns.
func checkInvariants(t interface{ Fatalf(string, ...any) }, c *Config, err error) {
	if (c == nil) == (err == nil) {
		t.Fatalf("config %v and error %v", c, err)
	}
	if err != nil {
		return
	}
	switch {
	case len(c.InterfacePrefixes) == 0,
		c.InterfaceRefreshInterval < 0, c.RouteRefreshInterval < 0, c.QoSRefreshInterval < 0, c.NetlinkTimeout <= 0,
		c.DeviceRouteProtocol < 3, c.DeviceRouteProtocol > 255,
		c.HealthPort < 0, c.HealthPort > 65535, c.PrometheusMetricsPort < 0, c.PrometheusMetricsPort > 65535,
		c.QoSDefaultBurstBits < 1000, c.QoSDefaultBurstBits > 34359738360:
		t.Fatalf("out of range: %+v", c)
	}
	for _, prefix := range c.InterfacePrefixes {
		if prefix == "" || strings.HasPrefix("bwcali123456789", prefix) {
			t.Fatalf("prefix %q", prefix)
		}
	}
}
