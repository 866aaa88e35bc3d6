package ifacemonitor_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/rtnl"
)

// Production case B: a StatefulSet's pod was re-created under one veth name. The
// new interface, index 204, was processed before the end of the old one, index
// 83, and a resync came at last.

const podVeth = "calidce2a7f6bc3"

var podAddr = netip.MustParseAddr("fe80::1")

// step is what was processed, and how long after the step before.
type step struct {
	after time.Duration
	msg   rtnl.Message
}

func caseB() []step {
	return []step{
		{0, newLink(204, podVeth, false)},
		{0, rtnl.Message{Type: rtnl.MessageNewAddr, Index: 204, Addr: podAddr}},
		{0, newLink(204, podVeth, true)},
		{105 * time.Millisecond, newLink(83, podVeth, false)},
		{0, rtnl.Message{Type: rtnl.MessageDelAddr, Index: 83, Addr: podAddr}},
		{0, delLink(83, podVeth)},
	}
}

// routes is what a driver makes of the reports: a pod's route is there while the
// interface of its name is up.
type routes map[string]int

func (r routes) onState(name string, state ifacemonitor.State, index int) {
	if state == ifacemonitor.StateUp {
		r[name] = index
	} else {
		delete(r, name)
	}
}

func TestCaseBTheStaleIndexDoesNotTakeTheRouteAway(t *testing.T) {
	for history, before := range map[string][]rtnl.Message{
		"83 was known":             {newLink(83, podVeth, true), {Type: rtnl.MessageNewAddr, Index: 83, Addr: podAddr}},
		"83 was never heard of":    nil,
		"83 was known to be down":  {newLink(83, podVeth, false)},
		"83 was reported gone too": {newLink(83, podVeth, true), delLink(83, podVeth)},
	} {
		t.Run(history, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				source := newScript(newLink(204, podVeth, true),
					rtnl.Message{Type: rtnl.MessageNewAddr, Index: 204, Addr: podAddr})
				seen, route := newRecorder(), routes{}
				config := ifacemonitor.Config{Open: source.open}
				seen.configure(&config)
				config.StateCallback = func(name string, state ifacemonitor.State, index int) {
					seen.onState(name, state, index)
					route.onState(name, state, index)
				}
				source.do(func() { source.mute = true }) // no dump helps until the resync at the end
				run(t, config)
				source.say(before...)
				synctest.Wait()
				for i, s := range caseB() {
					time.Sleep(s.after)
					source.say(s.msg)
					synctest.Wait()
					if i >= 2 && route[podVeth] != 204 {
						t.Fatalf("step %d: the route is through %d, want 204", i, route[podVeth])
					}
				}
				want := seen.present()[podVeth]
				if want != fmt.Sprintf("204 up 0 [%s]", podAddr) {
					t.Errorf("reported %q", want)
				}
				time.Sleep(300 * time.Millisecond)
				source.do(func() { source.mute, source.dumpErr = false, nil })
				source.fail(unix.ENOBUFS) // a resync
				time.Sleep(time.Minute)
				synctest.Wait()
				if route[podVeth] != 204 || seen.present()[podVeth] != want || len(seen.broken()) > 0 {
					t.Errorf("route through %d, reported %q, %v", route[podVeth], seen.present()[podVeth], seen.broken())
				}
				states := seen.states(podVeth)
				if got := states[slices.Index(states, "down 204"):]; !slices.Equal(got, []string{"down 204", "up 204"}) {
					t.Errorf("after 204 appeared: %v", got)
				}
			})
		})
	}
}

// byName is a monitor as one writes it first: the last message about a name is
// the truth about that name.
type byName struct {
	state  map[string]ifacemonitor.State
	report func(name string, state ifacemonitor.State, index int)
}

func (m byName) event(msg rtnl.Message) {
	state := ifacemonitor.StateNotPresent
	switch {
	case msg.Type == rtnl.MessageDelLink:
	case msg.Type != rtnl.MessageNewLink:
		return
	case msg.Flags&unix.IFF_RUNNING != 0:
		state = ifacemonitor.StateUp
	default:
		state = ifacemonitor.StateDown
	}
	if m.state[msg.Name] != state {
		m.state[msg.Name] = state
		m.report(msg.Name, state, msg.Index)
	}
}

func TestCaseBWithoutTheStaleIndexRuleTheRouteIsLost(t *testing.T) {
	route := routes{}
	monitor := byName{state: map[string]ifacemonitor.State{}, report: route.onState}
	monitor.event(newLink(83, podVeth, true))
	for _, s := range caseB() {
		monitor.event(s.msg)
	}
	if index, ok := route[podVeth]; ok {
		t.Errorf("the route is through %d: this order of events no longer shows the fault", index)
	}
}
