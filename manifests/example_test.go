package manifests_test

import (
	"context"
	"fmt"

	"github.com/manx-dataplane/manx/dataplane"
	"github.com/manx-dataplane/manx/manifests"
)

// A directory of manifests as a stream of messages.
func ExampleSource_Run() {
	source := manifests.NewSource(manifests.Options{Dir: "../examples/endpoints", InterfacePrefixes: []string{"cali"}})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	err := source.Run(ctx, func(_ context.Context, message any) error {
		switch m := message.(type) {
		case dataplane.WorkloadEndpointUpdate:
			fmt.Println(m.ID, m.Endpoint.InterfaceName, m.Endpoint.IPv4Nets, m.Endpoint.IPv6Nets)
		case dataplane.InSync:
			fmt.Println("in sync")
			cancel() // this one has seen enough
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// k8s default/ifb-repro eth0 cali0027f0645a2 [10.65.0.2/32] []
	// k8s shop/web-0 eth0 calia4fc3c48bd8 [10.65.0.3/32] [2001:db8::3/128]
	// in sync
	// <nil>
}
