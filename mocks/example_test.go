package mocks_test

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/mocks"
	"github.com/manx-dataplane/manx/rtnl"
)

// A pod is created and removed while an agent listens, and the agent's first
// attempt to make a device fails.
func Example() {
	k := mocks.NewKernel()
	events, err := k.NewEventSocket(mocks.EventOptions{})
	if err != nil {
		panic(err)
	}
	defer events.Close()

	pod, err := k.AddPod("cali0027f0645a2")
	if err != nil {
		panic(err)
	}

	k.OnCall(func(c mocks.Call) error {
		if c.Op == mocks.OpLinkAdd && k.Count(mocks.OpLinkAdd) == 1 {
			return unix.ENOMEM
		}
		return nil
	})
	agent := k.NewHandle()
	defer agent.Close()
	ifb := &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "bwcali6514ff3bb"}}
	err = agent.LinkAdd(ifb)
	fmt.Println(err, errors.Is(err, unix.ENOMEM))
	fmt.Println(agent.LinkAdd(ifb))

	pod.Destroy()

	messages, err := events.Drain()
	if err != nil {
		panic(err)
	}
	for _, m := range messages {
		switch m.Type {
		case rtnl.MessageNewLink:
			fmt.Println("new", m.Index, m.Name, "up:", m.Flags&unix.IFF_UP != 0)
		case rtnl.MessageDelLink:
			fmt.Println("del", m.Index, m.Name)
		}
	}
	// Output:
	// add link bwcali6514ff3bb: cannot allocate memory true
	// <nil>
	// new 2 cali0027f0645a2 up: false
	// new 2 cali0027f0645a2 up: true
	// new 2 cali0027f0645a2 up: true
	// new 3 bwcali6514ff3bb up: false
	// new 2 cali0027f0645a2 up: false
	// del 2 cali0027f0645a2
}
