package rtnl

// NamespaceID returns the number by which the Handle's namespace knows another
// network namespace (a link's IFLA_LINK_NETNSID), given an open descriptor of
// that; -1 where it has none, as no link of the one has its peer in the other.
func (h *Handle) NamespaceID(fd int) (int, error) {
	id, err := h.nl.GetNetNsIdByFd(fd)
	if err != nil {
		return -1, opError("get ID of network namespace", "", err)
	}
	return id, nil
}
