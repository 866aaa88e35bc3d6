package demo_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"

	"github.com/manx-dataplane/manx/internal/cli"
	"github.com/manx-dataplane/manx/internal/nodetest"
)

func TestDemo(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "demo")
}

var _ = AfterSuite(nodetest.CleanUp)

var _ = Describe("manx demo", func() {
	// A minute is what the demo may take; the machine may be busy.
	const bound = 2 * time.Minute

	var (
		node   *nodetest.Node // stands for the machine, of which nothing may change
		temp   string
		before []string
	)
	BeforeEach(func() {
		node = nodetest.New()
		temp = GinkgoT().TempDir()
		node.AddWorkload("cali0027f0645a2", nil) // by the same name as a pod of the demo's
		before = node.Links()
	})
	AfterEach(func() {
		Expect(node.Links()).To(Equal(before))
		Expect(filepath.Glob(filepath.Join(temp, "*"))).To(BeEmpty(), "files left behind")
	})

	demo := func(change ...func(*exec.Cmd)) *gexec.Session {
		GinkgoHelper()
		command := exec.Command(nodetest.Binary(), "demo")
		command.Env = append(os.Environ(), "TMPDIR="+temp, "FELIX_QOSCONTROLS=Disabled")
		for _, c := range change {
			c(command)
		}
		var session *gexec.Session
		Expect(node.NS.Do(func() (err error) {
			session, err = gexec.Start(command, GinkgoWriter, GinkgoWriter)
			return err
		})).To(Succeed())
		return session
	}

	It("shows all cases, as expected, whatever the environment would configure", func() {
		session := demo()
		Eventually(session, bound).Should(gexec.Exit(cli.ExitOK))
		for _, text := range []string{"Case A1", "Case A2", "Case A3", "Case A4", "Case B", `All \d+ expectations held`} {
			Expect(session.Out).To(gbytes.Say(text))
		}
		Expect(session.Out.Contents()).NotTo(ContainSubstring("NOT AS EXPECTED"))
	})

	It("exits with 130 when it is interrupted, and leaves nothing behind", func() {
		session := demo()
		Eventually(session.Out, bound).Should(gbytes.Say("Case A2"))
		session.Signal(syscall.SIGINT)
		Eventually(session, bound).Should(gexec.Exit(cli.ExitInterrupted))
		Expect(session.Err).To(gbytes.Say("interrupted"))
	})

	It("says what it needs where it is not root", func() {
		session := demo(func(command *exec.Cmd) {
			command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		})
		Eventually(session, bound).Should(gexec.Exit(1))
		Expect(session.Err).To(gbytes.Say("root"))
	})
})
