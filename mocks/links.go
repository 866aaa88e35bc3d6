package mocks

import (
	"encoding/binary"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/rtnl"
)

// link is a network device.
type link struct {
	ns      *Kernel
	index   int
	name    string
	kind    string // empty: physical or loopback
	flags   net.Flags
	mtu     int
	group   uint32
	txQLen  int
	mac     net.HardwareAddr
	carrier bool
	peer    *link // of a veth
	parent  int   // ifindex of the lower device of a macvlan or the like

	tc      tc
	addrs   []netip.Prefix
	sysctls map[string]string
}

func (l *link) up() bool { return l.flags&net.FlagUp != 0 }

// running is IFF_RUNNING: up, and with a carrier.
func (l *link) running() bool { return l.up() && l.carrier }

// find returns the link that attrs mean: by index, else by name.
func (k *Kernel) find(attrs *netlink.LinkAttrs) (*link, error) {
	var l *link
	if attrs.Index != 0 {
		l = k.links[attrs.Index]
	} else {
		l = k.names[attrs.Name]
	}
	if l == nil {
		return nil, unix.ENODEV
	}
	return l, nil
}

// addLink is rtnl_newlink with NLM_F_CREATE|NLM_F_EXCL.
func (k *Kernel) addLink(wanted netlink.Link) error {
	attrs := wanted.Attrs()
	switch {
	case len(attrs.Name) >= unix.IFNAMSIZ:
		return unix.ERANGE
	case k.links[attrs.Index] != nil:
		return unix.EEXIST // an existing link is found by index before by name
	}
	l, err := k.newLink(attrs, wanted.Type(), attrs.Name)
	switch {
	case err != nil:
		return err
	case attrs.Index < 0:
		return unix.EINVAL
	case attrs.ParentIndex != 0 && k.links[attrs.ParentIndex] == nil:
		return unix.ENODEV
	}
	l.parent = attrs.ParentIndex
	if veth, ok := wanted.(*netlink.Veth); ok {
		if err := k.addPeer(l, veth); err != nil {
			return err
		}
	}
	if err := k.register(l, attrs.Index); err != nil {
		if l.peer != nil { // veth_newlink takes the peer back
			l.peer.peer = nil
			l.peer.unlist()
		}
		return err
	}
	attrs.Index = l.index
	l.announce()
	if attrs.Flags&net.FlagUp != 0 {
		l.setUp()
	}
	return nil
}

// addPeer makes the other end of a veth pair, which the kernel registers first.
func (k *Kernel) addPeer(l *link, veth *netlink.Veth) error {
	ns := k
	if veth.PeerNamespace != nil {
		fd, ok := veth.PeerNamespace.(netlink.NsFd)
		if ns = k.machine.namespaces[int(fd)]; !ok || ns == nil {
			return unix.EBADF
		}
	}
	attrs := &netlink.LinkAttrs{MTU: veth.MTU, TxQLen: veth.TxQLen, HardwareAddr: veth.PeerHardwareAddr}
	if veth.PeerMTU > 0 {
		attrs.MTU = int(veth.PeerMTU)
	}
	if veth.PeerTxQLen >= 0 {
		attrs.TxQLen = veth.PeerTxQLen
	}
	peer, err := ns.newLink(attrs, "veth", veth.PeerName)
	if err != nil {
		return err
	}
	if err := ns.register(peer, 0); err != nil {
		return err
	}
	peer.announce()
	l.peer, peer.peer = peer, l
	return nil
}

// newLink makes a link that is not yet registered.
func (k *Kernel) newLink(attrs *netlink.LinkAttrs, kind, name string) (*link, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	switch {
	case k.names[name] != nil:
		return nil, unix.EEXIST
	case k.lacks[kind] || kind == "device":
		return nil, unix.EOPNOTSUPP
	}
	l := &link{
		ns: k, name: name, kind: kind, mtu: 1500, group: attrs.Group, txQLen: 1000,
		mac: attrs.HardwareAddr, flags: net.FlagBroadcast | net.FlagMulticast, carrier: true,
	}
	switch kind {
	case "veth":
		l.carrier = false // until the other end is up
	case "ifb":
		l.flags, l.txQLen = net.FlagBroadcast, 32
	}
	if attrs.MTU > 0 {
		if !l.takesMTU(attrs.MTU) {
			return nil, unix.EINVAL
		}
		l.mtu = attrs.MTU
	}
	if attrs.TxQLen >= 0 {
		l.txQLen = attrs.TxQLen
	}
	return l, nil
}

// checkName is IFLA_IFNAME's policy and dev_valid_name.
func checkName(name string) error {
	switch {
	case len(name) >= unix.IFNAMSIZ:
		return unix.ERANGE
	case name == "", name == ".", name == "..", strings.ContainsAny(name, "/: \t\n\v\f\r"):
		return unix.EINVAL
	}
	return nil
}

// register enters a link into its namespace, under the given index or, where that
// is 0, under the next free one: indexes grow and are not re-used.
func (k *Kernel) register(l *link, index int) error {
	if k.names[l.name] != nil {
		return unix.EEXIST
	}
	if index == 0 {
		for index = k.lastIndex + 1; k.links[index] != nil; index++ {
		}
		k.lastIndex = index
	}
	if l.mac == nil && l.flags&net.FlagLoopback == 0 {
		k.machine.lastMAC++
		l.mac = binary.BigEndian.AppendUint32(net.HardwareAddr{0x02, 0x00}, k.machine.lastMAC)
	}
	l.ns, l.index = k, index
	if values := k.sysctls["default"]; len(values) > 0 {
		l.sysctls = maps.Clone(values)
	}
	k.links[index] = l
	k.names[l.name] = l
	k.ordered = nil
	return nil
}

// deleteLinks is rtnl_dellink.
func (k *Kernel) deleteLinks(links ...*link) error {
	for _, l := range links {
		if l.kind == "" {
			return unix.EOPNOTSUPP // no rtnl_link_ops, or none with a dellink
		}
	}
	k.unregister(links...)
	return nil
}

// deleteGroup is rtnl_group_dellink, after rtnl's own check.
func (k *Kernel) deleteGroup(group int) error {
	if group <= 0 {
		return unix.EINVAL
	}
	var members []*link
	for _, l := range k.sortedLinks() {
		if l.group == uint32(group) {
			members = append(members, l)
		}
	}
	if len(members) == 0 {
		return unix.ENODEV
	}
	return k.deleteLinks(members...)
}

// unregister is unregister_netdevice_many: peers go too, and everything is closed
// before anything is taken off the lists.
func (k *Kernel) unregister(links ...*link) {
	var doomed []*link
	add := func(l *link) {
		if l != nil && !slices.Contains(doomed, l) {
			doomed = append(doomed, l)
		}
	}
	for _, l := range links {
		add(l)
		add(l.peer)
	}
	for _, l := range doomed {
		l.peer = nil
	}
	for _, l := range doomed {
		if l.up() {
			l.close()
		}
	}
	for _, l := range doomed {
		l.unlist()
	}
}

// unlist takes a closed link out of its namespace.
func (l *link) unlist() {
	k := l.ns
	delete(k.links, l.index)
	delete(k.names, l.name)
	k.ordered = nil
	l.clearTC()
	k.dropRedirects(l)
	k.fib.linkGone(k, l)
	k.flushNeighs(l.index, unix.AF_INET, unix.AF_INET6)
	l.addrs, l.sysctls = nil, nil
	k.multicast(l.message(rtnl.MessageDelLink))
	for _, s := range k.sockets {
		s.linksChanged = true
	}
}

// setUp is dev_open: the link's own event comes first, then that of its addresses,
// then the change of carrier at both ends.
func (l *link) setUp() {
	if l.up() {
		return
	}
	gains := l.peer != nil && l.peer.up()
	l.flags |= net.FlagUp
	l.tc.activated = true
	l.announce()
	l.ns.fib.linkUp(l.ns, l)
	if gains {
		l.setCarrier(true)
		l.peer.setCarrier(true)
	} else if l.carrier {
		l.ns.fib.linkRunning(l.ns, l)
	}
}

// setDown is dev_close.
func (l *link) setDown() {
	if !l.up() {
		return
	}
	l.close()
	if l.peer != nil {
		l.carrier = false
		l.peer.setCarrier(false)
	}
}

func (l *link) close() {
	l.flags &^= net.FlagUp
	l.announce()
	l.ns.fib.linkDown(l.ns, l)
	l.ns.flushNeighs(l.index, unix.AF_INET, unix.AF_INET6)
}

func (l *link) setCarrier(on bool) {
	if l.carrier == on {
		return
	}
	l.carrier = on
	if !l.up() {
		return
	}
	l.announce()
	if on {
		l.ns.fib.linkRunning(l.ns, l)
	}
}

func (l *link) takesMTU(mtu int) bool {
	switch l.kind {
	case "ifb":
		return mtu >= 0
	case "":
		return mtu > 0
	}
	return mtu >= 68 && mtu <= 65535
}

func (l *link) setMTU(mtu int) error {
	if mtu == l.mtu {
		return nil
	}
	if !l.takesMTU(mtu) {
		return unix.EINVAL
	}
	l.ns.fib.changeMTU(l, mtu)
	l.mtu = mtu
	l.announce()
	return nil
}

func (l *link) rename(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	switch {
	case name == l.name:
		return nil
	case l.ns.names[name] != nil:
		return unix.EEXIST
	}
	delete(l.ns.names, l.name)
	l.name = name
	l.ns.names[name] = l
	l.announce()
	return nil
}

func (l *link) setGroup(group uint32) {
	if l.group == group {
		return
	}
	l.group = group
	l.announce()
}

// move is dev_change_net_namespace: the link arrives down and bare, under its old
// index where that is free.
func (l *link) move(to *Kernel) error {
	if to == l.ns {
		return nil
	}
	if to.names[l.name] != nil {
		return unix.EEXIST
	}
	l.setDown()
	l.unlist()
	index := l.index
	if to.links[index] != nil {
		index = 0
	}
	l.group, l.tc = 0, tc{}
	if err := to.register(l, index); err != nil {
		return err
	}
	l.announce()
	return nil
}

// announce multicasts the link as it is now.
func (l *link) announce() {
	if l.ns.links[l.index] == l {
		l.ns.multicast(l.message(rtnl.MessageNewLink))
	}
}

func (l *link) message(t rtnl.MessageType) rtnl.Message {
	return rtnl.Message{Type: t, Index: l.index, Name: l.name, Flags: l.rawFlags(), MTU: l.mtu, Kind: l.kind}
}

// rawFlags are the IFF_* flags as the kernel dumps them.
func (l *link) rawFlags() uint32 {
	var raw uint32
	set := func(on bool, flag uint32) {
		if on {
			raw |= flag
		}
	}
	set(l.up(), unix.IFF_UP)
	set(l.flags&net.FlagBroadcast != 0, unix.IFF_BROADCAST)
	set(l.flags&net.FlagLoopback != 0, unix.IFF_LOOPBACK)
	set(l.flags&net.FlagMulticast != 0, unix.IFF_MULTICAST)
	set(l.kind == "ifb", unix.IFF_NOARP)
	set(l.running(), unix.IFF_RUNNING|unix.IFF_LOWER_UP)
	return raw
}

func (l *link) operState() netlink.LinkOperState {
	switch {
	case !l.up():
		return netlink.OperDown
	case l.kind != "veth":
		return netlink.OperUnknown // their drivers do not say
	case l.carrier:
		return netlink.OperUp
	}
	return netlink.OperLowerLayerDown
}

// netlink returns the link as a dump shows it.
func (l *link) netlink() netlink.Link {
	flags := l.flags
	if l.running() {
		flags |= net.FlagRunning
	}
	attrs := netlink.LinkAttrs{
		Index: l.index, Name: l.name, MTU: l.mtu, TxQLen: l.txQLen, Group: l.group,
		Flags: flags, RawFlags: l.rawFlags(), OperState: l.operState(),
		HardwareAddr: slices.Clone(l.mac), ParentIndex: l.parent,
		EncapType: "ether", NumTxQueues: 1, NumRxQueues: 1, NetNsID: -1,
	}
	if l.peer != nil {
		attrs.ParentIndex = l.peer.index
		if l.peer.ns != l.ns {
			attrs.NetNsID = l.peer.ns.fd
		}
	}
	switch l.kind {
	case "":
		attrs.EncapType = "loopback"
		return &netlink.Device{LinkAttrs: attrs}
	case "veth":
		return &netlink.Veth{LinkAttrs: attrs}
	case "ifb":
		return &netlink.Ifb{LinkAttrs: attrs}
	case "bridge":
		return &netlink.Bridge{LinkAttrs: attrs}
	}
	return &netlink.GenericLink{LinkAttrs: attrs, LinkType: l.kind}
}
