package mocks

import (
	"net/netip"
	"os"
)

// Conntrack deletes connection-tracking entries; it has the methods of
// [rtnl.Conntrack].
type Conntrack struct {
	k      *Kernel
	closed bool
}

// NewConntrack opens a Conntrack for an agent.
func (k *Kernel) NewConntrack() *Conntrack {
	k.lock()
	defer k.unlock()
	k.handles++
	return &Conntrack{k: k}
}

// ConntrackDelete deletes the flows of an address; that there are none is no error.
func (c *Conntrack) ConntrackDelete(addr netip.Addr) error {
	return c.k.call(false, Call{Op: OpConntrackDelete, Name: addr.String()}, func() error {
		if c.closed {
			return os.ErrClosed
		}
		delete(c.k.flows, addr)
		return nil
	})
}

// ConntrackDelete is that of a Conntrack, for tests that have one handle for all.
func (h *Handle) ConntrackDelete(addr netip.Addr) error {
	return h.call(Call{Op: OpConntrackDelete, Name: addr.String()}, func() error {
		delete(h.k.flows, addr)
		return nil
	})
}

// Close closes it. A second Close does nothing.
func (c *Conntrack) Close() error {
	c.k.lock()
	defer c.k.unlock()
	if !c.closed {
		c.k.handles--
	}
	c.closed = true
	return nil
}

// SetFlows says how many conntrack flows an address has.
func (k *Kernel) SetFlows(addr netip.Addr, count int) {
	k.lock()
	defer k.unlock()
	if count <= 0 {
		delete(k.flows, addr)
		return
	}
	k.flows[addr] = count
}

// Flows returns how many conntrack flows an address has.
func (k *Kernel) Flows(addr netip.Addr) int {
	k.lock()
	defer k.unlock()
	return k.flows[addr]
}
