package workloadmetrics_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/internal/workloadmetrics"
	"github.com/manx-dataplane/manx/qos"
	"github.com/manx-dataplane/manx/rtnl"
)

func TestWorkloadMetrics(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "workloadmetrics")
}

// The goroutine that is let pass is Ginkgo's own.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/onsi/ginkgo/v2/internal/interrupt_handler.(*InterruptHandler).registerForInterrupts.func2"))
}

var _ workloadmetrics.Kernel = (*rtnl.Handle)(nil)

// kernel is what a node's kernel says.
type kernel struct {
	links       []netlink.Link
	qdiscs      []netlink.Qdisc
	interrupted int // how many dumps are, before one is not
	dumps       int
	open        int
}

func (k *kernel) LinkList() ([]netlink.Link, error) {
	k.dumps++
	if k.interrupted > 0 {
		k.interrupted--
		return nil, unix.EINTR
	}
	return k.links, nil
}
func (k *kernel) QdiscList() ([]netlink.Qdisc, error) { k.dumps++; return k.qdiscs, nil }
func (k *kernel) Close()                              { k.open-- }

func (k *kernel) add(link netlink.Link, index int, name string) {
	link.Attrs().Name, link.Attrs().Index = name, index
	k.links = append(k.links, link)
}

// shape gives a link a root qdisc that has counted.
func (k *kernel) shape(qdisc netlink.Qdisc, index int, packets, bytes, drops, overlimits int) {
	*qdisc.Attrs() = netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_ROOT, Statistics: &netlink.QdiscStatistics{
		Basic: &netlink.GnetStatsBasic{Packets: uint32(packets), Bytes: uint64(bytes)},
		Queue: &netlink.GnetStatsQueue{Drops: uint32(drops), Overlimits: uint32(overlimits)},
	}}
	k.qdiscs = append(k.qdiscs, qdisc)
}

var _ = Describe("Collector", func() {
	var (
		world  *kernel
		config workloadmetrics.Config
		log    *strings.Builder
	)
	BeforeEach(func() {
		world = &kernel{}
		log = &strings.Builder{}
		logger := logrus.New()
		logger.SetOutput(io.MultiWriter(log, GinkgoWriter))
		config = workloadmetrics.Config{
			Open:            func() (workloadmetrics.Kernel, error) { world.open++; return world, nil },
			IsWorkloadIface: func(name string) bool { return strings.HasPrefix(name, "cali") },
			Log:             logger,
		}
	})
	register := func() *prometheus.Registry {
		GinkgoHelper()
		registry := prometheus.NewRegistry()
		Expect(registry.Register(workloadmetrics.New(config))).To(Succeed())
		return registry
	}
	addPod := func(index int, name string) {
		world.add(&netlink.Veth{}, index, name)
		world.add(&netlink.Ifb{}, index+100, qos.IFBName(name))
	}

	It("counts both directions on the workload's interface, and no one else's shapers", func() {
		addPod(7, "cali1")
		world.shape(&netlink.Tbf{}, 7, 1, 2, 3, 4)
		world.shape(&netlink.Tbf{}, 107, 5, 6, 7, 8)
		world.add(&netlink.Veth{}, 8, "cali2") // has no limit
		world.shape(&netlink.GenericQdisc{QdiscType: "noqueue"}, 8, 9, 9, 9, 9)
		world.add(&netlink.Device{}, 9, "eth0")
		world.shape(&netlink.Tbf{}, 9, 9, 9, 9, 9)
		world.add(&netlink.Ifb{}, 10, "bwcali000000001") // an orphan
		world.shape(&netlink.Tbf{}, 10, 9, 9, 9, 9)
		Expect(testutil.GatherAndCompare(register(), strings.NewReader(`
# HELP manx_workload_bytes_total Bytes that passed the limit of this interface's workload.
# TYPE manx_workload_bytes_total counter
manx_workload_bytes_total{direction="egress",iface="cali1"} 6
manx_workload_bytes_total{direction="ingress",iface="cali1"} 2
# HELP manx_workload_dropped_packets_total Packets that the limit of this interface's workload dropped.
# TYPE manx_workload_dropped_packets_total counter
manx_workload_dropped_packets_total{direction="egress",iface="cali1"} 7
manx_workload_dropped_packets_total{direction="ingress",iface="cali1"} 3
# HELP manx_workload_omitted_interfaces Interfaces with a limit that have no series because there are too many.
# TYPE manx_workload_omitted_interfaces gauge
manx_workload_omitted_interfaces 0
# HELP manx_workload_overlimits_total Times that the limit of this interface's workload made a packet wait.
# TYPE manx_workload_overlimits_total counter
manx_workload_overlimits_total{direction="egress",iface="cali1"} 8
manx_workload_overlimits_total{direction="ingress",iface="cali1"} 4
# HELP manx_workload_packets_total Packets that passed the limit of this interface's workload.
# TYPE manx_workload_packets_total counter
manx_workload_packets_total{direction="egress",iface="cali1"} 5
manx_workload_packets_total{direction="ingress",iface="cali1"} 1
# HELP manx_workload_read_errors_total Scrapes for which the shapers' counters could not be read.
# TYPE manx_workload_read_errors_total counter
manx_workload_read_errors_total 0
`))).To(Succeed())
	})

	It("reads the kernel with two dumps whatever the number of workloads, and leaves no socket open", func() {
		for n := range 200 {
			addPod(n+1000, "cali"+strings.Repeat("x", n%10)+string(rune('a'+n/10)))
			world.shape(&netlink.Tbf{}, n+1000, 1, 1, 1, 1)
		}
		_, err := register().Gather()
		Expect(err).NotTo(HaveOccurred())
		Expect(world.dumps).To(Equal(2))
		Expect(world.open).To(BeZero())
	})

	It("keeps to its bound and says how many it left out", func() {
		config.MaxInterfaces = 2
		for n, name := range []string{"cali3", "cali1", "cali2", "cali0"} {
			addPod(n+1, name)
			world.shape(&netlink.Tbf{}, n+1, 1, 1, 1, 1)
			world.shape(&netlink.Tbf{}, n+101, 1, 1, 1, 1)
		}
		Expect(testutil.GatherAndCompare(register(), strings.NewReader(`
# HELP manx_workload_omitted_interfaces Interfaces with a limit that have no series because there are too many.
# TYPE manx_workload_omitted_interfaces gauge
manx_workload_omitted_interfaces 2
# HELP manx_workload_packets_total Packets that passed the limit of this interface's workload.
# TYPE manx_workload_packets_total counter
manx_workload_packets_total{direction="egress",iface="cali1"} 1
manx_workload_packets_total{direction="egress",iface="cali3"} 1
manx_workload_packets_total{direction="ingress",iface="cali1"} 1
manx_workload_packets_total{direction="ingress",iface="cali3"} 1
`), "manx_workload_packets_total", "manx_workload_omitted_interfaces")).To(Succeed())
	})

	It("repeats a dump that was interrupted", func() {
		addPod(7, "cali1")
		world.shape(&netlink.Tbf{}, 7, 1, 2, 3, 4)
		world.interrupted = 3
		Expect(testutil.GatherAndCount(register(), "manx_workload_packets_total")).To(Equal(1))
	})

	It("counts a failure, says so once, and does not fail the scrape", func() {
		config.Open = func() (workloadmetrics.Kernel, error) { return nil, errors.New("injected") }
		collector := workloadmetrics.New(config)
		for range 2 {
			Expect(testutil.CollectAndCount(collector)).To(Equal(1))
		}
		Expect(testutil.CollectAndCompare(collector, strings.NewReader(`
# HELP manx_workload_read_errors_total Scrapes for which the shapers' counters could not be read.
# TYPE manx_workload_read_errors_total counter
manx_workload_read_errors_total 3
`))).To(Succeed())
		Expect(strings.Count(log.String(), "injected")).To(Equal(1))
	})
})
