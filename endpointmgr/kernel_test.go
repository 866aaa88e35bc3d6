package endpointmgr_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"

	"github.com/manx-dataplane/manx/endpointmgr"
	"github.com/manx-dataplane/manx/rtnl"
)

var _ = Describe("Sysctls of a real kernel", func() {
	var (
		w      *world
		ns     *rtnl.Namespace
		handle *rtnl.Handle
		veth   netlink.Link
	)

	// inside runs fn in the namespace: /proc/sys/net is that of the thread.
	inside := func(fn func()) {
		GinkgoHelper()
		Expect(ns.Do(func() error {
			defer GinkgoRecover()
			fn()
			return nil
		})).To(Succeed())
	}
	read := func(path string) string {
		GinkgoHelper()
		value, err := os.ReadFile(filepath.Join("/proc/sys", path))
		Expect(err).NotTo(HaveOccurred())
		return strings.TrimSpace(string(value))
	}

	BeforeEach(func() {
		if os.Geteuid() != 0 && os.Getenv("CI") == "" {
			Skip("needs root, to make a network namespace")
		}
		var err error
		ns, err = rtnl.NewNamespace()
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { Expect(ns.Close()).To(Succeed()) })
		handle, err = rtnl.Open(rtnl.Options{Namespace: ns})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { handle.Close() })
		Expect(handle.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "cali1"}, PeerName: "eth0"})).To(Succeed())
		veth, err = handle.LinkByName("cali1")
		Expect(err).NotTo(HaveOccurred())
		w = newWorld(func(c *endpointmgr.Config) { c.Sysctls = endpointmgr.ProcSys{Root: "/proc/sys"} })
	})

	It("exist under the names we use and take the values we give", func() {
		w.tellLink("cali1", veth.Attrs().Index, up)
		w.update(id("a"), pod("cali1"))
		inside(func() {
			Expect(w.apply()).To(Succeed())
			for path, value := range configured {
				path = strings.ReplaceAll(path, "X", "cali1")
				Expect(read(path)).To(Equal(value), path)
			}
		})
		Expect(w.warnings()).To(BeEmpty())
		Expect(w.status.status).To(HaveKeyWithValue(id("a"), endpointmgr.StatusUp))
	})

	It("are no error when the interface is gone before its end is told", func() {
		w.tellLink("cali1", veth.Attrs().Index, up)
		w.update(id("a"), pod("cali1"))
		Expect(handle.LinkDel(veth)).To(Succeed())
		inside(func() { Expect(w.apply()).To(Succeed()) })
		Expect(w.status.status).To(HaveKeyWithValue(id("a"), endpointmgr.StatusDown))
		Expect(w.warnings()).To(BeEmpty())
	})

	It("of IPv6 are missing where the MTU is below 1280: said, and no error", func() {
		Expect(handle.LinkSetMTU(veth, 1000)).To(Succeed())
		w.tellLink("cali1", veth.Attrs().Index, up)
		w.update(id("a"), pod("cali1"))
		inside(func() { Expect(w.apply()).To(Succeed()) })
		Expect(w.warnings()).To(ConsistOf(ContainSubstring("no IPv6 sysctls")))
		Expect(w.status.status).To(HaveKeyWithValue(id("a"), endpointmgr.StatusUp))
	})

	It("that the kernel refuses are errors that name the file", func() {
		inside(func() {
			err := endpointmgr.ProcSys{Root: "/proc/sys"}.WriteSysctl("net/ipv4/conf/cali1/forwarding", "not a number")
			Expect(err).To(MatchError(syscall.EINVAL))
			Expect(err).To(MatchError(ContainSubstring("net/ipv4/conf/cali1/forwarding")))
		})
	})
})
