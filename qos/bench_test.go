package qos_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/qos"
	"github.com/manx-dataplane/manx/rtnl"
)

// world is a real namespace with pods in it, and a reaper at work.
type world struct {
	b      *testing.B
	ns     *rtnl.Namespace
	handle *rtnl.Handle
	reaper *qos.Reaper
	close  func() // also called at the end of the benchmark
}

func newWorld(b *testing.B) *world {
	b.Helper()
	if os.Geteuid() != 0 {
		b.Skip("NOT RUN: needs root")
	}
	ns, err := rtnl.NewNamespace()
	must(b, err)
	w := &world{b: b, ns: ns}
	w.handle = w.open()
	w.reaper = qos.NewReaper(qos.ReaperConfig{Open: func() (qos.ReaperKernel, error) {
		return rtnl.Open(rtnl.Options{Namespace: ns})
	}})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = w.reaper.Run(ctx) })
	w.close = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		w.handle.Close()
		must(b, ns.Close())
	})
	b.Cleanup(w.close)
	return w
}

func (w *world) open() *rtnl.Handle {
	h, err := rtnl.Open(rtnl.Options{Namespace: w.ns})
	must(w.b, err)
	return h
}

// addPods makes veth pairs; their other ends are beside them.
func (w *world) addPods(count int) (names []string) {
	for n := range count {
		link := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: fmt.Sprintf("pod%d", n)}
		link.Name = fmt.Sprintf("cali%d", n)
		must(w.b, w.handle.LinkAdd(link))
		must(w.b, w.handle.LinkSetUp(link))
		names = append(names, link.Name)
	}
	return names
}

func (w *world) newSyncer() *qos.Syncer {
	return qos.New(qos.Config{Kernel: w.handle, Reaper: w.reaper, Sysctls: procSys{}, Enabled: true})
}

func must(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// BenchmarkApply programs both directions' limits on 250 and on 1,000 pods, and
// reports the cost of one and how it grows: in time, of which the best of some runs
// is taken, and in processor time, which a busy machine does not add to.
func BenchmarkApply(b *testing.B) {
	const runs = 3
	best := map[int]cost{250: {time.Hour, time.Hour}, 1000: {time.Hour, time.Hour}}
	for range b.N {
		for range runs {
			for pods, least := range best {
				c := applyCost(b, pods)
				best[pods] = cost{min(least.wall, c.wall), min(least.cpu, c.cpu)}
			}
		}
	}
	few, many := best[250], best[1000]
	b.ReportMetric(millis(few.wall), "ms/pod@250")
	b.ReportMetric(millis(many.wall), "ms/pod@1000")
	b.ReportMetric(float64(many.wall)/float64(few.wall), "growth")
	b.ReportMetric(millis(few.cpu), "cpu-ms/pod@250")
	b.ReportMetric(millis(many.cpu), "cpu-ms/pod@1000")
	b.ReportMetric(float64(many.cpu)/float64(few.cpu), "cpu-growth")
}

type cost struct{ wall, cpu time.Duration }

// applyCost returns the cost of each of that many new pods.
func applyCost(b *testing.B, pods int) cost {
	w := newWorld(b)
	names := w.addPods(pods)
	s := w.newSyncer()
	for _, name := range names {
		s.SetLimits(name, qos.Limits{Ingress: mbit(10), Egress: mbit(10)})
	}
	var c cost
	must(b, w.ns.Do(func() error { // for the sysctls
		start, cpu := time.Now(), processorTime(b)
		err := s.Apply()
		each := time.Duration(pods)
		c = cost{wall: time.Since(start) / each, cpu: (processorTime(b) - cpu) / each}
		return err
	}))
	w.close()
	return c
}

// procSys writes the sysctls of the namespace that its caller's thread is in.
type procSys struct{}

func (procSys) WriteSysctl(path, value string) error {
	return os.WriteFile("/proc/sys/"+path, []byte(value), 0)
}

func processorTime(b *testing.B) time.Duration {
	var usage unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// BenchmarkRecheck re-reads and compares 1,000 unchanged pods, beside asking the
// kernel for each interface's qdiscs.
func BenchmarkRecheck(b *testing.B) {
	w := newWorld(b)
	names := w.addPods(1000)
	s := w.newSyncer()
	for _, name := range names {
		s.SetLimits(name, qos.Limits{Ingress: mbit(10), Egress: &qos.Limit{RateBits: 1e7, BurstBits: 1e6, PeakRateBits: 2e7}})
	}
	must(b, s.Apply())
	var bulk, naive time.Duration
	for range b.N {
		start := time.Now()
		s.QueueResync()
		must(b, s.Apply())
		bulk += time.Since(start)

		start = time.Now()
		for _, name := range names {
			for _, name := range []string{name, qos.IFBName(name)} {
				link, err := w.handle.LinkByName(name)
				must(b, err)
				qdiscs, err := w.handle.QdiscList()
				must(b, err)
				if len(qdiscs) < 2*len(names) {
					b.Fatal("short dump")
				}
				_ = link
			}
		}
		naive += time.Since(start)
	}
	b.ReportMetric(millis(bulk)/float64(b.N), "ms-bulk")
	b.ReportMetric(millis(naive)/float64(b.N), "ms-per-interface")
	b.ReportMetric(float64(naive)/float64(bulk), "times-less")
}

// BenchmarkSweep deletes 1,558 orphans with TBF, while an endpoint arrives, beside
// deleting a sample of them one by one.
func BenchmarkSweep(b *testing.B) {
	const orphans, sample = 1558, 100
	var batched, single, served time.Duration
	for range b.N {
		w := newWorld(b)
		addOrphans := func(count int) (links []netlink.Link) {
			for n := range count {
				link := &netlink.Ifb{LinkAttrs: netlink.NewLinkAttrs()}
				link.Name = fmt.Sprintf("bwcali%09x", n)
				must(b, w.handle.LinkAdd(link))
				must(b, w.handle.LinkSetUp(link))
				must(b, w.handle.QdiscReplace(&netlink.Tbf{
					QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Index, Parent: netlink.HANDLE_ROOT, Handle: 0xca110000},
					Rate:       1e6, Limit: 1 << 20, Buffer: 1_562_500,
				}))
				links = append(links, link)
			}
			return links
		}
		addOrphans(orphans)
		s := w.newSyncer()
		start := time.Now()
		must(b, s.Apply())
		arrived := time.Now()
		name := w.addPods(1)[0]
		s.SetLimits(name, qos.Limits{Ingress: mbit(10), Egress: mbit(10)})
		must(b, s.Apply())
		served += time.Since(arrived)
		for w.reaper.Pending() > 0 {
			time.Sleep(time.Millisecond)
		}
		batched += time.Since(start)

		links := addOrphans(sample)
		start = time.Now()
		for _, link := range links {
			must(b, w.handle.LinkDel(link))
		}
		single += time.Since(start) * orphans / sample
	}
	b.ReportMetric(millis(batched)/float64(b.N), "ms-batched")
	b.ReportMetric(millis(single)/float64(b.N), "ms-one-by-one")
	b.ReportMetric(float64(single)/float64(batched), "times-faster")
	b.ReportMetric(millis(served)/float64(b.N), "ms-until-new-pod-served")
}
