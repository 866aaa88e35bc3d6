package demo

import (
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/manx-dataplane/manx/qos"
)

// leaky is the pod of the bug report: default/ifb-repro with a limit of 30M on
// what it sends.
var leaky = pod{name: "ifb-repro", veth: "cali0027f0645a2", addr: netip.MustParseAddr("10.65.0.2"), egress: "30M"}

// survivor is a pod that runs, with a limit, through every case.
var survivor = pod{name: "survivor", veth: "cali5e1f0000001", addr: netip.MustParseAddr("10.65.0.3"), egress: "50M"}

// stateful is the StatefulSet pod of case B.
var stateful = pod{name: "stateful-0", veth: "calidce2a7f6bc3", addr: netip.MustParseAddr("10.65.0.4"), egress: "20M"}

// orphans is how many leaked devices case A3 starts from.
const orphans = 400

func caseA1(s *stage) error {
	s.title("Case A1: a pod is deleted while the agent is down; its shaper must not stay for ever")
	s.say("Two pods start, both with kubernetes.io/egress-bandwidth; the agent shapes and routes them.")
	for _, p := range []pod{leaky, survivor} {
		if err := s.node.addPod(p); err != nil {
			return err
		}
	}
	if err := s.node.startAgent(); err != nil {
		return err
	}
	if err := s.expect("Before", s.served(leaky, "TBF, 30 Mbit/s")...); err != nil {
		return err
	}

	s.say("The agent is killed (SIGKILL). Meanwhile the runtime removes the pod, and the datastore its endpoint.")
	s.node.killAgent()
	if err := s.node.removeManifest(leaky); err != nil {
		return err
	}
	if err := s.node.endSandbox(leaky.veth); err != nil {
		return err
	}
	if err := s.expect("While the agent is down: the leak",
		s.device(leaky.veth, nothing),
		s.device(ifb(leaky), s.view.device(ifb(leaky))),
	); err != nil {
		return err
	}

	s.say("The agent starts again. No message ever names the pod.")
	if err := s.node.startAgent(); err != nil {
		return err
	}
	return s.expect("After", s.absent(leaky)...)
}

func caseA2(s *stage) error {
	s.title("Case A2: as A1, but the veth is still there when the agent starts, and goes a moment later")
	if err := s.node.addPod(leaky); err != nil {
		return err
	}
	if err := s.expect("Before", s.served(leaky, "TBF, 30 Mbit/s")...); err != nil {
		return err
	}
	s.say("The agent is killed, the endpoint removed, the agent started. 1.3 s later the veth goes down, 3 ms later it is gone.")
	s.node.killAgent()
	if err := s.node.removeManifest(leaky); err != nil {
		return err
	}
	if err := s.node.startAgent(); err != nil {
		return err
	}
	if err := s.pause(1300 * time.Millisecond); err != nil {
		return err
	}
	link, err := s.node.kernel.LinkByName(leaky.veth)
	if err != nil {
		return err
	}
	if err := s.node.kernel.LinkSetDown(link); err != nil {
		return err
	}
	if err := s.pause(3 * time.Millisecond); err != nil {
		return err
	}
	if err := s.node.removeVeth(leaky.veth); err != nil {
		return err
	}
	return s.expect("After", s.absent(leaky)...)
}

func caseA3(s *stage) error {
	s.title("Case A3: a node full of orphans (%d of them), with a pod that runs on", orphans)
	s.node.killAgent()
	for i := range orphans {
		if err := s.addOrphan(fmt.Sprintf("bwcali%09x", 0xdead00000+i)); err != nil {
			return err
		}
	}
	survivorIFB := s.view.device(ifb(survivor))
	if err := s.expect("Before", s.count(orphans+1), s.device(ifb(survivor), survivorIFB)); err != nil {
		return err
	}
	s.say("The agent starts; a new pod arrives while it sweeps.")
	begin := time.Now()
	if err := s.node.startAgent(); err != nil {
		return err
	}
	if err := s.node.addPod(leaky); err != nil {
		return err
	}
	if err := s.watchSweep(); err != nil {
		return err
	}
	s.say("Swept %s after the agent's start.", time.Since(begin).Round(time.Millisecond))
	return s.expect("After: the running pod still has the very same device",
		append(s.served(leaky, "TBF, 30 Mbit/s"),
			s.count(2),
			s.device(ifb(survivor), survivorIFB),
			s.redirect(survivor),
			s.shaper(survivor, "TBF, 50 Mbit/s"))...)
}

// addOrphan makes a shaper as a leak leaves it: up, with a TBF, wired to nothing.
func (s *stage) addOrphan(name string) error {
	device := &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: name}}
	if err := s.node.kernel.LinkAdd(device); err != nil {
		return err
	}
	if err := s.node.kernel.LinkSetUp(device); err != nil {
		return err
	}
	return s.node.kernel.QdiscAdd(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: device.Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)},
		Rate:       30e6 / 8,
		Limit:      1 << 20,
		Buffer:     1 << 20,
	})
}

// watchSweep draws the sweep's progress until two devices are left: those of the
// pods that run.
func (s *stage) watchSweep() error {
	progress := s.countdown(orphans, "sweeping")
	for begin := time.Now(); time.Since(begin) < settleTimeout; {
		n, err := s.view.ifbs()
		if err != nil {
			return err
		}
		left := max(0, n-2)
		progress(left)
		if left == 0 {
			break
		}
		if err := s.pause(5 * time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

func caseA4(s *stage) error {
	s.title("Case A4: a pod of the same name starts again: same veth name, fresh device")
	old := s.view.device(ifb(leaky))
	s.node.killAgent()
	s.say("The old device is %s. The agent is killed; the pod ends and starts again with a limit of 10M.", old)
	if err := s.node.removeVeth(leaky.veth); err != nil {
		return err
	}
	again := leaky
	again.egress = "10M"
	if err := s.node.addPod(again); err != nil {
		return err
	}
	if err := s.node.startAgent(); err != nil {
		return err
	}
	fresh := expectation{"device " + ifb(leaky) + " is another one", "yes", func() string {
		if now := s.view.device(ifb(leaky)); now != old && now != nothing {
			return "yes"
		}
		return "no"
	}}
	return s.expect("After", append(s.served(again, "TBF, 10 Mbit/s"), fresh)...)
}

func caseB(s *stage) error {
	s.title("Case B: a StatefulSet pod is re-created under the same veth name; late events about the old interface must not undo the new one")
	if err := s.node.addPod(stateful); err != nil {
		return err
	}
	if err := s.expect("Before", s.served(stateful, "TBF, 20 Mbit/s")...); err != nil {
		return err
	}

	const rounds = 25
	s.say("The veth is deleted and re-created %d times without a pause.", rounds)
	for range rounds {
		if err := s.node.removeVeth(stateful.veth); err != nil {
			return err
		}
		if err := s.node.addVeth(stateful.veth); err != nil {
			return err
		}
	}
	if err := s.expect("After: everything is on the newest interface", s.served(stateful, "TBF, 20 Mbit/s")...); err != nil {
		return err
	}

	s.say("Now the old interface lingers: renamed away, the new one takes its name and comes up, then the old one goes down and away.")
	link, err := s.node.kernel.LinkByName(stateful.veth)
	if err != nil {
		return err
	}
	const lingering = "calilingering"
	if err := s.node.kernel.LinkSetName(link, lingering); err != nil {
		return err
	}
	s.node.sandboxes[lingering] = s.node.sandboxes[stateful.veth]
	if err := s.node.addVeth(stateful.veth); err != nil {
		return err
	}
	if err := s.pause(105 * time.Millisecond); err != nil {
		return err
	}
	if err := s.node.kernel.LinkSetDown(link); err != nil {
		return err
	}
	if err := s.node.removeVeth(lingering); err != nil {
		return err
	}
	if err := s.pause(300 * time.Millisecond); err != nil {
		return err
	}
	return s.expect("After, and for good", s.served(stateful, "TBF, 20 Mbit/s")...)
}

// served expects what a running pod has: device, shaper, filter and route, the
// route through the interface that has the name now.
func (s *stage) served(p pod, shaper string) []expectation {
	link, err := s.node.kernel.LinkByName(p.veth)
	through := nothing
	if err == nil {
		through = fmt.Sprintf("%s, ifindex %d", p.veth, link.Attrs().Index)
	}
	return []expectation{
		s.shaper(p, shaper),
		s.redirect(p),
		s.route(p, through),
	}
}

// absent expects that nothing of a pod is left.
func (s *stage) absent(p pod) []expectation {
	return []expectation{
		s.device(p.veth, nothing),
		s.device(ifb(p), nothing),
		s.route(p, nothing),
	}
}

func (s *stage) device(name, want string) expectation {
	return expectation{"device " + name, want, func() string { return s.view.device(name) }}
}

func (s *stage) shaper(p pod, want string) expectation {
	return expectation{"qdisc of " + ifb(p), want, func() string { return s.view.shaper(ifb(p)) }}
}

func (s *stage) redirect(p pod) expectation {
	return expectation{"filter of " + p.veth, "to " + ifb(p), func() string { return s.view.redirect(p.veth) }}
}

func (s *stage) route(p pod, want string) expectation {
	prefix := netip.PrefixFrom(p.addr, p.addr.BitLen())
	return expectation{"route " + prefix.String(), want, func() string { return s.view.route(prefix) }}
}

func (s *stage) count(want int) expectation {
	return expectation{"number of bwcali devices", strconv.Itoa(want), func() string {
		n, err := s.view.ifbs()
		if err != nil {
			return err.Error()
		}
		return strconv.Itoa(n)
	}}
}

func ifb(p pod) string { return qos.IFBName(p.veth) }
