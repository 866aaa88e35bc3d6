package workloadmetrics

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"

	"github.com/manx-dataplane/manx/internal/logging"
	"github.com/manx-dataplane/manx/qos"
	"github.com/manx-dataplane/manx/rtnl"
)

// DefaultMaxInterfaces is twice the 250 pods that large nodes are run with.
const DefaultMaxInterfaces = 500

// Kernel is what a scrape asks of the kernel. Methods and errors are those of
// *rtnl.Handle.
type Kernel interface {
	LinkList() ([]netlink.Link, error)
	QdiscList() ([]netlink.Qdisc, error)
	Close()
}

// Config configures a Collector. Open and IsWorkloadIface must be set.
type Config struct {
	// Open opens a handle for one scrape, which closes it.
	Open func() (Kernel, error)
	// IsWorkloadIface tells workload interfaces by name.
	IsWorkloadIface func(name string) bool
	// MaxInterfaces is how many interfaces get series: those with the lowest index,
	// so that the set changes only when one of them goes. Zero means
	// DefaultMaxInterfaces.
	MaxInterfaces int
	// Log; nil means none.
	Log logrus.FieldLogger
}

// Collector is a prometheus.Collector of the counters of workloads' shapers. It is
// safe for concurrent use: each scrape reads the kernel by itself.
type Collector struct {
	config  Config
	packets *prometheus.Desc
	bytes   *prometheus.Desc
	drops   *prometheus.Desc
	delayed *prometheus.Desc
	omitted *prometheus.Desc
	errors  prometheus.Counter
	failing atomic.Bool // the last scrape failed, and that was logged
}

// New returns a Collector, to be registered.
func New(config Config) *Collector {
	config.MaxInterfaces = cmp.Or(config.MaxInterfaces, DefaultMaxInterfaces)
	config.Log = logging.OrDiscard(config.Log)
	perDirection := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("manx_workload_"+name, help, []string{"iface", "direction"}, nil)
	}
	return &Collector{
		config:  config,
		packets: perDirection("packets_total", "Packets that passed the limit of this interface's workload."),
		bytes:   perDirection("bytes_total", "Bytes that passed the limit of this interface's workload."),
		drops:   perDirection("dropped_packets_total", "Packets that the limit of this interface's workload dropped."),
		delayed: perDirection("overlimits_total", "Times that the limit of this interface's workload made a packet wait."),
		omitted: prometheus.NewDesc("manx_workload_omitted_interfaces",
			"Interfaces with a limit that have no series because there are too many.", nil, nil),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "manx_workload_read_errors_total", Help: "Scrapes for which the shapers' counters could not be read.",
		}),
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{c.packets, c.bytes, c.drops, c.delayed, c.omitted} {
		descs <- desc
	}
	c.errors.Describe(descs)
}

// Collect implements prometheus.Collector. Where the kernel cannot be read the other
// metrics of the scrape are served all the same.
func (c *Collector) Collect(metrics chan<- prometheus.Metric) {
	shapers, err := c.read()
	if err != nil {
		c.errors.Inc()
		if !c.failing.Swap(true) {
			c.config.Log.WithError(err).Warn("Cannot read workloads' counters; their metrics are missing")
		}
		c.errors.Collect(metrics)
		return
	}
	c.failing.Store(false)
	interfaces := 0
	omitted := 0
	for n, shaper := range shapers {
		if n == 0 || shapers[n-1].iface != shaper.iface {
			if interfaces++; interfaces > c.config.MaxInterfaces {
				omitted++
			}
		}
		if interfaces > c.config.MaxInterfaces {
			continue
		}
		counter := func(desc *prometheus.Desc, value uint64) {
			metrics <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value), shaper.iface, shaper.direction)
		}
		counter(c.packets, uint64(shaper.stats.Basic.Packets))
		counter(c.bytes, shaper.stats.Basic.Bytes)
		counter(c.drops, uint64(shaper.stats.Queue.Drops))
		counter(c.delayed, uint64(shaper.stats.Queue.Overlimits))
	}
	metrics <- prometheus.MustNewConstMetric(c.omitted, prometheus.GaugeValue, float64(omitted))
	c.errors.Collect(metrics)
}

// shaper is one direction of one workload.
type shaper struct {
	iface     string
	index     int // of the interface
	direction string
	stats     *netlink.QdiscStatistics
}

// read returns the shapers of workloads by the index of their interface.
func (c *Collector) read() ([]shaper, error) {
	kernel, err := c.config.Open()
	if err != nil {
		return nil, err
	}
	defer kernel.Close()
	links, err := rtnl.RetryInterrupted(kernel.LinkList)
	if err != nil {
		return nil, err
	}
	qdiscs, err := rtnl.RetryInterrupted(kernel.QdiscList)
	if err != nil {
		return nil, err
	}
	// Which direction of which interface a device shapes: the interface itself what
	// its workload receives, the IFB of its name what its workload sends.
	shapes := make(map[int]shaper)
	ifbs := make(map[string]int)
	for _, link := range links {
		if link.Type() == "ifb" {
			ifbs[link.Attrs().Name] = link.Attrs().Index
		}
	}
	for _, link := range links {
		name, index := link.Attrs().Name, link.Attrs().Index
		if link.Type() == "ifb" || !c.config.IsWorkloadIface(name) {
			continue
		}
		shapes[index] = shaper{iface: name, index: index, direction: "ingress"}
		if ifb, ok := ifbs[qos.IFBName(name)]; ok {
			shapes[ifb] = shaper{iface: name, index: index, direction: "egress"}
		}
	}
	var shapers []shaper
	for _, qdisc := range qdiscs {
		attrs := qdisc.Attrs()
		found, ok := shapes[attrs.LinkIndex]
		if !ok || attrs.Parent != netlink.HANDLE_ROOT || qdisc.Type() != "tbf" || attrs.Statistics == nil {
			continue
		}
		found.stats = attrs.Statistics
		shapers = append(shapers, found)
	}
	slices.SortFunc(shapers, func(a, b shaper) int {
		return cmp.Or(cmp.Compare(a.index, b.index), cmp.Compare(a.direction, b.direction))
	})
	return shapers, nil
}
