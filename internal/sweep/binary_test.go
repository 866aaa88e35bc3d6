package sweep_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/manx-dataplane/manx/internal/cli"
	"github.com/manx-dataplane/manx/internal/nodetest"
	"github.com/manx-dataplane/manx/internal/sweep"
)

var _ = Describe("The binary", func() {
	var node *nodetest.Node
	BeforeEach(func() { node = nodetest.New() })

	manx := func(args ...string) nodetest.Result {
		GinkgoHelper()
		return node.Manx("", append([]string{"sweep", "--grace", "10ms"}, args...)...)
	}

	It("lists orphans in a dry run, changes nothing and exits with 1; deletes them and exits with 0", func() {
		index := node.AddIFB("bwcali000000001")
		node.AddWorkload(veth, nil)
		before := node.Links()
		result := manx("--dry-run")
		Expect(result.Code).To(Equal(cli.ExitGap))
		Expect(result.Stderr).To(BeEmpty())
		Expect(result.Stdout).To(MatchRegexp(fmt.Sprintf("\\A"+
			"DEVICE            IFINDEX   SEEN FOR   REASON                                                          OUTCOME\n"+
			"bwcali000000001 {3,9} %d +[\\d.]+ms   no filter redirects to it and no interface's IFB has its name   would be deleted\n"+
			"\n"+
			"bwcali\\* devices: 2; orphans: 1; would-delete: 1\\.\n\\z", index)))
		Expect(node.Links()).To(Equal(before))

		result = manx()
		Expect(result.Code).To(Equal(cli.ExitOK))
		Expect(result.Stderr).To(BeEmpty())
		Expect(result.Stdout).To(ContainSubstring("deleted\n"))
		Expect(result.Stdout).To(MatchRegexp(`bwcali\* devices: 2; orphans: 1; deleted: 1 in [\d.]+m?s\.\n\z`))

		result = manx()
		Expect(result.Code).To(Equal(cli.ExitOK))
		Expect(result.Stdout).To(Equal("bwcali* devices: 1; orphans: 0.\n"))
	})

	It("prints JSON", func() {
		node.AddIFB("bwcali000000001")
		result := manx("-o", "json")
		Expect(result.Code).To(Equal(cli.ExitOK))
		var decoded sweep.Result
		decoder := json.NewDecoder(strings.NewReader(result.Stdout))
		decoder.DisallowUnknownFields()
		Expect(decoder.Decode(&decoded)).To(Succeed())
		Expect(decoded.Orphans).To(HaveLen(1))
		Expect(decoded.Orphans[0].Outcome).To(Equal(sweep.Deleted))
		Expect(decoded.Orphans[0].FirstSeen).To(BeTemporally("~", time.Now(), time.Minute))
	})

	It("refuses more than --max with 3", func() {
		node.AddIFB("bwcali000000001")
		node.AddIFB("bwcali000000002")
		result := manx("--max", "1")
		Expect(result.Code).To(Equal(cli.ExitRefused))
		Expect(result.Stderr).To(Equal("Error: more orphans than allowed: 2, allowed are 1; nothing was deleted\n"))
		Expect(node.Links()).To(ContainElements("bwcali000000001", "bwcali000000002"))
	})

	It("looks only at what --prefix says", func() {
		node.AddIFB("bwcali000000001")
		node.AddIFB("bwcali100000001")
		Expect(manx("--prefix", "bwcali1").Code).To(Equal(cli.ExitOK))
		Expect(node.Links()).To(ContainElement("bwcali000000001"))
		Expect(node.Links()).NotTo(ContainElement("bwcali100000001"))
	})

	It("deletes orphans again and again with --interval, until SIGTERM, and exits with 0", func() {
		cmd := exec.Command(nodetest.Binary(), "sweep", "--grace", "10ms", "--interval", "10ms")
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		Expect(node.NS.Do(cmd.Start)).To(Succeed())
		for n := range 3 {
			name := fmt.Sprintf("bwcali00000000%d", n)
			node.AddIFB(name)
			Eventually(node.Links).WithTimeout(5 * time.Second).ShouldNot(ContainElement(HavePrefix("bwcali")))
		}
		Expect(cmd.Process.Signal(syscall.SIGTERM)).To(Succeed())
		Expect(cmd.Wait()).To(Succeed())
		Expect(stderr.String()).To(BeEmpty())
		Expect(strings.Count(stdout.String(), "orphans: 1")).To(Equal(3))
		Expect(strings.Count(stdout.String(), "orphans: 0")).To(BeNumerically("<=", 1)) // rounds without orphans are silent
	})

	It("exits with 130 where it is interrupted", func() {
		node.AddIFB("bwcali000000001")
		cmd := exec.Command(nodetest.Binary(), "sweep", "--grace", "1h")
		Expect(node.NS.Do(cmd.Start)).To(Succeed())
		Consistently(node.Links).WithTimeout(300 * time.Millisecond).Should(ContainElement("bwcali000000001"))
		Expect(cmd.Process.Signal(syscall.SIGINT)).To(Succeed())
		Expect(cmd.Wait()).To(HaveOccurred())
		Expect(cmd.ProcessState.ExitCode()).To(Equal(cli.ExitInterrupted))
	})

	It("exits with 2 where it lacks CAP_NET_ADMIN, and says so", func() {
		node.AddIFB("bwcali000000001")
		cmd := exec.Command("setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin", nodetest.Binary(), "sweep", "--grace", "10ms")
		if cmd.Err != nil {
			Skip("SKIPPED: needs setpriv of util-linux")
		}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		Expect(node.NS.Do(cmd.Run)).NotTo(Succeed())
		Expect(cmd.ProcessState.ExitCode()).To(Equal(cli.ExitCannotLook))
		Expect(stderr.String()).To(ContainSubstring("CAP_NET_ADMIN"))
		Expect(node.Links()).To(ContainElement("bwcali000000001"))
	})

	DescribeTable("exits with 2 at wrong usage",
		func(args ...string) {
			result := node.Manx("", append([]string{"sweep"}, args...)...)
			Expect(result.Code).To(Equal(cli.ExitCannotLook))
			Expect(result.Stderr).To(HavePrefix("Error: "))
		},
		Entry(nil, "--grace", "0s"),
		Entry(nil, "--grace", "-5s"),
		Entry(nil, "--interval", "-1s"),
		Entry(nil, "--max", "-1"),
		Entry(nil, "--prefix", "b"),
		Entry(nil, "-o", "yaml"),
		Entry(nil, "surplus"),
	)
})
