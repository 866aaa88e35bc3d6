package demo

import (
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// printer writes the demo's story. On a terminal it uses colour (never as the
// only signal, and not where NO_COLOR is set) and progress bars.
type printer struct {
	out      io.Writer
	terminal bool
	colour   bool
}

func newPrinter(out io.Writer) printer {
	file, isFile := out.(*os.File)
	terminal := isFile && term.IsTerminal(int(file.Fd()))
	return printer{out: out, terminal: terminal, colour: terminal && os.Getenv("NO_COLOR") == ""}
}

const (
	bold  = "1"
	green = "32"
	red   = "31"
)

func (p printer) paint(sgr, text string) string {
	if !p.colour {
		return text
	}
	return "\x1b[" + sgr + "m" + text + "\x1b[0m"
}

func (p printer) title(format string, args ...any) {
	fmt.Fprintf(p.out, "\n%s\n", p.paint(bold, fmt.Sprintf(format, args...)))
}

func (p printer) say(format string, args ...any) {
	fmt.Fprintf(p.out, "  %s\n", fmt.Sprintf(format, args...))
}

// table prints what the kernel says next to what was expected.
func (p printer) table(heading string, rows []row) {
	fmt.Fprintf(p.out, "  %s\n", heading)
	tw := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "    what\texpected\tthe kernel says\t\n")
	for _, r := range rows {
		verdict := p.paint(green, "ok")
		if r.got != r.want {
			verdict = p.paint(red, "NOT AS EXPECTED")
		}
		fmt.Fprintf(tw, "    %s\t%s\t%s\t%s\n", r.what, r.want, r.got, verdict)
	}
	tw.Flush()
}

// countdown returns a function to be told how many are left of total; it draws a
// bar on a terminal and nothing elsewhere.
func (p printer) countdown(total int, what string) func(left int) {
	if !p.terminal {
		return func(int) {}
	}
	bar := progressbar.NewOptions(total,
		progressbar.OptionSetWriter(p.out),
		progressbar.OptionSetDescription("  "+what),
		progressbar.OptionSetWidth(30),
		progressbar.OptionShowCount(),
		progressbar.OptionEnableColorCodes(false),
		progressbar.OptionOnCompletion(func() { fmt.Fprintln(p.out) }),
	)
	return func(left int) { _ = bar.Set(total - left) }
}
