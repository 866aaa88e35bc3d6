package audit_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/manx-dataplane/manx/internal/audit"
	"github.com/manx-dataplane/manx/internal/cli"
	"github.com/manx-dataplane/manx/internal/nodetest"
	"github.com/manx-dataplane/manx/rtnl"
)

var _ audit.Kernel = (*rtnl.Handle)(nil)

func TestAudit(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "audit")
	goleak.VerifyNone(t, goleak.IgnoreAnyFunction(
		"github.com/onsi/ginkgo/v2/internal/interrupt_handler.(*InterruptHandler).registerForInterrupts.func2"))
}

var _ = AfterSuite(nodetest.CleanUp)

const (
	veth = "cali0027f0645a2"
	ifb  = "bwcali6514ff3bb"
)

// writeFile writes a file into a directory that lasts as long as the spec.
func writeFile(name, text string) string {
	GinkgoHelper()
	path := filepath.Join(GinkgoT().TempDir(), name)
	Expect(os.WriteFile(path, []byte(text), 0o644)).To(Succeed())
	return path
}

func manifest(pod, iface, address string) string {
	return fmt.Sprintf(`---
apiVersion: projectcalico.org/v3
kind: WorkloadEndpoint
metadata: {name: %[1]s, namespace: default}
spec: {orchestrator: k8s, node: n, pod: %[1]s, endpoint: eth0, interfaceName: %[2]s, ipNetworks: [%[3]s/32]}
`, pod, iface, address)
}

// quiet is a kernel log without a word about devices.
const quiet = "[    1.000000] Linux version 6.18\n"

type expected struct {
	left, right int
	status      audit.Status
	offenders   []string
}

func offenders(pair audit.Pair) []string {
	names := []string{}
	for _, offender := range pair.Offenders {
		names = append(names, offender.Name)
	}
	return names
}

var _ = Describe("On a node", func() {
	var node *nodetest.Node
	var options audit.Options
	BeforeEach(func() {
		node = nodetest.New()
		options = audit.Options{Kernel: node.Kernel, Prefixes: []string{"cali"}, KernelLog: writeFile("dmesg", quiet)}
	})

	compare := func(name string) audit.Pair {
		GinkgoHelper()
		options.Only = []string{name}
		report := audit.Run(GinkgoT().Context(), options)
		Expect(report.Pairs).To(HaveLen(1))
		return report.Pairs[0]
	}
	check := func(pair audit.Pair, want expected) {
		GinkgoHelper()
		Expect(pair.Problem).To(BeEmpty())
		Expect(pair.Left.Count).To(Equal(want.left), "left")
		Expect(pair.Right.Count).To(Equal(want.right), "right")
		Expect(pair.Difference).To(Equal(want.left - want.right))
		Expect(pair.Status).To(Equal(want.status))
		Expect(offenders(pair)).To(ConsistOf(want.offenders))
		if want.status == audit.Gap {
			Expect(pair.Meaning).NotTo(BeEmpty())
			Expect(pair.Do).NotTo(BeEmpty())
			Expect(pair.DoNot).NotTo(BeEmpty())
		}
	}

	Describe("shapers", func() {
		It("are equal where each device has its user", func() {
			node.AddWorkload(veth, nil)
			check(compare(audit.PairShapers), expected{1, 1, audit.Equal, nil})
		})
		It("that nobody uses are a gap (case A)", func() {
			node.AddWorkload(veth, nil)
			node.AddIFB("bwcali000000001")
			check(compare(audit.PairShapers), expected{2, 1, audit.Gap, []string{"bwcali000000001"}})
		})
		It("that are gone from under an interface are a gap", func() {
			node.AddWorkload(veth, nil)
			node.Delete(ifb)
			check(compare(audit.PairShapers), expected{0, 1, audit.Gap, []string{veth}})
		})
		It("are a gap also where one too many and one too few make the counts equal", func() {
			node.AddWorkload(veth, nil)
			node.Delete(ifb)
			node.AddIFB("bwcali000000001")
			check(compare(audit.PairShapers), expected{1, 1, audit.Gap, []string{veth, "bwcali000000001"}})
		})
		It("of other programs are nobody's business here", func() {
			node.AddIFB("ifb0")
			node.AddIFB("bwp0123456789ab")
			check(compare(audit.PairShapers), expected{0, 0, audit.Equal, nil})
		})
	})

	Describe("endpoints", func() {
		It("are not asked for without their directory, unless by name", func() {
			report := audit.Run(GinkgoT().Context(), options)
			Expect(report.Pairs).To(HaveLen(len(audit.Pairs())))
			Expect(report.Pairs[1].Status).To(Equal(audit.NotAsked))
			Expect(report.ExitCode()).To(Equal(cli.ExitOK))
			Expect(compare(audit.PairEndpoints).Status).To(Equal(audit.NoLook))
		})
		It("are equal where each has its veth", func() {
			node.AddVeth(veth, nil)
			options.EndpointsDir = filepath.Dir(writeFile("a.yaml", manifest("ifb-repro", veth, "10.0.0.1")))
			check(compare(audit.PairEndpoints), expected{1, 1, audit.Equal, nil})
		})
		It("without a veth, and veths without one, are gaps, and the kernel log tells who is to blame (case D)", func() {
			node.AddVeth("cali1", nil)
			options.EndpointsDir = filepath.Dir(writeFile("a.yaml", manifest("a", "cali2", "10.0.0.1")))
			options.KernelLog = writeFile("dmesg", "unregister_netdevice: waiting for cali2 to become free. Usage count = 1\n")
			pair := compare(audit.PairEndpoints)
			check(pair, expected{1, 1, audit.Gap, []string{"cali1", "cali2"}})
			Expect(pair.Offenders[0].Detail).To(ContainSubstring("nobody has deleted it"))
			Expect(pair.Offenders[1].Detail).To(ContainSubstring("the kernel still waits"))
			Expect(pair.Offenders[1].Detail).To(ContainSubstring("k8s default/a eth0"))
		})
		It("cannot be looked at where a manifest is broken: its endpoint would look like a leak", func() {
			node.AddVeth(veth, nil)
			options.EndpointsDir = filepath.Dir(writeFile("broken.yaml", manifest("a", "cali2", "10.0.0.1")+"---\nkind: [\n"))
			pair := compare(audit.PairEndpoints)
			Expect(pair.Status).To(Equal(audit.NoLook))
			Expect(pair.Problem).To(ContainSubstring("broken.yaml"))
		})
		It("cannot be looked at where there is no such directory", func() {
			options.EndpointsDir = "/nonexistent"
			Expect(compare(audit.PairEndpoints).Status).To(Equal(audit.NoLook))
			Expect(compare(audit.PairAddresses).Status).To(Equal(audit.NoLook))
		})
	})

	Describe("peers", func() {
		It("live where a process is in their namespace", func() {
			pod := node.Namespace()
			node.AddVeth(veth, pod)
			nodetest.Inhabit(pod)
			check(compare(audit.PairPeers), expected{1, 1, audit.Equal, nil})
		})
		It("do not live where the last process has left", func() {
			pod, other := node.Namespace(), node.Namespace()
			node.AddVeth(veth, pod)
			node.AddVeth("cali2", other)
			nodetest.Inhabit(other)
			leave := nodetest.Inhabit(pod)
			check(compare(audit.PairPeers), expected{2, 2, audit.Equal, nil})
			leave()
			check(compare(audit.PairPeers), expected{2, 1, audit.Gap, []string{veth}})
		})
		It("do not live where they are down, or in the host's namespace", func() {
			node.AddVeth("cali1", nil)
			pod := node.Namespace()
			node.AddVeth("cali2", pod)
			nodetest.Inhabit(pod)
			inside, err := rtnl.Open(rtnl.Options{Namespace: pod})
			Expect(err).NotTo(HaveOccurred())
			defer inside.Close()
			link, err := inside.LinkByName(nodetest.Peer("cali2"))
			Expect(err).NotTo(HaveOccurred())
			Expect(inside.LinkSetDown(link)).To(Succeed())
			check(compare(audit.PairPeers), expected{2, 0, audit.Gap, []string{"cali1", "cali2"}})
		})
		It("are not called dead where processes are out of sight", func() {
			pod := node.Namespace()
			node.AddVeth(veth, pod)
			options.Proc = GinkgoT().TempDir()
			pair := compare(audit.PairPeers)
			Expect(pair.Status).To(Equal(audit.NoLook))
			Expect(pair.Problem).To(ContainSubstring("hostPID"))
		})
	})

	Describe("routes", func() {
		It("are equal where their interfaces are up", func() {
			host := node.AddVeth(veth, node.Namespace())
			node.AddRoute("10.0.0.1", host)
			check(compare(audit.PairRoutes), expected{1, 1, audit.Equal, nil})
		})
		It("to an interface without carrier are a gap", func() {
			host := node.AddVeth(veth, nil)
			node.AddRoute("10.0.0.1", host)
			Expect(node.Kernel.LinkSetDown(node.Link(nodetest.Peer(veth)))).To(Succeed())
			check(compare(audit.PairRoutes), expected{1, 0, audit.Gap, []string{"10.0.0.1/32"}})
		})
		It("to the node's own interfaces are nobody's business here", func() {
			index := node.AddVeth("eth0", nil)
			node.AddRoute("10.0.0.1", index)
			Expect(node.Kernel.LinkSetDown(node.Link(nodetest.Peer("eth0")))).To(Succeed())
			check(compare(audit.PairRoutes), expected{0, 0, audit.Equal, nil})
		})
	})

	Describe("addresses", func() {
		BeforeEach(func() {
			options.EndpointsDir = filepath.Dir(writeFile("a.yaml", manifest("a", "cali1", "10.0.0.1")+manifest("b", "cali2", "10.0.0.2")))
		})
		It("that are not routed, or to another interface, are a gap (case B)", func() {
			node.AddVeth("cali1", nil)
			second := node.AddVeth("cali2", nil)
			node.AddRoute("10.0.0.2", second)
			check(compare(audit.PairAddresses), expected{2, 1, audit.Gap, []string{"10.0.0.1/32"}})
			node.AddRoute("10.0.0.1", second)
			pair := compare(audit.PairAddresses)
			check(pair, expected{2, 1, audit.Gap, []string{"10.0.0.1/32"}})
			Expect(pair.Offenders[0].Detail).To(Equal("routed through cali2 instead of cali1"))
		})
		It("are equal where all are routed", func() {
			node.AddRoute("10.0.0.1", node.AddVeth("cali1", nil))
			node.AddRoute("10.0.0.2", node.AddVeth("cali2", nil))
			check(compare(audit.PairAddresses), expected{2, 2, audit.Equal, nil})
		})
	})

	Describe("stuck devices", func() {
		line := func(at float64, name string) string {
			return fmt.Sprintf("[%12.6f] unregister_netdevice: waiting for %s to become free. Usage count = 1\n", at, name)
		}
		It("are those that the kernel still complains about", func() {
			options.KernelLog = writeFile("dmesg", line(100, "cali1")+line(110, "cali1")+line(100, "cali2")+
				line(900, "cali2")+"[  905.000000] something else\n")
			pair := compare(audit.PairStuck)
			check(pair, expected{1, 0, audit.Gap, []string{"cali2"}})
			Expect(pair.Notes).To(ConsistOf(HavePrefix("cali1 was stuck and is not any more")))
		})
		It("without a time count as current", func() {
			options.KernelLog = writeFile("journal", "Nov 29 12:00:00 n kernel: "+line(100, "cali1")[15:])
			check(compare(audit.PairStuck), expected{1, 0, audit.Gap, []string{"cali1"}})
		})
		It("are told apart from a new device of the same name", func() {
			node.AddVeth("cali1", nil)
			options.KernelLog = writeFile("dmesg", line(100, "cali1"))
			Expect(compare(audit.PairStuck).Offenders[0].Detail).To(ContainSubstring("newer one"))
		})
		It("are read from the kernel's own log", func() {
			options.KernelLog = ""
			Expect(compare(audit.PairStuck).Problem).To(BeEmpty())
		})
	})
})

var _ = Describe("The binary", func() {
	var node *nodetest.Node
	var log string
	BeforeEach(func() {
		node = nodetest.New()
		log = writeFile("dmesg", quiet)
	})

	It("exits with 0 and a short table where all is equal", func() {
		node.AddWorkload(veth, nil)
		result := node.Manx("", "audit", "shapers", "routes", "stuck", "--kernel-log", log)
		Expect(result.Stderr).To(BeEmpty())
		Expect(result.Stdout).To(Equal("" +
			"PAIR      THIS                                              COUNT   AGAINST                           COUNT   DIFFERENCE   STATUS\n" +
			"shapers   bwcali* IFB devices                                   1   interfaces that redirect to one       1            0   equal\n" +
			"routes    routes to workload interfaces                         0   whose interface is up                 0            0   equal\n" +
			"stuck     devices whose deletion the kernel cannot finish       0   expected                              0            0   equal\n"))
		Expect(result.Code).To(Equal(cli.ExitOK))
	})

	It("exits with 1 at a gap, and says what it means, what to do and what not", func() {
		index := node.AddIFB("bwcali000000001")
		result := node.Manx("", "audit", "shapers")
		Expect(result.Code).To(Equal(cli.ExitGap))
		Expect(result.Stderr).To(BeEmpty())
		Expect(result.Stdout).To(ContainSubstring("GAP"))
		Expect(result.Stdout).To(ContainSubstring(fmt.Sprintf("shapers: 1 offender\n"+
			"  OFFENDER          WHAT IS WRONG\n"+
			"  bwcali000000001   ifindex %d: no filter redirects to it and no interface's IFB has its name\n"+
			"  meaning: A device that nothing redirects to", index)))
		Expect(result.Stdout).To(ContainSubstring("\n  do:      Leftovers"))
		Expect(result.Stdout).To(ContainSubstring("\n  do not:  Do not"))
	})

	It("prints the same as JSON", func() {
		node.AddIFB("bwcali000000001")
		result := node.Manx("", "audit", "shapers", "-o", "json")
		Expect(result.Code).To(Equal(cli.ExitGap))
		var report audit.Report
		decoder := json.NewDecoder(strings.NewReader(result.Stdout))
		decoder.DisallowUnknownFields()
		Expect(decoder.Decode(&report)).To(Succeed())
		Expect(report.Pairs).To(HaveLen(1))
		Expect(report.Pairs[0].Status).To(Equal(audit.Gap))
		Expect(offenders(report.Pairs[0])).To(Equal([]string{"bwcali000000001"}))
	})

	DescribeTable("exits with 2 where it could not look and saw no gap",
		func(says string, args ...string) {
			result := node.Manx("", append([]string{"audit"}, args...)...)
			Expect(result.Code).To(Equal(cli.ExitCannotLook))
			Expect(result.Stdout + result.Stderr).To(ContainSubstring(says))
		},
		Entry("at a log", "COULD NOT LOOK", "shapers", "stuck", "--kernel-log", "/nonexistent"),
		Entry("at what was asked for by name without its input", "needs --endpoints DIR", "endpoints"),
		Entry("at endpoints", "/nonexistent", "endpoints", "--endpoints", "/nonexistent"),
		Entry("at a pair that does not exist", "invalid argument", "shaper"),
		Entry("because a flag is unknown", "unknown flag", "--nonsense"),
	)

	It("changes nothing", func() {
		node.AddWorkload(veth, nil)
		node.AddIFB("bwcali000000001")
		before := node.Links()
		node.Manx("", "audit", "--kernel-log", log)
		Expect(node.Links()).To(Equal(before))
	})
})
