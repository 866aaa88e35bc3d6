package ifacemonitor_test

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/mocks"
)

// A pod's veth exists when the agent starts, and is deleted and re-created under
// the same name later. With rtnl.OpenEvents in place of the in-memory kernel the
// same program follows the real one.
func Example() {
	kernel := mocks.NewKernel()
	pod, err := kernel.AddPod("cali0027f0645a2")
	if err != nil {
		panic(err)
	}

	ctx, stop := context.WithCancel(context.Background())
	inSync, again := make(chan struct{}), false
	monitor := ifacemonitor.New(ifacemonitor.Config{
		Open: func() (ifacemonitor.EventSocket, error) { return kernel.NewEventSocket(mocks.EventOptions{}) },
		StateCallback: func(name string, state ifacemonitor.State, ifindex int) {
			if name == "lo" {
				return
			}
			fmt.Printf("%s %d: state %q\n", name, ifindex, state)
			if again && state == ifacemonitor.StateUp {
				stop()
			}
			again = again || state == ifacemonitor.StateNotPresent
		},
		AddrCallback: func(name string, addrs []netip.Addr) {
			if name != "lo" && addrs == nil {
				fmt.Println(name, "has no addresses any more")
			}
		},
		InSyncCallback: func() {
			fmt.Println("in sync")
			close(inSync)
		},
	})
	done := make(chan error)
	go func() { done <- monitor.Run(ctx) }()

	<-inSync
	pod.Destroy()
	if _, err := kernel.AddPod("cali0027f0645a2"); err != nil {
		panic(err)
	}
	fmt.Println(<-done)
	// Output:
	// cali0027f0645a2 2: state "up"
	// in sync
	// cali0027f0645a2 2: state "down"
	// cali0027f0645a2 2: state ""
	// cali0027f0645a2 has no addresses any more
	// cali0027f0645a2 3: state "down"
	// cali0027f0645a2 3: state "up"
	// <nil>
}
