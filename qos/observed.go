package qos

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/rtnl"
)

// Snapshot is what the kernel says about shaping, at the moment of Observe. It is
// owned by whoever holds it and not safe for concurrent use.
type Snapshot struct {
	// Interfaces by ifindex: every link of the namespace.
	Interfaces map[int]*Interface

	byName map[string]*Interface
}

// Interface is one link and what shapes it.
type Interface struct {
	Name  string
	Index int
	Kind  string // such as "veth" or "ifb"
	MTU   int    // bytes
	// GSOMaxSize is the largest packet in bytes that the kernel leaves whole for the
	// device to cut; zero where the kernel does not say.
	GSOMaxSize int
	Up         bool // IFF_UP
	Group      int  // link group (IFLA_GROUP)

	// Root is the root qdisc; nil where the kernel dumps none.
	Root netlink.Qdisc
	// Queue is the qdisc below a Root that is a TBF; nil where that is the kernel's
	// own, or none.
	Queue netlink.Qdisc
	// Hook is the qdisc that filters incoming packets hang on.
	Hook Hook
	// Filters are those at the hook, in no particular order.
	Filters []Filter
}

// Hook is the kind of qdisc that an interface has for filters of incoming
// packets.
type Hook string

// The hooks.
const (
	HookNone    Hook = ""
	HookIngress Hook = "ingress"
	HookClsact  Hook = "clsact"
)

// Filter is a filter of incoming packets.
type Filter struct {
	Kind     string // such as "u32" or "bpf"
	Priority uint16
	Protocol uint16 // ETH_P_*
	Handle   uint32
	Chain    uint32
	// Redirect is whether it has a mirred action, and Target the ifindex that this
	// sends to; zero where that device is gone.
	Redirect bool
	Target   int
	// Marked is whether it carries our mark.
	Marked bool
}

// Observe reads the state of all shapers in bulk: one dump of links, one of
// qdiscs, and one of filters for each interface that has an ingress or clsact
// qdisc. Interfaces that vanish meanwhile are left out or incomplete. It fails
// with the kernel's error where a dump fails or is interrupted again and again
// (EINTR).
func Observe(kernel ReadKernel) (*Snapshot, error) {
	links, err := rtnl.RetryInterrupted(kernel.LinkList)
	if err != nil {
		return nil, fmt.Errorf("observe shapers: %w", err)
	}
	snapshot := newSnapshot(len(links))
	for _, link := range links {
		snapshot.add(newInterface(link))
	}
	if err := snapshot.observeQdiscs(kernel); err != nil {
		return nil, fmt.Errorf("observe shapers: %w", err)
	}
	return snapshot, nil
}

// IsShaper reports whether the interface is an IFB device of ours.
func (i *Interface) IsShaper() bool { return i.Kind == "ifb" && isIFBName(i.Name) }

// RedirectsTo reports whether a filter sends incoming packets to that ifindex.
func (i *Interface) RedirectsTo(index int) bool {
	for _, filter := range i.Filters {
		if filter.Redirect && filter.Target == index {
			return true
		}
	}
	return false
}

// isBelowTBF reports whether a qdisc's parent is the class of a root TBF.
func (i *Interface) isBelowTBF(parent uint32) bool {
	return i.Root != nil && i.Root.Type() == "tbf" && i.Root.Attrs().Handle == parent&0xffff_0000
}

// ByName returns the interface of that name, or nil.
func (s *Snapshot) ByName(name string) *Interface { return s.byName[name] }

// Redirectors returns, for each ifindex that is redirected to, the interfaces that
// do so.
func (s *Snapshot) Redirectors() map[int][]*Interface {
	from := make(map[int][]*Interface)
	for _, iface := range s.Interfaces {
		for n, filter := range iface.Filters {
			if !filter.Redirect || filter.Target == 0 {
				continue
			}
			repeated := false
			for _, earlier := range iface.Filters[:n] {
				repeated = repeated || earlier.Redirect && earlier.Target == filter.Target
			}
			if !repeated {
				from[filter.Target] = append(from[filter.Target], iface)
			}
		}
	}
	return from
}

// isOurs reports whether the filter is ours: marked, or a redirect to one of our
// devices.
func (s *Snapshot) isOurs(filter Filter) bool {
	if filter.Marked {
		return true
	}
	target := s.Interfaces[filter.Target]
	return filter.Redirect && target != nil && target.IsShaper()
}

// hasFiltersOfOurs reports whether the interface has a filter that is ours.
func (s *Snapshot) hasFiltersOfOurs(iface *Interface) bool {
	for _, filter := range iface.Filters {
		if s.isOurs(filter) {
			return true
		}
	}
	return false
}

func newSnapshot(size int) *Snapshot {
	return &Snapshot{
		Interfaces: make(map[int]*Interface, size),
		byName:     make(map[string]*Interface, size),
	}
}

func (s *Snapshot) add(iface *Interface) {
	s.remove(iface.Index)
	s.Interfaces[iface.Index] = iface
	s.byName[iface.Name] = iface
}

func (s *Snapshot) remove(index int) {
	iface := s.Interfaces[index]
	if iface == nil {
		return
	}
	delete(s.Interfaces, index)
	if s.byName[iface.Name] == iface {
		delete(s.byName, iface.Name)
	}
}

// observeQdiscs fills in the qdiscs and filters of the snapshot's interfaces, with
// one dump of qdiscs whatever their number.
func (s *Snapshot) observeQdiscs(kernel ReadKernel) error {
	qdiscs, err := rtnl.RetryInterrupted(kernel.QdiscList)
	if err != nil {
		return err
	}
	for _, qdisc := range qdiscs {
		iface := s.Interfaces[qdisc.Attrs().LinkIndex]
		if iface == nil {
			continue
		}
		switch attrs := qdisc.Attrs(); {
		case attrs.Parent == netlink.HANDLE_ROOT:
			iface.Root = qdisc
		case iface.isBelowTBF(attrs.Parent):
			iface.Queue = qdisc
		case qdisc.Type() == string(HookIngress), qdisc.Type() == string(HookClsact):
			iface.Hook = Hook(qdisc.Type())
			if iface.Filters, err = listFilters(kernel, iface.Index); err != nil {
				return err
			}
		}
	}
	return nil
}

// listFilters returns the filters of incoming packets; none where the interface
// or its hook has vanished.
func listFilters(kernel ReadKernel, ifindex int) ([]Filter, error) {
	list, err := rtnl.RetryInterrupted(func() ([]netlink.Filter, error) {
		return kernel.FilterList(ifindex, netlink.HANDLE_MIN_INGRESS)
	})
	if err != nil {
		if rtnl.IsAbsent(err) || errors.Is(err, unix.EINVAL) {
			return nil, nil
		}
		return nil, err
	}
	filters := make([]Filter, len(list))
	for n, filter := range list {
		filters[n] = newFilter(filter)
	}
	return filters, nil
}

func newInterface(link netlink.Link) *Interface {
	attrs := link.Attrs()
	return &Interface{
		Name:       attrs.Name,
		Index:      attrs.Index,
		Kind:       link.Type(),
		MTU:        attrs.MTU,
		GSOMaxSize: int(max(attrs.GSOMaxSize, attrs.GSOIPv4MaxSize)),
		Up:         attrs.Flags&net.FlagUp != 0 || attrs.RawFlags&unix.IFF_UP != 0,
		Group:      int(attrs.Group),
	}
}

func newFilter(filter netlink.Filter) Filter {
	attrs := filter.Attrs()
	f := Filter{Kind: filter.Type(), Priority: attrs.Priority, Protocol: attrs.Protocol, Handle: attrs.Handle}
	if attrs.Chain != nil {
		f.Chain = *attrs.Chain
	}
	var actions []netlink.Action
	switch filter := filter.(type) {
	case *netlink.U32:
		actions = filter.Actions
		f.Marked = filter.ClassId == filterMark
	case *netlink.MatchAll:
		actions = filter.Actions
	case *netlink.Flower:
		actions = filter.Actions
	}
	for _, action := range actions {
		if mirred, ok := action.(*netlink.MirredAction); ok {
			f.Redirect = true
			f.Target = mirred.Ifindex
		}
	}
	return f
}
