package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

// The exit codes of the commands that look: audit, stats and sweep.
const (
	ExitOK          = 0
	ExitGap         = 1   // looked, and not all is as it should be
	ExitCannotLook  = 2   // could not look or act: bad usage, missing rights, an error
	ExitRefused     = 3   // could have acted, but a check said no; nothing was changed
	ExitInterrupted = 130 // by SIGINT or SIGTERM before it was done, as a shell has it
)

// ExitError is an error that ends the program with a code of its own. Err may be
// nil where the output has said it all.
type ExitError struct {
	Code int
	Err  error
}

// Exit returns an ExitError.
func Exit(code int, err error) error { return &ExitError{Code: code, Err: err} }

func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap returns the cause, or nil.
func (e *ExitError) Unwrap() error { return e.Err }

// ExitCode returns the exit code for the error that a command ended with, and
// what is left to say about it; nil if nothing is.
func ExitCode(err error) (int, error) {
	if err == nil {
		return ExitOK, nil
	}
	var exit *ExitError
	if errors.As(err, &exit) {
		if exit.Err == nil {
			return exit.Code, nil
		}
		return exit.Code, err
	}
	return 1, err
}

// Looks makes wrong usage of a command end with ExitCannotLook, so that it cannot
// be taken for ExitGap, and any other error that has no code of its own too.
func Looks(cmd *cobra.Command) *cobra.Command {
	coded := func(err error) error {
		var exit *ExitError
		if err == nil || errors.As(err, &exit) {
			return err
		}
		return Exit(ExitCannotLook, err)
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return coded(fmt.Errorf("%w\nSee '%s --help' for usage", err, cmd.CommandPath()))
	})
	args, run := cmd.Args, cmd.RunE
	cmd.Args = func(cmd *cobra.Command, given []string) error { return coded(args(cmd, given)) }
	cmd.RunE = func(cmd *cobra.Command, given []string) error { return coded(run(cmd, given)) }
	return cmd
}
