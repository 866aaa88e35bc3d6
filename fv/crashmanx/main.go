// Command crashmanx is "manx run" with faults: it SIGKILLs itself just before a
// chosen kernel write, and its event socket can be made so small that it overruns.
// It exists for the tests of crashes and chaos.
//
// The directory CRASH_DIR controls the crashes. Nothing happens while it holds no
// file "at". From then on writes are counted and appended to the file "writes", and
// before the write whose number "at" holds the process kills itself; 0 never does.
// Writes of sysctls count too.
//
// EVENT_RECEIVE_BUFFER is the size in bytes of the event socket's receive buffer.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/sirupsen/logrus"

	"github.com/manx-dataplane/manx/agent"
	"github.com/manx-dataplane/manx/endpointmgr"
	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/rtnl"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func run() error {
	b := &bomb{dir: os.Getenv("CRASH_DIR")}
	k := kernel{bomb: b, LinuxKernel: agent.LinuxKernel{BeforeWrite: b.beforeWrite}}
	if text := os.Getenv("EVENT_RECEIVE_BUFFER"); text != "" {
		var err error
		if k.receiveBuffer, err = strconv.Atoi(text); err != nil {
			return fmt.Errorf("EVENT_RECEIVE_BUFFER: %w", err)
		}
	}
	options := agent.Options{Environ: os.Environ(), Log: logrus.New(), Kernel: k}
	flag.StringVar(&options.ConfigFile, "config", "", "FelixConfiguration manifest")
	flag.StringVar(&options.EndpointsDir, "endpoints", "", "directory of WorkloadEndpoint manifests")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return agent.Run(ctx, options)
}

// kernel is the real one with the faults.
type kernel struct {
	agent.LinuxKernel
	bomb          *bomb
	receiveBuffer int // zero means rtnl's default
}

// Events opens the event socket with the chosen receive buffer.
func (k kernel) Events(options rtnl.EventOptions) (ifacemonitor.EventSocket, error) {
	options.ReceiveBuffer = k.receiveBuffer
	return k.LinuxKernel.Events(options)
}

// Sysctls counts their writes.
func (k kernel) Sysctls() endpointmgr.Sysctls {
	return countedSysctls{Sysctls: k.LinuxKernel.Sysctls(), bomb: k.bomb}
}

type countedSysctls struct {
	endpointmgr.Sysctls
	bomb *bomb
}

func (s countedSysctls) WriteSysctl(path, value string) error {
	s.bomb.beforeWrite("write sysctl " + path)
	return s.Sysctls.WriteSysctl(path, value)
}

type bomb struct {
	dir string

	mutex  sync.Mutex // held for ever once the process is to die, so that no other write passes
	writes int
}

func (b *bomb) beforeWrite(op string) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	at, err := os.ReadFile(filepath.Join(b.dir, "at"))
	if err != nil {
		return
	}
	b.writes++
	b.record(op)
	if strings.TrimSpace(string(at)) == strconv.Itoa(b.writes) {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

func (b *bomb) record(op string) {
	file, err := os.OpenFile(filepath.Join(b.dir, "writes"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	defer file.Close()
	if _, err := fmt.Fprintln(file, op); err != nil {
		panic(err)
	}
}
