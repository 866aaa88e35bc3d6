package main

import (
	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/manx-dataplane/manx/internal/cli"
	"github.com/manx-dataplane/manx/internal/sweep"
	"github.com/manx-dataplane/manx/qos"
	"github.com/manx-dataplane/manx/rtnl"
)

func sweepCommand() *cobra.Command {
	var command sweep.Command
	cmd := &cobra.Command{
		Use:   "sweep",
		Short: "Delete leaked IFB devices, without endpoint data, beside any agent",
		Long: `Deletes the bwcali* IFB devices that no workload uses. It needs no endpoint data
and is made to run beside an agent that leaks them.

An orphan is a device of kind ifb that no redirect filter on any existing interface
targets and whose name is not the name of any existing interface's IFB, in two
looks --grace apart, by the same ifindex. Before it is deleted an orphan is renamed,
so that nobody can begin to use it, and looked at once more.

The kernel does not keep when a device was made: the age shown is for how long this
run has seen it as an orphan. Can be interrupted at any time. Needs CAP_NET_ADMIN,
and with --dry-run nothing.

Exit codes:
  0    no orphans, or all were deleted; with --interval: stopped by a signal
  1    with --dry-run: there are orphans; without: some are left
  2    could not look or not delete, or wrong usage
  3    refused: more orphans than --max; nothing was deleted
  130  interrupted`,
		Example: `  manx sweep --dry-run
  manx sweep --max 100
  manx sweep --interval 1m -o json     # as a DaemonSet, on the host's network`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			kernel, err := rtnl.Open(rtnl.Options{})
			if err != nil {
				return err
			}
			defer kernel.Close()
			log := logrus.New()
			log.SetOutput(cmd.ErrOrStderr())
			command.Kernel, command.Log = kernel, log
			command.OpenReaper = func() (qos.ReaperKernel, error) { return rtnl.Open(rtnl.Options{}) }
			command.Out, command.Err = cli.NewOutput(cmd.OutOrStdout()), cli.NewOutput(cmd.ErrOrStderr())
			return command.Run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&command.DryRun, "dry-run", false, "only list the orphans, with reason and age")
	flags.DurationVar(&command.Grace, "grace", sweep.DefaultGrace, "time between the two looks")
	flags.DurationVar(&command.Interval, "interval", 0, "sweep again and again, this long after the one before; 0 sweeps once")
	flags.IntVar(&command.Max, "max", 0, "delete nothing if there are more orphans than this; 0 allows any number")
	flags.StringVar(&command.Prefix, "prefix", sweep.DefaultPrefix, "how the names of the devices begin")
	cli.AddFormat(cmd, &command.Format)
	return cli.Looks(cmd)
}
