package sweep

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/manx-dataplane/manx/internal/cli"
)

// Command is what "manx sweep" was asked for.
type Command struct {
	Config
	// Interval is the time from one sweep to the next; zero sweeps once.
	Interval time.Duration

	Out    cli.Output // the results
	Err    cli.Output // progress and problems
	Format cli.Format
}

// Run sweeps, once or until ctx is done. Its error carries the exit code.
func (c Command) Run(ctx context.Context) error {
	if c.Interval < 0 || c.Grace <= 0 {
		return fmt.Errorf("interval %s, grace %s: the first must not be negative, the second must be above zero", c.Interval, c.Grace)
	}
	if c.Interval == 0 && !c.DryRun {
		c.Config.Progress = func(total int) func(int) { return c.Err.Progress(total, "deleting") }
	}
	sweeper, err := New(c.Config)
	if err != nil {
		return err
	}
	if c.Interval == 0 {
		if c.Err.Terminal {
			fmt.Fprintf(c.Err, "Looking twice, %s apart.\n", cli.Duration(c.Grace))
		}
		result, err := sweeper.Sweep(ctx)
		return c.finish(result, err, true)
	}
	// Problems of the first round are of the set-up, and end it; later ones pass.
	for round := 0; ; round++ {
		result, err := sweeper.Sweep(ctx)
		err = c.finish(result, err, round == 0 || len(result.Orphans) > 0)
		var exit *cli.ExitError
		switch {
		case ctx.Err() != nil: // how a sweeper that repeats is stopped
			return nil
		case err == nil:
		case errors.As(err, &exit) && exit.Err == nil: // the output has said it
		case round == 0 && !errors.Is(err, ErrTooMany):
			return err
		default:
			fmt.Fprintln(c.Err, "Error:", err)
		}
		if sweeper.wait(ctx, c.Interval) != nil {
			return nil
		}
	}
}

// finish writes a result, if it is worth it, and returns the exit code.
func (c Command) finish(result Result, err error, write bool) error {
	if errors.Is(err, context.Canceled) && c.Err.Terminal {
		fmt.Fprintln(c.Err) // ends the progress bar's line
	}
	if write && !result.Time.IsZero() {
		if failure := c.write(result); failure != nil {
			return errors.Join(err, failure)
		}
	}
	switch {
	case errors.Is(err, ErrTooMany):
		return cli.Exit(cli.ExitRefused, err)
	case errors.Is(err, context.Canceled):
		return cli.Exit(cli.ExitInterrupted, errors.New("interrupted; orphans that are listed as kept are still there"))
	case err != nil:
		return err
	case result.Count(WouldDelete)+result.Count(Left) > 0:
		return cli.Exit(cli.ExitGap, nil)
	}
	return nil
}

// listed is how many deleted devices are listed; a dry run lists all, and so does
// JSON.
const listed = 20

func (c Command) write(result Result) error {
	switch {
	case c.Format == cli.FormatJSON && c.Interval > 0:
		return c.Out.JSONLine(result)
	case c.Format == cli.FormatJSON:
		return c.Out.JSON(result)
	}
	table := cli.NewTable(cli.Left("DEVICE"), cli.Right("IFINDEX"), cli.Right("SEEN FOR"), cli.Left("REASON"), cli.Left("OUTCOME"))
	left := 0
	for _, orphan := range result.Orphans {
		if orphan.Outcome == Deleted && table.Len() >= listed {
			left++
			continue
		}
		table.Row(orphan.Name, fmt.Sprint(orphan.Index), cli.Duration(time.Duration(orphan.SeenForSeconds*float64(time.Second))),
			orphan.Reason, orphan.said())
	}
	if table.Len() > 0 {
		if err := table.Write(c.Out, ""); err != nil {
			return err
		}
		if left > 0 {
			fmt.Fprintf(c.Out, "... and %s more (-o json lists all)\n", cli.Count(left))
		}
		fmt.Fprintln(c.Out)
	}
	_, err := fmt.Fprintln(c.Out, result.summary())
	return err
}

func (o Orphan) said() cli.Cell {
	switch o.Outcome {
	case WouldDelete:
		return cli.Cell{Text: "would be deleted", Style: cli.Yellow}
	case Deleted:
		return cli.Cell{Text: "deleted", Style: cli.Green}
	case Left:
		return cli.Cell{Text: "LEFT: " + o.Error, Style: cli.Red}
	}
	return cli.Cell{Text: string(o.Outcome)}
}

// summary says it in one line.
func (r Result) summary() string {
	text := fmt.Sprintf("%s* devices: %s; orphans: %s", r.Prefix, cli.Count(r.Devices), cli.Count(len(r.Orphans)))
	for _, outcome := range []Outcome{WouldDelete, Deleted, Gone, Spared, Kept, Left} {
		if n := r.Count(outcome); n > 0 {
			text += fmt.Sprintf("; %s: %s", outcome, cli.Count(n))
		}
	}
	if r.Count(Deleted) > 0 {
		text += " in " + cli.Duration(time.Duration(r.DeletionSeconds*float64(time.Second)))
	}
	return text + "."
}
