package dataplane_test

import (
	"context"
	"fmt"
	"time"

	"github.com/manx-dataplane/manx/dataplane"
	"github.com/manx-dataplane/manx/ifacemonitor"
)

// podPrinter is a Manager as an embedder may write one.
type podPrinter struct {
	pending []string
	done    func()
}

func (p *podPrinter) OnUpdate(msg any) {
	switch msg := msg.(type) {
	case dataplane.WorkloadEndpointUpdate:
		p.pending = append(p.pending, "endpoint "+msg.ID.Workload)
	case dataplane.IfaceStateUpdate:
		p.pending = append(p.pending, fmt.Sprintf("interface %s is %s", msg.Name, msg.State))
	}
}

func (p *podPrinter) CompleteDeferredWork() error {
	for _, line := range p.pending {
		fmt.Println(line)
	}
	p.pending = nil
	p.done()
	return nil
}

// An embedder's main function: managers and syncers are registered, an interface
// monitor and a datastore client feed the driver, and Run keeps the kernel right
// until ctx is done.
func ExampleDriver() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	driver := dataplane.NewDriver(dataplane.Config{
		RouteRefreshInterval: 90 * time.Second,
		QoSRefreshInterval:   90 * time.Second,
	})
	driver.RegisterManager(&podPrinter{done: cancel}) // endpointmgr.New(...)
	// driver.RegisterSyncer("qos", qos.New(...)), with Wake: driver.Wake

	go func() { // ifacemonitor.New(...), with these as its callbacks
		driver.OnIfaceState("cali0027f0645a2", ifacemonitor.StateUp, 204)
		driver.OnIfaceInSync()
		// The datastore's client.
		_ = driver.Send(ctx, dataplane.WorkloadEndpointUpdate{
			ID:       dataplane.WorkloadEndpointID{Orchestrator: "k8s", Workload: "default/nginx", Endpoint: "eth0"},
			Endpoint: &dataplane.WorkloadEndpoint{InterfaceName: "cali0027f0645a2"},
		})
		_ = driver.Send(ctx, dataplane.InSync{})
	}()
	if err := driver.Run(ctx); err != nil {
		fmt.Println(err)
	}
	// Output:
	// interface cali0027f0645a2 is up
	// endpoint default/nginx
}
