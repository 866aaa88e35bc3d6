// Command crashmanx is "manx run", except that it SIGKILLs itself just before a
// chosen kernel write. It exists for the crash tests.
//
// The directory CRASH_DIR controls it. Nothing happens while it holds no file "at".
// From then on writes are counted and appended to the file "writes", and before the
// write whose number "at" holds the process kills itself; 0 never does.
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
)

func main() {
	options := agent.Options{
		Environ: os.Environ(),
		Log:     logrus.New(),
		Kernel:  agent.LinuxKernel{BeforeWrite: (&bomb{dir: os.Getenv("CRASH_DIR")}).beforeWrite},
	}
	flag.StringVar(&options.ConfigFile, "config", "", "FelixConfiguration manifest")
	flag.StringVar(&options.EndpointsDir, "endpoints", "", "directory of WorkloadEndpoint manifests")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := agent.Run(ctx, options); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
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
