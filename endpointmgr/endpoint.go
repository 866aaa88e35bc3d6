package endpointmgr

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"unicode"

	"github.com/manx-dataplane/manx/dataplane"
	"github.com/manx-dataplane/manx/qos"
	"github.com/manx-dataplane/manx/routetable"
)

// endpoint is a workload endpoint, from its first update until it was reported
// gone.
type endpoint struct {
	id      dataplane.WorkloadEndpointID
	spec    *dataplane.WorkloadEndpoint
	want    want
	removed bool
	// iface is the interface it claims; nil if its name cannot be used.
	iface    *iface
	problems string // as last logged

	// reported is the status last reported, "" before the first time, and reportedSpec
	// what it was reported with. outdated says that it was about an earlier interface,
	// or an earlier life of this one.
	reported     Status
	reportedSpec *dataplane.WorkloadEndpoint
	outdated     bool
}

// want is what an endpoint wants for its interface while it is active.
type want struct {
	routesV4 []routetable.Target
	routesV6 []routetable.Target
	limits   qos.Limits
	looseRPF bool
}

func (ep *endpoint) active() bool {
	return ep.spec.State == dataplane.EndpointActive
}

// wantOf works out what an endpoint wants and which interface it claims: none, if
// the name cannot be used. Each problem is about one thing that was left out; the
// rest counts.
func (m *Manager) wantOf(spec *dataplane.WorkloadEndpoint) (name string, w want, problems []error) {
	name = spec.InterfaceName
	if err := m.checkIfaceName(name); err != nil {
		problems = append(problems, err)
		name = ""
	}
	mac := spec.MAC
	if len(mac) != 0 && len(mac) != 6 {
		problems = append(problems, fmt.Errorf("MAC %s: must have 6 bytes, not %d", mac, len(mac)))
		mac = nil
	}
	v4, v6 := targetList{host: &m.host}, targetList{host: &m.host}
	v4.addNets(spec.IPv4Nets, mac, 4)
	v6.addNets(spec.IPv6Nets, mac, 6)
	if m.cfg.FloatingIPs {
		v4.addFloating(spec.IPv4NAT, mac, 4)
		v6.addFloating(spec.IPv6NAT, mac, 6)
	}
	problems = append(problems, slices.Concat(v4.problems, v6.problems)...)

	limits, err := qos.ParseLimits(spec.Annotations, spec.QoSControls, qos.ParseOptions{
		KubernetesAnnotations: m.cfg.KubernetesAnnotations,
		DefaultBurstBits:      m.cfg.DefaultBurstBits,
	})
	if err != nil {
		problems = append(problems, unjoin(err)...)
	}
	return name, want{
		routesV4: v4.targets,
		routesV6: v6.targets,
		limits:   limits,
		looseRPF: len(spec.AllowSpoofedSourcePrefixes) > 0,
	}, problems
}

// checkIfaceName checks a name as the kernel does (dev_valid_name): a wrong one must
// not become part of a path below /proc/sys.
func (m *Manager) checkIfaceName(name string) error {
	const longest = 15 // IFNAMSIZ without the terminating zero
	switch {
	case name == "", name == ".", name == "..", len(name) > longest,
		strings.ContainsFunc(name, func(r rune) bool { return r == '/' || r == ':' || r == 0 || unicode.IsSpace(r) }):
		return fmt.Errorf("interface name %q: must have 1 to %d bytes, without slashes, colons and spaces", name, longest)
	case m.cfg.IsWorkloadIface != nil && !m.cfg.IsWorkloadIface(name):
		return fmt.Errorf("interface name %q: must begin with a prefix of workload interfaces", name)
	}
	return nil
}

// targetList collects the routes of one family, without repetitions.
type targetList struct {
	host     *hostAddrs
	targets  []routetable.Target
	problems []error
}

func (l *targetList) addNets(nets []netip.Prefix, mac net.HardwareAddr, family int) {
	for _, cidr := range nets {
		if cidr.IsValid() && cidr.Bits() == 0 {
			l.problems = append(l.problems, fmt.Errorf("network %s: must not be everything; that would be the node's default route", cidr))
			continue
		}
		if !cidr.IsValid() || cidr.Addr().Is4() != (family == 4) || cidr.Addr().Is4In6() {
			l.problems = append(l.problems, fmt.Errorf("network %s: must be an IPv%d network", cidr, family))
			continue
		}
		l.add(cidr.Masked(), mac)
	}
}

func (l *targetList) addFloating(nats []dataplane.NAT, mac net.HardwareAddr, family int) {
	for _, nat := range nats {
		addr := nat.ExternalIP
		if !addr.IsValid() || addr.Is4() != (family == 4) || addr.Is4In6() || addr.Zone() != "" {
			l.problems = append(l.problems, fmt.Errorf("floating address %s: must be an IPv%d address", addr, family))
			continue
		}
		l.add(netip.PrefixFrom(addr, addr.BitLen()), mac)
	}
}

func (l *targetList) add(cidr netip.Prefix, mac net.HardwareAddr) {
	if slices.ContainsFunc(l.targets, func(t routetable.Target) bool { return t.CIDR == cidr }) {
		return
	}
	if own, conflicts := l.host.within(cidr); conflicts {
		l.problems = append(l.problems, fmt.Errorf("network %s: must not hold an address of the node's own, %s", cidr, own))
		return
	}
	target := routetable.Target{Type: routetable.TargetTypeLinkLocalUnicast, CIDR: cidr}
	if cidr.IsSingleIP() {
		target.DestMAC = mac // a network has no one neighbour
	}
	l.targets = append(l.targets, target)
}

// logProblems says what is wrong with an endpoint, once until that changes.
func (m *Manager) logProblems(ep *endpoint, problems []error) {
	text := ""
	if len(problems) > 0 {
		text = errors.Join(problems...).Error()
	}
	if text == ep.problems {
		return
	}
	ep.problems = text
	for _, problem := range problems {
		m.log.WithField("endpoint", ep.id.String()).WithField("iface", ep.spec.InterfaceName).WithError(problem).
			Warn("Ignoring a part of an endpoint that is not valid; the rest of it counts")
	}
}

func unjoin(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}
