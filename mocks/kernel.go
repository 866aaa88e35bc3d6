package mocks

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"

	"github.com/manx-dataplane/manx/rtnl"
)

// Kernel is one network namespace of an in-memory kernel. A new one holds a
// loopback interface, ifindex 1, that is down, as a new namespace does.
//
// All its methods, and those of the handles and sockets that it gives out, are
// safe for concurrent use.
type Kernel struct {
	machine *machine
	fd      int

	links     map[int]*link
	names     map[string]*link
	ordered   []*link // by index; nil: to be made again
	lastIndex int

	fib     fib
	neighs  map[neighKey]*netlink.Neigh
	flows   map[netip.Addr]int
	sysctls map[string]map[string]string // of "all" and "default"
	sockets []*EventSocket
	lacks   map[string]bool
	faults  faults
	handles int
}

// machine is what the namespaces of one kernel share: mainly, one lock.
type machine struct {
	mu         sync.Mutex
	namespaces map[int]*Kernel
	lastFD     int
	lastMAC    uint32

	// redirects finds the mirred actions that target a link.
	redirects map[*link]map[*filter]struct{}
}

// NewKernel makes a kernel of one namespace.
func NewKernel() *Kernel {
	return newNamespace(&machine{
		namespaces: map[int]*Kernel{},
		lastFD:     100,
		redirects:  map[*link]map[*filter]struct{}{},
	})
}

// NewNamespace makes another namespace of the same kernel: somewhere for the pod's
// end of a veth pair to be. It counts and fails calls on its own.
func (k *Kernel) NewNamespace() *Kernel {
	k.lock()
	defer k.unlock()
	return newNamespace(k.machine)
}

func newNamespace(m *machine) *Kernel {
	m.lastFD++
	k := &Kernel{
		machine: m,
		fd:      m.lastFD,
		links:   map[int]*link{},
		names:   map[string]*link{},
		fib:     newFIB(),
		neighs:  map[neighKey]*netlink.Neigh{},
		flows:   map[netip.Addr]int{},
		sysctls: map[string]map[string]string{"all": {}, "default": {}},
		lacks:   map[string]bool{},
		faults:  faults{counts: map[Op]int{}},
	}
	m.namespaces[k.fd] = k
	lo := &link{ns: k, kind: "", name: "lo", mtu: 65536, flags: net.FlagLoopback, txQLen: 1000, carrier: true}
	_ = k.register(lo, 0) // cannot fail: it is the first
	return k
}

// FD stands for the namespace where netlink asks for a file descriptor:
//
//	&netlink.Veth{…, PeerNamespace: netlink.NsFd(pod.FD())}
func (k *Kernel) FD() int { return k.fd }

// Destroy ends the namespace as the kernel does when nothing refers to it any more:
// every link in it is deleted, and with a veth its other end, wherever that is.
func (k *Kernel) Destroy() {
	k.lock()
	defer k.unlock()
	delete(k.machine.namespaces, k.fd)
	k.unregister(k.sortedLinks()...)
}

// AddPod does what a container runtime does for a new pod: it makes a namespace with
// an interface eth0, whose other end is a host-side veth of the given name in k, both
// ends up. Destroy on the result is the pod's end.
func (k *Kernel) AddPod(veth string) (pod *Kernel, err error) {
	pod = k.NewNamespace()
	host := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: veth, TxQLen: -1},
		PeerName:      "eth0",
		PeerTxQLen:    -1,
		PeerNamespace: netlink.NsFd(pod.FD()),
	}
	h := k.Outside()
	defer h.Close()
	if err := h.LinkAdd(host); err != nil {
		pod.Destroy()
		return nil, err
	}
	podHandle := pod.Outside()
	defer podHandle.Close()
	peer, err := podHandle.LinkByName("eth0")
	if err == nil {
		err = podHandle.LinkSetUp(peer)
	}
	if err == nil {
		err = h.LinkSetUp(host)
	}
	if err != nil {
		pod.Destroy()
		return nil, err
	}
	return pod, nil
}

// Lack takes kinds of links, qdiscs and filters away, as a kernel does that was
// built without them: creating a link of that kind fails with EOPNOTSUPP, a qdisc or
// filter with ENOENT. What exists stays. It applies to this namespace.
func (k *Kernel) Lack(kinds ...string) {
	k.lock()
	defer k.unlock()
	for _, kind := range kinds {
		k.lacks[kind] = true
	}
}

// OpenHandles returns how many handles and event sockets have been opened and not
// closed, those of Outside excepted.
func (k *Kernel) OpenHandles() int {
	k.lock()
	defer k.unlock()
	return k.handles
}

func (k *Kernel) lock()   { k.machine.mu.Lock() }
func (k *Kernel) unlock() { k.machine.mu.Unlock() }

// multicast sends an event to every socket of the namespace.
func (k *Kernel) multicast(m rtnl.Message) {
	for _, s := range k.sockets {
		s.deliver(m)
	}
}

// sortedLinks returns all links by index. The slice is shared: callers must not
// change it, nor the links' list while they go through it.
func (k *Kernel) sortedLinks() []*link {
	if k.ordered == nil {
		k.ordered = slices.SortedFunc(maps.Values(k.links), func(a, b *link) int { return a.index - b.index })
	}
	return k.ordered
}
