package audit

import (
	"fmt"

	"github.com/manx-dataplane/manx/internal/cli"
)

// Status is how a comparison ended.
type Status string

// The statuses.
const (
	Equal    Status = "equal"
	Gap      Status = "gap"
	NoLook   Status = "could-not-look"
	NotAsked Status = "not-asked" // its input was not given
)

// Pair is one comparison.
type Pair struct {
	Name   string `json:"pair"`
	Status Status `json:"status"`
	Left   Number `json:"left"`
	Right  Number `json:"right"`
	// Difference is Left less Right. It can be zero where there are offenders: one
	// too many and one too few.
	Difference int        `json:"difference"`
	Offenders  []Offender `json:"offenders"`
	// Notes are what a reader should know whatever the status.
	Notes []string `json:"notes,omitempty"`
	// Problem is why nobody could look, or what was not given.
	Problem string `json:"problem,omitempty"`
	// Meaning, Do and DoNot explain a gap.
	Meaning string `json:"meaning,omitempty"`
	Do      string `json:"do,omitempty"`
	DoNot   string `json:"doNot,omitempty"`
}

// Number is how many of something there are.
type Number struct {
	Of    string `json:"of"`
	Count int    `json:"count"`
}

// Offender is what stands on one side only.
type Offender struct {
	Name   string `json:"name"`
	Detail string `json:"detail"`
}

// Report is the outcome of an audit.
type Report struct {
	Pairs []Pair `json:"pairs"`
}

// ExitCode returns cli.ExitGap if there is a gap, else cli.ExitCannotLook if some
// pair could not be looked at, else cli.ExitOK. What was not asked for counts for
// nothing.
func (r Report) ExitCode() int {
	code := cli.ExitOK
	for _, pair := range r.Pairs {
		switch pair.Status {
		case Gap:
			return cli.ExitGap
		case NoLook:
			code = cli.ExitCannotLook
		}
	}
	return code
}

func (p *Pair) offend(name, format string, args ...any) {
	p.Offenders = append(p.Offenders, Offender{Name: name, Detail: fmt.Sprintf(format, args...)})
}

func (p *Pair) note(format string, args ...any) {
	p.Notes = append(p.Notes, fmt.Sprintf(format, args...))
}

// settle works out what follows from the counts and offenders. The explanation
// stays only where there is something to explain.
func (p *Pair) settle() Pair {
	p.Difference = p.Left.Count - p.Right.Count
	if p.Offenders == nil {
		p.Offenders = []Offender{}
	}
	p.Status = Equal
	if p.Difference != 0 || len(p.Offenders) > 0 {
		p.Status = Gap
		return *p
	}
	p.Meaning, p.Do, p.DoNot = "", "", ""
	return *p
}

// noLook is a pair that could not be looked at.
func noLook(name string, err error) Pair {
	return Pair{Name: name, Status: NoLook, Problem: err.Error(), Offenders: []Offender{}}
}

// notAsked is a pair whose input was not given.
func notAsked(name, needs string) Pair {
	return Pair{Name: name, Status: NotAsked, Problem: "needs " + needs, Offenders: []Offender{}}
}

// Write writes the report.
func (r Report) Write(out cli.Output, format cli.Format) error {
	if format == cli.FormatJSON {
		return out.JSON(r)
	}
	table := cli.NewTable(cli.Left("PAIR"), cli.Left("THIS"), cli.Right("COUNT"), cli.Left("AGAINST"), cli.Right("COUNT"),
		cli.Right("DIFFERENCE"), cli.Left("STATUS"))
	for _, pair := range r.Pairs {
		switch pair.Status {
		case NoLook:
			table.Row(pair.Name, cli.Unknown, "", cli.Unknown, "", "", pair.verdict())
			continue
		case NotAsked:
			table.Row(pair.Name, cli.Cell{Text: pair.Problem, Style: cli.Dim}, "", "", "", "", pair.verdict())
			continue
		}
		table.Row(pair.Name, pair.Left.Of, cli.Count(pair.Left.Count), pair.Right.Of, cli.Count(pair.Right.Count),
			cli.Count(pair.Difference), pair.verdict())
	}
	if err := table.Write(out, ""); err != nil {
		return err
	}
	for _, pair := range r.Pairs {
		if err := pair.writeDetail(out); err != nil {
			return err
		}
	}
	return nil
}

func (p Pair) verdict() cli.Cell {
	switch p.Status {
	case Equal:
		return cli.Cell{Text: "equal", Style: cli.Green}
	case Gap:
		return cli.Cell{Text: "GAP", Style: cli.Red}
	case NoLook:
		return cli.Cell{Text: "COULD NOT LOOK", Style: cli.Yellow}
	}
	return cli.Cell{Text: "not asked", Style: cli.Dim}
}

// writeDetail writes what the table has no room for.
func (p Pair) writeDetail(out cli.Output) error {
	if p.Status == NotAsked || p.Status == Equal && len(p.Notes) == 0 {
		return nil
	}
	fmt.Fprintf(out, "\n%s: ", out.Paint(cli.Bold, p.Name))
	switch p.Status {
	case Gap:
		fmt.Fprintln(out, cli.Plural(len(p.Offenders), "offender", "offenders"))
	case Equal:
		fmt.Fprintln(out, "equal")
	default:
		fmt.Fprintln(out, p.Problem)
	}
	for _, note := range p.Notes {
		fmt.Fprintf(out, "  note: %s\n", note)
	}
	if len(p.Offenders) > 0 {
		table := cli.NewTable(cli.Left("OFFENDER"), cli.Left("WHAT IS WRONG"))
		for _, offender := range p.Offenders {
			table.Row(offender.Name, offender.Detail)
		}
		if err := table.Write(out, "  "); err != nil {
			return err
		}
	}
	const width = 100
	for _, line := range [][2]string{{"meaning: ", p.Meaning}, {"do:      ", p.Do}, {"do not:  ", p.DoNot}} {
		if line[1] != "" {
			fmt.Fprintf(out, "  %s%s\n", out.Paint(cli.Bold, line[0]), cli.Wrap(line[1], width, "           "))
		}
	}
	return nil
}
