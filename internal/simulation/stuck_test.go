package simulation

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/manx-dataplane/manx/mocks"
	"github.com/manx-dataplane/manx/qos"
)

// places are all reasons for which devices are deleted: each brings about the delete of
// the device of that name, with pod cali0 and its limits in place and, but at the
// start-up sweep, the agent running.
var places = []struct {
	reason qos.Reason
	device string
	cause  func(w *world, hang hangOrder)
}{
	{qos.ReasonStartup, "bwcali00000dead", func(w *world, hang hangOrder) {
		w.stop()
		w.addOrphan("bwcali00000dead")
		w.order(hang)
		w.start(true)
	}},
	{qos.ReasonPeriodic, "bwcali00000dead", func(w *world, hang hangOrder) {
		w.order(hang)
		w.addOrphan("bwcali00000dead")
		w.gate.run(w.cfg.QoSRefreshInterval, nil)
	}},
	{qos.ReasonInterfaceGone, qos.IFBName("cali0"), func(w *world, hang hangOrder) {
		w.order(hang)
		w.deletePod("cali0")
	}},
	{qos.ReasonEndpointGone, qos.IFBName("cali0"), func(w *world, hang hangOrder) {
		w.order(hang)
		w.setEndpoint(0, nil)
		w.gate.run(qos.DefaultGracePeriod, nil)
	}},
	{qos.ReasonLimitCleared, qos.IFBName("cali0"), func(w *world, hang hangOrder) {
		w.order(hang)
		w.setEndpoint(0, limited("cali0", "none"))
	}},
	{qos.ReasonDisabled, qos.IFBName("cali0"), func(w *world, hang hangOrder) {
		w.order(hang)
		w.configure(func(w *world) { w.cfg.QoSControls = false })
		w.gate.run(time.Second, nil)
		w.configure(func(w *world) { w.cfg.QoSControls = true })
	}},
	{qos.ReasonStale, qos.IFBName("cali0"), func(w *world, hang hangOrder) {
		w.stop()
		w.deletePod("cali0")
		w.addPod("cali0", 0, "", false, true)
		w.order(hang)
		w.start(true)
	}},
}

func limited(iface, limits string) *endpoint {
	id := strings.TrimPrefix(iface, "cali")
	return &endpoint{iface: iface, nets: []string{"10.0.0." + id + "/32"}, limits: limits}
}

// order makes the agent's delete hang that is to come.
func (w *world) order(hang hangOrder) { w.hang.name, w.hang.after = hang.name, hang.after }

func (w *world) addOrphan(name string) {
	w.addDevice(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: name, TxQLen: -1}})
}

// TestStuckDelete: wherever a delete never comes back, before or after its effect, the
// main loop, new pods, other deletes and the agent's stop go on, health names the
// device, and the next agent finishes the work.
func TestStuckDelete(t *testing.T) {
	for _, place := range places {
		for _, after := range []bool{false, true} {
			name := string(place.reason) + map[bool]string{false: "/before effect", true: "/after effect"}[after]
			t.Run(name, func(t *testing.T) {
				var trace strings.Builder
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(options{seed: 1, chunk: 20}, &trace)
					for _, pod := range []string{"cali0", "cali1"} {
						w.addPod(pod, 0, "", false, true)
					}
					w.setEndpoint(0, limited("cali0", "egress"))
					w.setEndpoint(1, limited("cali1", "egress"))
					w.start(true)
					w.gate.run(time.Second, nil)
					w.compare("before the hang")

					place.cause(w, hangOrder{name: place.device, after: after})
					w.gate.run(time.Second, nil)
					checkStuck(w, place.reason, place.device)
					for _, problem := range w.problems {
						t.Error(problem)
					}
				})
				if t.Failed() {
					t.Log(trace.String())
				}
			})
		}
	}
}

func checkStuck(w *world, reason qos.Reason, device string) {
	if len(w.hung) != 1 {
		w.problem("nothing hangs for %s", reason)
	}
	w.addPod("cali3", 0, "", false, true)
	w.setEndpoint(3, limited("cali3", "egress"))
	w.gate.run(time.Second, nil)
	if !w.egressInForce(w.pods["cali3"], w.roots()) {
		w.problem("a new pod got no limit within a second")
	}
	w.deletePod("cali1")
	w.setEndpoint(1, nil)
	w.gate.run(2*qos.DefaultStuckAfter, nil)
	if w.indexOf(qos.IFBName("cali1")) != 0 {
		w.problem("another delete did not go on")
	}
	if _, egress := w.wanted("cali0"); w.pods["cali0"] != nil && egress != nil && w.hang.after && !w.egressInForce(w.pods["cali0"], w.roots()) {
		w.problem("cali0 got no new IFB although the name is free")
	}
	w.gate.run(30*time.Second, nil)
	w.excused = w.hung
	w.compare("while " + device + " hangs")
	w.checkHealth()

	w.stop() // checks that it does
	w.excused = nil
	w.start(true)
	w.gate.run(30*time.Second, nil)
	w.compare("with the next agent")
	w.checkHealth()
	w.stop()
}

// TestStopDuringStuckWrite: a write of the route tables that hangs holds up neither the
// limits nor, once it comes back, the agent's stop.
func TestStopDuringStuckWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(options{seed: 1, chunk: 20}, nil)
		release := w.kernel.Hang(mocks.BeforeEffect, func(c mocks.Call) bool { return c.Op == mocks.OpRouteSet })
		w.addPod("cali0", 0, "", false, true)
		w.setEndpoint(0, limited("cali0", "egress"))
		w.start(true)
		w.gate.run(time.Second, nil)
		if w.kernel.Hung() == 0 {
			t.Error("nothing hangs")
		}
		if !w.egressInForce(w.pods["cali0"], w.roots()) {
			t.Error("the pod's limit must not wait for its route")
		}
		w.agent.cancel()
		w.gate.run(time.Minute, nil)
		release()
		w.stop()
		for _, problem := range w.problems {
			t.Error(problem)
		}
	})
}
