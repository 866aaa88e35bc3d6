package demo

import (
	"fmt"

	"github.com/manx-dataplane/manx/internal/cli"
)

// printer writes the demo's story.
type printer struct {
	out cli.Output
}

func (p printer) title(format string, args ...any) {
	fmt.Fprintf(p.out, "\n%s\n", p.out.Paint(cli.Bold, fmt.Sprintf(format, args...)))
}

func (p printer) say(format string, args ...any) {
	fmt.Fprintf(p.out, "  %s\n", fmt.Sprintf(format, args...))
}

// table prints what the kernel says next to what was expected.
func (p printer) table(heading string, rows []row) error {
	fmt.Fprintf(p.out, "  %s\n", heading)
	table := cli.NewTable(cli.Left("what"), cli.Left("expected"), cli.Left("the kernel says"), cli.Left(""))
	for _, r := range rows {
		verdict := cli.Cell{Text: "ok", Style: cli.Green}
		if r.got != r.want {
			verdict = cli.Cell{Text: "NOT AS EXPECTED", Style: cli.Red}
		}
		table.Row(r.what, r.want, r.got, verdict)
	}
	return table.Write(p.out, "    ")
}

// countdown returns a function to be told how many are left of total; it draws a
// bar on a terminal and nothing elsewhere.
func (p printer) countdown(total int, what string) func(left int) {
	done := p.out.Progress(total, "  "+what)
	return func(left int) { done(total - left) }
}
