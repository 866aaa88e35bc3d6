package qos

// Pending reports whether an interface's limits are not what was set: because
// something failed, or because the name of its IFB is not free yet. Limits that the
// kernel has no means for are not pending. It says what the last Apply knew.
func (s *Syncer) Pending(iface string) bool {
	if _, claimed := s.desired[iface]; !claimed || !s.enabled {
		return false
	}
	_, dirty := s.todo.dirty[iface]
	_, unseen := s.todo.appeared[iface]
	if dirty || unseen {
		return true
	}
	veth := s.snapshot.ByName(iface)
	if veth == nil || s.desired[iface].Egress == nil || s.lacksAny() {
		return false
	}
	ifb := s.snapshot.ByName(IFBName(iface))
	return ifb == nil || !veth.RedirectsTo(ifb.Index)
}
