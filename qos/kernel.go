package qos

import (
	"errors"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ReadKernel is what Observe asks of the kernel. Methods and errors are those of
// *rtnl.Handle.
type ReadKernel interface {
	LinkList() ([]netlink.Link, error)
	QdiscList() ([]netlink.Qdisc, error)
	FilterList(ifindex int, parent uint32) ([]netlink.Filter, error)
}

// Kernel is what a Syncer asks of the kernel. Methods and errors are those of
// *rtnl.Handle.
type Kernel interface {
	ReadKernel
	LinkByName(name string) (netlink.Link, error)
	LinkByIndex(index int) (netlink.Link, error)
	LinkAdd(link netlink.Link) error
	LinkSetUp(link netlink.Link) error
	LinkSetMTU(link netlink.Link, mtu int) error
	QdiscAdd(qdisc netlink.Qdisc) error
	QdiscReplace(qdisc netlink.Qdisc) error
	QdiscChange(tbf *netlink.Tbf) error
	QdiscDel(qdisc netlink.Qdisc) error
	FilterAdd(filter netlink.Filter) error
	FilterDel(filter netlink.Filter) error
}

// Sysctls writes kernel parameters, named by their path below /proc/sys.
type Sysctls interface {
	WriteSysctl(path, value string) error
}

// ReaperKernel is what a Reaper asks of the kernel. Methods and errors are those
// of *rtnl.Handle; a Reaper closes each that it opened.
type ReaperKernel interface {
	LinkList() ([]netlink.Link, error)
	LinkByIndex(index int) (netlink.Link, error)
	LinkSetGroup(link netlink.Link, group int) error
	LinkDelGroup(group int) error
	LinkDel(link netlink.Link) error
	Close()
}

// The handles and numbers that mark what is ours; "cali" in hexadecimal's
// alphabet.
const (
	handleMajor    = 0xca11
	filterPriority = 0xca11
)

var (
	tbfHandle  = netlink.MakeHandle(handleMajor, 0)
	filterMark = netlink.MakeHandle(handleMajor, 1)
	// foreignRoot is the root handle that Felix and the CNI bandwidth plugin use.
	foreignRoot = netlink.MakeHandle(1, 0)
	// hookHandle is the handle of an ingress or clsact qdisc (TC_H_INGRESS).
	hookHandle = netlink.MakeHandle(0xffff, 0)
)

// linkRef names a link for a request that needs only its index; the name is for
// errors and logs.
func linkRef(name string, index int) netlink.Link {
	return &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: name, Index: index}}
}

// kindsNeeded are the kinds of kernel objects that an egress limit takes; an ingress
// limit takes a TBF only.
func kindsNeeded() []string { return []string{"ifb", "tbf", "ingress", "u32"} }

// isUnsupported reports whether err, from a request that creates something of that
// kind, says that the kernel has no such kind. (EOPNOTSUPP for a filter means that
// the interface's filters are in a block that it shares with others.)
func isUnsupported(kind string, err error) bool {
	if kind == "ifb" {
		return errors.Is(err, unix.EOPNOTSUPP)
	}
	return slices.Contains(kindsNeeded(), kind) && errors.Is(err, unix.ENOENT)
}
