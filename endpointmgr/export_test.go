package endpointmgr

// Held returns how many things the manager remembers.
func (m *Manager) Held() int {
	return len(m.pending) + len(m.endpoints) + len(m.ifaces) + len(m.dirtyIfaces) + len(m.dirtyStatuses)
}
