package simulation

import (
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"
)

const maxEndpoints = 8

// slotNames are the names that pods' veths have. The last one is not a workload's.
var slotNames = []string{"cali0", "cali1", "cali2", "cali3", "cali4", "other0"}

var limitNames = []string{"none", "egress", "egress2", "k8s", "k8s-both", "ingress", "both", "tiny"}

// generator makes a scenario. What it knows of the world is a guess, to make steps
// likely to do something: a step that finds nothing to do does nothing.
type generator struct {
	*rand.Rand
	options options
	steps   []step
}

// generate makes the scenario of a seed. It depends on nothing else.
func generate(seed uint64) scenario {
	g := &generator{Rand: rngOf(seed)}
	g.options = options{
		seed:         seed,
		noRefresh:    g.chance(30),
		floatingIPs:  g.chance(30),
		noIPv6:       g.chance(20),
		keepExternal: g.chance(20),
		keepsHanging: g.chance(50),
		listens:      g.chance(40),
		chunk:        1 + g.IntN(6),
		overtakes:    g.chance(50),
		interrupts:   g.IntN(60),
	}
	g.options.liesReads = !g.options.noRefresh && g.chance(20)
	g.options.lossless = g.chance(30)
	if !g.options.lossless && g.chance(50) {
		g.options.capacity = 4 + g.IntN(20)
	}
	if g.chance(5) {
		g.options.statusDir = "wanted"
	}
	for range 1 + g.IntN(3) {
		g.pod()
	}
	g.start()
	for range 4 + g.IntN(24) {
		g.any()
	}
	return scenario{options: g.options, steps: g.steps}
}

func (g *generator) chance(percent int) bool { return g.IntN(100) < percent }

func (g *generator) slot() string {
	if g.chance(4) {
		return slotNames[len(slotNames)-1]
	}
	return slotNames[g.IntN(len(slotNames)-1)]
}

// emit adds a step, with what passes before it.
func (g *generator) emit(do func(*world), format string, args ...any) {
	st := step{number: len(g.steps) + 1, text: fmt.Sprintf(format, args...), do: do}
	switch draw := g.IntN(100); {
	case draw < 30:
	case draw < 70:
		st.calls = 1 + g.IntN(25)
	case draw < 85:
		st.wait = time.Duration(1+g.IntN(900)) * time.Millisecond
	case draw < 97:
		st.wait = time.Duration(1+g.IntN(15)) * time.Second
	default:
		st.wait = time.Duration(30+g.IntN(200)) * time.Second
	}
	g.steps = append(g.steps, st)
}

// any adds what comes to mind.
func (g *generator) any() {
	choices := []struct {
		weight int
		add    func()
	}{
		{22, g.pod}, {10, g.endpoint}, {6, g.removeEndpoint}, {10, g.deletePod}, {8, g.recreate},
		{4, g.rename}, {4, g.mtu}, {8, g.flap}, {10, g.restart}, {12, g.trouble}, {6, g.socketTrouble},
		{5, g.hang}, {5, g.switches}, {6, g.vandal}, {2, g.reorder},
	}
	total := 0
	for _, c := range choices {
		total += c.weight
	}
	draw := g.IntN(total)
	for _, c := range choices {
		if draw -= c.weight; draw < 0 {
			c.add()
			return
		}
	}
}

// pod adds a pod and its endpoint, in either order.
func (g *generator) pod() {
	slot := g.slot()
	runtime := func() {
		index, up := 0, !g.chance(15)
		hook := []string{"", "", "", "", "", "", "clsact", "ingress"}[g.IntN(8)]
		root := g.chance(8)
		text := "a pod starts: " + slot
		if !up {
			text += ", down at first"
		}
		if hook != "" {
			text += ", with another program's filter at its " + hook + " qdisc"
		}
		if root {
			text += ", with another program's TBF"
		}
		g.emit(func(w *world) { w.addPod(slot, index, hook, root, up) }, "%s", text)
		if !up && g.chance(80) {
			g.emit(func(w *world) { w.hostUp(slot, true) }, "%s goes up", slot)
		}
	}
	if g.chance(50) {
		runtime()
		g.endpointOn(slot)
	} else {
		g.endpointOn(slot)
		runtime()
	}
}

func (w *world) hostUp(name string, up bool) {
	if p := w.pods[name]; p != nil {
		w.setHostUp(p, up)
	}
}

func (w *world) peerUp(name string, up bool) {
	if p := w.pods[name]; p != nil {
		w.setPeerUp(p, up)
	}
}

func (g *generator) endpoint() { g.endpointOn(g.slot()) }

func (g *generator) endpointOn(slot string) {
	id := g.IntN(maxEndpoints)
	for n, name := range slotNames { // usually its own
		if name == slot && !g.chance(20) {
			id = n
		}
	}
	e := endpoint{
		iface:    slot,
		nets:     []string{fmt.Sprintf("10.0.0.%d/32", id), fmt.Sprintf("fd00::1:%d/128", id)},
		limits:   limitNames[g.IntN(len(limitNames))],
		inactive: g.chance(8),
		mac:      g.chance(30),
		spoofs:   g.chance(20),
	}
	switch g.IntN(8) {
	case 0: // an address that moves between pods
		e.nets = append(e.nets, fmt.Sprintf("10.0.1.%d/32", g.IntN(2)))
	case 1:
		e.nets = append(e.nets, fmt.Sprintf("10.%d.0.0/24", 100+id))
	case 2:
		e.nets = e.nets[:1]
	case 3:
		e.floating = fmt.Sprintf("172.16.0.%d", id)
	}
	g.emit(func(w *world) { w.setEndpoint(id, &e) }, "the datastore says: endpoint %d %+v", id, e)
}

func (g *generator) removeEndpoint() {
	id := g.IntN(maxEndpoints - 2)
	g.emit(func(w *world) { w.setEndpoint(id, nil) }, "the datastore drops endpoint %d", id)
}

func (g *generator) deletePod() {
	slot := g.slot()
	if g.chance(60) {
		g.emit(func(w *world) { w.dropEndpointsOf(slot) }, "the datastore drops the endpoints of %s", slot)
	}
	g.emit(func(w *world) { w.deletePod(slot) }, "the pod ends: %s", slot)
}

func (w *world) dropEndpointsOf(iface string) {
	for id := range maxEndpoints {
		if e, ok := w.endpoints[id]; ok && e.iface == iface {
			w.setEndpoint(id, nil)
		}
	}
}

// recreate replaces a pod by one of the same name, at times under the same index.
func (g *generator) recreate() {
	slot := g.slot()
	same := g.options.lossless && g.chance(40)
	text := "the pod is re-created: " + slot
	if same {
		text += ", with the same index"
	}
	g.emit(func(w *world) {
		if w.pods[slot] == nil {
			return
		}
		w.deletePod(slot)
		index := 0
		if same {
			index = w.lastIndex
		}
		w.addPod(slot, index, "", false, true)
		w.pods[slot].mistakable = same && w.wasFaulty
	}, "%s", text)
}

func (g *generator) rename() {
	from, to := g.slot(), g.slot()
	g.emit(func(w *world) { w.renamePod(from, to) }, "%s is renamed to %s", from, to)
	if g.chance(40) {
		g.emit(func(w *world) { w.renamePod(to, from) }, "%s is renamed to %s", to, from)
	}
}

func (g *generator) mtu() {
	slot, mtu := g.slot(), []int{1280, 1400, 1450, 9000}[g.IntN(4)]
	g.emit(func(w *world) { w.setMTU(slot, mtu) }, "the MTU of %s becomes %d", slot, mtu)
}

func (g *generator) flap() {
	slot := g.slot()
	set, end := (*world).hostUp, "host"
	if g.chance(40) {
		set, end = (*world).peerUp, "pod"
	}
	g.emit(func(w *world) { set(w, slot, false) }, "the %s's end of %s goes down", end, slot)
	if g.chance(85) {
		g.emit(func(w *world) { set(w, slot, true) }, "the %s's end of %s goes up", end, slot)
	}
}

func (g *generator) start() {
	if g.chance(25) {
		g.emit(func(w *world) { w.start(false) }, "the agent starts; its datastore is slow")
		if g.chance(80) {
			g.emit((*world).datastoreInSync, "the datastore is in sync")
		}
		return
	}
	g.emit(func(w *world) { w.start(true) }, "the agent starts")
}

// restart ends the agent, cleanly or at a kernel write, and mostly starts another.
func (g *generator) restart() {
	switch at, after := 1+g.IntN(30), g.chance(50); g.IntN(3) {
	case 0:
		g.emit((*world).stop, "the agent stops")
	case 1:
		g.emit((*world).stop, "the agent stops")
		g.any()
	default:
		when := "before"
		if after {
			when = "after"
		}
		g.emit(func(w *world) {
			if a := w.agent; a != nil {
				a.crashAt, a.crashAfter = a.writes+at, after
			}
		}, "the agent will crash %s its kernel write number %d from now", when, at)
		return
	}
	g.start()
}

// trouble makes calls fail for a while.
func (g *generator) trouble() {
	f := faults{
		perMille:  []int{20, 100, 300, 900}[g.IntN(4)],
		lies:      !g.options.noRefresh && g.chance(50),
		liesReads: g.options.liesReads,
	}
	if g.chance(30) {
		f.slow = 50
	}
	g.emit(func(w *world) { w.faults, w.wasFaulty, w.wasSlow = f, true, w.wasSlow || f.slow > 0 }, "kernel calls fail from now on: %+v", f)
	for range g.IntN(3) {
		g.any()
	}
	g.emit(func(w *world) { w.faults = faults{} }, "kernel calls no longer fail")
}

func (g *generator) socketTrouble() {
	if g.options.lossless {
		return
	}
	errno := []unix.Errno{unix.ENOBUFS, unix.ENOBUFS, unix.ENOBUFS, unix.ENETDOWN}[g.IntN(4)]
	g.emit(func(w *world) { w.kernel.FailEvents(errno) }, "event sockets fail with %v", errno)
}

func (g *generator) hang() {
	after := g.chance(50)
	when := "before"
	if after {
		when = "after"
	}
	g.emit(func(w *world) { w.hang.armed, w.hang.after = true, after }, "the next delete of a device hangs for ever, %s its effect", when)
	if g.chance(60) {
		g.deletePod()
	}
}

func (g *generator) switches() {
	on := g.chance(50)
	if g.chance(50) {
		g.emit(func(w *world) { w.configure(func(w *world) { w.cfg.QoSControls = on }) }, "qosControls: %v", on)
	} else {
		g.emit(func(w *world) { w.configure(func(w *world) { w.cfg.QoSKubernetesAnnotations = on }) }, "qosKubernetesAnnotations: %v", on)
	}
	if !on {
		g.any()
		g.emit(func(w *world) {
			w.configure(func(w *world) { w.cfg.QoSControls, w.cfg.QoSKubernetesAnnotations = true, true })
		}, "both QoS switches on")
	}
}

// reorder makes event sockets deliver late, twice and out of order, as an embedder may.
func (g *generator) reorder() {
	if g.options.noRefresh || g.options.lossless {
		return
	}
	g.emit(func(w *world) { w.reordering = true }, "events come late, twice and out of order from now on")
	for range 2 + g.IntN(4) {
		g.any()
	}
	g.emit(func(w *world) { w.reordering = false }, "events come in order again")
}
