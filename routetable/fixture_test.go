package routetable_test

import (
	"net/netip"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/routetable"
)

const (
	tableNumber = 254
	up          = ifacemonitor.StateUp
	down        = ifacemonitor.StateDown
	absent      = ifacemonitor.StateNotPresent
)

// fixture is a RouteTable in a world.
type fixture struct {
	*routetable.RouteTable
	t     testingT
	w     world
	clock *clocktesting.FakePassiveClock
	spied *record
	conf  routetable.Config
}

// newFixture makes a RouteTable for the main table, whose workload interfaces are
// "cali…" and which removes external routes from them, unless change says
// otherwise.
func newFixture(t testingT, kind worldKind, change func(*routetable.Config)) *fixture {
	f := &fixture{
		t: t, w: kind.open(t),
		clock: clocktesting.NewFakePassiveClock(time.Unix(1e9, 0)),
		spied: &record{},
	}
	f.conf = routetable.Config{
		Ownership: routetable.WorkloadPolicy{
			WorkloadPrefixes: []string{"cali"}, Protocols: []int{80}, RemoveExternalRoutes: true,
		},
		Table: tableNumber,
		Clock: f.clock,
		Open: func() (routetable.Kernel, error) {
			f.spied.opens++
			if f.spied.failOpen != nil {
				if err := f.spied.failOpen(); err != nil {
					return nil, err
				}
			}
			kernel, err := f.w.OpenKernel()
			return &spy{kernel, f.spied}, err
		},
	}
	if change != nil {
		change(&f.conf)
	}
	f.restart()
	t.Cleanup(func() { f.Close() })
	return f
}

// restart plays an agent that starts anew and has no memory.
func (f *fixture) restart() {
	if f.RouteTable != nil {
		f.Close()
	}
	f.RouteTable = routetable.New(f.conf)
	f.spied.reset()
}

// addLink creates an interface that is up, and tells the table.
func (f *fixture) addLink(name string) int {
	f.t.Helper()
	index := addLink(f.t, f.w, name, 0)
	f.tell(name)
	return index
}

// tell tells the table what the kernel says about an interface that exists.
func (f *fixture) tell(name string) {
	f.t.Helper()
	link, err := f.w.LinkByName(name)
	must(f.t, err)
	state := down
	if link.Attrs().RawFlags&unix.IFF_RUNNING != 0 {
		state = up
	}
	f.OnIfaceStateChanged(name, link.Attrs().Index, state)
}

func (f *fixture) want(iface string, cidrs ...string) {
	var targets []routetable.Target
	for _, cidr := range cidrs {
		targets = append(targets, workloadTarget(cidr))
	}
	f.SetRoutes(routetable.RouteClassLocalWorkload, iface, targets)
}

func workloadTarget(cidr string) routetable.Target {
	return routetable.Target{Type: routetable.TargetTypeLinkLocalUnicast, CIDR: netip.MustParsePrefix(cidr)}
}

func (f *fixture) apply() {
	f.t.Helper()
	must(f.t, f.Apply())
}

func (f *fixture) routes() []string {
	f.t.Helper()
	family := unix.AF_INET
	if f.conf.IPVersion == 6 {
		family = unix.AF_INET6
	}
	table := f.conf.Table
	if table == 0 {
		table = unix.RT_TABLE_MAIN
	}
	return dump(f.t, f.w, family, table)
}

// expectSettled checks that the table agrees with the kernel: a resync finds
// nothing to do.
func (f *fixture) expectSettled() {
	before := f.routes()
	f.spied.ops = nil
	f.QueueResync()
	f.apply()
	Expect(f.spied.ops).To(BeEmpty(), "a resync found something to write")
	Expect(f.routes()).To(Equal(before))
}
