package ifacemonitor_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"

	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/mocks"
	"github.com/manx-dataplane/manx/rtnl"
)

// What delivers events satisfies what the monitor asks for.
var (
	_ ifacemonitor.EventSocket = (*rtnl.EventSocket)(nil)
	_ ifacemonitor.EventSocket = (*mocks.EventSocket)(nil)
)

var _ = Describe("Monitor on a real kernel", func() {
	var (
		ns     *rtnl.Namespace
		handle *rtnl.Handle
		seen   *recorder
		config ifacemonitor.Config
		buffer int
	)

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
		seen = newRecorder()
		buffer = 0
		config = ifacemonitor.Config{
			Open: func() (ifacemonitor.EventSocket, error) {
				return rtnl.OpenEvents(rtnl.EventOptions{Options: rtnl.Options{Namespace: ns}, ReceiveBuffer: buffer})
			},
			AddrRemovalDelay: time.Millisecond,
		}
		seen.configure(&config)
	})

	// start runs a monitor until the spec ends, and waits until it is in sync.
	start := func() {
		GinkgoHelper()
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		monitor := ifacemonitor.New(config)
		go func() { done <- monitor.Run(ctx) }()
		DeferCleanup(func() {
			cancel()
			Eventually(done).Should(Receive(BeNil()))
			Expect(seen.broken()).To(BeEmpty())
		})
		Eventually(seen.isInSync).Should(BeTrue())
	}
	ip := func(arguments string) (output string) {
		GinkgoHelper()
		Expect(ns.Do(func() error {
			b, err := exec.Command("ip", strings.Fields(arguments)...).CombinedOutput()
			output = string(b)
			if err != nil {
				return errors.New(output)
			}
			return nil
		})).To(Succeed())
		return output
	}
	addVeth := func(name string) int {
		GinkgoHelper()
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: 1400}, PeerName: "peer-" + name}
		Expect(handle.LinkAdd(veth)).To(Succeed())
		return veth.Index
	}
	del := func(name string) {
		GinkgoHelper()
		link, err := handle.LinkByName(name)
		Expect(err).NotTo(HaveOccurred())
		Expect(handle.LinkDel(link)).To(Succeed())
	}

	It("reports what exists at the start before it is in sync", func() {
		ip("link set lo up")
		index := addVeth("cali0")
		ip("addr add 10.1.0.1/32 dev cali0")
		ip("addr add fd00::1/128 dev cali0 nodad")
		// The kernel adds the local route of an IPv6 address from a work queue.
		Eventually(func() string { return ip("-6 route show table local") }).Should(ContainSubstring("fd00::1"))
		start()
		Expect(seen.present()).To(HaveKeyWithValue("cali0", fmt.Sprintf("%d down 1400 [10.1.0.1 fd00::1]", index)))
		Expect(seen.of("cali0")).To(HaveLen(3), "once each: state, MTU, all addresses")
		Expect(seen.present()["lo"]).To(ContainSubstring("[127.0.0.1 ::1]"))
	})

	It("reports a veth that is deleted and re-created in a loop: absent before each new index", func() {
		start()
		var want []string
		for range 20 {
			index := addVeth("cali0")
			want = append(want, fmt.Sprintf("down %d", index), fmt.Sprintf("absent %d", index))
			del("cali0")
		}
		Eventually(func() []string { return seen.states("cali0") }).Should(Equal(want))
	})

	It("reports up and down, addresses coming and going, and the MTU", func() {
		start()
		index := addVeth("cali0")
		ip("link set cali0 addrgenmode none") // else fe80::… comes a second later
		ip("link set peer-cali0 up")
		ip("link set cali0 up mtu 1300")
		ip("addr add 10.1.0.1/32 dev cali0")
		ip("addr add fd00::1/128 dev cali0 nodad")
		Eventually(seen.present).Should(HaveKeyWithValue("cali0", fmt.Sprintf("%d up 1300 [10.1.0.1 fd00::1]", index)))
		ip("addr del 10.1.0.1/32 dev cali0")
		Eventually(seen.present).Should(HaveKeyWithValue("cali0", fmt.Sprintf("%d up 1300 [fd00::1]", index)))
		ip("addr del fd00::1/128 dev cali0")
		ip("link set cali0 down")
		Eventually(seen.present).Should(HaveKeyWithValue("cali0", fmt.Sprintf("%d down 1300 []", index)))
	})

	It("reports a rename as the old name absent and the new one present, with its addresses", func() {
		start()
		index := addVeth("cali0")
		ip("addr add 10.1.0.1/32 dev cali0")
		ip("link set cali0 name cali1")
		Eventually(seen.present).Should(HaveKeyWithValue("cali1", fmt.Sprintf("%d down 1400 [10.1.0.1]", index)))
		Expect(seen.names()).NotTo(ContainElement("cali0"))
	})

	It("keeps two links apart that swap their names through a third", func() {
		start()
		one, two := addVeth("one"), addVeth("two")
		ip("link set one name three")
		ip("link set two name one")
		ip("link set three name two")
		Eventually(seen.present).Should(And(
			HaveKeyWithValue("one", HavePrefix(fmt.Sprintf("%d down", two))),
			HaveKeyWithValue("two", HavePrefix(fmt.Sprintf("%d down", one)))))
		Expect(seen.names()).NotTo(ContainElement("three"))
	})

	It("reports a link that leaves for another namespace and returns with its index", func() {
		other, err := rtnl.NewNamespace()
		Expect(err).NotTo(HaveOccurred())
		defer other.Close()
		there, err := rtnl.Open(rtnl.Options{Namespace: other})
		Expect(err).NotTo(HaveOccurred())
		defer there.Close()
		start()
		index := addVeth("cali0")
		link, err := handle.LinkByName("cali0")
		Expect(err).NotTo(HaveOccurred())
		Expect(handle.LinkSetNamespace(link, other)).To(Succeed())
		link, err = there.LinkByName("cali0")
		Expect(err).NotTo(HaveOccurred())
		Expect(there.LinkSetNamespace(link, ns)).To(Succeed())
		want := []string{fmt.Sprintf("down %d", index), fmt.Sprintf("absent %d", index), fmt.Sprintf("down %d", index)}
		Eventually(func() []string { return seen.states("cali0") }).Should(Equal(want))
	})

	It("keeps a port that leaves its bridge", func() {
		start()
		index := addVeth("cali0")
		ip("link add br0 type bridge")
		ip("link set cali0 master br0")
		ip("link set cali0 nomaster")
		addVeth("last")
		Eventually(seen.names).Should(ContainElement("last"))
		Expect(seen.states("cali0")).To(Equal([]string{fmt.Sprintf("down %d", index)}))
	})

	It("is right again after the receive buffer overran, whatever was lost", func() {
		buffer = 1 // the kernel's minimum: one or two messages
		registry := prometheus.NewRegistry()
		config.Registerer = registry
		churned, callback := make(chan struct{}), config.StateCallback
		config.StateCallback = func(name string, state ifacemonitor.State, index int) {
			if name != "lo" {
				<-churned // else the monitor might keep up
			}
			callback(name, state, index)
		}
		start()
		for i := range 40 {
			addVeth(fmt.Sprintf("cali%d", i))
			if i%4 != 0 {
				del(fmt.Sprintf("cali%d", i))
			}
		}
		close(churned)
		links, err := handle.LinkList()
		Expect(err).NotTo(HaveOccurred())
		want := map[string]any{}
		for _, link := range links {
			want[link.Attrs().Name] = HavePrefix(fmt.Sprintf("%d ", link.Attrs().Index))
		}
		Eventually(seen.names).WithTimeout(5 * time.Second).Should(HaveLen(len(want)))
		for name, prefix := range want {
			Expect(seen.present()).To(HaveKeyWithValue(name, prefix))
		}
		Expect(counter(registry, "manx_ifacemonitor_overruns_total")).To(BeNumerically(">", 0))
		Expect(counter(registry, "manx_ifacemonitor_resyncs_total", "overrun")).To(BeNumerically(">", 0))
	})

	It("takes addresses from the local table, service addresses on loopback included", func() {
		ip("link set lo up")
		start()
		ip("route add local 192.0.2.7 dev lo")
		Eventually(seen.present).Should(HaveKeyWithValue("lo", ContainSubstring("192.0.2.7")))
	})
})
