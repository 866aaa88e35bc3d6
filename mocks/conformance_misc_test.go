package mocks_test

import (
	"fmt"
	"net"
	"os"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func neighbourBehaviour(w *world) {
	entry := func(index int, ip string) *netlink.Neigh {
		return &netlink.Neigh{
			LinkIndex: index, IP: net.ParseIP(ip), State: unix.NUD_PERMANENT,
			HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1},
		}
	}
	permanent := func(index, family int) (lines []string) {
		GinkgoHelper()
		neighs, err := (*w).NeighList(index, family)
		Expect(err).NotTo(HaveOccurred())
		for _, n := range neighs {
			if n.State == unix.NUD_PERMANENT {
				lines = append(lines, fmt.Sprintf("%s %s", n.IP, n.HardwareAddr))
			}
		}
		return lines
	}
	It("keeps static neighbours until their link goes down or they are deleted", func() {
		a := addPair(*w, "a", "b")
		Expect((*w).NeighSet(entry(a, "10.65.0.1"))).To(Succeed())
		Expect((*w).NeighSet(entry(a, "10.65.0.2"))).To(Succeed())
		Expect((*w).NeighSet(entry(a, "fd00::1"))).To(Succeed())
		Expect(permanent(a, unix.AF_INET)).To(ConsistOf("10.65.0.1 02:00:00:00:00:01", "10.65.0.2 02:00:00:00:00:01"))
		Expect(permanent(0, unix.AF_INET6)).To(ConsistOf("fd00::1 02:00:00:00:00:01"))
		Expect(permanent(byName(*w, "b").Attrs().Index, unix.AF_INET)).To(BeEmpty())
		Expect((*w).NeighDel(entry(a, "10.65.0.1"))).To(Succeed())
		Expect(permanent(a, unix.AF_INET)).To(HaveLen(1))
		Expect((*w).LinkSetDown(ofIndex(a))).To(Succeed())
		Expect(permanent(0, unix.AF_INET)).To(BeEmpty())
		Expect(permanent(0, unix.AF_INET6)).To(BeEmpty())
	})
	It("says ENOENT or ENODEV when there is no such neighbour or link", func() {
		a := addPair(*w, "a", "b")
		Expect(errno((*w).NeighDel(entry(a, "10.65.0.1")))).To(Equal(unix.ENOENT))
		Expect(errno((*w).NeighDel(entry(4711, "10.65.0.1")))).To(Equal(unix.ENODEV))
		Expect(errno((*w).NeighSet(entry(4711, "10.65.0.1")))).To(Equal(unix.ENODEV))
	})
}

func sysctlBehaviour(w *world) {
	It("has sysctls for each interface, which come, go and are renamed with it", func() {
		path := func(name string) string { return "/proc/sys/net/ipv4/conf/" + name + "/proxy_arp" }
		Expect((*w).writeSysctl(path("a"), "1")).To(MatchError(os.ErrNotExist))
		a := addPair(*w, "a", "b")
		Expect((*w).writeSysctl(path("a"), "1")).To(Succeed())
		Expect((*w).LinkSetName(ofIndex(a), "c")).To(Succeed())
		Expect((*w).writeSysctl(path("a"), "1")).To(MatchError(os.ErrNotExist))
		Expect((*w).readSysctl(path("c"))).To(Equal("1"))
		Expect((*w).readSysctl(path("b"))).To(Equal("0"))
		Expect((*w).LinkDel(ofIndex(a))).To(Succeed())
		addPair(*w, "c", "b")
		Expect((*w).readSysctl(path("c"))).To(Equal("0"))
	})
	It("starts a new interface with the values of default", func() {
		Expect((*w).writeSysctl("/proc/sys/net/ipv4/conf/default/rp_filter", "2")).To(Succeed())
		addPair(*w, "a", "b")
		Expect((*w).readSysctl("/proc/sys/net/ipv4/conf/a/rp_filter")).To(Equal("2"))
	})
	It("has no sysctl of another name", func() {
		addPair(*w, "a", "b")
		Expect((*w).writeSysctl("/proc/sys/net/ipv4/conf/a/nosuch", "1")).To(MatchError(os.ErrNotExist))
		Expect((*w).writeSysctl("/proc/sys/net/ipv4/nosuch", "1")).To(MatchError(os.ErrNotExist))
	})
}
