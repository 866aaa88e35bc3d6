package audit

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/internal/sweep"
	"github.com/manx-dataplane/manx/qos"
	"github.com/manx-dataplane/manx/rtnl"
)

// Kernel is what an audit asks of the kernel. Methods and errors are those of
// *rtnl.Handle.
type Kernel interface {
	qos.ReadKernel
	RouteEach(filter rtnl.RouteFilter, fn func(*netlink.Route) error) error
	NamespaceID(fd int) (int, error)
}

// The names of the pairs, in the order of a report.
const (
	PairShapers   = "shapers"
	PairEndpoints = "endpoints"
	PairPeers     = "peers"
	PairIPAM      = "ipam"
	PairRoutes    = "routes"
	PairAddresses = "addresses"
	PairStuck     = "stuck"
)

// Pairs are the names of all pairs.
func Pairs() []string {
	return []string{PairShapers, PairEndpoints, PairPeers, PairIPAM, PairRoutes, PairAddresses, PairStuck}
}

// Options say where to look. Kernel and Prefixes must be set.
type Options struct {
	Kernel Kernel
	// Prefixes start the names of workload interfaces.
	Prefixes []string
	// Only, where not empty, are the only pairs to compare.
	Only []string
	// EndpointsDir is a directory of WorkloadEndpoint manifests; empty where not
	// given.
	EndpointsDir string
	IPAM         IPAMOptions
	// Table is the routing table to look at; zero means the main one.
	Table uint32
	// KernelLog is a file with kernel log lines; empty means /dev/kmsg.
	KernelLog string
	// Proc is where the proc file system with the workloads' processes is mounted;
	// empty means /proc.
	Proc string
	// Stdin is what the file name "-" stands for.
	Stdin io.Reader
}

// audit is one run: the inputs that several pairs share, read once.
type audit struct {
	Options
	view      *sweep.View
	viewErr   error
	workloads []workload
	endpoints *endpoints // nil where not given or not readable
	endptErr  error
	stuck     map[string]stuckDevice // by name
	log       *kernelLog
	logErr    error
}

// Run compares. It only reads, and always returns a report: what could not be read
// is in it.
func Run(ctx context.Context, options Options) Report {
	a := &audit{Options: options}
	if a.Table == 0 {
		a.Table = unix.RT_TABLE_MAIN
	}
	if a.view, a.viewErr = sweep.Look(a.Kernel); a.viewErr == nil {
		a.workloads, a.viewErr = a.readWorkloads()
	}
	if a.EndpointsDir != "" {
		a.endpoints, a.endptErr = readEndpoints(ctx, a.EndpointsDir, a.Prefixes)
	}
	if a.log, a.logErr = readKernelLog(a.KernelLog); a.logErr == nil {
		a.stuck = a.log.stuck()
	}

	compare := map[string]func() Pair{
		PairShapers:   a.compareShapers,
		PairEndpoints: a.compareEndpoints,
		PairPeers:     a.comparePeers,
		PairIPAM:      func() Pair { return CompareIPAM(a.IPAM, a.Stdin, time.Now()) },
		PairRoutes:    a.compareRoutes,
		PairAddresses: a.compareAddresses,
		PairStuck:     a.compareStuck,
	}
	var report Report
	for _, name := range Pairs() {
		if len(a.Only) > 0 && !slices.Contains(a.Only, name) {
			continue
		}
		pair := compare[name]()
		if pair.Status == NotAsked && len(a.Only) > 0 { // it was: by its name
			pair.Status = NoLook
		}
		report.Pairs = append(report.Pairs, pair)
	}
	return report
}

// compareShapers compares the IFB devices with the interfaces that use them.
func (a *audit) compareShapers() Pair {
	if a.viewErr != nil {
		return noLook(PairShapers, a.viewErr)
	}
	p := &Pair{
		Name: PairShapers,
		Left: Number{Of: sweep.DefaultPrefix + "* IFB devices"}, Right: Number{Of: "interfaces that redirect to one"},
		Meaning: "A device that nothing redirects to is left over from a workload that is gone; it costs memory, and every " +
			"program that walks the interfaces pays for it. An interface that redirects to nothing has lost its device: " +
			"the kernel drops all that its workload sends.",
		Do: "Leftovers: manx sweep --dry-run, then manx sweep. Lost devices: restart the agent, or delete the filter that " +
			"redirects to nothing (tc filter show dev IFACE ingress; tc filter del dev IFACE ingress pref N), which lifts the " +
			"limit until the agent sets it again.",
		DoNot: "Do not delete a device that an interface redirects to: its workload goes silent. Do not restart the node for it.",
	}
	users := make(map[string]bool)
	for _, device := range a.view.Devices(sweep.DefaultPrefix) {
		p.Left.Count++
		for _, iface := range device.UsedBy {
			users[iface] = true
		}
		switch {
		case device.Orphan():
			p.offend(device.Name, "ifindex %d: %s", device.Index, device.Reason())
		case len(device.UsedBy) == 0:
			p.offend(device.Name, "ifindex %d: %s; look again", device.Index, device.Reason())
		case len(device.UsedBy) > 1:
			p.offend(device.Name, "ifindex %d: %d interfaces share it: %s", device.Index, len(device.UsedBy), strings.Join(device.UsedBy, ", "))
		}
	}
	for _, iface := range a.view.Interfaces {
		if slices.ContainsFunc(iface.Filters, a.redirectsToNothing) {
			users[iface.Name] = true
			p.offend(iface.Name, "ifindex %d: redirects to a device that is gone", iface.Index)
		}
	}
	p.Right.Count = len(users)
	sortOffenders(p)
	return p.settle()
}

// redirectsToNothing reports whether a filter redirects to a device that is gone:
// the kernel shows none then, or an index that no link has.
func (a *audit) redirectsToNothing(filter qos.Filter) bool {
	return filter.Redirect && a.view.Interfaces[filter.Target] == nil
}

// compareStuck compares the devices that the kernel says it waits for with none.
func (a *audit) compareStuck() Pair {
	if a.logErr != nil {
		return noLook(PairStuck, a.logErr)
	}
	p := &Pair{
		Name: PairStuck,
		Left: Number{Of: "devices whose deletion the kernel cannot finish"}, Right: Number{Of: "expected"},
		Meaning: "Somebody did delete these devices, and the kernel waits for the last reference to them (a socket, a route, " +
			"a neighbour entry that something holds). That is not a fault of the agent's: a device that nobody deleted is " +
			"in the pair \"" + PairEndpoints + "\", and has no such line in the kernel log.",
		Do: "See which workload the name belonged to, and what holds it: processes that still are in its network namespace " +
			"first. Drain the node and reboot it if it does not end by itself; keep the log for the kernel's maintainers.",
		DoNot: "Do not restart the agent for it, nor delete the device again: neither can help. Do not start new workloads that " +
			"would use the same name before it is gone.",
	}
	for _, device := range a.stuck {
		switch {
		case !device.current:
			p.note("%s was stuck and is not any more: %s", device.name, device.said())
		case a.viewErr == nil && a.view.ByName(device.name) != nil:
			p.Left.Count++
			p.offend(device.name, "%s; the device that has the name now is another, newer one", device.said())
		default:
			p.Left.Count++
			p.offend(device.name, "%s", device.said())
		}
	}
	slices.Sort(p.Notes)
	sortOffenders(p)
	return p.settle()
}

func sortOffenders(p *Pair) {
	slices.SortStableFunc(p.Offenders, func(a, b Offender) int { return strings.Compare(a.Name, b.Name) })
}

func (d stuckDevice) said() string {
	said := fmt.Sprintf("the kernel waits for it to become free, usage count %s", d.usage)
	if d.lines > 1 {
		said += fmt.Sprintf(", said %d times", d.lines)
	}
	if d.timed {
		said += fmt.Sprintf(", last %s before the log's end", d.age.Round(time.Second))
	}
	return said
}
