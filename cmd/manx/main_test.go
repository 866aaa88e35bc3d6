package main

import (
	"io"
	"testing"

	"github.com/manx-dataplane/manx/internal/cli"
)

// Exit code 1 of audit and sweep means that they found something.
func TestAMisspeltCommandIsNotTakenForOneThatFoundSomething(t *testing.T) {
	for _, test := range []struct {
		args []string
		code int
	}{
		{[]string{"swep"}, cli.ExitCannotLook},
		{[]string{"--dry-run", "sweep"}, cli.ExitCannotLook},
		{[]string{"sweep", "--no-such-flag"}, cli.ExitCannotLook},
		{[]string{"audit", "--table", "-5"}, cli.ExitCannotLook},
		{[]string{"audit", "--table", "4294967296"}, cli.ExitCannotLook},
		{[]string{"run", "--no-such-flag"}, 1},
		{[]string{"run"}, 1},
		{[]string{"--version"}, cli.ExitOK},
		{nil, cli.ExitOK},
	} {
		cmd := root()
		cmd.SetArgs(test.args)
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if code, err := cli.ExitCode(cmd.Execute()); code != test.code {
			t.Errorf("manx %q: exit code %d (%v), want %d", test.args, code, err, test.code)
		}
	}
}
