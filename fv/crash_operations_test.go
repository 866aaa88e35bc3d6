package fv_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"

	"github.com/manx-dataplane/manx/fv/infra"
	"github.com/manx-dataplane/manx/rtnl"
)

// The limits that operations start from and end at.
var (
	at30            = both(mbit(30))
	at20            = both(mbit(20))
	annotatedWith30 = infra.KubernetesAnnotations("30M", "30M")
	annotatedWith20 = infra.KubernetesAnnotations("20M", "20M")
)

// operations are all that the agent writes to the kernel for.
func operations() []operation {
	return slices.Concat(limitOperations(), lifeOperations(), sweepOperations(), routeOperations(), switchOperations())
}

// limitOperations change what a running pod is limited to.
func limitOperations() []operation {
	return []operation{
		{
			name:      "setting a limit",
			everyKind: true,
			begin:     func(s *scene) { s.startPod(nil, infra.Limits{}) },
			act:       func(s *scene) { s.pods[0].Publish(annotatedWith30) },
			done:      func(s *scene) error { return s.served(at30) },
		},
		{
			name:      "changing a limit",
			everyKind: true,
			begin:     func(s *scene) { s.startPod(annotatedWith30, at30) },
			act:       func(s *scene) { s.pods[0].Publish(annotatedWith20) },
			done:      func(s *scene) error { return s.served(at20) },
			always:    func(s *scene) error { return s.limitedToOneOf(at30, at20, changing(at20)) },
		},
		{
			name:      "clearing a limit",
			everyKind: true,
			begin:     func(s *scene) { s.startPod(annotatedWith30, at30) },
			act:       func(s *scene) { s.pods[0].Publish(nil) },
			done:      func(s *scene) error { return s.servedUnlimited() },
		},
		{
			name: "following the veth's MTU",
			begin: func(s *scene) {
				s.startPod(annotatedWith30, at30)
				s.index = ifindexOf(s.node, s.pods[0].IFB())
			},
			act: func(s *scene) {
				Expect(s.node.RT.LinkSetMTU(s.node.Link(s.pods[0].Veth), 1400)).To(Succeed())
			},
			done: func(s *scene) error { return s.served(at30) },
		},
		{
			name: "limiting a pod that the bandwidth plugin shapes",
			begin: func(s *scene) {
				pod := s.startPod(nil, infra.Limits{})
				s.devices = append(s.devices, s.node.RunBandwidthPlugin(pod, infra.PluginTBF, 10e6))
				// Of the plugin's state only the parameters of the veth's own TBF change.
				s.mayChange = append(s.mayChange, "qdisc on "+pod.Veth+": tbf ")
			},
			act:  func(s *scene) { s.pods[0].Publish(annotatedWith30) },
			done: func(s *scene) error { return s.served(at30) },
		},
	}
}

// lifeOperations are about interfaces and endpoints that come and go.
func lifeOperations() []operation {
	again := func(s *scene) {
		s.pods[0].Delete()
		s.pods[0].Create()
	}
	limited := func(s *scene) {
		s.startPod(annotatedWith30, at30)
		s.index = ifindexOf(s.node, s.pods[0].IFB())
	}
	return []operation{
		{
			name:  "a pod's end",
			begin: limited,
			act: func(s *scene) {
				s.pods[0].Unpublish()
				s.pods[0].Delete()
			},
			done: func(s *scene) error { return s.nothingLeft() },
		},
		{
			name:  "an interface's end",
			begin: limited,
			act:   func(s *scene) { s.pods[0].Delete() },
			done:  func(s *scene) error { return s.nothingLeft() },
		},
		{
			name:  "an endpoint's end",
			grace: true,
			begin: limited,
			act:   func(s *scene) { s.pods[0].Unpublish() },
			done:  func(s *scene) error { return s.nothingLeft() },
		},
		{
			name:  "an interface that comes back (a fresh device)",
			begin: limited,
			act:   again,
			done:  func(s *scene) error { return s.servedFresh(at30) },
		},
		{
			name:    "an interface that came back while the agent was down (a fresh device)",
			atStart: true,
			begin:   limited,
			act:     again,
			done:    func(s *scene) error { return s.servedFresh(at30) },
		},
		{
			name:  "an endpoint that moves to another interface",
			grace: true,
			begin: func(s *scene) {
				s.startPod(annotatedWith30, at30)
				s.startPod(nil, infra.Limits{})
				s.pods[1].Unpublish()
			},
			act: func(s *scene) {
				manifest := s.pods[0].Manifest(annotatedWith30)
				manifest["spec"].(infra.Object)["interfaceName"] = s.pods[1].Veth
				infra.WriteManifest(s.pods[0].File(), manifest)
			},
			done: func(s *scene) error {
				moved := *s.pods[1]
				moved.IPv4, moved.IPv6 = s.pods[0].IPv4, s.pods[0].IPv6
				return errors.Join(s.node.CheckUnshaped(s.pods[0]), s.node.CheckLimits(&moved, at30),
					s.node.CheckOurRoutes(&moved), s.node.CheckIFBs(&moved))
			},
		},
	}
}

// sweepOperations delete orphans.
func sweepOperations() []operation {
	running := func(s *scene) error { return s.served(at30) }
	orphans := 3
	if fullMatrix {
		orphans = 66 // two batches
	}
	return []operation{
		{
			name:    "the startup sweep",
			atStart: true,
			begin:   func(s *scene) { s.startPod(annotatedWith30, at30) },
			act:     func(s *scene) { s.node.AddIFBs(infra.IFBPrefix, orphans, 30e6) },
			done:    running,
			always:  func(s *scene) error { return s.limitedToOneOf(at30) },
		},
		{
			name: "the periodic sweep",
			begin: func(s *scene) {
				s.startPod(annotatedWith30, at30)
				s.node.WriteConfig(infra.Spec{"qosRefreshInterval": "200ms"})
			},
			act:    leak,
			done:   running,
			always: func(s *scene) error { return s.limitedToOneOf(at30) },
		},
	}
}

// leak makes an orphan, which may be gone before that is told.
func leak(s *scene) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = infra.IFBPrefix + "0leaked00"
	if err := s.node.RT.LinkAdd(&netlink.Ifb{LinkAttrs: attrs}); err != nil {
		Expect(rtnl.IsAbsent(err)).To(BeTrue(), "%v", err)
	}
}

// routeOperations change where addresses are routed.
func routeOperations() []operation {
	newAddresses := func(s *scene) {
		s.serial++
		hi, lo := byte(s.serial>>8), byte(s.serial)
		s.pods[0].IPv4 = netip.AddrFrom4([4]byte{10, 66, hi, lo})
		s.pods[0].IPv6 = netip.AddrFrom16([16]byte{0xfd, 0x66, 14: hi, 15: lo})
		s.pods[0].Publish(nil)
	}
	return []operation{
		{
			name:  "a change of a pod's addresses",
			begin: func(s *scene) { s.startPod(nil, infra.Limits{}) },
			act:   newAddresses,
			done:  func(s *scene) error { return s.servedUnlimited() },
		},
		{
			name:    "a change of a pod's addresses while the agent was down",
			atStart: true,
			begin:   func(s *scene) { s.startPod(nil, infra.Limits{}) },
			act:     newAddresses,
			done:    func(s *scene) error { return s.servedUnlimited() },
		},
		{
			name: "two pods that swap their addresses",
			begin: func(s *scene) {
				s.startPod(nil, infra.Limits{})
				s.startPod(nil, infra.Limits{})
			},
			act: func(s *scene) {
				a, b := s.pods[0], s.pods[1]
				a.IPv4, a.IPv6, b.IPv4, b.IPv6 = b.IPv4, b.IPv6, a.IPv4, a.IPv6
				for _, pod := range s.pods {
					pod.Publish(nil)
				}
			},
			done: func(s *scene) error { return s.servedUnlimited() },
		},
		{
			name: "routes that somebody deleted",
			begin: func(s *scene) {
				s.startPod(nil, infra.Limits{})
				s.node.WriteConfig(infra.Spec{"routeRefreshInterval": "200ms"})
			},
			act:  func(s *scene) { s.node.DeleteRoutes(s.pods[0]) },
			done: func(s *scene) error { return s.servedUnlimited() },
		},
	}
}

// switchOperations are the configuration's.
func switchOperations() []operation {
	twoPods := func(s *scene) {
		for range 2 {
			s.startPod(annotatedWith30, at30)
		}
	}
	disable := func(s *scene) { s.node.WriteConfig(infra.Spec{"qosControls": "Disabled"}) }
	unshaped := func(s *scene) error { return s.servedUnlimited() }
	return []operation{
		{name: "disabling", begin: twoPods, act: disable, done: unshaped},
		{name: "disabling while the agent was down", atStart: true, begin: twoPods, act: disable, done: unshaped},
		{
			name:  "ignoring the Kubernetes annotations",
			begin: twoPods,
			act:   func(s *scene) { s.node.WriteConfig(infra.Spec{"qosKubernetesAnnotations": "Disabled"}) },
			done:  unshaped,
		},
		{
			name: "enabling",
			begin: func(s *scene) {
				disable(s)
				s.startPod(annotatedWith30, infra.Limits{})
			},
			act:  func(s *scene) { s.node.WriteConfig(nil) },
			done: func(s *scene) error { return s.served(at30) },
		},
	}
}

// served returns nil where all pods have these limits, routes to nothing but their
// present addresses, and status files, and there are no IFBs but theirs.
func (s *scene) served(limits infra.Limits) error {
	errs := []error{s.node.CheckIFBs(s.pods...), s.reachable(s.pods...)}
	for _, pod := range s.pods {
		errs = append(errs, s.node.CheckLimits(pod, limits))
	}
	return errors.Join(errs...)
}

// servedFresh is served, with another IFB than before.
func (s *scene) servedFresh(limits infra.Limits) error {
	if err := s.served(limits); err != nil {
		return err
	}
	if index := ifindexOf(s.node, s.pods[0].IFB()); index == s.index {
		return fmt.Errorf("the IFB with ifindex %d is of the interface's earlier life", index)
	}
	return nil
}

// servedUnlimited is served, without any shaping.
func (s *scene) servedUnlimited() error {
	errs := []error{s.node.CheckIFBs(), s.reachable(s.pods...)}
	for _, pod := range s.pods {
		errs = append(errs, s.node.CheckUnshaped(pod))
	}
	return errors.Join(errs...)
}

// reachable returns nil where the agent's routes include one for each address of
// these pods, and are exactly that once these are all pods, and where their status
// files exist.
func (s *scene) reachable(pods ...*infra.Pod) error {
	var errs []error
	if len(pods) == len(s.pods) {
		errs = append(errs, s.node.CheckOurRoutes(pods...))
	}
	for _, pod := range pods {
		errs = append(errs, s.node.CheckRoutes(pod))
		if _, err := os.Stat(pod.StatusFile()); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// nothingLeft returns nil where nothing of ours is left of any pod.
func (s *scene) nothingLeft() error {
	errs := []error{s.node.CheckIFBs(), s.node.CheckOurRoutes()}
	for _, pod := range s.pods {
		errs = append(errs, s.node.CheckUnshaped(pod))
		if _, err := os.Stat(pod.StatusFile()); !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("status file of %s: %v", pod, err))
		}
	}
	return errors.Join(errs...)
}

// changing are the limits in the middle of a change.
func changing(limits infra.Limits) infra.Limits {
	ingress, egress := *limits.Ingress, *limits.Egress
	ingress.Changing, egress.Changing = true, true
	return infra.Limits{Ingress: &ingress, Egress: &egress}
}

// limitedToOneOf returns nil where each direction of the first pod has one of these
// limits.
func (s *scene) limitedToOneOf(allowed ...infra.Limits) error {
	var errs []error
	for _, ingress := range allowed {
		for _, egress := range allowed {
			err := s.node.CheckLimits(s.pods[0], infra.Limits{Ingress: ingress.Ingress, Egress: egress.Egress})
			if err == nil {
				return nil
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
