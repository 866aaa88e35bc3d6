package main

import (
	"os"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/manx-dataplane/manx/agent"
)

func runCommand() *cobra.Command {
	var options agent.Options
	cmd := &cobra.Command{
		Use:   "run --endpoints DIR [--config FILE]",
		Short: "Run the node agent",
		Long: `Runs the node agent in the current network namespace until SIGTERM or SIGINT.

It reads a FelixConfiguration manifest and a directory of WorkloadEndpoint
manifests, watches both, and keeps routes, bandwidth limits, sysctls and endpoint
status files in line with them. FELIX_<FIELDNAME> environment variables override
the configuration. On SIGTERM it exits with 0 and leaves the kernel's state in
place. Needs CAP_NET_ADMIN, and /proc/sys/net to be writable.`,
		Example: `  manx run --endpoints /etc/manx/endpoints
  manx run --config /etc/manx/felix.yaml --endpoints /etc/manx/endpoints`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := requireNetAdmin(); err != nil {
				return err
			}
			log := logrus.New()
			log.SetOutput(cmd.ErrOrStderr())
			options.Log = log
			options.Environ = os.Environ()
			options.Kernel = agent.LinuxKernel{}
			return agent.Run(cmd.Context(), options)
		},
	}
	cmd.Flags().StringVar(&options.ConfigFile, "config", "",
		"FelixConfiguration manifest; without it every field has its default")
	cmd.Flags().StringVar(&options.EndpointsDir, "endpoints", "",
		"directory of WorkloadEndpoint manifests (*.yaml, *.yml, *.json)")
	cobra.CheckErr(cmd.MarkFlagRequired("endpoints"))
	return cmd
}
