package infra

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

// ownerLabel marks this harness's containers and images with the process ID of
// the test run that owns them.
const ownerLabel = "io.github.manx-dataplane.fv.owner"

// rootPrefix is how the names of test runs' directories begin; the owner's
// process ID follows.
const rootPrefix = "manx-fv-"

// Suite is what one test run shares: the binaries, the container image and the
// directory that everything lives in. It is safe for concurrent use.
type Suite struct {
	root    string
	image   func() error
	engine  func() error
	counter atomic.Int64
}

// NewSuite sweeps what dead test runs left, and builds the named main packages
// (paths below the module, such as "cmd/manx") as static binaries, named by the
// last element of the path. The pause process is always built. Close it in
// AfterSuite.
func NewSuite(mains ...string) *Suite {
	GinkgoHelper()
	sweep(os.TempDir())
	root, err := os.MkdirTemp("", fmt.Sprintf("%s%d-", rootPrefix, os.Getpid()))
	Expect(err).NotTo(HaveOccurred())
	Expect(os.Chmod(root, 0o755)).To(Succeed()) // agents without privileges must get at the binary
	s := &Suite{root: root}
	s.build(append([]string{"fv/pause"}, mains...))
	s.engine = sync.OnceValue(probeEngine)
	s.image = sync.OnceValue(s.importImage)
	return s
}

// Close removes the suite's image and directory, and any container left.
func (s *Suite) Close() {
	if s.engine() == nil {
		removeContainers(func(owner int) bool { return owner == os.Getpid() })
		_ = exec.Command("docker", "image", "rm", "--force", s.imageName()).Run()
	}
	Expect(os.RemoveAll(s.root)).To(Succeed())
}

// RequireRoot skips the running spec where the process lacks root, which
// namespaces need; under CI it fails instead.
func RequireRoot() {
	GinkgoHelper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") != "" {
		Fail("functional verification needs root; refusing to skip it under CI")
	}
	Skip("SKIPPED: functional verification needs root")
}

// Binary returns the path of a built binary.
func (s *Suite) Binary(name string) string { return filepath.Join(s.root, "bin", name) }

// serial returns a number that the suite has not handed out before.
func (s *Suite) serial() int64 { return s.counter.Add(1) }

func (s *Suite) imageName() string { return fmt.Sprintf("%srun:%d", rootPrefix, os.Getpid()) }

func (s *Suite) build(mains []string) {
	GinkgoHelper()
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	Expect(err).NotTo(HaveOccurred(), "find the module's directory")
	for _, main := range mains {
		cmd := exec.Command("go", "build", "-trimpath", "-o", s.Binary(filepath.Base(main)), "./"+main)
		cmd.Dir = strings.TrimSpace(string(module))
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), "build %s: %s", main, out)
	}
}

// importImage makes an image of nothing but the binaries.
func (s *Suite) importImage() error {
	var archive bytes.Buffer
	tw := tar.NewWriter(&archive)
	entries, err := os.ReadDir(filepath.Join(s.root, "bin"))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		data, err := os.ReadFile(s.Binary(entry.Name()))
		if err != nil {
			return err
		}
		header := &tar.Header{Name: entry.Name(), Mode: 0o755, Size: int64(len(data))}
		if err := tw.WriteHeader(header); err != nil {
			return err
		}
		if _, err := tw.Write(data); err != nil {
			return err
		}
	}
	if err := tw.Close(); err != nil {
		return err
	}
	label := fmt.Sprintf("LABEL %s=%d", ownerLabel, os.Getpid())
	cmd := exec.Command("docker", "import", "--change", label, "-", s.imageName())
	cmd.Stdin = &archive
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("import image: %w: %s", err, out)
	}
	return nil
}

// probeEngine returns nil where a container engine answers.
func probeEngine() error {
	out, err := exec.Command("docker", "version", "--format", "{{.Server.Version}}").CombinedOutput()
	if err != nil {
		return fmt.Errorf("docker version: %w: %s", err, bytes.TrimSpace(out))
	}
	removeContainers(func(owner int) bool { return !alive(owner) })
	return nil
}

// sweep ends the processes and removes the directories of test runs whose own
// process is gone.
func sweep(dir string) {
	roots, _ := filepath.Glob(filepath.Join(dir, rootPrefix+"*"))
	for _, root := range roots {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(root), rootPrefix), "-")
		owner, err := strconv.Atoi(pid)
		if err != nil || alive(owner) {
			continue
		}
		killProcessesOf(root)
		_ = os.RemoveAll(root)
	}
}

// killProcessesOf kills what runs a binary below root, and nothing else.
func killProcessesOf(root string) {
	exes, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, exe := range exes {
		target, err := os.Readlink(exe)
		if err != nil || !strings.HasPrefix(target, root+"/") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(exe))); err == nil {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// removeContainers removes this harness's containers and then images whose owner
// satisfies the condition.
func removeContainers(condition func(owner int) bool) {
	list := func(what ...string) []string {
		args := append(what, "--all", "--filter", "label="+ownerLabel, "--format", `{{.ID}}`)
		out, _ := exec.Command("docker", args...).Output()
		return strings.Fields(string(out))
	}
	remove := func(kind string, ids []string) {
		for _, id := range ids {
			format := fmt.Sprintf("{{index .Config.Labels %q}}", ownerLabel)
			out, err := exec.Command("docker", kind, "inspect", "--format", format, id).Output()
			owner, convErr := strconv.Atoi(strings.TrimSpace(string(out)))
			if err == nil && convErr == nil && condition(owner) {
				_ = exec.Command("docker", kind, "rm", "--force", id).Run()
			}
		}
	}
	remove("container", list("container", "ls"))
	remove("image", list("image", "ls"))
}

func alive(pid int) bool { return unix.Kill(pid, 0) != unix.ESRCH }
