package main

import (
	"github.com/spf13/cobra"

	"github.com/manx-dataplane/manx/internal/demo"
)

func demoCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Play the production cases on this machine's kernel",
		Long: `Plays, in throwaway network namespaces and against "manx run" as a real process:

  case A  a pod is deleted while the agent is down, a veth that goes late, a node
          full of leaked shapers, a pod that comes back under the same name;
  case B  a StatefulSet pod re-created under the same veth name.

Nothing outside the namespaces changes, and they vanish with the demo, also when
it is interrupted. Needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN). Exit code 0 only if
the kernel ended up as expected every time.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return demo.Run(cmd.Context(), cmd.OutOrStdout())
		},
	}
}
