package observability_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"

	"github.com/manx-dataplane/manx/agent"
	"github.com/manx-dataplane/manx/endpointmgr"
	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/mocks"
	"github.com/manx-dataplane/manx/rtnl"
)

// kernel is a mocks.Kernel in the shape that the agent wants.
type kernel struct{ *mocks.Kernel }

func (k kernel) Handle(rtnl.Options) (agent.Handle, error) { return k.NewHandle(), nil }
func (k kernel) Events(rtnl.EventOptions) (ifacemonitor.EventSocket, error) {
	return k.NewEventSocket(mocks.EventOptions{})
}
func (k kernel) Sysctls() endpointmgr.Sysctls                    { return k.Kernel.Sysctls() }
func (k kernel) Conntrack(rtnl.Options) (agent.Conntrack, error) { return flows{k.NewHandle()}, nil }
func (k kernel) Lock() (io.Closer, error)                        { return io.NopCloser(nil), nil }

type flows struct{ handle *mocks.Handle }

func (f flows) ConntrackDelete(addr netip.Addr) error { return f.handle.ConntrackDelete(addr) }
func (f flows) Close() error                          { f.handle.Close(); return nil }

const veth = "cali0027f0645a2" // of default/ifb-repro

const configuration = `apiVersion: projectcalico.org/v3
kind: FelixConfiguration
metadata: {name: default}
spec:
  prometheusMetricsEnabled: true
  prometheusMetricsHost: 127.0.0.1
  prometheusMetricsPort: %d
  prometheusWorkloadMetricsEnabled: true
  endpointStatusPathPrefix: %q
`

const endpoint = `apiVersion: projectcalico.org/v3
kind: WorkloadEndpoint
metadata:
  name: node-k8s-ifb--repro-eth0
  namespace: default
  annotations: {kubernetes.io/egress-bandwidth: 30M, kubernetes.io/ingress-bandwidth: 20M}
spec:
  orchestrator: k8s
  node: node
  pod: ifb-repro
  endpoint: eth0
  interfaceName: cali0027f0645a2
  ipNetworks: [10.65.0.2/32, "fd00::2/128"]
`

// exposition is what a run of the agent with everything switched on exposes, once it
// has programmed a pod and swept an orphan. It runs once for all tests.
var exposition = sync.OnceValue(func() string {
	world := kernel{mocks.NewKernel()}
	_, err := world.AddPod(veth)
	Expect(err).NotTo(HaveOccurred())
	dir, err := os.MkdirTemp("", "manx-observability-")
	Expect(err).NotTo(HaveOccurred())
	defer os.RemoveAll(dir)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	port := listener.Addr().(*net.TCPAddr).Port
	Expect(listener.Close()).To(Succeed())

	logger := logrus.New()
	logger.SetOutput(GinkgoWriter)
	options := agent.Options{
		ConfigFile:   filepath.Join(dir, "felix.yaml"),
		EndpointsDir: filepath.Join(dir, "endpoints"),
		Kernel:       world,
		Log:          logger,
	}
	Expect(os.Mkdir(options.EndpointsDir, 0o755)).To(Succeed())
	Expect(os.WriteFile(options.ConfigFile, fmt.Appendf(nil, configuration, port, dir), 0o644)).To(Succeed())
	Expect(os.WriteFile(filepath.Join(options.EndpointsDir, "pod.yaml"), []byte(endpoint), 0o644)).To(Succeed())

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- agent.Run(ctx, options) }()
	defer func() {
		cancel()
		Eventually(done, "5s").Should(Receive(BeNil()))
		http.DefaultClient.CloseIdleConnections()
	}()
	var text string
	Eventually(func() (string, error) {
		response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", port))
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		text = string(body)
		return text, err
	}, "10s").Should(And(
		ContainSubstring(`manx_dataplane_endpoints{status="up"} 1`),
		ContainSubstring(`manx_workload_packets_total{direction="egress"`),
	))
	return text
})

// family is one metric as a scrape shows it.
type family struct {
	kind   string   // counter, gauge or histogram
	labels []string // sorted
}

var (
	typeLine   = regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`)
	sampleLine = regexp.MustCompile(`(?m)^([a-z_]+)(?:\{(.*)\})? \S+$`)
	labelName  = regexp.MustCompile(`([a-z_]+)="`)
)

// exposed returns the metrics of ours that a run exposes, by name.
var exposed = sync.OnceValue(func() map[string]family {
	text := exposition()
	families := make(map[string]family)
	for _, match := range typeLine.FindAllStringSubmatch(text, -1) {
		if strings.HasPrefix(match[1], "manx_") {
			families[match[1]] = family{kind: match[2]}
		}
	}
	seen := make(map[string]bool)
	for _, match := range sampleLine.FindAllStringSubmatch(text, -1) {
		name := familyOf(match[1], families)
		if name == "" {
			continue
		}
		seen[name] = true
		f := families[name]
		for _, label := range labelName.FindAllStringSubmatch(match[2], -1) {
			if label[1] != "le" && !slices.Contains(f.labels, label[1]) {
				f.labels = append(f.labels, label[1])
			}
		}
		slices.Sort(f.labels)
		families[name] = f
	}
	Expect(slices.Sorted(maps.Keys(seen))).To(Equal(slices.Sorted(maps.Keys(families))))
	return families
})

// familyOf returns the metric that a series belongs to; empty if there is none.
func familyOf(series string, families map[string]family) string {
	if f, ok := families[series]; ok && f.kind != "histogram" {
		return series
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(series, suffix); ok && families[base].kind == "histogram" {
			return base
		}
	}
	return ""
}
