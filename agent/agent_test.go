package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/agent"
	"github.com/manx-dataplane/manx/endpointmgr"
	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/mocks"
	"github.com/manx-dataplane/manx/qos"
	"github.com/manx-dataplane/manx/rtnl"
)

func TestAgent(t *testing.T) {
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(10 * time.Second) // a bound for busy machines
	RunSpecs(t, "agent")
}

// kernel is a mocks.Kernel in the shape that the agent wants.
type kernel struct {
	*mocks.Kernel
	running error // what Lock returns
}

func (k kernel) Handle(rtnl.Options) (agent.Handle, error) { return k.NewHandle(), nil }
func (k kernel) Events(rtnl.EventOptions) (ifacemonitor.EventSocket, error) {
	return k.NewEventSocket(mocks.EventOptions{})
}
func (k kernel) Sysctls() endpointmgr.Sysctls                    { return k.Kernel.Sysctls() }
func (k kernel) Conntrack(rtnl.Options) (agent.Conntrack, error) { return k.NewConntrack(), nil }
func (k kernel) Lock() (io.Closer, error)                        { return io.NopCloser(nil), k.running }

const (
	veth = "cali0027f0645a2"
	ifb  = "bwcali6514ff3bb"
)

const manifest = `apiVersion: projectcalico.org/v3
kind: WorkloadEndpoint
metadata:
  name: node-k8s-ifb--repro-eth0
  namespace: default
  annotations: {kubernetes.io/egress-bandwidth: 30M}
spec:
  orchestrator: k8s
  node: node
  pod: ifb-repro
  endpoint: eth0
  interfaceName: cali0027f0645a2
  ipNetworks: [10.65.0.2/32, "fd00::2/128"]
`

var _ = Describe("Run", func() {
	var (
		world   kernel
		options agent.Options
		log     *gbytes.Buffer
		ctx     context.Context
		cancel  context.CancelFunc
		done    chan error
		before  goleak.Option
	)

	BeforeEach(func() {
		before = goleak.IgnoreCurrent()
		world = kernel{Kernel: mocks.NewKernel()}
		log = gbytes.NewBuffer()
		logger := logrus.New()
		logger.SetOutput(io.MultiWriter(log, GinkgoWriter))
		dir := GinkgoT().TempDir()
		options = agent.Options{
			ConfigFile:   filepath.Join(dir, "felix.yaml"),
			EndpointsDir: filepath.Join(dir, "endpoints"),
			Kernel:       world,
			Log:          logger,
		}
		Expect(os.Mkdir(options.EndpointsDir, 0o755)).To(Succeed())
		ctx, cancel = context.WithCancel(context.Background())
		done = nil
	})

	AfterEach(func() {
		cancel()
		if done != nil {
			Eventually(done).Should(Receive(BeNil()), "Run must return nil once it is told to stop")
		}
		Expect(world.OpenHandles()).To(BeZero(), "sockets left open")
		Eventually(func() error { return goleak.Find(before) }).Should(Succeed())
	})

	// configure replaces the configuration file atomically.
	configure := func(spec ...string) {
		GinkgoHelper()
		if !slices.ContainsFunc(spec, func(field string) bool { return strings.HasPrefix(field, "endpointStatusPathPrefix") }) {
			spec = append(spec, fmt.Sprintf("endpointStatusPathPrefix: %q", filepath.Dir(options.ConfigFile)))
		}
		text := "apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata: {name: default}\nspec:\n  " +
			strings.Join(spec, "\n  ") + "\n"
		Expect(os.WriteFile(options.ConfigFile+".tmp", []byte(text), 0o644)).To(Succeed())
		Expect(os.Rename(options.ConfigFile+".tmp", options.ConfigFile)).To(Succeed())
	}
	addEndpoint := func() {
		GinkgoHelper()
		path := filepath.Join(options.EndpointsDir, "pod.yaml")
		Expect(os.WriteFile(path+".tmp", []byte(manifest), 0o644)).To(Succeed())
		Expect(os.Rename(path+".tmp", path)).To(Succeed())
	}
	start := func() {
		done = make(chan error, 1)
		go func(done chan error) { done <- agent.Run(ctx, options) }(done)
	}
	ifbExists := func() bool {
		_, err := world.Outside().LinkByName(ifb)
		return err == nil
	}
	protocols := func() (protocols []int) {
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			filter := rtnl.RouteFilter{Family: family, Table: unix.RT_TABLE_MAIN}
			err := world.Outside().RouteEach(filter, func(route *netlink.Route) error {
				if route.Protocol != unix.RTPROT_KERNEL {
					protocols = append(protocols, int(route.Protocol))
				}
				return nil
			})
			Expect(err).NotTo(HaveOccurred())
		}
		return protocols
	}
	get := func(port int, path string) func() (string, error) {
		return func() (string, error) {
			response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", port, path))
			if err != nil {
				return "", err
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			return fmt.Sprintln(response.StatusCode, string(body)), err
		}
	}
	addPod := func() {
		GinkgoHelper()
		_, err := world.AddPod(veth)
		Expect(err).NotTo(HaveOccurred())
	}

	It("routes and shapes a pod and leaves both in place when it stops", func() {
		Expect(qos.IFBName(veth)).To(Equal(ifb))
		configure()
		addPod()
		addEndpoint()
		start()
		Eventually(protocols).Should(ConsistOf(80, 80))
		Eventually(ifbExists).Should(BeTrue())
		status := filepath.Join(filepath.Dir(options.ConfigFile), "endpoint-status", "k8s default%2Fifb-repro eth0")
		Eventually(status).Should(BeAnExistingFile())

		cancel()
		Eventually(done).Should(Receive(BeNil()))
		done = nil
		Expect(protocols()).To(ConsistOf(80, 80))
		Expect(ifbExists()).To(BeTrue())
	})

	It("takes qosControls over without building anything anew", func() {
		configure()
		addPod()
		addEndpoint()
		start()
		Eventually(ifbExists).Should(BeTrue())
		configure("qosControls: Disabled")
		Eventually(ifbExists).Should(BeFalse())
		Expect(log).NotTo(gbytes.Say("starting anew"))
		configure("qosControls: Enabled")
		Eventually(ifbExists).Should(BeTrue())
	})

	It("builds the pipeline anew for any other field, and the kernel's state follows", func() {
		configure()
		addPod()
		addEndpoint()
		start()
		Eventually(protocols).Should(ConsistOf(80, 80))
		configure("deviceRouteProtocol: 99", "ipv6Support: false")
		Eventually(protocols).Should(ContainElement(99))
		Expect(log).To(gbytes.Say("starting anew"))
		Expect(ifbExists()).To(BeTrue())
	})

	It("keeps the last good configuration when the file becomes invalid", func() {
		configure()
		addPod()
		addEndpoint()
		start()
		Eventually(ifbExists).Should(BeTrue())
		configure("qosControls: Sometimes")
		Eventually(log).Should(gbytes.Say("qosControls"))
		Consistently(ifbExists, "200ms").Should(BeTrue())
	})

	It("serves health and metrics where the configuration says", func() {
		health, metrics := freePort(), freePort()
		configure("healthEnabled: true", "healthHost: 127.0.0.1", fmt.Sprintf("healthPort: %d", health),
			"prometheusMetricsEnabled: true", "prometheusMetricsHost: 127.0.0.1", fmt.Sprintf("prometheusMetricsPort: %d", metrics))
		start()
		Eventually(get(health, "/readiness")).Should(HavePrefix("200"))
		Eventually(get(health, "/liveness")).Should(HavePrefix("200"))
		Eventually(get(metrics, "/metrics")).Should(ContainSubstring("manx_dataplane_"))
		http.DefaultClient.CloseIdleConnections()
	})

	It("stops though a kernel request does not return", func() {
		configure()
		addPod()
		addEndpoint()
		release := world.Hang(mocks.BeforeEffect, func(c mocks.Call) bool { return c.Op == mocks.OpRouteBatch })
		defer release()
		start()
		Eventually(world.Hung).Should(BeNumerically(">", 0))
		cancel()
		Eventually(done).Should(Receive(BeNil()))
		done = nil
		Expect(log).To(gbytes.Say("does not return"))
		release()
		Eventually(world.OpenHandles).Should(BeZero())
	})

	It("waits for an apply that is under way before it builds the pipeline anew", func() {
		configure()
		addPod()
		addEndpoint()
		release := world.Hang(mocks.BeforeEffect, func(c mocks.Call) bool { return c.Op == mocks.OpRouteBatch })
		defer release()
		start()
		Eventually(world.Hung).Should(BeNumerically(">", 0))
		configure("deviceRouteProtocol: 99")
		Consistently(done, "1500ms").ShouldNot(Receive())
		Expect(log).NotTo(gbytes.Say("starting anew"))
		release()
		Eventually(protocols).Should(ConsistOf(99, 99))
	})

	It("follows qosRemoveExternalShapers", func() {
		configure()
		_, err := world.AddPod(veth)
		Expect(err).NotTo(HaveOccurred())
		link, err := world.Outside().LinkByName(veth)
		Expect(err).NotTo(HaveOccurred())
		Expect(world.Outside().QdiscReplace(&netlink.Tbf{
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)},
			Rate:       1e6, Limit: 1 << 20, Buffer: 1 << 20,
		})).To(Succeed())
		shaped := func() bool {
			qdiscs, err := world.Outside().QdiscList()
			Expect(err).NotTo(HaveOccurred())
			return slices.ContainsFunc(qdiscs, func(q netlink.Qdisc) bool {
				return q.Type() == "tbf" && q.Attrs().LinkIndex == link.Attrs().Index
			})
		}
		addEndpoint() // it has no ingress limit
		start()
		Eventually(ifbExists).Should(BeTrue())
		Expect(shaped()).To(BeTrue())
		configure("qosRemoveExternalShapers: Enabled")
		Eventually(shaped).Should(BeFalse())
	})

	It("leaves no status files behind where they are written no longer", func() {
		configure()
		addPod()
		addEndpoint()
		start()
		file := func(prefix string) string {
			return filepath.Join(prefix, "endpoint-status", "k8s default%2Fifb-repro eth0")
		}
		before := filepath.Dir(options.ConfigFile)
		after := GinkgoT().TempDir()
		Eventually(file(before)).Should(BeAnExistingFile())
		configure(fmt.Sprintf("endpointStatusPathPrefix: %q", after))
		Eventually(file(after)).Should(BeAnExistingFile())
		Expect(file(before)).NotTo(BeAnExistingFile())
	})

	It("goes on without health while its address is taken, says so once, and serves it when it is free", func() {
		taken, err := net.Listen("tcp", "127.0.0.1:0")
		Expect(err).NotTo(HaveOccurred())
		defer taken.Close()
		port := taken.Addr().(*net.TCPAddr).Port
		configure()
		addPod()
		addEndpoint()
		start()
		Eventually(protocols).Should(ConsistOf(80, 80))
		configure("healthEnabled: true", "healthHost: 127.0.0.1", fmt.Sprintf("healthPort: %d", port), "deviceRouteProtocol: 99")
		Eventually(log).Should(gbytes.Say("Cannot serve health or metrics"))
		Eventually(protocols).Should(ContainElement(99))
		Expect(taken.Close()).To(Succeed())
		Eventually(get(port, "/liveness")).Should(HavePrefix("200"))
		Expect(strings.Count(string(log.Contents()), "Cannot serve")).To(Equal(1))
		http.DefaultClient.CloseIdleConnections()
	})

	It("refuses to start without its directory, naming it", func() {
		configure()
		options.EndpointsDir += "-not"
		Expect(agent.Run(ctx, options)).To(MatchError(And(
			ContainSubstring(options.EndpointsDir), ContainSubstring("no such file"))))
		options.EndpointsDir = options.ConfigFile
		Expect(agent.Run(ctx, options)).To(MatchError(ContainSubstring("not a directory")))
	})

	It("refuses to start with an invalid or missing configuration, naming the field or the file", func() {
		Expect(agent.Run(ctx, options)).To(MatchError(ContainSubstring(options.ConfigFile)))
		configure("qosRefreshInterval: -1s")
		Expect(agent.Run(ctx, options)).To(MatchError(And(
			ContainSubstring("qosRefreshInterval"), ContainSubstring("-1s"))))
	})

	It("refuses to start beside another agent", func() {
		configure()
		world.running = agent.ErrAlreadyRunning
		options.Kernel = world
		Expect(agent.Run(ctx, options)).To(MatchError(agent.ErrAlreadyRunning))
	})
})

var _ = Describe("LinuxKernel.Lock", func() {
	It("is per network namespace and ends with its holder", func() {
		if os.Geteuid() != 0 {
			if os.Getenv("CI") != "" {
				Fail("CI must run as root")
			}
			Skip("needs root: creates network namespaces")
		}
		inNamespace := func(ns *rtnl.Namespace) (lock io.Closer, err error) {
			err = ns.Do(func() (err error) {
				lock, err = agent.LinuxKernel{}.Lock()
				return err
			})
			return lock, err
		}
		one, err := rtnl.NewNamespace()
		Expect(err).NotTo(HaveOccurred())
		defer one.Close()
		other, err := rtnl.NewNamespace()
		Expect(err).NotTo(HaveOccurred())
		defer other.Close()

		first, err := inNamespace(one)
		Expect(err).NotTo(HaveOccurred())
		_, err = inNamespace(one)
		Expect(errors.Is(err, agent.ErrAlreadyRunning)).To(BeTrue())
		elsewhere, err := inNamespace(other)
		Expect(err).NotTo(HaveOccurred())
		Expect(elsewhere.Close()).To(Succeed())
		Expect(first.Close()).To(Succeed())
		again, err := inNamespace(one)
		Expect(err).NotTo(HaveOccurred())
		Expect(again.Close()).To(Succeed())
	})
})

// freePort returns a TCP port that nothing listens on.
func freePort() int {
	GinkgoHelper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}
