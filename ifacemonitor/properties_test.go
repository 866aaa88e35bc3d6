package ifacemonitor_test

import (
	"context"
	"maps"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/rtnl"
)

// The contract's rules, over random interleavings of what happens in a model
// kernel with what the monitor receives. Each run is in a bubble of its own time
// (testing/synctest), so that delays cost nothing and order is repeatable.

// faults are what a simulation may inject besides what is ordinary: dumps that
// are interrupted, repeated, and overtaken by events.
type faults struct {
	lossy    bool // receive buffers that overrun, sockets that die
	disorder bool // an embedder's source: late, repeated, reordered and lost events
}

const refreshInterval = time.Second

// simulation is a monitor, the model kernel below it, and the recorder above.
type simulation struct {
	faults
	t      *rapid.T
	kernel *kernel
	seen   *recorder
	random *rand.Rand       // for the source's disorder
	late   [][]rtnl.Message // what the source has not delivered yet
	waited time.Duration    // since the monitor could last receive all there was
}

func excluded(name string) bool { return strings.HasPrefix(name, "x") }

// simulate runs a random sequence of actions, calling check after each, then ends
// all faults, delivers all that is late and lets the monitor settle.
func simulate(t *testing.T, f faults, check func(*simulation), settled func(*simulation)) {
	rapid.Check(t, func(rt *rapid.T) {
		rapid.SyncTest(rt, func(rt *rapid.T) {
			seed := rapid.Uint64().Draw(rt, "seed of the disorder")
			sim := &simulation{
				faults: f, t: rt, kernel: newModelKernel(), seen: newRecorder(),
				random: rand.New(rand.NewPCG(seed, 0)),
			}
			sim.seen.excluded = excluded
			if f.disorder {
				sim.kernel.deliver = sim.deliver
			}
			stop := sim.start()
			defer stop()
			actions := sim.actions()
			actions[""] = func(rt *rapid.T) {
				synctest.Wait()
				if broken := sim.seen.broken(); len(broken) > 0 {
					rt.Fatal(broken[0])
				}
				if check != nil {
					check(sim)
				}
			}
			rt.Repeat(actions)
			sim.settle()
			if broken := sim.seen.broken(); len(broken) > 0 {
				rt.Fatal(broken[0])
			}
			settled(sim)
		})
	})
}

func (sim *simulation) start() (stop func()) {
	config := ifacemonitor.Config{
		Open:            sim.kernel.open,
		RefreshInterval: refreshInterval,
		Exclude:         []*regexp.Regexp{regexp.MustCompile("^x")},
	}
	if sim.lossy && !sim.disorder {
		config.RefreshInterval = 0 // a loss that is known is made good without
	}
	sim.seen.configure(&config)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- ifacemonitor.New(config).Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			sim.t.Errorf("Run: %v", err)
		}
	}
}

// settle ends all faults and waits until nothing more will be said.
func (sim *simulation) settle() {
	k := sim.kernel
	k.do(func() {
		k.deliver, k.capacity, k.overtake, k.noOpen = nil, 0, 0, false
		k.receive(1 << 30)
		for _, datagram := range sim.late {
			k.queue(datagram)
		}
		sim.late = nil
	})
	wait := 20 * time.Second // the longest pauses there are
	if sim.disorder {
		wait += refreshInterval
	}
	time.Sleep(wait)
	synctest.Wait()
}

// sleep lets time pass. Unless sockets may die, it sees to it that no dump is
// silent for so long that the monitor gives the socket up.
func (sim *simulation) sleep(d time.Duration) {
	if sim.waited += d; sim.waited > 8*time.Second && !sim.lossy {
		sim.waited = 0
		overtake := sim.kernel.overtake
		sim.kernel.do(func() {
			sim.kernel.overtake = 0
			sim.kernel.receive(1 << 30)
		})
		synctest.Wait()
		sim.kernel.do(func() { sim.kernel.overtake, sim.kernel.credit = overtake, 0 })
	}
	time.Sleep(d)
}

// deliver is a source that is late, repeats itself and loses things.
func (sim *simulation) deliver(msg rtnl.Message) (datagrams [][]rtnl.Message) {
	sim.late = append(sim.late, []rtnl.Message{msg})
	for sim.random.IntN(3) > 0 && len(sim.late) > 0 {
		i := sim.random.IntN(len(sim.late))
		datagrams = append(datagrams, sim.late[i])
		if sim.random.IntN(4) > 0 { // else it will be delivered again
			sim.late = slices.Delete(sim.late, i, i+1)
		}
	}
	if len(sim.late) > 0 && sim.random.IntN(20) == 0 {
		sim.late = sim.late[1:]
	}
	return datagrams
}

func (sim *simulation) actions() map[string]func(*rapid.T) {
	k := sim.kernel
	names := rapid.SampledFrom([]string{"cali0", "cali1", "eth0", "x0"})
	addrs := rapid.SampledFrom([]netip.Addr{
		netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::1")})
	// onLink makes an action of something that happens to an existing link.
	onLink := func(fn func(rt *rapid.T, index int)) func(*rapid.T) {
		return func(rt *rapid.T) {
			k.do(func() {
				if indexes := k.indexes(); len(indexes) > 0 {
					fn(rt, rapid.SampledFrom(indexes).Draw(rt, "index"))
				}
			})
		}
	}
	add := func(rt *rapid.T, name string) {
		index := rapid.IntRange(1, 9).Draw(rt, "index") // few, so that they are used again
		if k.owner(name) == 0 && k.links[index] == nil {
			k.add(index, name, rapid.Bool().Draw(rt, "up"))
		}
	}
	actions := map[string]func(*rapid.T){
		"add": func(rt *rapid.T) { k.do(func() { add(rt, names.Draw(rt, "name")) }) },
		"del": onLink(func(rt *rapid.T, index int) { k.del(index) }),
		"re-create": onLink(func(rt *rapid.T, index int) {
			name := k.links[index].name
			k.del(index)
			add(rt, name)
		}),
		"rename": onLink(func(rt *rapid.T, index int) {
			if name := names.Draw(rt, "name"); k.owner(name) == 0 {
				k.rename(index, name)
			}
		}),
		"up":      onLink(func(rt *rapid.T, index int) { k.setUp(index, true) }),
		"down":    onLink(func(rt *rapid.T, index int) { k.setUp(index, false) }),
		"mtu":     onLink(func(rt *rapid.T, index int) { k.setMTU(index, rapid.SampledFrom([]int{1400, 1500}).Draw(rt, "mtu")) }),
		"address": onLink(func(rt *rapid.T, index int) { k.addAddr(index, addrs.Draw(rt, "address")) }),
		"no address": onLink(func(rt *rapid.T, index int) {
			if addr := addrs.Draw(rt, "address"); k.links[index].addrs[addr] {
				k.delAddr(index, addr)
			}
		}),
		"receive": func(rt *rapid.T) { k.do(func() { k.receive(rapid.IntRange(1, 6).Draw(rt, "datagrams")) }) },
		"time passes": func(rt *rapid.T) {
			sim.sleep(time.Duration(rapid.SampledFrom([]int{1, 60, 110, 1100}).Draw(rt, "ms")) * time.Millisecond)
		},
		"overtake":  func(rt *rapid.T) { k.do(func() { k.overtake = rapid.IntRange(0, 3).Draw(rt, "multicasts") }) },
		"interrupt": func(rt *rapid.T) { k.do(k.interruptDump) },
	}
	actions["receive more"] = actions["receive"]
	actions["receive even more"] = actions["receive"]
	if sim.lossy {
		actions["capacity"] = func(rt *rapid.T) { k.do(func() { k.capacity = rapid.IntRange(1, 4).Draw(rt, "datagrams") }) }
		actions["die"] = func(rt *rapid.T) { k.do(k.die) }
		actions["no open"] = func(rt *rapid.T) { k.do(func() { k.noOpen = rapid.Bool().Draw(rt, "fails") }) }
	}
	return actions
}

// eachFault runs a property with every kind of fault.
func eachFault(t *testing.T, property func(*testing.T, faults)) {
	for name, f := range map[string]faults{
		"a kernel's socket":             {},
		"losses":                        {lossy: true},
		"an embedder's disorder":        {disorder: true},
		"an embedder's disorder, lossy": {lossy: true, disorder: true},
	} {
		t.Run(name, func(t *testing.T) { property(t, f) })
	}
}

// The recorder checks rules 1, 5 and 6 at every callback, in all simulations.

func TestRule1OneIndexSpeaksForANameUntilItIsReportedAbsentWithoutRepeats(t *testing.T) {
	eachFault(t, func(t *testing.T, f faults) {
		simulate(t, f, nil, func(sim *simulation) {
			for name := range sim.seen.interfaces {
				last, spoke := "absent", ""
				for _, line := range sim.seen.states(name) {
					state, index, _ := strings.Cut(line, " ")
					if state == last || last != "absent" && index != spoke {
						sim.t.Fatalf("%s: %v", name, sim.seen.states(name))
					}
					last, spoke = state, index
				}
			}
		})
	})
}

func TestRule3OnceEventsStopTheReportIsWhatTheKernelHas(t *testing.T) {
	eachFault(t, func(t *testing.T, f faults) {
		simulate(t, f, nil, func(sim *simulation) {
			want := sim.kernel.present(excluded)
			if got := sim.seen.present(); !maps.Equal(got, want) {
				sim.t.Fatalf("reported %v\nkernel   %v\nlog %s", got, want, strings.Join(sim.seen.log, "; "))
			}
			if sim.seen.inSync != 1 {
				sim.t.Fatalf("in sync was reported %d times", sim.seen.inSync)
			}
		})
	})
}

func TestRule4NoDeletionIsCoalescedAwayEvenUnderTheSameNameAndIndex(t *testing.T) {
	simulate(t, faults{}, nil, func(sim *simulation) {
		for name, want := range sim.kernel.history {
			if got := sim.seen.states(name); !slices.Equal(got, want) {
				sim.t.Fatalf("%s: reported %v, happened %v", name, got, want)
			}
		}
	})
}

func TestRule5AddressesAreReportedOfPresentInterfacesOnlyAndNilAfterAbsence(t *testing.T) {
	eachFault(t, func(t *testing.T, f faults) {
		simulate(t, f, nil, func(sim *simulation) {
			for name, i := range sim.seen.interfaces {
				absent := i.state == ifacemonitor.StateNotPresent
				if !excluded(name) && absent != i.addrsNil {
					sim.t.Fatalf("%s is %s with addresses %s", name, orAbsent(i.state), addrsText(i.addrs))
				}
			}
		})
	})
}

func TestRule6ExcludedInterfacesHaveStateButNoAddresses(t *testing.T) {
	eachFault(t, func(t *testing.T, f faults) {
		simulate(t, f, nil, func(sim *simulation) {
			for _, line := range sim.seen.of("x0") {
				if strings.HasPrefix(line, "[") || line == "nil" {
					sim.t.Fatalf("addresses of x0 were reported: %v", sim.seen.of("x0"))
				}
			}
			var want string
			if index := sim.kernel.owner("x0"); index != 0 {
				want = sim.kernel.present(excluded)["x0"]
			}
			if got := sim.seen.present()["x0"]; got != want {
				sim.t.Fatalf("x0: reported %q, kernel %q", got, want)
			}
		})
	})
}
