package sweep_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/manx-dataplane/manx/internal/nodetest"
	"github.com/manx-dataplane/manx/internal/sweep"
	"github.com/manx-dataplane/manx/mocks"
	"github.com/manx-dataplane/manx/qos"
)

// agentModel is an agent that leaks, in steps as small as its kernel calls. It makes
// them between the sweep's own calls.
type agentModel struct {
	mu     sync.Mutex
	kernel *mocks.Handle
	pods   []*podModel
	steps  []byte // what to do next; no more of it, no more steps
	wrong  error
}

type podModel struct {
	veth  string
	alive bool
	held  int // the IFB that the agent has found or made for it; 0 before
	wired int // how many of the steps of wiring are done
}

// step takes up to three steps.
func (a *agentModel) step() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for range 3 {
		if len(a.steps) == 0 || a.wrong != nil {
			return
		}
		choice := a.steps[0]
		a.steps = a.steps[1:]
		if choice < 64 { // the sweep gets ahead
			return
		}
		if err := a.act(a.pods[int(choice)%len(a.pods)], choice); err != nil {
			a.wrong = err
			return
		}
		for _, pod := range a.pods {
			if pod.held == 0 {
				continue
			}
			if _, err := a.kernel.LinkByIndex(pod.held); err != nil {
				a.wrong = fmt.Errorf("the device %d that the agent uses for %s is gone: %w", pod.held, pod.veth, err)
				return
			}
		}
	}
}

func (a *agentModel) act(pod *podModel, choice byte) error {
	name := nodetest.IFBName(pod.veth)
	switch {
	case !pod.alive:
		pod.alive = true
		return a.kernel.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: pod.veth}, PeerName: nodetest.Peer(pod.veth)})
	case choice >= 240:
		return a.end(pod, choice)
	case pod.held == 0:
		link, err := a.kernel.LinkByName(name)
		if err == nil {
			pod.held = link.Attrs().Index
			return nil
		}
		ifb := &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: name}}
		err = a.kernel.LinkAdd(ifb)
		pod.held = ifb.Index
		return err
	case pod.wired < 3:
		pod.wired++
		return a.wire(pod)
	}
	return nil
}

func (a *agentModel) wire(pod *podModel) error {
	host, err := a.kernel.LinkByName(pod.veth)
	if err != nil {
		return err
	}
	index := host.Attrs().Index
	switch pod.wired {
	case 1:
		return a.kernel.LinkSetUp(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Index: pod.held}})
	case 2:
		return a.kernel.QdiscAdd(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: index, Parent: netlink.HANDLE_INGRESS, Handle: netlink.MakeHandle(0xffff, 0),
		}})
	}
	return a.kernel.FilterAdd(nodetest.RedirectFilter(index, netlink.MakeHandle(0xffff, 0), pod.held))
}

// end removes a pod; its device leaks, or goes too.
func (a *agentModel) end(pod *podModel, choice byte) error {
	link, err := a.kernel.LinkByName(pod.veth)
	if err != nil {
		return err
	}
	if err := a.kernel.LinkDel(link); err != nil {
		return err
	}
	held := pod.held
	*pod = podModel{veth: pod.veth}
	if held == 0 || choice%4 > 0 {
		return nil
	}
	err = a.kernel.LinkDel(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Index: held}})
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// TestNoInterleavingDeletesWhatAnAgentUses: whatever an agent does between any two
// kernel calls of the sweep, the device that it found or made for an existing
// interface stays; and once the agent's workloads are gone, so are all devices.
func TestNoInterleavingDeletesWhatAnAgentUses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kernel := mocks.NewKernel()
		agent := &agentModel{kernel: kernel.Outside(), steps: rapid.SliceOfN(rapid.Byte(), 20, 300).Draw(t, "steps")}
		for _, veth := range []string{"cali1", "cali2", "cali3"} {
			agent.pods = append(agent.pods, &podModel{veth: veth})
			if rapid.Bool().Draw(t, "leftover of "+veth) {
				if err := agent.kernel.LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: nodetest.IFBName(veth)}}); err != nil {
					t.Fatal(err)
				}
			}
		}
		kernel.OnCall(func(mocks.Call) error {
			agent.step()
			return nil
		})
		handle := kernel.NewHandle()
		sweeper, err := sweep.New(sweep.Config{
			Kernel: handle, OpenReaper: func() (qos.ReaperKernel, error) { return kernel.NewHandle(), nil }, Grace: time.Nanosecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		run := func() {
			if _, err := sweeper.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			if agent.wrong != nil {
				t.Fatal(agent.wrong)
			}
		}
		run()
		run()
		agent.steps = nil
		for _, pod := range agent.pods {
			if pod.alive {
				if err := agent.end(pod, 1); err != nil {
					t.Fatal(err)
				}
			}
		}
		run()
		links, err := handle.LinkList()
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range links {
			if strings.HasPrefix(link.Attrs().Name, sweep.DefaultPrefix) {
				t.Fatalf("%s is left", link.Attrs().Name)
			}
		}
	})
}
