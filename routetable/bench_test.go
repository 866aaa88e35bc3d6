package routetable_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/routetable"
	"github.com/manx-dataplane/manx/rtnl"
)

// The benchmarks run on the real kernel, each beside what a program does that
// uses the netlink library route by route: a request and an answer for each
// change, a list of all routes for each look.

var benchSizes = []int{1_000, 10_000, 50_000}

const benchTable = 88

// bench is a RouteTable, and the baseline's handle, in one namespace.
type bench struct {
	b     *testing.B
	rt    *routetable.RouteTable
	naive *netlink.Handle
	index int
	n     int
}

func newBench(b *testing.B, n int) *bench {
	w := newRealWorld(b).(*realWorld)
	must(b, w.LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "cali1", TxQLen: -1}}))
	index := indexOf(b, w, "cali1")
	must(b, w.LinkSetUp(linkOf(index)))
	naive, err := netlink.NewHandleAt(netns.NsHandle(w.ns.FD()), unix.NETLINK_ROUTE)
	must(b, err)
	b.Cleanup(naive.Close)
	rt := routetable.New(routetable.Config{
		Open:      func() (routetable.Kernel, error) { return rtnl.Open(rtnl.Options{Namespace: w.ns}) },
		Table:     benchTable,
		Ownership: routetable.ExclusivePolicy{},
	})
	b.Cleanup(rt.Close)
	rt.OnIfaceStateChanged("cali1", index, up)
	must(b, rt.Apply())
	b.ReportAllocs()
	return &bench{b, rt, naive, index, n}
}

func (s *bench) targets(mtu int) []routetable.Target {
	targets := manyTargets(s.n)
	for i := range targets {
		targets[i].MTU = mtu
	}
	return targets
}

func (s *bench) set(targets []routetable.Target) {
	s.rt.SetRoutes(routetable.RouteClassLocalWorkload, "cali1", targets)
	must(s.b, s.rt.Apply())
}

func (s *bench) naiveRoute(target *routetable.Target) *netlink.Route {
	return &netlink.Route{
		Dst:   &net.IPNet{IP: target.CIDR.Addr().AsSlice(), Mask: net.CIDRMask(32, 32)},
		Table: benchTable, LinkIndex: s.index, Scope: netlink.SCOPE_LINK, Protocol: 80, MTU: target.MTU,
	}
}

func (s *bench) naiveReplace(targets []routetable.Target) {
	for i := range targets {
		must(s.b, s.naive.RouteReplace(s.naiveRoute(&targets[i])))
	}
}

// naiveCheck lists all routes and compares them with what is wanted.
func (s *bench) naiveCheck(wanted map[netip.Prefix]*routetable.Target) {
	filter := &netlink.Route{Table: benchTable}
	routes, err := s.naive.RouteListFiltered(netlink.FAMILY_V4, filter, netlink.RT_FILTER_TABLE)
	must(s.b, err)
	for _, r := range routes {
		ip, _ := netip.AddrFromSlice(r.Dst.IP)
		bits, _ := r.Dst.Mask.Size()
		target := wanted[netip.PrefixFrom(ip, bits)]
		if target == nil || r.LinkIndex != s.index || r.MTU != target.MTU {
			s.b.Fatalf("unexpected route %v", r)
		}
	}
	if len(routes) != len(wanted) {
		s.b.Fatalf("%d routes, want %d", len(routes), len(wanted))
	}
}

// measure runs the operation with the clock on and reset with it off. Beside the
// time it reports the processor time, user and system, which other processes on
// the machine disturb less.
func (s *bench) measure(operation, reset func()) {
	var took, busy time.Duration
	for s.b.Loop() {
		start, startBusy := time.Now(), processorTime()
		operation()
		took, busy = took+time.Since(start), busy+processorTime()-startBusy
		s.b.StopTimer()
		reset()
		s.b.StartTimer()
	}
	routes := float64(s.b.N) * float64(s.n)
	s.b.ReportMetric(float64(took.Nanoseconds())/routes, "ns/route")
	s.b.ReportMetric(float64(busy.Nanoseconds())/routes, "cpu-ns/route")
}

func processorTime() time.Duration {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func nothing() {}

func eachSize(b *testing.B, run func(s *bench)) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprintf("routes=%d", n), func(b *testing.B) { run(newBench(b, n)) })
	}
}

func BenchmarkProgram(b *testing.B) {
	b.Run("manx", func(b *testing.B) {
		eachSize(b, func(s *bench) {
			targets := s.targets(0)
			s.measure(func() { s.set(targets) }, func() { s.set(nil) })
		})
	})
	b.Run("naive", func(b *testing.B) {
		eachSize(b, func(s *bench) {
			targets := s.targets(0)
			s.measure(func() { s.naiveReplace(targets) }, func() {
				s.rt.QueueResync()
				must(b, s.rt.Apply())
			})
		})
	})
}

func BenchmarkNoOpResync(b *testing.B) {
	b.Run("manx", func(b *testing.B) {
		eachSize(b, func(s *bench) {
			s.set(s.targets(0))
			s.measure(func() {
				s.rt.QueueResync()
				must(b, s.rt.Apply())
			}, nothing)
		})
	})
	b.Run("naive", func(b *testing.B) {
		eachSize(b, func(s *bench) {
			targets := s.targets(0)
			s.set(targets)
			wanted := map[netip.Prefix]*routetable.Target{}
			for i := range targets {
				wanted[targets[i].CIDR] = &targets[i]
			}
			s.measure(func() { s.naiveCheck(wanted) }, nothing)
		})
	})
}

func BenchmarkReprogram(b *testing.B) {
	b.Run("manx", func(b *testing.B) {
		eachSize(b, func(s *bench) {
			targets, next := s.targets(1400), s.targets(1300)
			s.set(targets)
			s.measure(func() { s.set(next) }, func() { targets, next = next, targets })
		})
	})
	b.Run("naive", func(b *testing.B) {
		eachSize(b, func(s *bench) {
			targets, next := s.targets(1400), s.targets(1300)
			s.naiveReplace(targets)
			s.measure(func() { s.naiveReplace(next) }, func() { targets, next = next, targets })
		})
	})
}

func BenchmarkNoOpApply(b *testing.B) {
	eachSize(b, func(s *bench) {
		s.set(s.targets(0))
		s.measure(func() { must(b, s.rt.Apply()) }, nothing)
	})
}
