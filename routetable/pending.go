package routetable

// Pending reports whether a route that should lead through this interface, which is
// up, is not in the kernel: because it failed, because another's is in its place, or
// because it waits for a conntrack deletion. A route that another interface wins is
// not pending on the loser. It says what the last Apply knew.
func (t *RouteTable) Pending(iface string) bool {
	up, ok := t.ifaces.upIndex(iface)
	if !ok {
		return false
	}
	for _, keys := range t.desired.owners[iface] {
		for key := range keys {
			target, index := t.desired.winner(key, t.ifaces)
			if target == nil || index != up {
				continue
			}
			_, dirty := t.dirty[key]
			have, exists := t.observed[key]
			if dirty || !exists || !have.adopted || int(have.route.index) != index {
				return true
			}
		}
	}
	return false
}
