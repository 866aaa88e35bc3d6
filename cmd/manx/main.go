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
	"strings"
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

// version is what this binary was built from; the Makefile sets it.
var version = "unknown"

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "manx",
		Short: "Bandwidth limits that never leak, routes that never go stale",
		Long: `manx keeps the kernel's view of this node's workloads true: it routes to their
interfaces and limits their bandwidth, and it leaves nothing behind.`,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			problem := fmt.Sprintf("unknown command %q", args[0])
			if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
				problem += "; did you mean " + strings.Join(similar, " or ") + "?"
			}
			return cli.Exit(cli.ExitCannotLook, errors.New(problem))
		},
		SuggestionsMinimumDistance: 2,
	}
	cmd.SetFlagErrorFunc(func(failed *cobra.Command, err error) error {
		err = fmt.Errorf("%w\nSee '%s --help' for usage", err, failed.CommandPath())
		if failed == cmd { // it may have been meant for a command whose exit code 1 is a finding
			return cli.Exit(cli.ExitCannotLook, err)
		}
		return err
	})
	cmd.AddCommand(runCommand(), demoCommand(), auditCommand(), statsCommand(), sweepCommand())
	return cmd
}
