package main

import (
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/internal/audit"
	"github.com/manx-dataplane/manx/internal/cli"
	"github.com/manx-dataplane/manx/rtnl"
)

const auditExitCodes = `
Exit codes:
  0  all numbers that were looked at are equal
  1  a gap: some differ, or are equal with different members
  2  no gap was found, but some could not be looked at; or wrong usage`

func auditCommand() *cobra.Command {
	var options audit.Options
	var format cli.Format
	cmd := &cobra.Command{
		Use:   "audit [PAIR...]",
		Short: "Compare numbers that should agree; names what is on one side only",
		Long: `Compares pairs of numbers that should agree on a node, and says for each gap what
it means, what to do and what not to do. It only reads.

  shapers    IFB devices against the interfaces that redirect to them
  endpoints  workload veths against endpoints            (needs --endpoints)
  peers      workload veths against live other ends
  ipam       host-local IPAM allocations against live sandboxes
                                                  (needs --cni-state and --live)
  routes     routes to workload interfaces against those whose interface is up
  addresses  endpoints' addresses against routes to them (needs --endpoints)
  stuck      devices whose deletion the kernel cannot finish ("unregister_netdevice"
             in its log), told apart from devices that nobody deleted

Without PAIR: all whose input is given. Needs root to see other processes' network
namespaces (peers) and the kernel log (stuck), nothing for the rest.
` + auditExitCodes,
		Example: `  manx audit
  manx audit shapers routes -o json
  crictl pods -q > live && manx audit --endpoints /etc/manx/endpoints --cni-state /var/lib/cni/networks --live live`,
		Args:      cobra.OnlyValidArgs,
		ValidArgs: audit.Pairs(),
		RunE: func(cmd *cobra.Command, pairs []string) error {
			kernel, err := rtnl.Open(rtnl.Options{})
			if err != nil {
				return err
			}
			defer kernel.Close()
			options.Kernel, options.Only, options.Stdin = kernel, pairs, cmd.InOrStdin()
			report := audit.Run(cmd.Context(), options)
			if err := report.Write(cli.NewOutput(cmd.OutOrStdout()), format); err != nil {
				return err
			}
			if code := report.ExitCode(); code != cli.ExitOK {
				return cli.Exit(code, nil)
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&options.EndpointsDir, "endpoints", "", "directory of WorkloadEndpoint manifests (*.yaml, *.yml, *.json)")
	flags.StringSliceVar(&options.Prefixes, "interface-prefix", []string{"cali"}, "how names of workload interfaces begin")
	flags.Uint32Var(&options.Table, "table", unix.RT_TABLE_MAIN, "number of the routing table to look at")
	flags.StringVar(&options.KernelLog, "kernel-log", "", "file with kernel log lines, such as dmesg prints (default: /dev/kmsg)")
	flags.StringVar(&options.Proc, "proc", "/proc", "where the proc file system with the workloads' processes is mounted")
	addIPAMFlags(cmd, &options.IPAM)
	cli.AddFormat(cmd, &format)
	cmd.AddCommand(auditIPAMCommand())
	return cli.Looks(cmd)
}

func auditIPAMCommand() *cobra.Command {
	var command audit.IPAMCommand
	cmd := &cobra.Command{
		Use:   "ipam --cni-state DIR --live FILE [--write-plan PLAN] | --release PLAN --live FILE",
		Short: "Compare IPAM allocations with live sandboxes; release by plan",
		Long: `Compares the sandboxes that hold an address in a host-local IPAM store with those
that live.

--write-plan writes down which addresses are held by sandboxes that do not live,
together with the list of live IDs that says so. It deletes nothing.

--release carries out such a plan with a fresh list of live IDs. It checks every
entry first (the file is the same and unchanged, its sandbox still does not live)
and refuses if one does not pass; it then takes the store's lock for each entry,
checks once more and deletes the file. To try one address first, keep one entry of
the plan. Nothing else that manx does ever deletes an allocation.
` + auditExitCodes + `
  3  --release refused; nothing was deleted, or nothing after the entry it names`,
		Example: `  crictl pods -q > live
  manx audit ipam --cni-state /var/lib/cni/networks --live live --write-plan plan.json
  crictl pods -q | manx audit ipam --live - --release plan.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			command.Stdin = cmd.InOrStdin()
			command.Out = cli.NewOutput(cmd.OutOrStdout())
			return command.Run(cmd.Context())
		},
	}
	addIPAMFlags(cmd, &command.IPAMOptions)
	cmd.Flags().StringVar(&command.WritePlan, "write-plan", "", "new file to write a plan of what to release to")
	cmd.Flags().DurationVar(&command.MinAge, "min-age", time.Minute,
		"leave addresses out of the plan that were allocated less than this before the list was written")
	cmd.Flags().StringVar(&command.Release, "release", "", "plan to carry out")
	cli.AddFormat(cmd, &command.Format)
	return cli.Looks(cmd)
}

func addIPAMFlags(cmd *cobra.Command, options *audit.IPAMOptions) {
	flags := cmd.Flags()
	flags.StringVar(&options.StateDir, "cni-state", "", "host-local IPAM store: /var/lib/cni/networks, or one network's directory in it")
	flags.StringVar(&options.Live, "live", "", "file with the IDs of all sandboxes, one a line, as \"crictl pods -q\" prints them; - is standard input")
	flags.StringVar(&options.NoAddress, "no-address", "", "file with the IDs of sandboxes that rightly hold no address, such as those on the host's network")
}
