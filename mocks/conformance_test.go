package mocks_test

import (
	"os"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The behavioural suite: every spec runs against a mocks.Kernel and against a real
// namespace.
var _ = Describe("A kernel", func() {
	for _, which := range worlds {
		Context("("+which.name+")", func() {
			var w world
			BeforeEach(func() {
				if which.real && os.Geteuid() != 0 {
					if os.Getenv("CI") != "" {
						Fail("needs root, to make a network namespace")
					}
					Skip("needs root, to make a network namespace")
				}
				w = open(which.open)
			})
			linkBehaviour(&w)
			eventBehaviour(&w)
			qdiscBehaviour(&w)
			filterBehaviour(&w)
			routeBehaviour(&w)
			neighbourBehaviour(&w)
			sysctlBehaviour(&w)
		})
	}
})

// open opens a world for the spec, with no IPv6 link-local addresses in it: they
// come only once duplicate address detection is done.
func open(open func() (world, error)) world {
	GinkgoHelper()
	w, err := open()
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(w.destroy)
	Expect(w.writeSysctl("/proc/sys/net/ipv6/conf/default/addr_gen_mode", "1")).To(Succeed())
	return w
}

func errno(err error) error {
	if err == nil {
		return nil
	}
	return errnoOf(err)
}

func linkNames(w world) (names []string) {
	GinkgoHelper()
	links, err := w.LinkList()
	Expect(err).NotTo(HaveOccurred())
	for _, l := range links {
		if name := l.Attrs().Name; name != "lo" {
			names = append(names, name)
		}
	}
	return names
}

func addLink(w world, l netlink.Link) int {
	GinkgoHelper()
	Expect(w.LinkAdd(l)).To(Succeed())
	return l.Attrs().Index
}

func byName(w world, name string) netlink.Link {
	GinkgoHelper()
	l, err := w.LinkByName(name)
	Expect(err).NotTo(HaveOccurred())
	return l
}

// addPair makes a veth pair, both ends up, and returns the first end's index.
func addPair(w world, name, peer string) int {
	GinkgoHelper()
	index := addLink(w, veth(name, peer))
	Expect(w.LinkSetUp(byName(w, peer))).To(Succeed())
	Expect(w.LinkSetUp(ofIndex(index))).To(Succeed())
	return index
}

// runningPair makes a veth pair and waits until both ends run.
func runningPair(w world, name, peer string) int {
	GinkgoHelper()
	index := addPair(w, name, peer)
	Eventually(running(w, name)).Within(5 * time.Second).Should(BeTrue())
	Eventually(running(w, peer)).Within(5 * time.Second).Should(BeTrue())
	return index
}

func running(w world, name string) func() bool {
	return func() bool {
		l, err := w.LinkByName(name)
		return err == nil && l.Attrs().RawFlags&unix.IFF_RUNNING != 0
	}
}

func linkBehaviour(w *world) {
	It("starts with a loopback interface that is down, ifindex 1", func() {
		lo := byName(*w, "lo")
		Expect(lo.Attrs().Index).To(Equal(1))
		Expect(lo.Attrs().RawFlags & unix.IFF_UP).To(BeZero())
	})
	It("gives each new link a higher ifindex, and never one again", func() {
		first := addLink(*w, ifb("a"))
		Expect((*w).LinkDel(ofIndex(first))).To(Succeed())
		Expect(addLink(*w, ifb("a"))).To(BeNumerically(">", first))
	})
	It("gives a link the ifindex that was asked for, and refuses one that is taken", func() {
		l := ifb("a")
		l.Index = 77
		Expect(addLink(*w, l)).To(Equal(77))
		l = ifb("b")
		l.Index = 77
		Expect(errno((*w).LinkAdd(l))).To(Equal(unix.EEXIST))
	})
	It("refuses a name that is taken, malformed or too long", func() {
		addLink(*w, ifb("a"))
		Expect(errno((*w).LinkAdd(ifb("a")))).To(Equal(unix.EEXIST))
		Expect(errno((*w).LinkAdd(ifb("a/b")))).To(Equal(unix.EINVAL))
		Expect(errno((*w).LinkAdd(ifb("sixteen-letters-")))).To(Equal(unix.ERANGE))
	})
	It("knows no link that is not there", func() {
		_, err := (*w).LinkByName("nosuch")
		Expect(errno(err)).To(Equal(unix.ENODEV))
		_, err = (*w).LinkByIndex(4711)
		Expect(errno(err)).To(Equal(unix.ENODEV))
		Expect(errno((*w).LinkDel(ofIndex(4711)))).To(Equal(unix.ENODEV))
		Expect(errno((*w).LinkSetUp(ofIndex(4711)))).To(Equal(unix.ENODEV))
	})
	DescribeTable("deletes both ends of a veth pair when either is deleted",
		func(name string) {
			addPair(*w, "a", "b")
			Expect((*w).LinkDel(byName(*w, name))).To(Succeed())
			Expect(linkNames(*w)).To(BeEmpty())
		},
		Entry("the first", "a"), Entry("the second", "b"))
	It("has a veth run only while both ends are up", func() {
		index := addLink(*w, veth("a", "b"))
		Expect((*w).LinkSetUp(ofIndex(index))).To(Succeed())
		Expect(running(*w, "a")()).To(BeFalse())
		Expect((*w).LinkSetUp(byName(*w, "b"))).To(Succeed())
		Eventually(running(*w, "a")).Within(5 * time.Second).Should(BeTrue())
		Expect((*w).LinkSetDown(byName(*w, "b"))).To(Succeed())
		Eventually(running(*w, "a")).Within(5 * time.Second).Should(BeFalse())
	})
	It("has an IFB and a bridge run as soon as they are up", func() {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br", TxQLen: -1}}
		for _, l := range []netlink.Link{ifb("a"), bridge} {
			Expect((*w).LinkSetUp(ofIndex(addLink(*w, l)))).To(Succeed())
			Expect(running(*w, l.Attrs().Name)()).To(BeTrue())
			Expect(byName(*w, l.Attrs().Name).Attrs().OperState).To(Equal(netlink.LinkOperState(netlink.OperUnknown)))
		}
	})
	It("renames a link that is up, and keeps its index", func() {
		index := addPair(*w, "a", "b")
		Expect((*w).LinkSetName(ofIndex(index), "c")).To(Succeed())
		Expect(byName(*w, "c").Attrs().Index).To(Equal(index))
		Expect(errno((*w).LinkSetName(ofIndex(index), "b"))).To(Equal(unix.EEXIST))
		Expect((*w).LinkSetName(ofIndex(index), "c")).To(Succeed())
	})
	It("takes an MTU from 68 to 65535 for a veth, and any for an IFB", func() {
		index := addLink(*w, veth("a", "b"))
		Expect((*w).LinkSetMTU(ofIndex(index), 9000)).To(Succeed())
		Expect(byName(*w, "a").Attrs().MTU).To(Equal(9000))
		Expect(byName(*w, "b").Attrs().MTU).To(Equal(1500))
		Expect(errno((*w).LinkSetMTU(ofIndex(index), 67))).To(Equal(unix.EINVAL))
		Expect(errno((*w).LinkSetMTU(ofIndex(index), 65536))).To(Equal(unix.EINVAL))
		Expect((*w).LinkSetMTU(ofIndex(addLink(*w, ifb("c"))), 100_000)).To(Succeed())
	})
	It("deletes a group of links with one request", func() {
		for _, name := range []string{"a", "b", "c"} {
			index := addLink(*w, ifb(name))
			if name != "b" {
				Expect((*w).LinkSetGroup(ofIndex(index), 5)).To(Succeed())
			}
		}
		Expect((*w).LinkDelGroup(5)).To(Succeed())
		Expect(linkNames(*w)).To(Equal([]string{"b"}))
		Expect(errno((*w).LinkDelGroup(5))).To(Equal(unix.ENODEV))
		Expect(errno((*w).LinkDelGroup(0))).To(Equal(unix.EINVAL))
	})
	It("deletes none of a group that holds a link which cannot be deleted", func() {
		Expect((*w).LinkSetGroup(ofIndex(1), 5)).To(Succeed())
		Expect((*w).LinkSetGroup(ofIndex(addLink(*w, ifb("a"))), 5)).To(Succeed())
		Expect(errno((*w).LinkDelGroup(5))).To(Equal(unix.EOPNOTSUPP))
		Expect(linkNames(*w)).To(Equal([]string{"a"}))
		Expect(errno((*w).LinkDel(ofIndex(1)))).To(Equal(unix.EOPNOTSUPP))
	})
	It("hides a peer in another namespace, and loses both ends when that namespace goes", func() {
		pod, err := (*w).newNamespace()
		Expect(err).NotTo(HaveOccurred())
		destroyed := false
		DeferCleanup(func() {
			if !destroyed {
				pod.destroy()
			}
		})
		l := veth("a", "eth0")
		l.PeerNamespace = netlink.NsFd(pod.fd())
		addLink(*w, l)
		Expect(linkNames(*w)).To(Equal([]string{"a"}))
		Expect(linkNames(pod)).To(Equal([]string{"eth0"}))
		id, err := (*w).NamespaceID(pod.fd())
		Expect(err).NotTo(HaveOccurred())
		Expect(byName(*w, "a").Attrs().NetNsID).To(Equal(id))
		destroyed = true
		pod.destroy()
		Eventually(func() []string { return linkNames(*w) }).Within(10 * time.Second).Should(BeEmpty())
	})
	It("moves a link into another namespace, down, under its index where that is free", func() {
		other, err := (*w).newNamespace()
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(other.destroy)
		index := addPair(*w, "a", "b")
		Expect((*w).LinkSetGroup(ofIndex(index), 4)).To(Succeed())
		Expect((*w).moveLink(byName(*w, "a"), other)).To(Succeed())
		Expect(linkNames(*w)).To(Equal([]string{"b"}))
		moved := byName(other, "a").Attrs()
		Expect(moved.Index).To(Equal(index))
		Expect(moved.RawFlags & unix.IFF_UP).To(BeZero())
		Expect((*w).LinkDel(byName(*w, "b"))).To(Succeed())
		Expect(linkNames(other)).To(BeEmpty())
	})
}
