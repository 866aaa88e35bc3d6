package routetable_test

import (
	"net/netip"
	"runtime"
	"testing"

	"github.com/manx-dataplane/manx/routetable"
	"github.com/manx-dataplane/manx/rtnl"
)

// sink is a Kernel that has one interface and does as it is told.
type sink struct {
	routetable.Kernel
	changes int
}

func (s *sink) RouteBatch(ops []rtnl.RouteOp) []error {
	s.changes += len(ops)
	return nil
}

func (s *sink) Close() {}

type noFlows struct{}

func (noFlows) ConntrackDelete(netip.Addr) error { return nil }

// TestMemoryDoesNotGrow: hundreds of thousands of changes later a table takes up no
// more memory than when it first held as many.
func TestMemoryDoesNotGrow(t *testing.T) {
	const routes, rounds, warmUp = 1000, 150, 50 // until maps and buffers have their size
	w := newMockWorld(t)
	index := addLink(t, w, "cali1", 0)
	kernel, err := w.OpenKernel()
	must(t, err)
	s := &sink{Kernel: kernel}
	rt := routetable.New(routetable.Config{
		Open:      func() (routetable.Kernel, error) { return s, nil },
		Ownership: routetable.WorkloadPolicy{WorkloadPrefixes: []string{"cali"}},
		Conntrack: noFlows{},
	})
	defer rt.Close()
	rt.OnIfaceStateChanged("cali1", index, up)
	targets := manyTargets(routes)
	round := func(i int) {
		for n := range targets {
			ip := netip.AddrFrom4([4]byte{10, byte(i >> 6), byte(i<<2 | n>>8), byte(n)})
			targets[n].CIDR = netip.PrefixFrom(ip, 32)
		}
		rt.SetRoutes(routetable.RouteClassLocalWorkload, "cali1", targets)
		must(t, rt.Apply())
	}
	for i := range warmUp {
		round(i)
	}
	before := heap()
	for i := warmUp; i < rounds; i++ {
		round(i)
	}
	grown := heap() - before
	t.Logf("%d changes; the heap grew by %d bytes", s.changes, grown)
	if s.changes < 2*routes*(rounds-1) {
		t.Errorf("only %d changes", s.changes)
	}
	if grown > 1<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
