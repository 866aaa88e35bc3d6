// Package nodetest is for the tests of the operator's commands: a throwaway
// network namespace that looks like a node whose agent leaks, and the manx binary
// run inside it.
package nodetest

import (
	"bytes"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/rtnl"
)

// Node is a network namespace of its own, until the spec ends.
type Node struct {
	NS     *rtnl.Namespace
	Kernel *rtnl.Handle
}

// New makes a node. Without root the spec is skipped, or fails where CI is set.
func New() *Node {
	GinkgoHelper()
	if os.Geteuid() != 0 && os.Getenv("CI") == "" {
		Skip("SKIPPED: needs root, to make a network namespace")
	}
	ns, err := rtnl.NewNamespace()
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(ns.Close)
	kernel, err := rtnl.Open(rtnl.Options{Namespace: ns})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(kernel.Close)
	return &Node{NS: ns, Kernel: kernel}
}

// IFBName returns the name of the IFB of a veth, as Calico has it.
func IFBName(veth string) string {
	sum := sha512.Sum512([]byte(veth))
	return "bwcali" + hex.EncodeToString(sum[:])[:9]
}

// Namespace makes a workload's network namespace, until the spec ends.
func (n *Node) Namespace() *rtnl.Namespace {
	GinkgoHelper()
	ns, err := rtnl.NewNamespace()
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(ns.Close)
	return ns
}

// AddVeth makes a workload's veth, up at both ends, and returns the ifindex of the
// host's end. The other end is in the workload's namespace, or beside the host's
// where that is nil.
func (n *Node) AddVeth(name string, workload *rtnl.Namespace) int {
	GinkgoHelper()
	peer := Peer(name)
	Expect(n.Kernel.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: peer})).To(Succeed())
	link := n.Link(peer)
	kernel := n.Kernel
	if workload != nil {
		Expect(kernel.LinkSetNamespace(link, workload)).To(Succeed())
		inside, err := rtnl.Open(rtnl.Options{Namespace: workload})
		Expect(err).NotTo(HaveOccurred())
		defer inside.Close()
		kernel = inside
		link, err = kernel.LinkByName(peer)
		Expect(err).NotTo(HaveOccurred())
	}
	Expect(kernel.LinkSetUp(link)).To(Succeed())
	host := n.Link(name)
	Expect(n.Kernel.LinkSetUp(host)).To(Succeed())
	return host.Attrs().Index
}

// Peer is what AddVeth calls the other end.
func Peer(veth string) string { return "p" + veth[:min(len(veth), 14)] }

// AddIFB makes an IFB device, up, and returns its ifindex.
func (n *Node) AddIFB(name string) int {
	GinkgoHelper()
	Expect(n.Kernel.LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: name}})).To(Succeed())
	link := n.Link(name)
	Expect(n.Kernel.LinkSetUp(link)).To(Succeed())
	return link.Attrs().Index
}

// Limit makes a TBF the root qdisc of a link, as Felix does: handle 1:, 25 ms.
func (n *Node) Limit(index int, rateBits, burstBytes uint64) {
	GinkgoHelper()
	rate := rateBits / 8
	Expect(n.Kernel.QdiscAdd(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)},
		Rate:       rate,
		Limit:      uint32(rate/40 + burstBytes),
		Buffer:     uint32((burstBytes*1e9/64 + rate - 1) / rate), // rounded up: the kernel rounds down
	})).To(Succeed())
}

// Redirect sends what a link receives to an IFB: ingress qdisc and u32 filter.
func (n *Node) Redirect(index, ifb int) {
	GinkgoHelper()
	err := n.Kernel.QdiscAdd(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: index, Parent: netlink.HANDLE_INGRESS, Handle: netlink.MakeHandle(0xffff, 0),
	}})
	if !errors.Is(err, unix.EEXIST) {
		Expect(err).NotTo(HaveOccurred())
	}
	Expect(n.Kernel.FilterAdd(RedirectFilter(index, netlink.MakeHandle(0xffff, 0), ifb))).To(Succeed())
}

// RedirectFilter is a u32 match-all filter with a mirred redirect.
func RedirectFilter(index int, parent uint32, target int) netlink.Filter {
	return &netlink.U32{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: parent, Priority: 1, Protocol: unix.ETH_P_ALL},
		Actions: []netlink.Action{&netlink.MirredAction{
			ActionAttrs:  netlink.ActionAttrs{Action: netlink.TC_ACT_STOLEN},
			MirredAction: netlink.TCA_EGRESS_REDIR,
			Ifindex:      target,
		}},
	}
}

// AddWorkload makes a veth with an egress limit, wired as Felix does it, and
// returns both ifindexes.
func (n *Node) AddWorkload(veth string, workload *rtnl.Namespace) (host, ifb int) {
	GinkgoHelper()
	host = n.AddVeth(veth, workload)
	ifb = n.AddIFB(IFBName(veth))
	n.Limit(ifb, 30e6, 1<<20)
	n.Redirect(host, ifb)
	return host, ifb
}

// Link returns the link of that name; without one the spec fails.
func (n *Node) Link(name string) netlink.Link {
	GinkgoHelper()
	link, err := n.Kernel.LinkByName(name)
	Expect(err).NotTo(HaveOccurred())
	return link
}

// Delete deletes the link of that name.
func (n *Node) Delete(name string) {
	GinkgoHelper()
	Expect(n.Kernel.LinkDel(n.Link(name))).To(Succeed())
}

// Links returns the names of all links.
func (n *Node) Links() []string {
	GinkgoHelper()
	links, err := n.Kernel.LinkList()
	Expect(err).NotTo(HaveOccurred())
	names := make([]string, len(links))
	for i, link := range links {
		names[i] = link.Attrs().Name
	}
	return names
}

// SendFrames sends Ethernet frames of that many bytes out of a link of the
// namespace, to an address that nobody has.
func SendFrames(ns *rtnl.Namespace, name string, count, size int) {
	GinkgoHelper()
	Expect(ns.Do(func() error {
		link, err := linkIndex(name)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		frame := make([]byte, size)
		copy(frame, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5}) // IEEE 802 local experimental
		for range count {
			if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: link}); err != nil {
				return err
			}
		}
		return nil
	})).To(Succeed())
}

func linkIndex(name string) (int, error) {
	kernel, err := rtnl.Open(rtnl.Options{})
	if err != nil {
		return 0, err
	}
	defer kernel.Close()
	link, err := kernel.LinkByName(name)
	if err != nil {
		return 0, err
	}
	return link.Attrs().Index, nil
}

// binary builds manx once a test process.
var binary = sync.OnceValues(func() (string, error) {
	dir := binaryDir()
	_, file, _, _ := runtime.Caller(0)
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "manx"), "./cmd/manx")
	build.Dir = filepath.Join(filepath.Dir(file), "..", "..")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build manx: %w\n%s", err, output)
	}
	return filepath.Join(dir, "manx"), nil
})

// Binary returns the path of the manx binary. Call CleanUp when the suite ends.
func Binary() string {
	GinkgoHelper()
	path, err := binary()
	Expect(err).NotTo(HaveOccurred())
	return path
}

// CleanUp removes the binary, if Binary built it.
func CleanUp() {
	GinkgoHelper()
	Expect(os.RemoveAll(binaryDir())).To(Succeed())
}

func binaryDir() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("manx-nodetest-%d", os.Getpid()))
}

// Result is how a run of the binary ended.
type Result struct {
	Stdout, Stderr string
	Code           int
}

// Manx runs the binary inside the node, with text as its standard input.
func (n *Node) Manx(stdin string, args ...string) Result {
	GinkgoHelper()
	path := Binary()
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(path, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewBufferString(stdin), &stdout, &stderr
	err := n.NS.Do(cmd.Run)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		Expect(err).NotTo(HaveOccurred())
	}
	return Result{Stdout: stdout.String(), Stderr: stderr.String(), Code: cmd.ProcessState.ExitCode()}
}

// Inhabit starts a process that lives in a network namespace until the spec ends
// or the returned function is called.
func Inhabit(ns *rtnl.Namespace) (leave func()) {
	GinkgoHelper()
	cmd := exec.Command("sleep", "600")
	Expect(ns.Do(cmd.Start)).To(Succeed())
	leave = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	DeferCleanup(leave)
	return leave
}

// AddRoute routes an IPv4 address to a link, as Felix does (protocol 80).
func (n *Node) AddRoute(address string, index int) {
	GinkgoHelper()
	_, dst, err := net.ParseCIDR(address + "/32")
	Expect(err).NotTo(HaveOccurred())
	errs := n.Kernel.RouteBatch([]rtnl.RouteOp{{Route: netlink.Route{
		Family: unix.AF_INET, Table: unix.RT_TABLE_MAIN, Dst: dst, LinkIndex: index, Scope: netlink.SCOPE_LINK, Protocol: 80,
	}}})
	Expect(errors.Join(errs...)).To(Succeed())
}
