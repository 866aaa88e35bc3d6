package infra

import (
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// PluginQdisc is what the CNI bandwidth plugin shapes with; it depends on its
// version.
type PluginQdisc string

// The plugin's qdiscs.
const (
	PluginTBF PluginQdisc = "tbf"
	PluginHTB PluginQdisc = "htb" // v1.5.x
)

// pluginBurst is the burst, in bytes, that the stand-in is configured with.
const pluginBurst = 128 << 10

// RunBandwidthPlugin does to a pod's veth what the CNI bandwidth plugin does, with
// one rate for both directions, and returns the name of its IFB.
func (n *Node) RunBandwidthPlugin(pod *Pod, qdisc PluginQdisc, rateBits uint64) string {
	GinkgoHelper()
	sum := sha512.Sum512([]byte("k8s-pod-network" + pod.Name))
	ifb := n.AddIFB("bwp" + hex.EncodeToString(sum[:])[:12])
	veth := n.Link(pod.Veth).Attrs().Index
	n.pluginRoot(veth, qdisc, rateBits)
	n.pluginRoot(ifb.Index, qdisc, rateBits)
	Expect(n.RT.QdiscAdd(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: veth, Parent: netlink.HANDLE_INGRESS, Handle: netlink.MakeHandle(0xffff, 0),
	}})).To(Succeed())
	Expect(n.RT.FilterAdd(&netlink.U32{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: veth, Parent: netlink.MakeHandle(0xffff, 0), Priority: 1, Protocol: unix.ETH_P_ALL},
		ClassId:     netlink.MakeHandle(1, 1),
		Actions: []netlink.Action{&netlink.MirredAction{
			ActionAttrs:  netlink.ActionAttrs{Action: netlink.TC_ACT_STOLEN},
			MirredAction: netlink.TCA_EGRESS_REDIR,
			Ifindex:      ifb.Index,
		}},
	})).To(Succeed())
	return ifb.Name
}

func (n *Node) pluginRoot(ifindex int, kind PluginQdisc, rateBits uint64) {
	GinkgoHelper()
	if kind == PluginTBF {
		Expect(n.RT.QdiscAdd(TBF(ifindex, netlink.HANDLE_ROOT, netlink.MakeHandle(1, 0), rateBits, pluginBurst))).To(Succeed())
		return
	}
	htb := netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: ifindex, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)})
	htb.Defcls = 0x30
	Expect(n.RT.QdiscAdd(htb)).To(Succeed())
	attrs := netlink.ClassAttrs{LinkIndex: ifindex, Parent: netlink.MakeHandle(1, 0), Handle: netlink.MakeHandle(1, 0x30)}
	Expect(n.nl.ClassAdd(netlink.NewHtbClass(attrs, netlink.HtbClassAttrs{Rate: rateBits, Ceil: rateBits, Buffer: pluginBurst, Cbuffer: pluginBurst}))).To(Succeed())
}

// ourMajor is the handle major of the agent's TBFs.
const ourMajor = 0xca11

// Monitor is another program's eBPF filter on a clsact qdisc, which counts packets
// and lets later filters decide.
type Monitor struct {
	counts *ebpf.Map
}

// AttachMonitor puts a clsact qdisc with a cls_bpf filter in each direction on a
// pod's veth.
func (n *Node) AttachMonitor(pod *Pod) *Monitor {
	GinkgoHelper()
	counts, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(counts.Close)
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "Apache-2.0", Instructions: countAndContinue(counts)})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(program.Close)

	veth := n.Link(pod.Veth).Attrs().Index
	Expect(n.RT.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: veth, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0),
	}})).To(Succeed())
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		Expect(n.RT.FilterAdd(&netlink.BpfFilter{
			FilterAttrs:  netlink.FilterAttrs{LinkIndex: veth, Parent: parent, Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL},
			Fd:           program.FD(),
			Name:         "monitor",
			DirectAction: true,
		})).To(Succeed())
	}
	return &Monitor{counts: counts}
}

// Packets returns how many packets the monitor has seen, both ways.
func (m *Monitor) Packets() uint64 {
	GinkgoHelper()
	var value uint64
	Expect(m.counts.Lookup(uint32(0), &value)).To(Succeed())
	return value
}

func countAndContinue(counts *ebpf.Map) asm.Instructions {
	return asm.Instructions{
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, counts.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "exit"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, int32(netlink.TC_ACT_UNSPEC)).WithSymbol("exit"),
		asm.Return(),
	}
}

// Foreign describes, one object a line and sorted, all links, qdiscs, classes and
// filters of the node but the agent's own (its IFBs and what is on them, filters
// that redirect to them, TBFs with handle ca11: and their queues, ingress qdiscs
// without another's filter). Two equal descriptions mean that nothing foreign was touched, not even
// replaced by an equal object under another handle.
func (n *Node) Foreign() []string {
	GinkgoHelper()
	links, err := retry(n.RT.LinkList)
	Expect(err).NotTo(HaveOccurred())
	names := make(map[int]string, len(links))
	for _, link := range links {
		names[link.Attrs().Index] = link.Attrs().Name
	}
	var lines []string
	for _, link := range links {
		attrs := link.Attrs()
		if !strings.HasPrefix(attrs.Name, IFBPrefix) {
			lines = append(lines, linkText(link))
			lines = append(lines, n.foreignOn(link, names)...)
		}
	}
	slices.Sort(lines)
	return slices.Compact(lines) // an ingress qdisc lists its filters at both parents
}

// WithLink adds a link without qdiscs of its own to a description of Foreign's.
func WithLink(foreign []string, link netlink.Link) []string {
	lines := append(slices.Clone(foreign), linkText(link))
	slices.Sort(lines)
	return lines
}

func linkText(link netlink.Link) string {
	attrs := link.Attrs()
	return fmt.Sprintf("link %s %s ifindex %d mtu %d group %d up %t txqlen %d", link.Type(), attrs.Name,
		attrs.Index, attrs.MTU, attrs.Group, attrs.RawFlags&unix.IFF_UP != 0, attrs.TxQLen)
}

func (n *Node) foreignOn(link netlink.Link, names map[int]string) []string {
	GinkgoHelper()
	attrs := link.Attrs()
	var lines []string
	foreignFilters := 0
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		filters, _ := retry(func() ([]netlink.Filter, error) { return n.RT.FilterList(attrs.Index, parent) })
		for _, filter := range filters {
			if text, ours := filterText(filter, names); !ours {
				lines = append(lines, fmt.Sprintf("filter on %s: %s", attrs.Name, text))
				foreignFilters++
			}
		}
	}
	qdiscs, err := retry(n.RT.QdiscList)
	Expect(err).NotTo(HaveOccurred())
	for _, qdisc := range qdiscs {
		a := qdisc.Attrs()
		ours := a.Handle>>16 == ourMajor || a.Parent>>16 == ourMajor || qdisc.Type() == "ingress" && foreignFilters == 0
		if a.LinkIndex == attrs.Index && a.Handle != 0 && !ours {
			lines = append(lines, fmt.Sprintf("qdisc on %s: %s %s", attrs.Name, qdisc.Type(), settings(qdisc)))
		}
	}
	classes, err := n.nl.ClassList(link, 0)
	Expect(err).NotTo(HaveOccurred())
	for _, class := range classes {
		if class.Attrs().Handle>>16 == ourMajor {
			continue
		}
		lines = append(lines, fmt.Sprintf("class on %s: %s %s", attrs.Name, class.Type(), settings(class)))
	}
	return lines
}

// filterText describes a filter, and says whether it is the agent's.
func filterText(filter netlink.Filter, names map[int]string) (text string, ours bool) {
	attrs := *filter.Attrs()
	if attrs.Parent == netlink.MakeHandle(0xffff, 0) {
		// The kernel reports, for all filters of a block, the parent by which the last one
		// was added (tc_new_tfilter); at an ingress qdisc these two are the same.
		attrs.Parent = netlink.HANDLE_MIN_INGRESS
	}
	text = fmt.Sprintf("%s %+v", filter.Type(), attrs)
	switch f := filter.(type) {
	case *netlink.U32:
		for _, action := range f.Actions {
			if mirred, ok := action.(*netlink.MirredAction); ok {
				text += " redirect to " + names[mirred.Ifindex]
				ours = strings.HasPrefix(names[mirred.Ifindex], IFBPrefix)
			}
		}
	case *netlink.BpfFilter:
		text += fmt.Sprintf(" program %d %s", f.Id, f.Tag)
	}
	return text, ours
}

// settings is all of an object but its counters.
func settings(object any) string {
	GinkgoHelper()
	data, err := json.Marshal(object)
	Expect(err).NotTo(HaveOccurred())
	var fields map[string]any
	Expect(json.Unmarshal(data, &fields)).To(Succeed())
	for key := range fields {
		if strings.Contains(key, "Statistics") || strings.Contains(key, "DirectPackets") || key == "Refcnt" {
			delete(fields, key)
		}
	}
	data, err = json.Marshal(fields)
	Expect(err).NotTo(HaveOccurred())
	return string(data)
}
