package ifacemonitor_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/rtnl"
)

// BenchmarkFirstSync measures how long a monitor takes to report all interfaces
// that exist, on a real kernel. "per-interface" is what one writes first: list
// the links, then ask for each one's local routes, IPv4 and IPv6; the kernel
// walks the whole table every time.
func BenchmarkFirstSync(b *testing.B) {
	for _, n := range []int{500, 1000, 2000} {
		ns := populated(b, n)
		b.Run(fmt.Sprintf("monitor/%d", n), func(b *testing.B) { benchmarkMonitor(b, ns, n) })
		b.Run(fmt.Sprintf("per-interface/%d", n), func(b *testing.B) { benchmarkPerInterface(b, ns, n) })
	}
}

// countingSocket counts dumps.
type countingSocket struct {
	*rtnl.EventSocket
	dumps *int
}

func (s countingSocket) RequestDump(what rtnl.Dump) (uint32, error) {
	*s.dumps++
	return s.EventSocket.RequestDump(what)
}

func benchmarkMonitor(b *testing.B, ns *rtnl.Namespace, n int) {
	b.ReportAllocs()
	dumps := 0
	for b.Loop() {
		reported := 0
		ctx, cancel := context.WithCancel(context.Background())
		err := ifacemonitor.New(ifacemonitor.Config{
			Open: func() (ifacemonitor.EventSocket, error) {
				socket, err := rtnl.OpenEvents(rtnl.EventOptions{Options: rtnl.Options{Namespace: ns}})
				return countingSocket{socket, &dumps}, err
			},
			AddrCallback: func(string, []netip.Addr) { reported++ },
			InSyncCallback: func() {
				if reported != n+1 { // loopback
					b.Errorf("%d interfaces reported, want %d", reported, n+1)
				}
				cancel()
			},
		}).Run(ctx)
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(dumps)/float64(b.N), "dumps/op")
}

func benchmarkPerInterface(b *testing.B, ns *rtnl.Namespace, n int) {
	handle, err := rtnl.Open(rtnl.Options{Namespace: ns})
	if err != nil {
		b.Fatal(err)
	}
	defer handle.Close()
	b.ReportAllocs()
	dumps := 0
	for b.Loop() {
		links, err := handle.LinkList()
		if err != nil || len(links) != n+1 {
			b.Fatalf("%d links, %v", len(links), err)
		}
		dumps++
		for _, link := range links {
			var addrs []netip.Addr
			for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
				filter := rtnl.RouteFilter{Family: family, Table: unix.RT_TABLE_LOCAL, IfIndex: link.Attrs().Index}
				err := handle.RouteEach(filter, func(route *netlink.Route) error {
					if addr, ok := netip.AddrFromSlice(route.Dst.IP); ok && route.Type == unix.RTN_LOCAL {
						addrs = append(addrs, addr)
					}
					return nil
				})
				if err != nil {
					b.Fatal(err)
				}
				dumps++
			}
		}
	}
	b.ReportMetric(float64(dumps)/float64(b.N), "dumps/op")
}

// populated returns a namespace with n veth interfaces, half of them with an
// IPv4 address.
func populated(b *testing.B, n int) *rtnl.Namespace {
	b.Helper()
	if os.Geteuid() != 0 {
		b.Skip("needs root, to make a network namespace")
	}
	ns, err := rtnl.NewNamespace()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { ns.Close() })
	var batch strings.Builder
	for i := range n / 2 {
		fmt.Fprintf(&batch, "link add cali%d type veth peer name peer%d\n", i, i)
		fmt.Fprintf(&batch, "link set cali%d up addrgenmode none\n", i)
		fmt.Fprintf(&batch, "addr add 10.%d.%d.1/32 dev cali%d\n", i>>8, i&255, i)
	}
	err = ns.Do(func() error {
		command := exec.Command("ip", "-batch", "-")
		command.Stdin = strings.NewReader(batch.String())
		return command.Run()
	})
	if err != nil {
		b.Fatal(err)
	}
	return ns
}
