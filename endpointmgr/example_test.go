package endpointmgr_test

import (
	"fmt"
	"net/netip"

	"github.com/manx-dataplane/manx/dataplane"
	"github.com/manx-dataplane/manx/endpointmgr"
	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/qos"
	"github.com/manx-dataplane/manx/routetable"
)

// printer stands in for a route table, the shapers, /proc/sys and a CNI plugin.
type printer struct{}

func (printer) SetRoutes(_ routetable.RouteClass, iface string, targets []routetable.Target) {
	for _, t := range targets {
		fmt.Println("route", t.CIDR, "dev", iface)
	}
}
func (printer) SetLimits(iface string, l qos.Limits) {
	fmt.Println("limit", iface, "egress", l.Egress.RateBits, "bit/s")
}
func (printer) RemoveLimits(string)                  {}
func (printer) WriteSysctl(path, value string) error { fmt.Println("sysctl", path, value); return nil }
func (printer) OnAllReported() error                 { return nil }
func (printer) OnStatus(id dataplane.WorkloadEndpointID, _ *dataplane.WorkloadEndpoint, s endpointmgr.Status) error {
	fmt.Println("status", id, s)
	return nil
}

// What a driver does for one endpoint: tell the manager what there is, let it
// work, apply the syncers (here there are none), and let it report.
func Example() {
	manager := endpointmgr.New(endpointmgr.Config{
		RoutesV4: printer{}, QoS: printer{}, Sysctls: printer{}, Status: printer{},
		KubernetesAnnotations: true,
	})
	manager.OnUpdate(dataplane.IfaceStateUpdate{Name: "cali0027f0645a2", Index: 204, State: ifacemonitor.StateUp})
	manager.OnUpdate(dataplane.WorkloadEndpointUpdate{
		ID: dataplane.WorkloadEndpointID{Orchestrator: "k8s", Workload: "default/ifb-repro", Endpoint: "eth0"},
		Endpoint: &dataplane.WorkloadEndpoint{
			State:         dataplane.EndpointActive,
			InterfaceName: "cali0027f0645a2",
			IPv4Nets:      []netip.Prefix{netip.MustParsePrefix("10.65.0.2/32")},
			Annotations:   map[string]string{"kubernetes.io/egress-bandwidth": "30M"},
		},
	})
	if err := manager.CompleteDeferredWork(); err != nil {
		fmt.Println(err)
	}
	if err := manager.OnApplied(nil); err != nil {
		fmt.Println(err)
	}
	// Output:
	// route 10.65.0.2/32 dev cali0027f0645a2
	// limit cali0027f0645a2 egress 30000000 bit/s
	// sysctl net/ipv4/conf/cali0027f0645a2/rp_filter 1
	// sysctl net/ipv4/conf/cali0027f0645a2/proxy_arp 1
	// sysctl net/ipv4/neigh/cali0027f0645a2/proxy_delay 0
	// sysctl net/ipv4/conf/cali0027f0645a2/forwarding 1
	// status k8s default/ifb-repro eth0 up
}
