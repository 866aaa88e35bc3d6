package qos_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/mocks"
	"github.com/manx-dataplane/manx/qos"
)

// A driver claims a pod's interface with the limits of its annotations, and the
// kernel follows. (Here an in-memory one; a real driver opens rtnl.Handles.)
func Example() {
	kernel := mocks.NewKernel()
	if _, err := kernel.AddPod("cali0027f0645a2"); err != nil {
		panic(err)
	}

	wake := make(chan struct{}, 1)
	reaper := qos.NewReaper(qos.ReaperConfig{
		Open: func() (qos.ReaperKernel, error) { return kernel.NewHandle(), nil },
	})
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = reaper.Run(ctx) })

	syncer := qos.New(qos.Config{
		Kernel:  kernel.NewHandle(),
		Reaper:  reaper,
		Enabled: true,
		Wake: func() {
			select {
			case wake <- struct{}{}:
			default:
			}
		},
	})

	limits, err := qos.ParseLimits(map[string]string{
		"kubernetes.io/egress-bandwidth":       "30M",
		"qos.projectcalico.org/ingressBurst":   "1M",
		"qos.projectcalico.org/egressPeakrate": "20M",
	}, nil, qos.ParseOptions{KubernetesAnnotations: true})
	fmt.Println(err)

	// Once the datastore and the interface monitor are in sync:
	syncer.SetLimits("cali0027f0645a2", limits)
	syncer.OnIfaceStateChanged("cali0027f0645a2", 2, ifacemonitor.StateUp)
	if err := syncer.Apply(); err != nil {
		panic(err)
	}
	snapshot, err := qos.Observe(kernel.Outside())
	if err != nil {
		panic(err)
	}
	ifb := snapshot.ByName(qos.IFBName("cali0027f0645a2"))
	fmt.Println(ifb.Name, snapshot.ByName("cali0027f0645a2").RedirectsTo(ifb.Index))

	stop()
	running.Wait()
	// Output:
	// qos.projectcalico.org/ingressBurst: "1M" is not accepted: it needs a bandwidth in the same direction
	// qos.projectcalico.org/egressPeakrate: "20M" is not accepted: it must be above the bandwidth, 30000000 bits per second
	// bwcali6514ff3bb true
}
