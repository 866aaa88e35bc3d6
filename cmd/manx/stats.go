package main

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/manx-dataplane/manx/internal/cli"
	"github.com/manx-dataplane/manx/internal/stats"
	"github.com/manx-dataplane/manx/rtnl"
)

func statsCommand() *cobra.Command {
	var options stats.Options
	var watch bool
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "stats [IFACE...|--all]",
		Short: "Show what the kernel counts about bandwidth limits",
		Long: `Shows for each workload interface and direction what passed, was dropped, had to
wait (overlimits) and is waiting (backlog), next to the limit: rate, burst and
latency. Ingress is to the workload, egress from it. Egress is shaped on an IFB
device and shown on the row of the workload's interface.

Without IFACE or --all: the workload interfaces that have a limit. Reads only; no
privilege is needed.

Exit codes:
  0  shown
  2  could not look, an IFACE does not exist, or wrong usage`,
		Example: `  manx stats
  manx stats cali0027f0645a2 --watch
  manx stats --all -o json | jq '.[] | select(.drops > 0)'`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, interfaces []string) error {
			switch {
			case options.All && len(interfaces) > 0:
				return errors.New("give interfaces or --all, not both")
			case interval <= 0:
				return errors.New("--interval must be above zero")
			case watch:
				options.Watch = interval
			}
			kernel, err := rtnl.Open(rtnl.Options{})
			if err != nil {
				return err
			}
			defer kernel.Close()
			options.Kernel = kernel
			options.Interfaces = interfaces
			options.Out = cli.NewOutput(cmd.OutOrStdout())
			return stats.Run(cmd.Context(), options)
		},
	}
	cmd.ValidArgsFunction = completeInterfaces
	cmd.Flags().BoolVar(&options.All, "all", false, "show workload interfaces without a limit too")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "look again and again, in place, until interrupted")
	cmd.Flags().DurationVar(&interval, "interval", 2*time.Second, "time between two looks with --watch")
	cmd.Flags().StringSliceVar(&options.Prefixes, "interface-prefix", []string{"cali"}, "how names of workload interfaces begin")
	cli.AddFormat(cmd, &options.Format)
	return cli.Looks(cmd)
}

// completeInterfaces offers the names of the links that exist.
func completeInterfaces(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	kernel, err := rtnl.Open(rtnl.Options{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	defer kernel.Close()
	links, err := kernel.LinkList()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, link := range links {
		names = append(names, link.Attrs().Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
