package simulation

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/qos"
	"github.com/manx-dataplane/manx/rtnl"
)

// The model says what the node must look like in the end, from the datastore, the veths
// and what is foreign. Expected and actual state are lines of text, so that a
// difference can be read.

// facts collects lines.
type facts map[string]bool

func (f facts) add(format string, args ...any) { f[fmt.Sprintf(format, args...)] = true }

// expected says what the kernel and the status directory must hold.
func (w *world) expected() facts {
	f := facts{}
	for index, name := range w.foreign {
		f.add("link %s exists (ifindex %d)", name, index)
	}
	for _, name := range []string{"eth0", pluginIFB} {
		f.add("root of %s: tbf 1: 777000/1000000/99999/0/0 queue 99999", name)
	}
	f.add("route 0.0.0.0/0 eth0 protocol 4")
	f.add("route 10.99.0.0/16 eth0 protocol 12")
	f.add("route 172.31.0.7/32 eth0 protocol 3")
	for _, p := range w.pods {
		w.expectPod(f, p)
	}
	w.expectRoutes(f)
	return f
}

func (w *world) expectPod(f facts, p *pod) {
	f.add("link %s exists (ifindex %d)", p.name, p.index)
	f.add("link %s: up %v, MTU %d, group 0", p.name, p.hostUp, p.mtu)
	ingress, egress := w.wanted(p.name)
	switch {
	case p.foreignRoot && ingress != nil:
		f.add("root of %s: tbf any handle %s", p.name, ingress.shaping(p.mtu))
	case p.foreignRoot && p.rootWasBorrowed:
		f.add("root of %s: as it may be", p.name)
	case p.foreignRoot:
		f.add("root of %s: tbf 1: 777000/1000000/99999/0/0 queue 99999", p.name)
	case ingress != nil:
		f.add("root of %s: tbf ca11: %s", p.name, ingress.tbf(p.mtu))
	}
	hook := p.hook
	switch p.hook {
	case "clsact":
		f.add("filter of %s: bpf", p.name)
	case "ingress":
		f.add("filter of %s: to %s", p.name, pluginIFB)
	}
	if egress != nil {
		ifb := qos.IFBName(p.name)
		f.add("link %s: up true, MTU %d, shaper of %s", ifb, p.mtu, p.name)
		f.add("root of %s: tbf ca11: %s", ifb, egress.tbf(p.mtu))
		f.add("filter of %s: to %s", p.name, ifb)
		if hook == "" {
			hook = "ingress"
		}
	}
	if hook != "" {
		f.add("hook of %s: %s", p.name, hook)
	}
	id, e, ok := w.winner(p.name)
	if !ok || e.inactive || !p.running() || !isWorkload(p.name) {
		return
	}
	for path, value := range w.sysctls(p.name, e) {
		f.add("sysctl %s = %s", path, value)
	}
	if w.options.statusDir != "" {
		f.add("status %s %s", statusName(id), e.status(id))
	}
}

// running is IFF_RUNNING of the host's end.
func (p *pod) running() bool { return p.hostUp && p.peerUp }

func isWorkload(name string) bool { return strings.HasPrefix(name, "cali") }

// tbf says what a limit makes of a TBF of ours: rate and peak rate in bytes a second,
// buffer in ticks of 64 ns, limit and minburst in bytes. What passes in 25 ms may
// wait, at the lower of the two rates, with a whole burst to tc. The queue has room for
// one GSO packet of that burst only.
func (l *limit) tbf(mtu int) string {
	limit, queue := l.sizes(mtu)
	return l.tbfWith(mtu, limit, queue)
}

// shaping says what a limit makes of any TBF: what it does, however it is put together.
func (l *limit) shaping(mtu int) string {
	_, queue := l.sizes(mtu)
	return l.tbfWith(mtu, queue, queue)
}

func (l *limit) sizes(mtu int) (limit, queue uint64) {
	frame := uint64(mtu + 14)
	rate, burst := l.rate/8, max(l.burst/8, frame)
	limit, whole := rate/40+burst, min(burst, 81_920)
	if l.peak > 0 {
		minburst := l.leastBurst(frame)
		limit, whole = min(limit, l.peak/8/40+minburst), min(whole, minburst)
	}
	return limit, max(rate/40, whole)
}

// leastBurst is the bucket of the peak rate: what was asked, or what passes in 1 ms.
func (l *limit) leastBurst(frame uint64) uint64 {
	return max(frame, cmp.Or(l.minburst, l.peak/8/1000))
}

func (l *limit) tbfWith(mtu int, limit, queue uint64) string {
	frame := uint64(mtu + 14)
	rate, burst := l.rate/8, max(l.burst/8, frame)
	buffer := (burst*15_625_000 + rate - 1) / rate
	minburst := uint64(0)
	if l.peak > 0 {
		minburst = l.leastBurst(frame)
	}
	return fmt.Sprintf("%d/%d/%d/%d/%d queue %d", rate, buffer, limit, l.peak/8, minburst, queue)
}

func (w *world) sysctls(name string, e endpoint) map[string]string {
	values := map[string]string{
		"net/ipv4/conf/" + name + "/proxy_arp":    "1",
		"net/ipv4/conf/" + name + "/forwarding":   "1",
		"net/ipv4/conf/" + name + "/rp_filter":    map[bool]string{false: "1", true: "2"}[e.spoofs],
		"net/ipv4/neigh/" + name + "/proxy_delay": "0",
	}
	if w.cfg.IPv6Support {
		values["net/ipv6/conf/"+name+"/accept_ra"] = "0"
		values["net/ipv6/conf/"+name+"/proxy_ndp"] = "1"
		values["net/ipv6/conf/"+name+"/forwarding"] = "1"
	}
	return values
}

// expectRoutes adds a route for each address of an endpoint that has an interface which
// runs, and a neighbour entry where it is an IPv4 one and the MAC address is known. Of two that want one address, the one with the newer interface has it.
func (w *world) expectRoutes(f facts) {
	owners := map[string]*pod{}
	for _, p := range w.pods {
		_, e, ok := w.winner(p.name)
		if !ok || e.inactive || !p.running() || !isWorkload(p.name) {
			continue
		}
		cidrs := slices.Clone(e.nets)
		if e.floating != "" && w.cfg.FloatingIPs {
			cidrs = append(cidrs, e.floating+"/32")
		}
		for _, cidr := range cidrs {
			if strings.Contains(cidr, ":") && !w.cfg.IPv6Support {
				continue
			}
			if old := owners[cidr]; old == nil || old.index < p.index {
				owners[cidr] = p
			}
		}
	}
	for cidr, p := range owners {
		f.add("route %s %s protocol 80", cidr, p.name)
		id, e, _ := w.winner(p.name)
		if addr, single := strings.CutSuffix(cidr, "/32"); single && e.mac {
			f.add("neighbour %s %s %s", addr, p.name, endpointMAC(id))
		}
	}
	if w.options.keepExternal {
		for cidr, index := range w.external {
			for _, p := range w.pods {
				if p.index == index {
					f.add("route %s %s protocol 4", cidr, p.name)
				}
			}
		}
	}
}

// actual says what they do hold.
func (w *world) actual() facts {
	f := facts{}
	links, err := w.outside.LinkList()
	w.must(err)
	names := map[int]string{0: "nothing"}
	for _, link := range links {
		names[link.Attrs().Index] = link.Attrs().Name
	}
	for _, link := range links {
		attrs := link.Attrs()
		up := attrs.RawFlags&unix.IFF_UP != 0
		switch {
		case strings.HasPrefix(attrs.Name, "bwcali"):
			f.add("link %s: up %v, MTU %d, %s", attrs.Name, up, attrs.MTU, w.shaperOf(link))
		case w.foreign[attrs.Index] != "":
			f.add("link %s exists (ifindex %d)", attrs.Name, attrs.Index)
		default:
			f.add("link %s exists (ifindex %d)", attrs.Name, attrs.Index)
			f.add("link %s: up %v, MTU %d, group %d", attrs.Name, up, attrs.MTU, attrs.Group)
		}
		w.actualFilters(f, attrs.Name, attrs.Index, names)
	}
	w.actualQdiscs(f, names)
	w.actualRoutes(f, names)
	for _, p := range w.pods {
		_, e, ok := w.winner(p.name)
		if !ok || e.inactive || !p.running() || !isWorkload(p.name) {
			continue
		}
		for path := range w.sysctls(p.name, e) {
			value, err := w.kernel.Sysctls().ReadSysctl(path)
			w.must(err)
			f.add("sysctl %s = %s", path, value)
		}
	}
	w.actualStatus(f)
	return f
}

// shaperOf says whose IFB it is, if it is a fresh one.
func (w *world) shaperOf(link netlink.Link) string {
	attrs := link.Attrs()
	for _, p := range w.pods {
		switch {
		case qos.IFBName(p.name) != attrs.Name:
		case link.Type() != "ifb":
			return "not an IFB"
		case w.ifbUser[attrs.Index] != p && !p.mistakable:
			return "adopted from an earlier " + p.name
		default:
			return "shaper of " + p.name
		}
	}
	return "orphan"
}

func (w *world) actualFilters(f facts, name string, index int, names map[int]string) {
	filters, err := w.outside.FilterList(index, netlink.HANDLE_MIN_INGRESS)
	w.must(err)
	for n, filter := range filters {
		if filter.Type() != "u32" {
			f.add("filter of %s: %s", name, filter.Type())
		} else if targets := w.redirects(index); len(targets) == len(filters) {
			f.add("filter of %s: to %s", name, names[targets[n]])
		} else {
			for _, target := range targets {
				f.add("filter of %s: to %s", name, names[target])
			}
		}
	}
}

func (w *world) actualQdiscs(f facts, names map[int]string) {
	qdiscs, err := w.outside.QdiscList()
	w.must(err)
	queues := map[int]uint32{}
	for _, q := range qdiscs {
		if queue, ok := q.(*rtnl.Bfifo); ok {
			queues[queue.LinkIndex] = queue.Limit
		}
	}
	for _, q := range qdiscs {
		name, handle := names[q.Attrs().LinkIndex], q.Attrs().Handle>>16
		p := w.pods[name]
		switch q := q.(type) {
		case *netlink.Ingress, *netlink.Clsact:
			f.add("hook of %s: %s", name, q.Type())
		case *netlink.Tbf:
			queue, ok := queues[q.LinkIndex]
			if !ok {
				queue = q.Limit // the kernel's own
			}
			text := fmt.Sprintf("%d/%d/%d/%d/%d queue %d", q.Rate, q.Buffer, q.Limit, q.Peakrate, q.Minburst, queue)
			ingress, _ := w.wanted(name)
			switch {
			case p != nil && p.foreignRoot && ingress != nil:
				text = fmt.Sprintf("%d/%d/%d/%d/%d queue %d", q.Rate, q.Buffer, queue, q.Peakrate, q.Minburst, queue)
				f.add("root of %s: tbf any handle %s", name, text)
			case p != nil && p.foreignRoot && p.rootWasBorrowed:
				f.add("root of %s: as it may be", name)
			default:
				f.add("root of %s: tbf %x: %s", name, handle, text)
			}
		case *rtnl.Bfifo:
			if q.Parent != netlink.MakeHandle(0xca11, 1) {
				f.add("queue of %s below %x", name, q.Parent)
			}
		default:
			if handle != 0 {
				f.add("root of %s: %s %x:", name, q.Type(), handle)
			}
		}
	}
}

func (w *world) actualRoutes(f facts, names map[int]string) {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		w.must(w.outside.RouteEach(rtnl.RouteFilter{Family: family, Table: unix.RT_TABLE_MAIN}, func(r *netlink.Route) error {
			if r.Protocol != unix.RTPROT_KERNEL {
				f.add("route %s %s protocol %d", r.Dst, names[r.LinkIndex], r.Protocol)
			}
			return nil
		}))
		neighbours, err := w.outside.NeighList(0, family)
		w.must(err)
		for _, n := range neighbours {
			f.add("neighbour %s %s %s", n.IP, names[n.LinkIndex], n.HardwareAddr)
		}
	}
}

func (w *world) actualStatus(f facts) {
	if w.options.statusDir == "" {
		return
	}
	dir := filepath.Join(w.options.statusDir, "endpoint-status")
	entries, err := os.ReadDir(dir)
	w.must(err)
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		w.must(err)
		f.add("status %s %s", entry.Name(), content)
	}
}

func statusName(id int) string { return fmt.Sprintf("k8s default%%2Fpod-%d eth0", id) }

// status is what stands in the endpoint's status file.
func (e endpoint) status(id int) string {
	content := struct {
		IfaceName string   `json:"ifaceName"`
		MAC       string   `json:"mac"`
		IPv4Nets  []string `json:"ipv4Nets"`
		IPv6Nets  []string `json:"ipv6Nets"`
	}{IfaceName: e.iface, IPv4Nets: []string{}, IPv6Nets: []string{}}
	if e.mac {
		content.MAC = endpointMAC(id).String()
	}
	for _, cidr := range e.nets {
		if strings.Contains(cidr, ":") {
			content.IPv6Nets = append(content.IPv6Nets, cidr)
		} else {
			content.IPv4Nets = append(content.IPv4Nets, cidr)
		}
	}
	text, _ := json.Marshal(content) // strings only
	return string(text)
}

// compare adds a problem for each line that one has and the other has not. What
// concerns devices whose delete hangs is left out.
func (w *world) compare(when string) {
	expected, actual := w.expected(), w.actual()
	hung := slices.Collect(maps.Values(w.excused))
	excused := func(line string) bool {
		if w.options.liesReads && (strings.HasPrefix(line, "hook of ") || strings.HasPrefix(line, "filter of ") && strings.HasSuffix(line, pluginIFB)) {
			return true // whether and by whom an ingress qdisc is used cannot be told after a lie
		}
		if strings.HasPrefix(line, "neighbour ") && actual[line] {
			return true // whose an entry is can only be told by its route, which a lie or a crash can part it from
		}
		for _, name := range slotNames {
			if p := w.pods[name]; p != nil && (p.renamed || !w.vandalized[name].IsZero()) && line == "hook of "+name+": ingress" {
				return true // so too where the agent crashed between its filter and it and the IFB has another name or is gone
			}
			if p := w.pods[name]; p != nil && p.renamed && strings.HasPrefix(line, "route 10.78.") && strings.Contains(line, " "+name+" ") {
				return true // and another's route through it was to be removed only under a workload's name
			}
			if line == "root of "+name+": as it may be" {
				return true // gone, if the agent was told so
			}
			if p := w.pods[name]; p != nil && p.tampered && line == "filter of "+name+": to nothing" {
				return true // whose that filter was cannot be told once its target is gone
			}
			if ifb := qos.IFBName(name); slices.Contains(hung, ifb) && (strings.Contains(line, ifb) || strings.HasPrefix(line, "hook of "+name) || strings.Contains(line, `"`+name+`"`)) {
				return true
			}
		}
		return slices.ContainsFunc(hung, func(ifb string) bool { return strings.Contains(line, ifb) })
	}
	report := func(what string, these, others facts) {
		for _, line := range sortedKeys(these) {
			if !others[line] && !excused(line) {
				w.problem("%s: %s: %s", when, what, line)
			}
		}
	}
	report("missing", expected, actual)
	report("should not be", actual, expected)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func sortedKeys(f facts) []string {
	var keys []string
	for key := range f {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
