package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/dataplane"
	"github.com/manx-dataplane/manx/manifests"
	"github.com/manx-dataplane/manx/rtnl"
)

// workload is a host-side veth whose name says that it is a workload's.
type workload struct {
	name     string
	index    int
	up       bool // IFF_UP
	carrier  bool // IFF_LOWER_UP: the other end is up
	peer     int  // the other end's ifindex, in its own namespace
	peerNSID int  // -1: this namespace
}

func (a *audit) readWorkloads() ([]workload, error) {
	links, err := rtnl.RetryInterrupted(a.Kernel.LinkList)
	if err != nil {
		return nil, err
	}
	var workloads []workload
	for _, link := range links {
		attrs := link.Attrs()
		if link.Type() != "veth" || !a.isWorkload(attrs.Name) {
			continue
		}
		workloads = append(workloads, workload{
			name:     attrs.Name,
			index:    attrs.Index,
			up:       attrs.RawFlags&unix.IFF_UP != 0,
			carrier:  attrs.RawFlags&unix.IFF_LOWER_UP != 0,
			peer:     attrs.ParentIndex,
			peerNSID: attrs.NetNsID,
		})
	}
	slices.SortFunc(workloads, func(a, b workload) int { return strings.Compare(a.name, b.name) })
	return workloads, nil
}

func (a *audit) isWorkload(name string) bool {
	return slices.ContainsFunc(a.Prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// endpoints is what the manifests describe, by interface name.
type endpoints struct {
	ids  map[string][]string
	nets map[string][]netip.Prefix // of endpoints that are administratively up
}

var errRead = errors.New("all is read")

// readEndpoints reads the manifests once. Any fault in them is an error: with an
// incomplete list every missing endpoint would look like a leak.
func readEndpoints(ctx context.Context, dir string, prefixes []string) (*endpoints, error) {
	found := &endpoints{ids: make(map[string][]string), nets: make(map[string][]netip.Prefix)}
	var faults faultHook
	log := logrus.New()
	log.SetOutput(io.Discard)
	log.AddHook(&faults)
	source := manifests.NewSource(manifests.Options{Dir: dir, InterfacePrefixes: prefixes, Log: log})
	err := source.Run(ctx, func(_ context.Context, message any) error {
		switch message := message.(type) {
		case dataplane.WorkloadEndpointUpdate:
			name := message.Endpoint.InterfaceName
			found.ids[name] = append(found.ids[name], message.ID.String())
			if message.Endpoint.State != dataplane.EndpointInactive {
				found.nets[name] = slices.Concat(found.nets[name], message.Endpoint.IPv4Nets, message.Endpoint.IPv6Nets)
			}
		case dataplane.InSync:
			return errRead
		}
		return nil
	})
	if !errors.Is(err, errRead) {
		return nil, cmp.Or(err, ctx.Err())
	}
	return found, errors.Join(faults...)
}

// faultHook collects what is logged as an error.
type faultHook []error

// Levels returns the levels of faults.
func (*faultHook) Levels() []logrus.Level { return []logrus.Level{logrus.ErrorLevel} }

// Fire takes one entry.
func (h *faultHook) Fire(entry *logrus.Entry) error {
	*h = append(*h, fmt.Errorf("endpoint manifest %v, document %v: %v",
		entry.Data["file"], cmp.Or(entry.Data["document"], any(1)), entry.Data["reason"]))
	return nil
}

// compareEndpoints compares the workload veths with the endpoints.
func (a *audit) compareEndpoints() Pair {
	switch {
	case a.EndpointsDir == "":
		return notAsked(PairEndpoints, "--endpoints DIR")
	case a.endptErr != nil:
		return noLook(PairEndpoints, a.endptErr)
	case a.viewErr != nil:
		return noLook(PairEndpoints, a.viewErr)
	}
	p := &Pair{
		Name: PairEndpoints,
		Left: Number{Of: "workload veths", Count: len(a.workloads)}, Right: Number{Of: "interfaces of endpoints", Count: len(a.endpoints.ids)},
		Meaning: "A veth without an endpoint belongs to a workload that the datastore does not know (any more): nobody has " +
			"deleted it, which is a fault of garbage collection in the runtime or the CNI plugin, not of the kernel. An " +
			"endpoint without a veth has no network.",
		Do: "Ask the runtime whether a sandbox with that interface lives (crictl pods; crictl inspectp). If none does, have " +
			"the runtime remove it (crictl rmp), which runs the CNI plugin's DEL. For an endpoint without a veth: delete " +
			"the pod, or the endpoint if the pod is gone.",
		DoNot: "Do not delete a veth because its endpoint is missing: the datastore may lag behind the runtime. An agent never " +
			"does so of its own accord.",
	}
	present := make(map[string]bool, len(a.workloads))
	for _, w := range a.workloads {
		present[w.name] = true
		if a.endpoints.ids[w.name] == nil {
			p.offend(w.name, "ifindex %d: no endpoint; %s", w.index, a.kernelSays(w.name))
		}
	}
	for name, ids := range a.endpoints.ids {
		if !present[name] {
			p.offend(name, "no such veth, for the endpoint %s; %s", strings.Join(ids, " and "), a.kernelSays(name))
		}
	}
	sortOffenders(p)
	return p.settle()
}

// kernelSays tells a device that the kernel cannot finish from one that nobody
// deleted.
func (a *audit) kernelSays(name string) string {
	if a.logErr != nil {
		return "whether the kernel waits for it is not known: the kernel log could not be read"
	}
	if device, stuck := a.stuck[name]; stuck && device.current {
		return "the kernel still waits for a deleted device of that name"
	}
	return "the kernel log has nothing about it: nobody has deleted it"
}

// comparePeers compares the workload veths with those whose other end is up and in
// a namespace that a process lives in.
func (a *audit) comparePeers() Pair {
	if a.viewErr != nil {
		return noLook(PairPeers, a.viewErr)
	}
	namespaces, unsure := a.liveNamespaces()
	p := &Pair{
		Name: PairPeers,
		Left: Number{Of: "workload veths", Count: len(a.workloads)}, Right: Number{Of: "live peers"},
		Meaning: "The other end of these veths is not in use by a workload: its sandbox is half made or half gone, often with " +
			"a network namespace that is still mounted below /run/netns.",
		Do: "Look again after a minute: a workload may be starting or stopping. If it stays, find the sandbox (crictl pods; " +
			"crictl inspectp) and have the runtime remove it (crictl rmp).",
		DoNot: "Do not delete the veth or unmount the namespace by hand while the runtime still knows the sandbox: its own " +
			"teardown then fails, and the address stays allocated.",
	}
	for _, w := range a.workloads {
		switch {
		case w.peerNSID < 0:
			p.offend(w.name, "ifindex %d: its other end (ifindex %d) is in the host's own network namespace", w.index, w.peer)
		case !namespaces[w.peerNSID] && unsure != nil:
			return noLook(PairPeers, unsure)
		case !namespaces[w.peerNSID]:
			p.offend(w.name, "ifindex %d: no process lives in the network namespace of its other end", w.index)
		case w.up && !w.carrier:
			p.offend(w.name, "ifindex %d: no carrier: its other end is down", w.index)
		default:
			p.Right.Count++
		}
	}
	return p.settle()
}

// initialPIDNamespace is how the kernel names the PID namespace that sees every
// process (PROC_PID_INIT_INO in include/linux/proc_ns.h).
const initialPIDNamespace = "pid:[4026531836]"

// liveNamespaces returns the IDs of the network namespaces that a process lives in.
// The error says why there may be others, so that no namespace that is missing may
// be called dead.
func (a *audit) liveNamespaces() (live map[int]bool, unsure error) {
	proc := cmp.Or(a.Proc, "/proc")
	live = make(map[int]bool)
	entries, err := os.ReadDir(proc)
	if err != nil {
		return live, err
	}
	seen := make(map[string]bool)
	for _, entry := range entries {
		pid := entry.Name()
		if strings.Trim(pid, "0123456789") != "" {
			continue
		}
		path := filepath.Join(proc, pid, "ns", "net")
		namespace, err := os.Readlink(path)
		if errors.Is(err, os.ErrPermission) && pid != "1" { // init is no workload's
			unsure = fmt.Errorf("not all processes may be looked at (needs root and CAP_SYS_PTRACE): %w", err)
		}
		if err != nil || seen[namespace] { // or it has ended meanwhile
			continue
		}
		seen[namespace] = true
		file, err := os.Open(path)
		if err != nil {
			continue
		}
		id, err := a.Kernel.NamespaceID(int(file.Fd()))
		file.Close()
		if err == nil && id >= 0 {
			live[id] = true
		}
	}
	return live, cmp.Or(unsure, a.checkSight(proc, live))
}

// checkSight returns an error where the processes of workloads seem to be out of
// sight.
func (a *audit) checkSight(proc string, live map[int]bool) error {
	if slices.ContainsFunc(a.workloads, func(w workload) bool { return live[w.peerNSID] }) {
		return nil
	}
	if own, err := os.Readlink(filepath.Join(proc, "self", "ns", "pid")); err == nil && own == initialPIDNamespace {
		return nil
	}
	return errors.New("none of the workloads' processes can be seen from this PID namespace; " +
		"run in the host's (hostPID: true), or give the host's proc file system with --proc")
}

// isDown reports whether a link cannot carry traffic. IFF_RUNNING would say the
// same up to a second later (linkwatch), and call down what has just come up.
func isDown(attrs *netlink.LinkAttrs) bool {
	return attrs.RawFlags&unix.IFF_UP == 0 || attrs.RawFlags&unix.IFF_LOWER_UP == 0
}
