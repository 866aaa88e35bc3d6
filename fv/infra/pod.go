package infra

import (
	"crypto/sha1"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"os"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"

	"github.com/manx-dataplane/manx/rtnl"
)

// hostMAC is what Calico's CNI plugin gives every host-side veth; hostLinkLocal is
// the IPv6 address the kernel derives from it, gatewayIPv4 the pods' gateway.
var (
	hostMAC       = net.HardwareAddr{0xee, 0xee, 0xee, 0xee, 0xee, 0xee}
	hostLinkLocal = netip.MustParseAddr("fe80::ecee:eeff:feee:eeee")
	gatewayIPv4   = netip.MustParseAddr("169.254.1.1")
)

// VethName returns the host-side veth's name that Calico gives a pod.
func VethName(namespace, pod string) string {
	sum := sha1.Sum([]byte(namespace + "." + pod))
	return "cali" + hex.EncodeToString(sum[:])[:11]
}

// IFBName returns the name of the IFB that shapes a veth's egress.
func IFBName(veth string) string {
	sum := sha512.Sum512([]byte(veth))
	return "bwcali" + hex.EncodeToString(sum[:])[:9]
}

// Pod is a network namespace joined to its node by a veth pair. Its addresses and
// default routes are set; the routes to it are the agent's business, or
// RouteFromHost's.
type Pod struct {
	Namespace, Name string
	// Veth is the host side's name, Index its present interface index.
	Veth  string
	Index int
	MAC   net.HardwareAddr
	IPv4  netip.Addr
	IPv6  netip.Addr
	MTU   int
	// NS is the pod's own network namespace.
	NS *rtnl.Namespace

	node *Node
}

// NewPod describes a pod with addresses of its own in namespace "default" without
// making it: its interface comes with Create.
func (n *Node) NewPod(name string) *Pod {
	n.pods++
	hi, lo := byte(n.pods>>8), byte(n.pods)
	return &Pod{
		Namespace: "default",
		Name:      name,
		Veth:      VethName("default", name),
		MAC:       net.HardwareAddr{0x02, 0, 0, 0, hi, lo},
		IPv4:      netip.AddrFrom4([4]byte{10, 65, hi, lo}),
		IPv6:      netip.AddrFrom16([16]byte{0xfd, 0x65, 14: hi, 15: lo}),
		MTU:       1500,
		node:      n,
	}
}

// StartPod describes a pod and creates it.
func (n *Node) StartPod(name string) *Pod {
	GinkgoHelper()
	p := n.NewPod(name)
	p.Create()
	return p
}

// Create makes the pod's namespace and veth pair, with the host side up. A deleted
// pod can be created again: same names and addresses, new devices.
func (p *Pod) Create() {
	GinkgoHelper()
	p.NS = NewNamespace()
	for _, key := range []string{"all", "default"} {
		Expect(writeSysctl(p.NS, "net/ipv6/conf/"+key+"/dad_transmits", "0")).To(Succeed())
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.MTU = p.Veth, hostMAC, p.MTU
	veth := &netlink.Veth{
		LinkAttrs: attrs, PeerName: "eth0", PeerHardwareAddr: p.MAC, PeerMTU: uint32(p.MTU),
		PeerNamespace: netlink.NsFd(p.NS.FD()),
	}
	Expect(p.node.RT.LinkAdd(veth)).To(Succeed())
	p.Index = p.node.Link(p.Veth).Attrs().Index
	p.setUpInside()
	Expect(p.node.RT.LinkSetUp(p.node.Link(p.Veth))).To(Succeed())
}

// setUpInside does what a CNI plugin does in the pod's namespace. The gateways'
// neighbour entries are fixed, so that what is measured does not depend on proxy
// ARP being set up yet.
func (p *Pod) setUpInside() {
	GinkgoHelper()
	k := openKernel(p.NS)
	defer k.Close()
	lo, eth0 := k.Link("lo"), k.Link("eth0")
	for _, link := range []netlink.Link{lo, eth0} {
		Expect(k.RT.LinkSetUp(link)).To(Succeed())
	}
	index := eth0.Attrs().Index
	k.AddNeigh(index, gatewayIPv4, hostMAC)
	k.AddNeigh(index, hostLinkLocal, hostMAC)
	k.AddAddr(eth0, netip.PrefixFrom(p.IPv4, 32))
	k.AddAddr(eth0, netip.PrefixFrom(p.IPv6, 128))
	k.AddRoute(index, netip.PrefixFrom(gatewayIPv4, 32), netip.Addr{})
	k.AddRoute(index, netip.MustParsePrefix("0.0.0.0/0"), gatewayIPv4)
	k.AddRoute(index, netip.MustParsePrefix("::/0"), hostLinkLocal)
}

// RouteFromHost adds the host's routes to the pod, for tests without an agent.
func (p *Pod) RouteFromHost() {
	GinkgoHelper()
	for _, addr := range []netip.Addr{p.IPv4, p.IPv6} {
		p.node.AddRoute(p.Index, netip.PrefixFrom(addr, addr.BitLen()), netip.Addr{})
	}
}

// Delete removes the veth pair and the namespace, as a container runtime does. The
// veth is gone when it returns.
func (p *Pod) Delete() {
	GinkgoHelper()
	link := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: p.Index, Name: p.Veth}}
	Expect(p.node.RT.LinkDel(link)).To(Succeed())
	Expect(p.NS.Close()).To(Succeed())
}

// SetDown takes the host side down.
func (p *Pod) SetDown() {
	GinkgoHelper()
	Expect(p.node.RT.LinkSetDown(p.node.Link(p.Veth))).To(Succeed())
}

// IFB returns the name of the pod's egress IFB.
func (p *Pod) IFB() string { return IFBName(p.Veth) }

// String names the pod and its interface.
func (p *Pod) String() string { return fmt.Sprintf("%s/%s (%s)", p.Namespace, p.Name, p.Veth) }

func writeSysctl(ns *rtnl.Namespace, key, value string) error {
	return ns.Do(func() error { return os.WriteFile("/proc/sys/"+key, []byte(value), 0o644) })
}

func readSysctl(ns *rtnl.Namespace, key string) (value string, err error) {
	err = ns.Do(func() error {
		data, err := os.ReadFile("/proc/sys/" + key)
		value = string(data)
		return err
	})
	return value, err
}
