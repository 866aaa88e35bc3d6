package routetable_test

import (
	"fmt"
	"log"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/mocks"
	"github.com/manx-dataplane/manx/routetable"
	"github.com/manx-dataplane/manx/rtnl"
)

// A route is wanted before its interface exists, and follows the interface. In
// production Open returns rtnl.Open(rtnl.Options{}).
func Example() {
	kernel := mocks.NewKernel()
	table := routetable.New(routetable.Config{
		Open: func() (routetable.Kernel, error) { return kernel.NewHandle(), nil },
		Ownership: routetable.WorkloadPolicy{
			WorkloadPrefixes: []string{"cali"}, Protocols: []int{routetable.DefaultProtocol}, RemoveExternalRoutes: true,
		},
	})
	defer table.Close()
	table.SetRoutes(routetable.RouteClassLocalWorkload, "cali1", []routetable.Target{{
		Type: routetable.TargetTypeLinkLocalUnicast, CIDR: netip.MustParsePrefix("10.65.0.1/32"),
	}})
	apply := func() {
		if err := table.Apply(); err != nil {
			log.Fatal(err)
		}
		filter := rtnl.RouteFilter{Family: unix.AF_INET, Table: unix.RT_TABLE_MAIN}
		routes := 0
		_ = kernel.Outside().RouteEach(filter, func(r *netlink.Route) error {
			fmt.Printf("%s through ifindex %d\n", r.Dst, r.LinkIndex)
			routes++
			return nil
		})
		if routes == 0 {
			fmt.Println("no routes")
		}
	}
	apply()

	if _, err := kernel.AddPod("cali1"); err != nil {
		log.Fatal(err)
	}
	link, _ := kernel.Outside().LinkByName("cali1")
	table.OnIfaceStateChanged("cali1", link.Attrs().Index, ifacemonitor.StateUp)
	apply()

	// Output:
	// no routes
	// 10.65.0.1/32 through ifindex 2
}
