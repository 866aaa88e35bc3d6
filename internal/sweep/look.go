package sweep

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/qos"
	"github.com/manx-dataplane/manx/rtnl"
)

// DefaultPrefix starts the names of the devices that Calico's agent makes.
const DefaultPrefix = qos.IFBPrefix

// Device is an IFB device, and what speaks for it.
type Device struct {
	Name  string `json:"device"`
	Index int    `json:"ifindex"`
	// UsedBy are the interfaces with a filter that redirects to the device.
	UsedBy []string `json:"usedBy,omitempty"`
	// NamedFor is the existing interface whose IFB has the device's name.
	NamedFor string `json:"namedFor,omitempty"`
}

// Orphan reports whether nothing speaks for the device.
func (d Device) Orphan() bool { return len(d.UsedBy) == 0 && d.NamedFor == "" }

// Reason says in words why the device is an orphan, or why it is not.
func (d Device) Reason() string {
	switch {
	case len(d.UsedBy) > 0:
		return "in use: " + strings.Join(d.UsedBy, ", ") + " redirects to it"
	case d.NamedFor != "":
		return "named for " + d.NamedFor + ", which does not redirect to it (yet)"
	}
	return "no filter redirects to it and no interface's IFB has its name"
}

// View is what one look at the kernel saw.
type View struct {
	*qos.Snapshot
	usedBy   map[int][]string  // by the ifindex that is redirected to
	namedFor map[string]string // by the name of an interface's IFB
}

// Look takes one look. It only reads.
func Look(kernel qos.ReadKernel) (*View, error) {
	snapshot, err := qos.Observe(kernel)
	if err != nil {
		return nil, err
	}
	view := &View{
		Snapshot: snapshot,
		usedBy:   make(map[int][]string),
		namedFor: make(map[string]string, len(snapshot.Interfaces)),
	}
	for target, interfaces := range snapshot.Redirectors() {
		for _, iface := range interfaces {
			view.use(target, iface.Name)
		}
	}
	if err := view.lookElsewhere(kernel); err != nil {
		return nil, err
	}
	for _, iface := range snapshot.Interfaces {
		view.namedFor[qos.IFBName(iface.Name)] = iface.Name
	}
	return view, nil
}

// Devices returns the IFB devices whose names start with the prefix, by name.
func (v *View) Devices(prefix string) []Device {
	var devices []Device
	for _, iface := range v.Interfaces {
		if iface.Kind == "ifb" && strings.HasPrefix(iface.Name, prefix) {
			devices = append(devices, v.device(iface.Name, iface.Index))
		}
	}
	slices.SortFunc(devices, func(a, b Device) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.Index, b.Index))
	})
	return devices
}

// device says what speaks for the device of that index, if it has or had that
// name.
func (v *View) device(name string, index int) Device {
	usedBy := slices.Clone(v.usedBy[index])
	slices.Sort(usedBy)
	return Device{Name: name, Index: index, UsedBy: usedBy, NamedFor: v.namedFor[name]}
}

func (v *View) use(target int, iface string) {
	if !slices.Contains(v.usedBy[target], iface) {
		v.usedBy[target] = append(v.usedBy[target], iface)
	}
}

// lookElsewhere looks for redirects where an agent that shapes a workload puts
// none and someone else might: in filters of outgoing packets. One dump of
// qdiscs, and one of filters for each clsact qdisc and each qdisc of a kind that
// may have filters.
func (v *View) lookElsewhere(kernel qos.ReadKernel) error {
	qdiscs, err := rtnl.RetryInterrupted(kernel.QdiscList)
	if err != nil {
		return fmt.Errorf("look for redirects: %w", err)
	}
	for _, qdisc := range qdiscs {
		attrs := qdisc.Attrs()
		parent := attrs.Handle
		switch qdisc.Type() {
		case "clsact":
			parent = netlink.HANDLE_MIN_EGRESS
		case "ingress", "tbf", "bfifo": // seen already; have none
			continue
		}
		iface := v.Interfaces[attrs.LinkIndex]
		if parent == 0 || iface == nil { // a default qdisc, which has none
			continue
		}
		filters, err := rtnl.RetryInterrupted(func() ([]netlink.Filter, error) { return kernel.FilterList(iface.Index, parent) })
		if err != nil && !rtnl.IsAbsent(err) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("look for redirects of %s: %w", iface.Name, err)
		}
		for _, filter := range filters {
			for _, target := range redirectTargets(filter) {
				v.use(target, iface.Name)
			}
		}
	}
	return nil
}

// redirectTargets returns the ifindexes that a filter sends packets to.
func redirectTargets(filter netlink.Filter) []int {
	var actions []netlink.Action
	switch filter := filter.(type) {
	case *netlink.U32:
		actions = filter.Actions
	case *netlink.MatchAll:
		actions = filter.Actions
	case *netlink.Flower:
		actions = filter.Actions
	case *netlink.FwFilter:
		actions = filter.Actions
	}
	var targets []int
	for _, action := range actions {
		if mirred, ok := action.(*netlink.MirredAction); ok {
			targets = append(targets, mirred.Ifindex)
		}
	}
	return targets
}
