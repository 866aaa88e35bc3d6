package infra

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

// StartTimeout bounds how long an agent may take to become ready on a busy
// machine.
const StartTimeout = 20 * time.Second

// RunSpec says what to run inside a node.
type RunSpec struct {
	// Binary is the name of one of the suite's binaries; "manx" when empty.
	Binary string
	// Args are its arguments; run with the node's config and endpoints when nil.
	Args []string
	// Env are KEY=value pairs.
	Env []string
	// WithoutNetAdmin runs it without CAP_NET_ADMIN.
	WithoutNetAdmin bool
	// SharePIDs lets a container see the pause container's processes; else its
	// process is PID 1, which cannot SIGKILL itself.
	SharePIDs bool
}

// Agent is a process inside a node. Its output goes to the spec's log.
type Agent struct {
	node *Node
	cmd  *exec.Cmd
	pid  int
	log  logBuffer
	done chan struct{}
	code int // valid once done is closed
}

// StartAgent starts the agent and waits until it says that it is ready.
func (n *Node) StartAgent() *Agent {
	GinkgoHelper()
	a := n.Run(RunSpec{})
	a.WaitReady()
	return a
}

// Run starts a process. It is killed at the end of the spec if it still runs.
func (n *Node) Run(spec RunSpec) *Agent {
	GinkgoHelper()
	if spec.Binary == "" {
		spec.Binary = "manx"
	}
	if spec.Args == nil {
		spec.Args = []string{"run", "--config", n.ConfigFile, "--endpoints", n.EndpointsDir}
	}
	a := &Agent{node: n, cmd: n.runner.command(spec), done: make(chan struct{})}
	prefixed := &prefixWriter{prefix: fmt.Sprintf("  [%s %d] ", spec.Binary, n.suite.serial()), to: GinkgoWriter}
	a.cmd.Stdout = io.MultiWriter(&a.log, prefixed)
	a.cmd.Stderr = a.cmd.Stdout
	pid, err := n.runner.start(a.cmd, spec)
	Expect(err).NotTo(HaveOccurred(), "start %s on %s", spec.Binary, n.Kind)
	a.pid = pid
	go func() {
		a.code = exitCode(a.cmd.Wait())
		close(a.done)
	}()
	DeferCleanup(a.ensureDead)
	return a
}

// WaitReady waits for the agent's readiness endpoint to say 200.
func (a *Agent) WaitReady() {
	GinkgoHelper()
	Eventually(func() error {
		if a.Exited() {
			return StopTrying(fmt.Sprintf("the agent exited with %d:\n%s", a.code, a.Log()))
		}
		return a.node.get("http://127.0.0.1:9099/readiness")
	}).WithTimeout(StartTimeout).WithPolling(10*time.Millisecond).Should(Succeed(), func() string { return a.Log() })
}

// Terminate sends SIGTERM and returns the exit code and how long that took.
func (a *Agent) Terminate() (code int, took time.Duration) {
	GinkgoHelper()
	start := time.Now()
	Expect(a.Signal(unix.SIGTERM)).To(Succeed())
	return a.Wait(StartTimeout), time.Since(start)
}

// Kill sends SIGKILL and waits for the end.
func (a *Agent) Kill() {
	GinkgoHelper()
	Expect(a.Signal(unix.SIGKILL)).To(Succeed())
	a.Wait(StartTimeout)
}

// Signal sends a signal. SIGSTOP and SIGCONT make an agent that is so short of CPU
// that it sees everything late.
func (a *Agent) Signal(signal unix.Signal) error {
	if a.Exited() || a.pid == 0 {
		return os.ErrProcessDone
	}
	return unix.Kill(a.pid, signal)
}

// Wait waits for the process to exit by itself and returns its exit code, 128+n
// for signal n as a shell has it.
func (a *Agent) Wait(timeout time.Duration) int {
	GinkgoHelper()
	Eventually(a.done).WithTimeout(timeout).Should(BeClosed(), func() string { return "the process still runs:\n" + a.Log() })
	return a.code
}

// Exited reports whether the process is gone.
func (a *Agent) Exited() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// Log returns what the process has written so far.
func (a *Agent) Log() string { return a.log.String() }

func (a *Agent) ensureDead() {
	if a.Exited() {
		return
	}
	_ = a.Signal(unix.SIGKILL)
	a.Wait(StartTimeout)
}

// get makes an HTTP request inside the node's namespace; not 200 is an error.
func (n *Node) get(url string) error {
	_, err := n.fetch(url)
	return err
}

// fetch is get and returns the body.
func (n *Node) fetch(url string) (string, error) {
	dial := func(_ context.Context, network, addr string) (conn net.Conn, err error) {
		err = n.NS.Do(func() error {
			conn, err = net.DialTimeout(network, addr, time.Second)
			return err
		})
		return conn, err
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}, Timeout: 2 * time.Second}
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, resp.Status, body)
	}
	return string(body), err
}

// CheckHealth returns nil where the agent says that it is ready and alive.
func (n *Node) CheckHealth() error {
	return errors.Join(n.get("http://127.0.0.1:9099/readiness"), n.get("http://127.0.0.1:9099/liveness"))
}

func exitCode(err error) int {
	if err == nil {
		return 0
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return -1
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return exit.ExitCode()
}

// logBuffer collects output; safe for concurrent use.
type logBuffer struct {
	mutex sync.Mutex
	buf   bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.buf.String()
}

// prefixWriter puts a prefix before each line.
type prefixWriter struct {
	prefix string
	to     io.Writer
	rest   string
}

func (w *prefixWriter) Write(p []byte) (int, error) {
	lines := strings.Split(w.rest+string(p), "\n")
	w.rest = lines[len(lines)-1]
	for _, line := range lines[:len(lines)-1] {
		fmt.Fprintf(w.to, "%s%s\n", w.prefix, line)
	}
	return len(p), nil
}
