package infra

import (
	"os/exec"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/rtnl"
)

// plainRunner runs processes in a network namespace that only file descriptors
// hold.
type plainRunner struct {
	suite *Suite
	ns    *rtnl.Namespace
}

func newPlainRunner(s *Suite) (runner, *rtnl.Namespace) {
	GinkgoHelper()
	ns := NewNamespace()
	return &plainRunner{suite: s, ns: ns}, ns
}

func (p *plainRunner) command(spec RunSpec) *exec.Cmd {
	cmd := exec.Command(p.suite.Binary(spec.Binary), spec.Args...)
	cmd.Env = append([]string{"PATH=/usr/bin:/bin"}, spec.Env...)
	cmd.Dir = "/"
	return cmd
}

func (p *plainRunner) start(cmd *exec.Cmd, spec RunSpec) (int, error) {
	err := p.ns.Do(func() error {
		if spec.WithoutNetAdmin {
			// On this thread only, which ends with Do: the child inherits it, and root's
			// exec cannot gain what is not in the bounding set.
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_NET_ADMIN, 0, 0, 0); err != nil {
				return err
			}
		}
		return cmd.Start()
	})
	if err != nil {
		return 0, err
	}
	return cmd.Process.Pid, nil
}

// NewNamespace makes a network namespace that lives until the spec ends.
func NewNamespace() *rtnl.Namespace {
	GinkgoHelper()
	ns, err := rtnl.NewNamespace()
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(ns.Close)
	return ns
}
