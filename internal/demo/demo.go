// Package demo plays the production cases that manx exists for, on the kernel
// that it runs on, against the real "manx run" as a child process.
//
// Everything happens in network namespaces that only this process's file
// descriptors keep alive: whatever ends the demo ends them too.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/manx-dataplane/manx/internal/cli"
	"github.com/manx-dataplane/manx/rtnl"
)

// ErrNotAsExpected is returned by Run where the kernel did not end up as it should.
var ErrNotAsExpected = errors.New("not everything was as expected")

// settleTimeout bounds the wait for one expected state. The agent needs
// milliseconds; an overloaded machine may need longer.
const settleTimeout = 15 * time.Second

// Run plays all cases and writes the story to out. It returns nil only if every
// expectation held. It needs root: creating namespaces and shaping need
// CAP_SYS_ADMIN and CAP_NET_ADMIN.
func Run(ctx context.Context, out io.Writer) error {
	if os.Geteuid() != 0 {
		return errors.New("the demo creates throwaway network namespaces and shapes traffic in them: please run it as root (CAP_SYS_ADMIN and CAP_NET_ADMIN)")
	}
	ns, err := rtnl.NewNamespace()
	if err != nil {
		return fmt.Errorf("the demo needs CAP_SYS_ADMIN: %w", err)
	}
	defer ns.Close()
	return ns.Do(func() error {
		// From here on this goroutine's thread is inside the namespace, and so is
		// every process that it starts.
		return play(ctx, printer{cli.NewOutput(out)})
	})
}

func play(ctx context.Context, p printer) error {
	kernel, err := rtnl.Open(rtnl.Options{})
	if err != nil {
		return err
	}
	defer kernel.Close()
	host, err := newNode(kernel)
	if err != nil {
		return err
	}
	defer host.close()

	s := &stage{ctx: ctx, printer: p, node: host, view: view{kernel: kernel}}
	begin := time.Now()
	for _, scene := range []func(*stage) error{caseA1, caseA2, caseA3, caseA4, caseB} {
		if err := scene(s); err != nil {
			s.showLog()
			return err
		}
	}
	s.title("Done in %s.", time.Since(begin).Round(100*time.Millisecond))
	if s.failed > 0 {
		s.say("%d expectations did not hold.", s.failed)
		s.showLog()
		return ErrNotAsExpected
	}
	s.say("All %d expectations held. The namespaces, and all that was in them, are gone.", s.held)
	return nil
}

// stage is what the scenes play on.
type stage struct {
	ctx context.Context
	printer
	node *node
	view view

	held, failed int
}

// row is one expectation and what the kernel said instead.
type row struct {
	what, want, got string
}

// expectation is something that the kernel should say soon.
type expectation struct {
	what string
	want string
	look func() string
}

// expect waits until all expectations hold at once, or the time is up, prints
// them as a table and counts them. It returns an error only if interrupted.
func (s *stage) expect(heading string, expectations ...expectation) error {
	rows := make([]row, len(expectations))
	begin := time.Now()
	for {
		settled := true
		for i, e := range expectations {
			rows[i] = row{what: e.what, want: e.want, got: e.look()}
			settled = settled && rows[i].got == rows[i].want
		}
		if settled || time.Since(begin) > settleTimeout {
			break
		}
		if err := s.pause(10 * time.Millisecond); err != nil {
			return err
		}
	}
	if err := s.table(fmt.Sprintf("%s (after %s)", heading, time.Since(begin).Round(time.Millisecond)), rows); err != nil {
		return err
	}
	for _, r := range rows {
		if r.got == r.want {
			s.held++
		} else {
			s.failed++
		}
	}
	return nil
}

// pause waits, or returns the reason of the interruption.
func (s *stage) pause(d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
}

// showLog prints the end of what the agent said.
func (s *stage) showLog() {
	const tail = 4096
	log, err := os.ReadFile(s.node.path("agent.log"))
	if err != nil || s.ctx.Err() != nil {
		return
	}
	fmt.Fprintf(s.out, "\nThe end of the agent's log:\n%s\n", log[max(0, len(log)-tail):])
}
