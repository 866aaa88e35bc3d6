package agent_test

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/manx-dataplane/manx/agent"
	"github.com/manx-dataplane/manx/config"
	"github.com/manx-dataplane/manx/dataplane"
	"github.com/manx-dataplane/manx/mocks"
)

// A Dataplane takes its endpoints from whoever sends them. Here the kernel is the
// in-memory one; on a node it is agent.LinuxKernel{}.
func ExampleNewDataplane() {
	node := mocks.NewKernel()
	if _, err := node.AddPod("cali0027f0645a2"); err != nil {
		panic(err)
	}
	cfg := config.Defaults()
	cfg.EndpointStatusPathPrefix = "" // no status files

	plane, err := agent.NewDataplane(agent.DataplaneOptions{Config: cfg, Kernel: kernel{Kernel: node}})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- plane.Run(ctx) }()

	_ = plane.Send(ctx, dataplane.WorkloadEndpointUpdate{
		ID: dataplane.WorkloadEndpointID{Orchestrator: "k8s", Workload: "default/ifb-repro", Endpoint: "eth0"},
		Endpoint: &dataplane.WorkloadEndpoint{
			State:         dataplane.EndpointActive,
			InterfaceName: "cali0027f0645a2",
			IPv4Nets:      []netip.Prefix{netip.MustParsePrefix("10.65.0.2/32")},
			Annotations:   map[string]string{"kubernetes.io/egress-bandwidth": "30M"},
		},
	})
	_ = plane.Send(ctx, dataplane.InSync{}) // from here on what is not wanted may be removed

	for !plane.Health().Ready {
		time.Sleep(time.Millisecond)
	}
	link, err := node.Outside().LinkByName("bwcali6514ff3bb")
	fmt.Println(link.Type(), link.Attrs().Name, err)
	cancel()
	fmt.Println(<-stopped)
	// Output:
	// ifb bwcali6514ff3bb <nil>
	// <nil>
}
