package manifests

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"pgregory.net/rapid"

	"github.com/manx-dataplane/manx/config"
	"github.com/manx-dataplane/manx/dataplane"
	"github.com/manx-dataplane/manx/qos"
)

var prefixes = []string{"cali", "tap"}

const header = "apiVersion: projectcalico.org/v3\nkind: WorkloadEndpoint\n"

// pod returns a good manifest with more lines in its spec.
func pod(name string, more ...string) string {
	lines := append([]string{"pod: " + name, "interfaceName: cali-" + name}, more...)
	return header + "spec:\n  " + strings.Join(lines, "\n  ") + "\n"
}

func podID(name string) dataplane.WorkloadEndpointID {
	return dataplane.WorkloadEndpointID{Orchestrator: "k8s", Workload: "default/" + name, Endpoint: "eth0"}
}

func parseOne(text string) document {
	GinkgoHelper()
	documents, err := parse([]byte(text), prefixes)
	Expect(err).NotTo(HaveOccurred())
	Expect(documents).To(HaveLen(1))
	return documents[0]
}

func prefixList(texts ...string) []netip.Prefix {
	var list []netip.Prefix
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

var _ = Describe("A manifest", func() {
	It("becomes an endpoint, field by field", func() {
		d := parseOne(header + `
metadata:
  name: node1-k8s-web--0-eth0
  namespace: shop
  uid: 1b4e28ba-2fa1-11d2-883f-0016d3cca427
  creationTimestamp: 2026-01-02T03:04:05Z
  labels: {app: web}
  annotations: {kubernetes.io/egress-bandwidth: 30M}
spec:
  orchestrator: k8s
  node: node1
  containerID: "1337495556942031415926535"
  pod: web-0
  endpoint: eth1
  serviceAccountName: default
  interfaceName: calia4fc3c48bd8
  mac: 0A-58-0A-41-00-03
  ipNetworks: [10.65.0.3/32, "2001:db8::3", 10.65.4.0/24, 10.65.0.3]
  ipNATs:
  - {internalIP: 10.65.4.9, externalIP: 192.0.2.3}
  - {internalIP: "2001:db8::3", externalIP: "2001:db8:1::3"}
  ipv4Gateway: 169.254.1.1
  profiles: [kns.shop]
  ports: [{name: http, protocol: TCP, port: 80}]
  allowSpoofedSourcePrefixes: [0.0.0.0/0, "::/0"]
  qosControls: {ingressBandwidth: 100M, ingressBurst: 5000000, egressBandwidth: "50000000", egressPeakrate: 6e7, egressMinburst: 2k, egressPacketRate: 1000, dscp: 20}
`)
		Expect(d.err).NotTo(HaveOccurred())
		Expect(d.id).To(Equal(dataplane.WorkloadEndpointID{Orchestrator: "k8s", Workload: "shop/web-0", Endpoint: "eth1"}))
		Expect(d.unused).To(ConsistOf("egressPacketRate", "dscp"))
		Expect(d.endpoint).To(Equal(&dataplane.WorkloadEndpoint{
			State:                      dataplane.EndpointActive,
			InterfaceName:              "calia4fc3c48bd8",
			MAC:                        net.HardwareAddr{0x0a, 0x58, 0x0a, 0x41, 0, 3},
			IPv4Nets:                   prefixList("10.65.0.3/32", "10.65.4.0/24"),
			IPv6Nets:                   prefixList("2001:db8::3/128"),
			IPv4NAT:                    []dataplane.NAT{{InternalIP: netip.MustParseAddr("10.65.4.9"), ExternalIP: netip.MustParseAddr("192.0.2.3")}},
			IPv6NAT:                    []dataplane.NAT{{InternalIP: netip.MustParseAddr("2001:db8::3"), ExternalIP: netip.MustParseAddr("2001:db8:1::3")}},
			AllowSpoofedSourcePrefixes: prefixList("0.0.0.0/0", "::/0"),
			Annotations:                map[string]string{"kubernetes.io/egress-bandwidth": "30M"},
			QoSControls:                &qos.Controls{IngressBandwidth: 100e6, IngressBurst: 5e6, EgressBandwidth: 50e6, EgressPeakrate: 60e6, EgressMinburst: 2000},
		}))
	})

	It("needs little, and has defaults for the rest", func() {
		d := parseOne(pod("a"))
		Expect(d.err).NotTo(HaveOccurred())
		Expect(d.id).To(Equal(podID("a")))
		Expect(d.endpoint).To(Equal(&dataplane.WorkloadEndpoint{State: dataplane.EndpointActive, InterfaceName: "cali-a"}))
	})

	DescribeTable("is known by orchestrator, workload and endpoint",
		func(spec, want string) {
			d := parseOne(header + "metadata: {namespace: ns}\nspec: {interfaceName: cali1, " + spec + "}")
			Expect(d.err).NotTo(HaveOccurred())
			Expect(d.id.String()).To(Equal(want))
		},
		Entry(nil, "pod: p", "k8s ns/p eth0"),
		Entry(nil, "workload: w, orchestrator: cni", "cni w eth0"),
		Entry(nil, "workload: a/b, orchestrator: openstack, endpoint: port-1", "openstack a/b port-1"),
		Entry(nil, "workload: other/p", "k8s other/p eth0"),
	)

	It("can take an endpoint down", func() {
		Expect(parseOne(pod("a", "state: inactive")).endpoint.State).To(Equal(dataplane.EndpointInactive))
		Expect(parseOne(pod("a", "state: active")).endpoint.State).To(Equal(dataplane.EndpointActive))
	})

	DescribeTable("names the field, its value and what is allowed, and is still known to be its endpoint's",
		func(line, want string) {
			d := parseOne(pod("a", line))
			Expect(d.err).To(MatchError(HavePrefix("spec." + want)))
			Expect(d.endpoint).To(BeNil())
			Expect(d.known).To(BeTrue())
			Expect(d.id).To(Equal(podID("a")))
		},
		Entry(nil, "state: down", `state: "down": must be active or inactive`),
		Entry(nil, "mac: zz", `mac: "zz": must be a unicast MAC address of six bytes`),
		Entry(nil, "mac: 01:00:5e:00:00:01", `mac: "01:00:5e:00:00:01": must be a unicast MAC address`),
		Entry(nil, "mac: 00:00:00:00:00:00", `mac: "00:00:00:00:00:00": must be a unicast MAC address`),
		Entry(nil, "mac: 02:00:5e:10:00:00:00:01", `mac: "02:00:5e:10:00:00:00:01": must be a unicast MAC address of six bytes`),
		Entry(nil, "ipNetworks: 10.0.0.1/32", `ipNetworks: "10.0.0.1/32": must be a list`),
		Entry(nil, "ipNetworks: [10.0.0.1/33]", `ipNetworks[0]: "10.0.0.1/33": must be an IP address or a prefix`),
		Entry(nil, "ipNetworks: [10.0.0.1, 10.0.0]", `ipNetworks[1]: "10.0.0": must be an IP address or a prefix`),
		Entry(nil, "ipNetworks: [10.0.0.1/24]", `ipNetworks[0]: "10.0.0.1/24": must have no bits set beyond the prefix length: 10.0.0.0/24`),
		Entry(nil, "ipNetworks: ['fe80::1%eth0']", `ipNetworks[0]: "fe80::1%eth0": must be an IP address`),
		Entry("default route", "ipNetworks: [0.0.0.0/0]", `ipNetworks[0]: "0.0.0.0/0": must not be wider than /8`),
		Entry("default route, IPv6", "ipNetworks: ['::/0']", `ipNetworks[0]: "::/0": must not be wider than /32`),
		Entry("half a default route", "ipNetworks: [128.0.0.0/1]", `ipNetworks[0]: "128.0.0.0/1": must not be wider than /8`),
		Entry("most of a default route", "ipNetworks: ['2000::/3']", `ipNetworks[0]: "2000::/3": must not be wider than /32`),
		Entry("loopback", "ipNetworks: [127.0.0.1]", `ipNetworks[0]: "127.0.0.1": must not be in 127.0.0.0/8`),
		Entry("loopback, IPv6", "ipNetworks: ['::1/128']", `ipNetworks[0]: "::1/128": must not be in ::1/128`),
		Entry("unspecified", "ipNetworks: [0.0.0.0/32]", `ipNetworks[0]: "0.0.0.0/32": must not be in 0.0.0.0/8`),
		Entry("multicast", "ipNetworks: [239.1.1.1/32]", `ipNetworks[0]: "239.1.1.1/32": must not be in 224.0.0.0/4`),
		Entry("multicast, IPv6", "ipNetworks: ['ff02::1']", `ipNetworks[0]: "ff02::1": must not be in ff00::/8`),
		Entry("broadcast", "ipNetworks: [255.255.255.255]", `ipNetworks[0]: "255.255.255.255": must not be in 255.255.255.255/32`),
		Entry("link-local", "ipNetworks: [169.254.169.254/32]", `ipNetworks[0]: "169.254.169.254/32": must not be in 169.254.0.0/16`),
		Entry("link-local, IPv6", "ipNetworks: ['fe80::1']", `ipNetworks[0]: "fe80::1": must not be in fe80::/10`),
		Entry("a prefix around one", "ipNetworks: [169.0.0.0/8]", `ipNetworks[0]: "169.0.0.0/8": must not be in 169.254.0.0/16`),
		Entry("IPv4 in IPv6", "ipNetworks: ['::ffff:10.0.0.1']", `ipNetworks[0]: "::ffff:10.0.0.1": must not be in ::ffff:0.0.0.0/96`),
		Entry(nil, "ipNATs: [{internalIP: 10.0.0.1, externalIP: 192.0.2.1}]", `ipNATs[0].internalIP: "10.0.0.1": must be in one of spec.ipNetworks`),
		Entry(nil, "ipNetworks: [10.0.0.1]\n  ipNATs: [{internalIP: 10.0.0.1, externalIP: '2001:db8::1'}]", `ipNATs[0].externalIP: "2001:db8::1": must be of the same IP version`),
		Entry(nil, "ipNetworks: [10.0.0.1]\n  ipNATs: [{internalIP: 10.0.0.1, externalIP: 127.0.0.1}]", `ipNATs[0].externalIP: "127.0.0.1": must not be in 127.0.0.0/8`),
		Entry(nil, "ipNetworks: [10.0.0.1]\n  ipNATs: [{internalIP: 10.0.0.1}]", `ipNATs[0].externalIP: "": must be an IP address`),
		Entry(nil, "ipNATs: [{internal: 10.0.0.1}]", "ipNATs[0].internal: unknown field"),
		Entry(nil, "allowSpoofedSourcePrefixes: [10.0.0.1/8]", `allowSpoofedSourcePrefixes[0]: "10.0.0.1/8": must have no bits set beyond the prefix length: 10.0.0.0/8`),
		Entry(nil, "qosControls: {ingressBandwidth: fast}", `qosControls.ingressBandwidth: "fast": must be a number or a quantity such as 10M`),
		Entry(nil, "qosControls: {ingressBandwidth: 0.5}", `qosControls.ingressBandwidth: 0.5: must be a whole number`),
		Entry(nil, "qosControls: {ingressBurst: 1e-2147483647}", `qosControls.ingressBurst: 1e-2147483647: must be a number or a quantity`),
		Entry(nil, "qosControls: {ingressBandwith: 1M}", "qosControls.ingressBandwith: unknown field"),
		Entry(nil, "ipNetworks: ["+strings.Repeat("10.0.0.1, ", 1001)+"]", "ipNetworks: \"1001 entries\": must have at most 1000"),
	)

	DescribeTable("refuses interface names that are not a workload's",
		func(name, want string) {
			d := parseOne(header + fmt.Sprintf("spec: {pod: a, interfaceName: %q}", name))
			Expect(d.err).To(MatchError(ContainSubstring("spec.interfaceName: ")))
			Expect(d.err).To(MatchError(ContainSubstring(want)))
			Expect(d.known).To(BeTrue())
		},
		Entry(nil, "", "must be 1 to 15 printable ASCII characters"),
		Entry(nil, "cali567890123456", "must be 1 to 15 printable ASCII characters"),
		Entry(nil, "cali/../eth0", "without slash, colon or space"),
		Entry(nil, "cali 1", "without slash, colon or space"),
		Entry(nil, "cali:1", "without slash, colon or space"),
		Entry(nil, "cali\n1", "without slash, colon or space"),
		Entry(nil, "cali\x00", "without slash, colon or space"),
		Entry(nil, "calié", "must be 1 to 15 printable ASCII characters"),
		Entry(nil, "..", "must be 1 to 15 printable ASCII characters"),
		Entry(nil, "eth0", "must begin with a workload interface prefix: cali, tap"),
		Entry(nil, "lo", "must begin with a workload interface prefix"),
		Entry(nil, "bwcali6514ff3bb", "must begin with a workload interface prefix"),
	)

	DescribeTable("is not known to be anybody's where that is uncertain",
		func(text, want string) {
			d := parseOne(text)
			Expect(d.err).To(MatchError(ContainSubstring(want)))
			Expect(d.known).To(BeFalse())
		},
		Entry("syntax", header+"spec: {pod: [", "not valid YAML"),
		Entry("kind", strings.ReplaceAll(pod("a"), "WorkloadEndpoint", "Pod"), `kind: "Pod": must be WorkloadEndpoint`),
		Entry("API", strings.ReplaceAll(pod("a"), "v3", "v4"), `apiVersion: "projectcalico.org/v4": must be projectcalico.org/v3`),
		Entry("scalar", "hello", "apiVersion"),
		Entry("no pod", header+"spec: {interfaceName: cali1}", "spec.pod: \"\": must be given, or spec.workload"),
		Entry("pod and workload", pod("a", "workload: b"), `spec.workload: "b": must not be given beside spec.pod`),
		Entry("pod of another orchestrator", pod("a", "orchestrator: cni"), `spec.pod: "a": is for orchestrator k8s`),
		Entry("misspelt field", pod("a", "endpiont: eth1"), "spec.endpiont: unknown field"),
		Entry("misspelt metadata", pod("a")+"metadata: {namspace: b}", "metadata.namspace: unknown field"),
		Entry("misspelt section", pod("a")+"metdata: {namespace: b}", "metdata: unknown field"),
		Entry("type", pod("a", "endpoint: 5"), "spec.endpoint: 5: must be a string"),
		Entry("twice", pod("a", "pod: b"), "spec.pod: is given twice"),
		Entry("path in the pod's name", pod("../a"), `spec.pod: "../a": must be 1 to 253 letters`),
		Entry("dots", pod(".."), `spec.pod: "..": must be`),
		Entry("path in the namespace", pod("a")+"metadata: {namespace: ../../etc}", `metadata.namespace: "../../etc": must be`),
		Entry("path in the endpoint", pod("a", "endpoint: a/b"), `spec.endpoint: "a/b": must be`),
		Entry("path in the orchestrator", pod("a", "orchestrator: ../x"), `spec.orchestrator: "../x": must be`),
		Entry("path in the workload", header+"spec: {workload: a/../b, interfaceName: cali1}", `spec.workload: "a/../b": must be`),
		Entry("dots in the workload", header+"spec: {workload: ../b, interfaceName: cali1}", `spec.workload: "../b": must be`),
		Entry("blank in the name", pod("'a b'"), `spec.pod: "a b": must be`),
		Entry("long name", pod(strings.Repeat("a", 254)), `must be 1 to 253 letters`),
	)
})

var _ = Describe("Hostile files", func() {
	bounded := func(text string) ([]document, error) {
		GinkgoHelper()
		start := time.Now()
		documents, err := parse([]byte(text), prefixes)
		Expect(time.Since(start)).To(BeNumerically("<", time.Minute))
		return documents, err
	}

	It("may hold ten thousand documents, and no more", func() {
		one := pod("a") + "---\n"
		documents, err := bounded(strings.Repeat(one, MaxDocuments))
		Expect(err).NotTo(HaveOccurred())
		Expect(documents).To(HaveLen(MaxDocuments))
		_, err = bounded(strings.Repeat(one, MaxDocuments+1))
		Expect(err).To(MatchError("too many documents: at most 10000 are allowed"))
	})

	It("cannot blow up through aliases", func() {
		var bomb strings.Builder
		bomb.WriteString(header + "metadata: {annotations: &a0 {a: b}}\nspec:\n  pod: a\n  interfaceName: cali1\n  profiles: &p0 [x, x, x, x, x, x, x, x, x]\n  ports:\n")
		for i := 1; i <= 12; i++ {
			fmt.Fprintf(&bomb, "  - &p%d [%s]\n", i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*p%d, ", i-1), 9), ", "))
		}
		documents, err := bounded(bomb.String())
		Expect(err).NotTo(HaveOccurred())
		Expect(documents[0].err).To(MatchError(ContainSubstring("spec.ports: a list: yaml: document contains excessive aliasing")))
	})

	It("cannot fill the log", func() {
		documents, err := bounded(header + "spec:\n  ipNetworks:\n" + strings.Repeat("  - "+strings.Repeat("x", 500)+"\n", 1000))
		Expect(err).NotTo(HaveOccurred())
		Expect(len(documents[0].err.Error())).To(BeNumerically("<", 5000))
	})
})

var _ = Describe("The examples", func() {
	It("load without a fault", func() {
		data, err := os.ReadFile("../examples/felixconfiguration.yaml")
		Expect(err).NotTo(HaveOccurred())
		loaded, unused, err := config.Load(data, nil)
		Expect(err).NotTo(HaveOccurred())
		Expect(unused).To(Equal([]string{"bpfEnabled"}))

		files, err := filepath.Glob("../examples/endpoints/*.yaml")
		Expect(err).NotTo(HaveOccurred())
		var ids []string
		for _, name := range files {
			data, err := os.ReadFile(name)
			Expect(err).NotTo(HaveOccurred())
			documents, err := parse(data, loaded.InterfacePrefixes)
			Expect(err).NotTo(HaveOccurred())
			for _, d := range documents {
				Expect(d.err).NotTo(HaveOccurred(), name)
				_, err := qos.ParseLimits(d.endpoint.Annotations, d.endpoint.QoSControls,
					qos.ParseOptions{KubernetesAnnotations: true, DefaultBurstBits: loaded.QoSDefaultBurstBits})
				Expect(err).NotTo(HaveOccurred(), name)
				ids = append(ids, d.id.Workload)
			}
		}
		Expect(ids).To(Equal([]string{"default/ifb-repro", "shop/web-0"}))
	})
})

// checkEndpoint says what is true of every endpoint, whatever the file was.
func checkEndpoint(t interface{ Fatalf(string, ...any) }, d document) {
	if (d.endpoint == nil) == (d.err == nil) {
		t.Fatalf("endpoint %v and error %v", d.endpoint, d.err)
	}
	if d.err != nil {
		return
	}
	if !d.known {
		t.Fatalf("a good document that is nobody's: %v", d.id)
	}
	for _, part := range []string{d.id.Orchestrator, d.id.Endpoint, d.id.Workload} {
		if part == "" || strings.Contains(part, "..") && (part == ".." || strings.Contains(part, "../") || strings.HasSuffix(part, "/..")) ||
			strings.ContainsAny(part, " \n\x00") || strings.Count(part, "/") > 1 || strings.HasPrefix(part, "/") {
			t.Fatalf("part of an identity: %q", part)
		}
	}
	if name := d.endpoint.InterfaceName; !hasPrefix(name, prefixes) || len(name) > 15 || strings.ContainsAny(name, "/: \n\x00") {
		t.Fatalf("interface %q", name)
	}
	if mac := d.endpoint.MAC; mac != nil && (len(mac) != 6 || mac[0]&1 != 0) {
		t.Fatalf("MAC %v", mac)
	}
	for _, network := range d.endpoint.IPv4Nets {
		if !network.Addr().Is4() || network.Bits() < 8 || network.Addr().IsLoopback() || network != network.Masked() {
			t.Fatalf("network %v", network)
		}
	}
	for _, network := range d.endpoint.IPv6Nets {
		if !network.Addr().Is6() || network.Bits() < 32 || network.Addr().IsLoopback() || network.Contains(netip.IPv6Unspecified()) || network != network.Masked() {
			t.Fatalf("network %v", network)
		}
	}
}

var _ = Describe("Any document", func() {
	It("gives either an endpoint that is in bounds or errors", func() {
		rapid.Check(GinkgoT(), func(t *rapid.T) {
			address := rapid.OneOf(
				rapid.Custom(func(t *rapid.T) string {
					bytes := rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "bytes")
					return fmt.Sprintf("%v/%d", netip.AddrFrom4([4]byte(bytes)), rapid.IntRange(0, 32).Draw(t, "bits"))
				}),
				rapid.Custom(func(t *rapid.T) string {
					bytes := rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "bytes")
					return netip.PrefixFrom(netip.AddrFrom16([16]byte(bytes)), rapid.IntRange(0, 128).Draw(t, "bits")).Masked().String()
				}),
				rapid.String(),
			)
			text := header + fmt.Sprintf("spec: {pod: %q, interfaceName: %q, mac: %q, ipNetworks: [%q, %q]}",
				rapid.OneOf(rapid.Just("a"), rapid.String()).Draw(t, "pod"),
				rapid.OneOf(rapid.Just("cali1"), rapid.String()).Draw(t, "interface"),
				rapid.SampledFrom([]string{"", "0a:58:0a:00:00:01", "x"}).Draw(t, "mac"),
				address.Draw(t, "first"), address.Draw(t, "second"))
			documents, err := parse([]byte(text), prefixes)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range documents {
				checkEndpoint(t, d)
			}
		})
	})
})

func FuzzParseManifest(f *testing.F) {
	for _, name := range []string{"ifb-repro.yaml", "web.yaml"} {
		data, err := os.ReadFile(filepath.Join("..", "examples", "endpoints", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	for _, seed := range []string{
		"", pod("a"), pod("a") + "---\n" + pod("b"), pod("../a"), pod("a", "ipNetworks: [0.0.0.0/0, '::ffff:1.2.3.4/128']"),
		pod("a", "qosControls: {ingressBandwidth: 1e-2147483647, dscp: {a: [b]}}"), header + "spec: &s {ports: *s}", "? [a]\n: b\n...\n---\n",
		`{"apiVersion":"projectcalico.org/v3","kind":"WorkloadEndpoint","spec":{"workload":"a/b","orchestrator":"x","interfaceName":"tap0"}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		documents, err := parse(data, prefixes)
		if err != nil && documents != nil {
			t.Fatal("documents and an error")
		}
		for _, d := range documents {
			checkEndpoint(t, d)
			if d.err != nil && len(d.err.Error()) > 10_000 {
				t.Fatalf("error of %d bytes", len(d.err.Error()))
			}
		}
	})
}
