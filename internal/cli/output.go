package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// Output is where a command writes to. Its methods are for one goroutine.
type Output struct {
	io.Writer
	// Terminal is whether a person looks at it: progress bars and refreshing in
	// place make sense.
	Terminal bool
	// Colour is whether Paint paints.
	Colour bool
}

// NewOutput returns the Output for a writer. Colour follows NO_COLOR
// (https://no-color.org: set and not empty means none).
func NewOutput(w io.Writer) Output {
	file, isFile := w.(*os.File)
	terminal := isFile && term.IsTerminal(int(file.Fd()))
	return Output{Writer: w, Terminal: terminal, Colour: terminal && os.Getenv("NO_COLOR") == ""}
}

// Style is how text is painted: an SGR parameter of ECMA-48.
type Style string

// The styles. Plain leaves text as it is.
const (
	Plain  Style = ""
	Bold   Style = "1"
	Dim    Style = "2"
	Red    Style = "31"
	Green  Style = "32"
	Yellow Style = "33"
)

// Paint returns text in a style, where the Output has colour.
func (o Output) Paint(style Style, text string) string {
	if !o.Colour || style == Plain || text == "" {
		return text
	}
	return "\x1b[" + string(style) + "m" + text + "\x1b[0m"
}

// JSON writes a value as indented JSON and a line break.
func (o Output) JSON(value any) error {
	encoder := json.NewEncoder(o)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// JSONLine writes a value as JSON in one line, for output that goes on and on.
func (o Output) JSONLine(value any) error { return json.NewEncoder(o).Encode(value) }

// Progress draws a bar for long work on a terminal and nothing elsewhere. The
// returned function is to be told how much of the total is done; the bar ends
// when all is. The function is for one goroutine at a time.
func (o Output) Progress(total int, what string) func(done int) {
	if !o.Terminal || total <= 0 {
		return func(int) {}
	}
	bar := progressbar.NewOptions(total,
		progressbar.OptionSetWriter(o.Writer),
		progressbar.OptionSetDescription(what),
		progressbar.OptionSetWidth(30),
		progressbar.OptionShowCount(),
		progressbar.OptionEnableColorCodes(false),
		progressbar.OptionOnCompletion(func() { fmt.Fprintln(o.Writer) }),
	)
	return func(done int) { _ = bar.Set(done) }
}

// Refresh clears a terminal, so that what is written next takes the place of what
// was written before: cursor home, erase to the end (ECMA-48 CUP and ED). Elsewhere
// it writes an empty line.
func (o Output) Refresh() {
	if o.Terminal {
		fmt.Fprint(o, "\x1b[H\x1b[J")
		return
	}
	fmt.Fprintln(o)
}
