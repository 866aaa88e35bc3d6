package demo

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"

	"github.com/manx-dataplane/manx/rtnl"
)

// node is a throwaway host: the network namespace of the thread that the demo
// runs on, a directory of manifests, and the real agent as a child process.
type node struct {
	kernel *rtnl.Handle
	dir    string
	agent  *exec.Cmd
	// sandboxes are the pods' namespaces by host-side veth. Closing the last file
	// descriptor of one ends it, and the kernel removes its veth pair, just as at
	// the end of a real pod.
	sandboxes map[string]*rtnl.Namespace
}

// pod is a workload: a namespace with eth0, whose other end is the host-side
// veth, and a manifest.
type pod struct {
	name   string // of pod default/<name>
	veth   string
	addr   netip.Addr
	egress string // a quantity; empty for no limit
}

// felixConfiguration leaves everything at its default except what would touch
// the machine outside the namespaces.
const felixConfiguration = `apiVersion: projectcalico.org/v3
kind: FelixConfiguration
metadata:
  name: default
spec:
  endpointStatusPathPrefix: %q
`

func newNode(kernel *rtnl.Handle) (*node, error) {
	dir, err := os.MkdirTemp("", "manx-demo-")
	if err != nil {
		return nil, err
	}
	n := &node{kernel: kernel, dir: dir, sandboxes: map[string]*rtnl.Namespace{}}
	err = errors.Join(
		os.Mkdir(n.path("endpoints"), 0o755),
		os.WriteFile(n.path("felix.yaml"), fmt.Appendf(nil, felixConfiguration, dir), 0o644),
	)
	return n, err
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

// close kills the agent and removes the files. The namespaces go with their
// file descriptors.
func (n *node) close() {
	n.killAgent()
	for _, sandbox := range n.sandboxes {
		sandbox.Close()
	}
	os.RemoveAll(n.dir)
}

// startAgent runs "manx run" in the namespace of the calling thread. The agent
// dies with that thread, so that nothing stays behind when the demo is killed.
func (n *node) startAgent() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(n.path("agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	n.agent = exec.Command(self, "run", "--config", n.path("felix.yaml"), "--endpoints", n.path("endpoints"))
	n.agent.Env = withoutFelix(os.Environ())
	n.agent.Stdout, n.agent.Stderr = log, log
	n.agent.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := n.agent.Start(); err != nil {
		return fmt.Errorf("start agent: %w", err)
	}
	return nil
}

// withoutFelix returns an environment without the variables that would override
// felixConfiguration, such as those of a shell in a Calico container.
func withoutFelix(environ []string) []string {
	return slices.DeleteFunc(environ, func(variable string) bool {
		return strings.HasPrefix(strings.ToUpper(variable), "FELIX_")
	})
}

// killAgent ends the agent the hard way, as an OOM kill does.
func (n *node) killAgent() {
	if n.agent == nil {
		return
	}
	_ = n.agent.Process.Kill()
	_ = n.agent.Wait()
	n.agent = nil
}

// addPod makes the veth, as a CNI plugin does, and then the manifest.
func (n *node) addPod(p pod) error {
	if err := n.addVeth(p.veth); err != nil {
		return err
	}
	return n.writeManifest(p)
}

// addVeth makes a host-side veth with its peer eth0 in a namespace of its own.
func (n *node) addVeth(name string) error {
	sandbox, err := rtnl.NewNamespace()
	if err != nil {
		return err
	}
	n.sandboxes[name] = sandbox
	veth := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: name},
		PeerName:      "eth0",
		PeerNamespace: netlink.NsFd(sandbox.FD()),
	}
	if err := n.kernel.LinkAdd(veth); err != nil {
		return err
	}
	inside, err := rtnl.Open(rtnl.Options{Namespace: sandbox})
	if err != nil {
		return err
	}
	defer inside.Close()
	eth0, err := inside.LinkByName("eth0")
	if err != nil {
		return err
	}
	return errors.Join(inside.LinkSetUp(eth0), n.kernel.LinkSetUp(veth))
}

// endSandbox ends a pod's namespace; its veth goes a moment later.
func (n *node) endSandbox(veth string) error {
	sandbox := n.sandboxes[veth]
	delete(n.sandboxes, veth)
	return sandbox.Close()
}

// removeVeth deletes a pod's veth pair at once, and ends its namespace.
func (n *node) removeVeth(name string) error {
	link, err := n.kernel.LinkByName(name)
	if err != nil {
		return err
	}
	return errors.Join(n.kernel.LinkDel(link), n.endSandbox(name))
}

func (n *node) writeManifest(p pod) error {
	annotations := "{}"
	if p.egress != "" {
		annotations = fmt.Sprintf("{kubernetes.io/egress-bandwidth: %s}", p.egress)
	}
	manifest := fmt.Appendf(nil, `apiVersion: projectcalico.org/v3
kind: WorkloadEndpoint
metadata:
  name: node-k8s-%[1]s-eth0
  namespace: default
  annotations: %[4]s
spec:
  orchestrator: k8s
  node: node
  pod: %[1]s
  endpoint: eth0
  interfaceName: %[2]s
  ipNetworks: [%[3]s/32]
`, p.name, p.veth, p.addr, annotations)
	// Renamed into place, so that the agent never reads half a file.
	half := n.path("manifest.tmp")
	if err := os.WriteFile(half, manifest, 0o644); err != nil {
		return err
	}
	return os.Rename(half, n.manifestPath(p))
}

func (n *node) removeManifest(p pod) error { return os.Remove(n.manifestPath(p)) }

func (n *node) manifestPath(p pod) string { return n.path("endpoints/" + p.name + ".yaml") }
