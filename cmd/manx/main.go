// Command manx runs the manx dataplane library as a node agent of its own, and
// shows what the library is for.
//
// See "manx --help".
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/manx-dataplane/manx/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := root().ExecuteContext(ctx)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = cli.Exit(cli.ExitInterrupted, errors.New("interrupted"))
	}
	stop()
	code, err := cli.ExitCode(err)
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
	}
	os.Exit(code)
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "manx",
		Short: "Bandwidth limits that never leak, routes that never go stale",
		Long: `manx keeps the kernel's view of this node's workloads true: it routes to their
interfaces and limits their bandwidth, and it leaves nothing behind.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w\nSee '%s --help' for usage", err, cmd.CommandPath())
	})
	cmd.AddCommand(runCommand(), demoCommand(), auditCommand(), statsCommand(), sweepCommand())
	return cmd
}
