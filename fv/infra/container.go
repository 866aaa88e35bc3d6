package infra

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/manx-dataplane/manx/rtnl"
)

// containerRunner runs each process as a container of its own that joins the
// network namespace of a pause container: killing an agent leaves the namespace
// as it is.
type containerRunner struct {
	suite *Suite
	pause string
	dir   string
}

func newContainerRunner(s *Suite, dir string) (runner, *rtnl.Namespace) {
	GinkgoHelper()
	c := &containerRunner{suite: s, dir: dir, pause: fmt.Sprintf("%s%d-%d", rootPrefix, os.Getpid(), s.serial())}
	args := append([]string{"run", "--detach", "--name", c.pause, "--network", "none"}, c.labelAndMounts()...)
	out, err := exec.Command("docker", append(args, s.imageName(), "/pause")...).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "start pause container: %s", out)
	DeferCleanup(removeContainer, c.pause)

	pid, err := containerPID(c.pause)
	Expect(err).NotTo(HaveOccurred())
	ns, err := rtnl.OpenNamespace(fmt.Sprintf("/proc/%d/ns/net", pid))
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(ns.Close)
	return c, ns
}

func (c *containerRunner) labelAndMounts() []string {
	return []string{
		"--label", fmt.Sprintf("%s=%d", ownerLabel, os.Getpid()),
		"--volume", c.dir + ":" + c.dir, // the same paths inside as outside
		"--cap-add", "NET_RAW",
		"--security-opt", "systempaths=unconfined", // a writable /proc/sys/net
	}
}

func (c *containerRunner) command(spec RunSpec) *exec.Cmd {
	name := fmt.Sprintf("%s-%d", c.pause, c.suite.serial())
	args := append([]string{"run", "--name", name, "--network", "container:" + c.pause}, c.labelAndMounts()...)
	if !spec.WithoutNetAdmin {
		args = append(args, "--cap-add", "NET_ADMIN")
	}
	if spec.SharePIDs {
		args = append(args, "--pid", "container:"+c.pause)
	}
	for _, env := range spec.Env {
		args = append(args, "--env", env)
	}
	args = append(args, c.suite.imageName(), "/"+spec.Binary)
	return exec.Command("docker", append(args, spec.Args...)...)
}

func (c *containerRunner) start(cmd *exec.Cmd, _ RunSpec) (int, error) {
	name := cmd.Args[3] // as command put it
	DeferCleanup(removeContainer, name)
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	return containerPID(name)
}

// containerPID waits for a container's first process. Zero: it came and went.
func containerPID(name string) (int, error) {
	deadline := time.Now().Add(20 * time.Second)
	for {
		out, err := exec.Command("docker", "inspect", "--format", "{{.State.Status}} {{.State.Pid}}", name).Output()
		status, text, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
		if err == nil && status != "created" {
			return strconv.Atoi(text)
		}
		if time.Now().After(deadline) {
			return 0, fmt.Errorf("container %s did not start: %s %w", name, out, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func removeContainer(name string) {
	if out, err := exec.Command("docker", "rm", "--force", "--volumes", name).CombinedOutput(); err != nil {
		GinkgoWriter.Printf("remove container %s: %v: %s\n", name, err, out)
	}
}
