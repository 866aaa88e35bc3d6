package infra

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"

	"github.com/manx-dataplane/manx/rtnl"
)

// Kind is how a node is made.
type Kind string

// The kinds of nodes.
const (
	Container      Kind = "container"
	PlainNamespace Kind = "plain namespace"
)

// Kinds returns all kinds, for specs that run on each.
func Kinds() []Kind { return []Kind{PlainNamespace, Container} }

// Node is a host: a network namespace and the directories that its agent is
// pointed at.
type Node struct {
	Kind Kind
	// NS is the node's network namespace.
	NS *rtnl.Namespace
	// Kernel reads and changes the namespace's state.
	*Kernel
	// Dir is the node's directory; a container sees it under the same path.
	Dir string
	// ConfigFile is where the agent's FelixConfiguration manifest goes.
	ConfigFile string
	// EndpointsDir is where WorkloadEndpoint manifests go.
	EndpointsDir string
	// StatusDir is the agent's endpointStatusPathPrefix.
	StatusDir string
	// IPv4 and IPv6 are the node's own addresses, on its loopback device.
	IPv4, IPv6 netip.Addr

	suite  *Suite
	runner runner
	pods   int
}

// runner is what differs between the kinds.
type runner interface {
	// command prepares a process inside the node; start it with start.
	command(spec RunSpec) *exec.Cmd
	// start starts it and returns its process ID as this process sees it.
	start(cmd *exec.Cmd, spec RunSpec) (int, error)
}

// NewNode makes a node of the given kind that lives until the spec ends. Where
// no container engine answers the spec is skipped for containers; under CI with
// an engine's client installed it fails.
func (s *Suite) NewNode(kind Kind) *Node {
	GinkgoHelper()
	RequireRoot()
	n := &Node{
		Kind:  kind,
		suite: s,
		Dir:   filepath.Join(s.root, fmt.Sprintf("node%d", s.serial())),
		IPv4:  netip.MustParseAddr("192.0.2.1"),
		IPv6:  netip.MustParseAddr("2001:db8::1"),
	}
	n.ConfigFile = filepath.Join(n.Dir, "config", "felix.yaml")
	n.EndpointsDir = filepath.Join(n.Dir, "endpoints")
	n.StatusDir = filepath.Join(n.Dir, "status")
	for _, dir := range []string{filepath.Dir(n.ConfigFile), n.EndpointsDir, n.StatusDir} {
		Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
	}
	switch kind {
	case Container:
		n.requireEngine()
		n.runner, n.NS = newContainerRunner(s, n.Dir)
	case PlainNamespace:
		n.runner, n.NS = newPlainRunner(s)
	}
	n.Kernel = OpenKernel(n.NS)
	n.setUp()
	n.WriteConfig(nil)
	return n
}

func (n *Node) requireEngine() {
	GinkgoHelper()
	err := n.suite.engine()
	if err == nil {
		Expect(n.suite.image()).To(Succeed())
		return
	}
	if _, lookErr := exec.LookPath("docker"); lookErr == nil && os.Getenv("CI") != "" {
		Fail("CI has a container engine that does not answer; refusing to skip: " + err.Error())
	}
	Skip("SKIPPED ON CONTAINERS: no container engine answers (plain namespaces still run): " + err.Error())
}

// setUp makes an empty namespace a host that forwards, with addresses of its own.
func (n *Node) setUp() {
	GinkgoHelper()
	n.Sysctl("net/ipv6/conf/all/disable_ipv6", "0")
	n.Sysctl("net/ipv6/conf/default/disable_ipv6", "0")
	n.Sysctl("net/ipv6/conf/default/dad_transmits", "0") // addresses work at once
	n.Sysctl("net/ipv6/conf/all/forwarding", "1")
	n.Sysctl("net/ipv4/ip_forward", "1")
	// A pod's own interface has index 2. The kernel treats a veth whose peer has the same
	// index as no stacked device, and then holds back its "up" for a second or more
	// (linkwatch_urgent_event): no host veth may have index 2.
	Expect(n.RT.LinkDel(n.AddIFB("unused"))).To(Succeed())
	lo := n.Link("lo")
	Expect(n.RT.LinkSetUp(lo)).To(Succeed())
	for _, addr := range []netip.Addr{n.IPv4, n.IPv6} {
		n.AddAddr(lo, netip.PrefixFrom(addr, addr.BitLen()))
	}
}

// Sysctl sets a value below /proc/sys in the node's namespace.
func (n *Node) Sysctl(key, value string) {
	GinkgoHelper()
	Expect(writeSysctl(n.NS, key, value)).To(Succeed())
}

// ReadSysctl reads one.
func (n *Node) ReadSysctl(key string) (string, error) { return readSysctl(n.NS, key) }

// AddIFBs makes count IFB devices with the given prefix and a TBF each, as an
// agent that leaks leaves them. It returns their names.
func (n *Node) AddIFBs(prefix string, count int, rateBits uint64) []string {
	GinkgoHelper()
	names := make([]string, count)
	for i := range names {
		names[i] = fmt.Sprintf("%s%09x", prefix, i)
		ifb := n.AddIFB(names[i])
		Expect(n.RT.QdiscReplace(TBF(ifb.Index, netlink.HANDLE_ROOT, netlink.MakeHandle(1, 0), rateBits, 1<<20))).To(Succeed())
	}
	return names
}
