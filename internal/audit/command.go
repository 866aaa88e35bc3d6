package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/manx-dataplane/manx/internal/cli"
)

// IPAMCommand is what "manx audit ipam" was asked for: to compare and, at most one
// of both, to write a plan or to carry one out.
type IPAMCommand struct {
	IPAMOptions
	// WritePlan is the new file to write a plan to.
	WritePlan string
	// MinAge is how old an allocation must be to be in the plan.
	MinAge time.Duration
	// Release is the file of the plan to carry out. The store is the plan's.
	Release string

	Stdin  io.Reader
	Out    cli.Output
	Format cli.Format
}

// ipamOutput is the command's output as JSON.
type ipamOutput struct {
	Report
	Plan     string    `json:"plan,omitempty"`
	Entries  int       `json:"planEntries,omitempty"`
	Young    int       `json:"leftOutYoung,omitempty"`
	Outcomes []Outcome `json:"outcomes,omitempty"`
}

// Run does what was asked for. Its error carries the exit code.
func (c IPAMCommand) Run(ctx context.Context) error {
	switch {
	case c.WritePlan != "" && c.Release != "":
		return errors.New("--write-plan and --release must not be given together: look at a plan before carrying it out")
	case c.Live == "":
		return errors.New("--live FILE must be given (- is standard input)")
	case c.Live == "-" && c.NoAddress == "-":
		return errors.New("only one of --live and --no-address can be standard input")
	case c.Release != "":
		return c.release(ctx)
	case c.StateDir == "":
		return errors.New("--cni-state DIR must be given")
	}
	now := time.Now()
	state, err := readIPAM(c.IPAMOptions, c.Stdin, now)
	if err != nil {
		return err
	}
	output := ipamOutput{Report: Report{Pairs: []Pair{state.compare(now)}}}
	if c.WritePlan != "" {
		plan, young, err := state.plan(c.StateDir, c.MinAge, now)
		if err != nil {
			return err
		}
		if err := plan.write(c.WritePlan); err != nil {
			return err
		}
		output.Plan, output.Entries, output.Young = c.WritePlan, len(plan.Entries), young
	}
	return c.finish(output)
}

// release carries out a plan, and compares again.
func (c IPAMCommand) release(ctx context.Context) error {
	plan, err := ReadPlan(c.Release)
	if err != nil {
		return err
	}
	if c.StateDir != "" && c.StateDir != plan.StateDir {
		return cli.Exit(cli.ExitRefused, fmt.Errorf("%w: the plan is for %s, not for %s", ErrRefused, plan.StateDir, c.StateDir))
	}
	now := time.Now()
	live, err := ReadLiveIDs(c.Live, c.Stdin, now)
	if err != nil {
		return err
	}
	output := ipamOutput{}
	outcomes, failure := Release(ctx, plan, live)
	output.Outcomes = outcomes
	state := ipamState{live: live}
	if c.NoAddress != "" {
		if state.without, err = ReadLiveIDs(c.NoAddress, c.Stdin, now); err != nil {
			return err
		}
	}
	if state.store, err = ReadStore(plan.StateDir); err != nil {
		return errors.Join(failure, err)
	}
	output.Pairs = []Pair{state.compare(now)}
	err = c.finish(output)
	switch {
	case errors.Is(failure, ErrRefused):
		return cli.Exit(cli.ExitRefused, failure)
	case errors.Is(failure, context.Canceled):
		return cli.Exit(cli.ExitInterrupted, errors.New("interrupted; what is not listed as released has not been"))
	case failure != nil:
		return cli.Exit(cli.ExitCannotLook, failure)
	}
	return err
}

// finish writes the output, and returns the exit code.
func (c IPAMCommand) finish(output ipamOutput) error {
	var err error
	if c.Format == cli.FormatJSON {
		err = c.Out.JSON(output)
	} else {
		err = c.write(output)
	}
	if err != nil {
		return err
	}
	if code := output.ExitCode(); code != cli.ExitOK {
		return cli.Exit(code, nil)
	}
	return nil
}

func (c IPAMCommand) write(output ipamOutput) error {
	if output.Outcomes != nil {
		table := cli.NewTable(cli.Left("ADDRESS"), cli.Left("CONTAINER"), cli.Left("OUTCOME"))
		for _, outcome := range output.Outcomes {
			said := cli.Cell{Text: "kept"}
			switch {
			case outcome.Released:
				said = cli.Cell{Text: "released", Style: cli.Green}
			case outcome.Refused != "":
				said = cli.Cell{Text: "REFUSED: " + outcome.Refused, Style: cli.Red}
			}
			table.Row(outcome.Address, outcome.ContainerID, said)
		}
		if err := table.Write(c.Out, ""); err != nil {
			return err
		}
		fmt.Fprintln(c.Out)
	}
	if err := output.Report.Write(c.Out, cli.FormatTable); err != nil {
		return err
	}
	if output.Plan == "" {
		return nil
	}
	fmt.Fprintf(c.Out, "\nWrote a plan to release %s to %s. Nothing was deleted. Read it, then:\n"+
		"  crictl pods -q | manx audit ipam --live - --release %s\n",
		cli.Plural(output.Entries, "address", "addresses"), output.Plan, output.Plan)
	if output.Young > 0 {
		fmt.Fprintf(c.Out, "Left out: %s allocated less than %s before the list of live IDs was written (--min-age).\n",
			cli.Plural(output.Young, "address", "addresses"), cli.Duration(c.MinAge))
	}
	return nil
}
