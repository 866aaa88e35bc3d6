package stats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/manx-dataplane/manx/internal/cli"
	"github.com/manx-dataplane/manx/qos"
)

// Options say what to show, and how.
type Options struct {
	Selection
	Kernel qos.ReadKernel
	Out    cli.Output
	Format cli.Format
	// Watch is the time between two looks; zero looks once.
	Watch time.Duration
}

// Run shows the rows once, or until ctx is done: on a terminal each look takes the
// place of the one before. It returns an error where a look fails or a named
// interface does not exist; while watching, an interface that has gone is no error.
func Run(ctx context.Context, options Options) error {
	if options.Watch == 0 {
		rows, err := Collect(options.Kernel, options.Selection)
		if rows == nil && err != nil {
			return err
		}
		return errors.Join(show(options, rows), err)
	}
	ticker := time.NewTicker(options.Watch)
	defer ticker.Stop()
	var before []Row
	var then time.Time
	for {
		rows, err := Collect(options.Kernel, options.Selection)
		if rows == nil && err != nil {
			return err
		}
		now := time.Now()
		addThroughput(rows, before, now.Sub(then))
		if options.Format == cli.FormatTable {
			if options.Out.Terminal || before != nil {
				options.Out.Refresh()
			}
			fmt.Fprintf(options.Out, "%s, every %s\n\n", now.Format(time.DateTime), options.Watch)
		}
		if err := show(options, rows); err != nil {
			return err
		}
		before, then = rows, now
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// addThroughput works out how much passed since the look before. Counters that
// went back belong to another qdisc.
func addThroughput(rows, before []Row, elapsed time.Duration) {
	type key struct {
		index     int
		direction Direction
		device    string
	}
	earlier := make(map[key]uint64, len(before))
	for _, row := range before {
		earlier[key{row.Index, row.Direction, row.Device}] = row.Bytes
	}
	for i := range rows {
		row := &rows[i]
		bytes, known := earlier[key{row.Index, row.Direction, row.Device}]
		if known && row.Bytes >= bytes && elapsed > 0 {
			throughput := uint64(float64(row.Bytes-bytes) * 8 / elapsed.Seconds())
			row.Throughput = &throughput
		}
	}
}

func show(options Options, rows []Row) error {
	if options.Format == cli.FormatJSON {
		if rows == nil {
			rows = []Row{}
		}
		if options.Watch > 0 {
			return options.Out.JSONLine(rows)
		}
		return options.Out.JSON(rows)
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintln(options.Out, "No workload interface has a bandwidth limit. --all shows those without one too.")
		return err
	}
	columns := []cli.Column{
		cli.Left("INTERFACE"), cli.Left("DIRECTION"), cli.Right("RATE"), cli.Right("BURST"), cli.Right("LATENCY"),
		cli.Right("BYTES"), cli.Right("PACKETS"), cli.Right("DROPS"), cli.Right("OVERLIMITS"), cli.Right("BACKLOG"),
	}
	if options.Watch > 0 {
		columns = append(columns, cli.Right("NOW"))
	}
	table := cli.NewTable(append(columns, cli.Left("COUNTED ON"))...)
	for _, row := range rows {
		cells := row.cells()
		if options.Watch > 0 {
			now := cli.Unknown
			if row.Throughput != nil {
				now = cli.BitRate(*row.Throughput)
			}
			cells = append(cells, now)
		}
		table.Row(append(cells, row.countedOn())...)
	}
	return table.Write(options.Out, "")
}

func (r Row) cells() []any {
	rate, burst, latency := "none", cli.Unknown, cli.Unknown
	switch {
	case r.Shaping != nil:
		rate = cli.BitRate(r.Shaping.RateBits)
		burst = cli.Bytes(r.Shaping.BurstBytes)
		if r.Shaping.QueueBytes > 0 {
			latency = cli.Duration(time.Duration(r.Shaping.LatencySeconds * float64(time.Second)))
		}
	case r.limited():
		rate = "unknown"
	}
	drops := cli.Cell{Text: cli.Count(r.Drops)}
	if r.Drops > 0 {
		drops.Style = cli.Yellow
	}
	return []any{
		r.Interface, string(r.Direction), rate, burst, latency,
		cli.Bytes(r.Bytes), cli.Count(r.Packets), drops, cli.Count(r.Overlimits), cli.Bytes(uint64(r.BacklogBytes)),
	}
}

// countedOn names the device and qdisc that the row's numbers are of.
func (r Row) countedOn() cli.Cell {
	switch {
	case r.Device == "":
		return cli.Cell{Text: "GONE: redirects to a device that does not exist", Style: cli.Red}
	case !r.limited() || r.Qdisc == "":
		return cli.Cell{Text: r.Device, Style: cli.Dim}
	}
	return cli.Cell{Text: fmt.Sprintf("%s (%s)", r.Device, r.Qdisc), Style: cli.Dim}
}
