package mocks

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/rtnl"
)

// Op names an operation, in the words of [rtnl.OpError].
type Op string

// The operations.
const (
	OpLinkList         Op = "list links"
	OpLinkGet          Op = "get link"
	OpLinkAdd          Op = "add link"
	OpLinkDel          Op = "delete link"
	OpLinkSetUp        Op = "set up link"
	OpLinkSetDown      Op = "set down link"
	OpLinkSetMTU       Op = "set MTU of link"
	OpLinkSetName      Op = "rename link"
	OpLinkSetNamespace Op = "move link"
	OpLinkSetGroup     Op = "set group of link"
	OpLinkDelGroup     Op = "delete links of"
	OpQdiscList        Op = "list qdiscs"
	OpQdiscAdd         Op = "add qdisc"
	OpQdiscReplace     Op = "replace qdisc"
	OpQdiscChange      Op = "change qdisc"
	OpQdiscDel         Op = "delete qdisc"
	OpFilterList       Op = "list filters"
	OpFilterAdd        Op = "add filter"
	OpFilterReplace    Op = "replace filter"
	OpFilterDel        Op = "delete filter"
	OpRouteList        Op = "list routes"
	OpRouteBatch       Op = "change routes"
	OpRouteSet         Op = "set route"
	OpRouteDel         Op = "delete route"
	OpNeighList        Op = "list neighbours"
	OpNeighSet         Op = "set neighbour"
	OpNeighDel         Op = "delete neighbour"
	OpConntrackDelete  Op = "delete conntrack flows"
	OpNamespaceID      Op = "get ID of network namespace"
	OpOpenEvents       Op = "open event socket"
	OpRequestDump      Op = "request dump of"
	OpWriteSysctl      Op = "write sysctl"
)

// Write reports whether the operation changes kernel state. OpRouteBatch itself does
// not: its routes do, each of which is an operation.
func (op Op) Write() bool {
	switch op {
	case OpLinkList, OpLinkGet, OpQdiscList, OpFilterList, OpRouteList, OpNeighList, OpRouteBatch, OpNamespaceID, OpOpenEvents, OpRequestDump:
		return false
	}
	return true
}

// Call is one operation that an agent asks for.
type Call struct {
	// Op is what is asked for.
	Op Op
	// N counts the agent's calls to this Kernel, from 1.
	N int
	// Index and Name are the interface that it is about, as far as the caller named
	// them: an agent that deletes by index may leave Name empty. For routes and
	// neighbours Name is the destination, for sysctls the path.
	Index int
	Name  string
	// Kind is that of the link to add, of the qdisc or of the filter.
	Kind string
	// Detail tells more, such as a qdisc's kind and handle or a link group's number.
	Detail string
}

// String says the call in words, such as "add qdisc tbf ca11:0 (ifindex 7)".
func (c Call) String() string {
	object := c.object()
	if object == "" {
		return string(c.Op)
	}
	return string(c.Op) + " " + object
}

func (c Call) object() string {
	name := c.Name
	if c.Detail != "" && name != "" {
		name = c.Detail + " " + name
	} else if c.Detail != "" {
		name = c.Detail
	}
	switch {
	case c.Index == 0:
		return name
	case name == "":
		return fmt.Sprintf("ifindex %d", c.Index)
	}
	return fmt.Sprintf("%s (ifindex %d)", name, c.Index)
}

func (c Call) wrap(err error) error {
	if err == nil {
		return nil
	}
	return &rtnl.OpError{Op: string(c.Op), Object: c.object(), Err: err}
}

// OnCall sets the hook that is asked before every operation of the agent. An error
// that it returns becomes the operation's, which then has no effect; a plain errno
// is best, it gets wrapped as the kernel seam wraps it. nil removes the hook.
//
// The hook runs on the calling goroutine, outside the Kernel's lock: it may change
// the world through Outside, to make things happen between two calls of the agent,
// and it may block, see Hang. Within a RouteBatch it is called once for the batch
// (OpRouteBatch) and once for each route (OpRouteSet, OpRouteDel).
func (k *Kernel) OnCall(hook func(Call) error) {
	k.lock()
	defer k.unlock()
	k.faults.before = hook
}

// AfterCall sets the hook that is asked after every operation of the agent, with
// the outcome that the operation had; what it returns is what the agent is told.
// It makes requests that took effect seem to fail, as they do when the answer is
// lost. It runs as OnCall's does.
func (k *Kernel) AfterCall(hook func(Call, error) error) {
	k.lock()
	defer k.unlock()
	k.faults.after = hook
}

// HangPoint says where a call hangs.
type HangPoint int

const (
	// BeforeEffect hangs a call that has not yet changed anything, like one that waits
	// for the RTNL lock.
	BeforeEffect HangPoint = iota
	// AfterEffect hangs a call whose effect all others see already, like
	// "unregister_netdevice: waiting for X to become free": the device is off every
	// list, but its delete does not return.
	AfterEffect
)

// Hang makes every agent's call that match returns true for block at that point
// until release is called, and then go on. Each Hang is independent of the others
// and of the hooks. release may be called more than once; a test must call it in
// the end, or leave goroutines behind.
func (k *Kernel) Hang(at HangPoint, match func(Call) bool) (release func()) {
	k.lock()
	defer k.unlock()
	h := &hang{at: at, match: match, released: make(chan struct{})}
	k.faults.hangs = append(k.faults.hangs, h)
	return func() {
		k.lock()
		defer k.unlock()
		select {
		case <-h.released:
		default:
			close(h.released)
		}
		for i, other := range k.faults.hangs {
			if other == h {
				k.faults.hangs = append(k.faults.hangs[:i:i], k.faults.hangs[i+1:]...)
				return
			}
		}
	}
}

// Hung returns how many calls hang now.
func (k *Kernel) Hung() int {
	k.lock()
	defer k.unlock()
	return k.faults.hung
}

// Count returns how many calls of that operation agents have made, whatever came
// of them.
func (k *Kernel) Count(op Op) int {
	k.lock()
	defer k.unlock()
	return k.faults.counts[op]
}

// Calls returns how many calls of any kind agents have made.
func (k *Kernel) Calls() int {
	k.lock()
	defer k.unlock()
	return k.faults.calls
}

// Writes returns every change that agents have asked for, in order, since the last
// ResetWrites, whatever came of it.
func (k *Kernel) Writes() []Call {
	k.lock()
	defer k.unlock()
	return append([]Call(nil), k.faults.writes...)
}

// ResetWrites forgets the writes so far; counts stay.
func (k *Kernel) ResetWrites() {
	k.lock()
	defer k.unlock()
	k.faults.writes = nil
}

// faults holds the hooks and the record of calls.
type faults struct {
	before func(Call) error
	after  func(Call, error) error
	hangs  []*hang
	hung   int
	counts map[Op]int
	calls  int
	writes []Call
}

type hang struct {
	at       HangPoint
	match    func(Call) bool
	released chan struct{}
}

// call makes an operation: hooks, effect under the lock, hooks, wrapped error.
func (k *Kernel) call(outside bool, call Call, effect func() error) error {
	if outside {
		k.lock()
		defer k.unlock()
		return call.wrap(effect())
	}
	if err := k.announce(&call); err != nil {
		return call.wrap(err)
	}
	k.lock()
	err := effect()
	k.unlock()
	return call.wrap(k.outcome(call, err))
}

// announce records a call and runs what comes before its effect.
func (k *Kernel) announce(call *Call) error {
	k.lock()
	f := &k.faults
	f.calls++
	f.counts[call.Op]++
	call.N = f.calls
	if call.Op.Write() {
		f.writes = append(f.writes, *call)
	}
	before := f.before
	k.unlock()
	if before != nil {
		if err := before(*call); err != nil {
			return err
		}
	}
	k.block(BeforeEffect, *call)
	return nil
}

// outcome runs what comes after a call's effect.
func (k *Kernel) outcome(call Call, err error) error {
	k.block(AfterEffect, call)
	k.lock()
	after := k.faults.after
	k.unlock()
	if after != nil {
		return after(call, err)
	}
	return err
}

func (k *Kernel) block(at HangPoint, call Call) {
	k.lock()
	hangs := k.faults.hangs
	k.unlock()
	for _, h := range hangs {
		if h.at != at || !h.match(call) {
			continue
		}
		k.lock()
		k.faults.hung++
		k.unlock()
		<-h.released
		k.lock()
		k.faults.hung--
		k.unlock()
	}
}

// errClosed is what a closed file descriptor answers.
const errClosed = unix.EBADF
