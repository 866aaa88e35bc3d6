package simulation

import (
	"fmt"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/mocks"
	"github.com/manx-dataplane/manx/qos"
)

// repairBound is how long vandalism may stay: a refresh, and what it takes.
const repairBound = 120 * time.Second

// hangOrder says that the next delete never returns, because of one of its devices.
type hangOrder struct {
	armed, after bool
	name         string        // or the delete of the device of that name
	release      chan struct{} // closed when the agent that hangs is no more
	calls        map[int]bool  // by number, that hang after their effect
}

// errDead is what an agent that has crashed is told, and does not live to see.
const errDead = unix.ESHUTDOWN

// beforeCall is the hook before every kernel call of the agent and the listener.
func (w *world) beforeCall(call mocks.Call) error {
	w.gate.pass(call)
	a := w.agent
	if a != nil && a.crashed {
		return errDead
	}
	w.counts[call.String()]++
	if a != nil && call.Op.Write() {
		if err := w.countWrite(a, call); err != nil {
			return err
		}
	}
	if err := w.hangDelete(call); err != nil {
		return err
	}
	var fate fate
	if !w.options.lossless || call.Op != mocks.OpRequestDump && call.Op != mocks.OpOpenEvents {
		fate = w.faults.fateOf(w.options.seed, call, w.counts[call.String()])
	}
	if fate.delay > 0 {
		time.Sleep(fate.delay)
		w.gate.pass(call)
		if a != nil && a.crashed {
			return errDead
		}
	}
	if fate.before != nil {
		w.note("call %s: %v", call, fate.before)
		return fate.before
	}
	w.fates[call.N] = fate.after
	w.checkTouched(call)
	return nil
}

// afterCall is the hook after every such call.
func (w *world) afterCall(call mocks.Call, err error) error {
	if w.trace != nil {
		w.note("call %s%s", call, map[bool]string{true: fmt.Sprintf(": %v", err)}[err != nil])
	}
	after := w.fates[call.N]
	delete(w.fates, call.N)
	if err == nil {
		w.checkDone(call)
	}
	if release := w.hang.release; w.hang.calls[call.N] {
		<-release
		return errDead
	}
	if after != nil && err == nil {
		w.note("call %s: took effect, and then: %v", call, after)
		return after
	}
	return err
}

// countWrite notes a write, which may be the one that the agent dies at.
func (w *world) countWrite(a *incarnation, call mocks.Call) error {
	if !a.inSyncSent || a.dumps < 3 {
		w.problem("%s before both sides were in sync", call)
	}
	a.writes++
	if a.crashAt > 0 && a.writes >= a.crashAt {
		a.crashed = true
		if !a.crashAfter {
			return errDead
		}
	}
	return nil
}

// hangDelete makes the delete hang that the scenario asked for, and every further one
// of the same device.
func (w *world) hangDelete(call mocks.Call) error {
	if !w.hang.armed && w.hang.name == "" && len(w.hung) == 0 || w.agent == nil || w.agent.ending || call.Op != mocks.OpLinkDel && call.Op != mocks.OpLinkDelGroup {
		return nil
	}
	hangs := false
	for _, link := range w.targets(call) {
		attrs := link.Attrs()
		if w.hang.armed || attrs.Name == w.hang.name {
			w.hang.armed, w.hang.name = false, ""
			w.hung[attrs.Index] = attrs.Name
		}
		hangs = hangs || w.hung[attrs.Index] != ""
	}
	if !hangs {
		return nil
	}
	w.note("call %s: hangs", call)
	if w.hang.after {
		if w.hang.calls == nil {
			w.hang.calls = map[int]bool{}
		}
		w.hang.calls[call.N] = true
		return nil
	}
	release := w.hang.release
	<-release
	return errDead
}

// targets are the links that a delete is about.
func (w *world) targets(call mocks.Call) (targets []netlink.Link) {
	links, err := w.outside.LinkList()
	w.must(err)
	for _, link := range links {
		attrs := link.Attrs()
		if call.Op == mocks.OpLinkDel && (attrs.Index == call.Index || call.Index == 0 && attrs.Name == call.Name) ||
			call.Op == mocks.OpLinkDelGroup && call.Detail == fmt.Sprintf("group %d", attrs.Group) {
			targets = append(targets, link)
		}
	}
	return targets
}

// checkTouched checks a write before its effect: nothing foreign, and no device that
// something redirects to.
func (w *world) checkTouched(call mocks.Call) {
	if !call.Op.Write() {
		return
	}
	if name := w.foreign[call.Index]; call.Index != 0 && name != "" {
		w.problem("%s: that is %s, which is foreign", call, name)
	}
	switch call.Op {
	case mocks.OpWriteSysctl:
		for _, name := range w.foreign {
			if strings.Contains(call.Name, "/"+name+"/") {
				w.problem("%s: %s is foreign", call, name)
			}
		}
	case mocks.OpRouteSet, mocks.OpRouteDel:
		for _, cidr := range foreignRoutes {
			if call.Name == cidr {
				w.problem("%s: that route is foreign", call)
			}
		}
	case mocks.OpLinkDel, mocks.OpLinkDelGroup:
		for _, link := range w.targets(call) {
			w.checkDelete(call, link)
		}
	case mocks.OpLinkSetDown, mocks.OpLinkSetName, mocks.OpLinkSetNamespace, mocks.OpConntrackDelete, mocks.OpLinkAdd:
	}
}

var foreignRoutes = []string{"0.0.0.0/0", "default", "10.99.0.0/16", "172.31.0.7/32", "192.168.0.0/24"}

func (w *world) checkDelete(call mocks.Call, link netlink.Link) {
	attrs := link.Attrs()
	if link.Type() != "ifb" || !strings.HasPrefix(attrs.Name, "bwcali") {
		w.problem("%s: %s is not the agent's to delete", call, attrs.Name)
	}
	for _, p := range w.pods {
		for _, target := range w.redirects(p.index) {
			if target == attrs.Index && !w.vandalizedLately(p.name) && !w.options.liesReads {
				w.problem("%s: %s still redirects to %s, and its packets are lost", call, p.name, attrs.Name)
			}
		}
	}
}

func (w *world) vandalizedLately(name string) bool {
	at, ok := w.vandalized[name]
	return ok && time.Since(at) < repairBound
}

// redirects are the ifindexes that a veth's incoming packets are sent to.
func (w *world) redirects(index int) (targets []int) {
	filters, err := w.outside.FilterList(index, netlink.HANDLE_MIN_INGRESS)
	w.must(err)
	for _, f := range filters {
		if u32, ok := f.(*netlink.U32); ok {
			for _, action := range u32.Actions {
				if mirred, ok := action.(*netlink.MirredAction); ok {
					targets = append(targets, mirred.Ifindex)
				}
			}
		}
	}
	return targets
}

// checkDone checks a call that took effect.
func (w *world) checkDone(call mocks.Call) {
	switch call.Op {
	case mocks.OpFilterAdd:
		w.noteUsers(call.Index)
	case mocks.OpLinkDel, mocks.OpLinkDelGroup, mocks.OpLinkSetDown, mocks.OpQdiscDel, mocks.OpQdiscReplace, mocks.OpQdiscChange,
		mocks.OpFilterDel, mocks.OpFilterReplace:
		w.checkLifted(call)
	}
}

// noteUsers notes whose traffic an IFB shaped first.
func (w *world) noteUsers(index int) {
	for _, p := range w.pods {
		if p.index != index {
			continue
		}
		for _, target := range w.redirects(index) {
			if w.ifbUser[target] == nil {
				w.ifbUser[target] = p
			}
		}
	}
}

// checkLifted checks that limits which were in force still are: those of pods that want
// them, and for the grace period those of pods that no endpoint claims any more.
func (w *world) checkLifted(call mocks.Call) {
	roots := w.roots()
	for _, p := range w.pods {
		if _, _, claimed := w.winner(p.name); !claimed && !time.Now().Before(p.graceEnds) {
			p.armedEgress, p.armedIngress = false, false // its endpoint will not come back
		}
		if p.armedEgress && !w.egressInForce(p, roots) {
			w.problem("%s lifted the egress limit of %s (ifindex %d)", call, p.name, p.index)
			p.armedEgress = false
		}
		if p.armedIngress && roots[p.index] == nil {
			w.problem("%s lifted the ingress limit of %s (ifindex %d)", call, p.name, p.index)
			p.armedIngress = false
		}
	}
}

// arm notes which limits are in force, from when on they must not be lifted.
func (w *world) arm() {
	if w.options.liesReads {
		return
	}
	roots := w.roots()
	for _, p := range w.pods {
		ingress, egress := w.wanted(p.name)
		if !w.settledFor(p.name, repairBound) || w.vandalizedLately(p.name) {
			continue
		}
		p.armedEgress = p.armedEgress || egress != nil && w.egressInForce(p, roots)
		p.armedIngress = p.armedIngress || ingress != nil && !p.foreignRoot && roots[p.index] != nil
	}
}

// roots are the TBFs at interfaces' roots, by ifindex.
func (w *world) roots() map[int]*netlink.Tbf {
	qdiscs, err := w.outside.QdiscList()
	w.must(err)
	roots := map[int]*netlink.Tbf{}
	for _, q := range qdiscs {
		if tbf, ok := q.(*netlink.Tbf); ok && tbf.Parent == netlink.HANDLE_ROOT {
			roots[tbf.LinkIndex] = tbf
		}
	}
	return roots
}

// egressInForce reports whether what a pod sends is limited.
func (w *world) egressInForce(p *pod, roots map[int]*netlink.Tbf) bool {
	link, err := w.outside.LinkByName(qos.IFBName(p.name))
	if err != nil || link.Attrs().RawFlags&unix.IFF_UP == 0 || roots[link.Attrs().Index] == nil {
		return false
	}
	for _, target := range w.redirects(p.index) {
		if target == link.Attrs().Index {
			return true
		}
	}
	return false
}
