package mocks

import (
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// setV6 is ip6_route_add: the kernel clears the destination's host bits, has no
// scopes and reads priority 0 as 1024.
func (f *fib) setV6(k *Kernel, r *route, exclusive bool) error {
	r.dst, r.Scope = r.dst.Masked(), 0
	if r.Priority == 0 {
		r.Priority = 1024 // IP6_RT_PRIO_USER
	}
	if err := f.checkV6(k, r); err != nil {
		return err
	}
	for _, old := range f.tables[r.id()][r.dst] {
		if old.Priority != r.Priority {
			continue
		}
		if exclusive {
			return unix.EEXIST
		}
		f.remove(k, old)
		break
	}
	f.insert(k, r)
	return nil
}

// checkV6 is ip6_route_info_create.
func (f *fib) checkV6(k *Kernel, r *route) error {
	for i := range r.hops {
		if err := f.checkHopV6(k, &r.hops[i], r.special()); err != nil {
			return err
		}
	}
	if r.special() {
		r.hops = []hop{{index: 1, flags: r.hops[0].flags}} // the loopback device stands for none
		r.multipath = false
	}
	if r.Src != nil && !f.usableSourceV6(ipAddr(r.Src), r.hops[0].index) {
		return unix.EINVAL
	}
	return nil
}

// usableSourceV6 is ipv6_chk_addr: loopback and link-local addresses must be those of
// the route's own interface.
func (f *fib) usableSourceV6(addr netip.Addr, index int) bool {
	for _, r := range f.tables[tableID{unix.AF_INET6, unix.RT_TABLE_LOCAL}][netip.PrefixFrom(addr, 128)] {
		ownOnly := addr.IsLoopback() || addr.IsLinkLocalUnicast()
		if r.isLocalAddr() && (r.hopIndex() == index || !ownOnly) {
			return true
		}
	}
	return false
}

// checkHopV6 is fib6_nh_init.
func (f *fib) checkHopV6(k *Kernel, h *hop, special bool) error {
	onlink := h.flags&unix.RTNH_F_ONLINK != 0
	l := k.links[h.index]
	switch {
	case l == nil && (h.index != 0 || onlink):
		return unix.ENODEV
	case onlink && !l.up():
		return unix.ENETDOWN
	case special:
		return nil
	}
	if h.gw.IsValid() {
		if err := f.checkGatewayV6(h); err != nil {
			return err
		}
		if l = k.links[h.index]; l != nil && l.flags&net.FlagLoopback != 0 {
			return unix.EINVAL
		}
	}
	switch {
	case l == nil:
		return unix.ENODEV
	case !l.ipv6Enabled():
		return unix.EACCES
	case !l.up():
		return unix.ENETDOWN
	}
	return nil
}

// checkGatewayV6 is ip6_validate_gw.
func (f *fib) checkGatewayV6(h *hop) error {
	switch {
	case f.isLocal(h.gw):
		return unix.EINVAL
	case h.gw.IsLinkLocalUnicast():
		if h.index == 0 {
			return unix.EINVAL
		}
		return nil
	case h.flags&unix.RTNH_F_ONLINK != 0:
		return nil
	}
	found := f.onLink(h.gw, h.index, 0, unix.RT_TABLE_MAIN)
	if found == nil || found.special() {
		return unix.EHOSTUNREACH
	}
	if h.index == 0 {
		h.index = found.hops[0].index
	}
	return nil
}

// changeMTU is rt6_mtu_change: IPv6 routes that have an MTU keep within the link's, and
// follow it where they had just that.
func (f *fib) changeMTU(l *link, mtu int) {
	for r := range f.byLink[l.index] {
		if r.Family == unix.AF_INET6 && r.MTU != 0 && (r.MTU >= mtu || r.MTU == l.mtu) {
			r.MTU = mtu
		}
	}
}
