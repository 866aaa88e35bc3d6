package cli

import (
	"strings"
	"unicode/utf8"
)

// Table is a table of text with aligned columns. text/tabwriter would align all
// columns to one side, and count the codes of coloured cells as width.
type Table struct {
	columns []Column
	rows    [][]Cell
}

// Column is a column's heading and side.
type Column struct {
	Heading string
	Right   bool // for numbers
}

// Cell is text and its style.
type Cell struct {
	Text  string
	Style Style
}

// columnGap is what stands between two columns.
const columnGap = "   "

// Left returns a column for words.
func Left(heading string) Column { return Column{Heading: heading} }

// Right returns a column for numbers.
func Right(heading string) Column { return Column{Heading: heading, Right: true} }

// NewTable returns a table without rows.
func NewTable(columns ...Column) *Table { return &Table{columns: columns} }

// Row adds a row of as many cells as there are columns: strings or Cells.
func (t *Table) Row(cells ...any) {
	row := make([]Cell, len(t.columns))
	for i, cell := range cells {
		switch cell := cell.(type) {
		case Cell:
			row[i] = cell
		case string:
			row[i] = Cell{Text: cell}
		}
	}
	t.rows = append(t.rows, row)
}

// Len returns the number of rows.
func (t *Table) Len() int { return len(t.rows) }

// Write writes headings and rows, each line after the indent.
func (t *Table) Write(out Output, indent string) error {
	headings := make([]Cell, len(t.columns))
	for i, column := range t.columns {
		headings[i] = Cell{Text: column.Heading, Style: Bold}
	}
	widths := make([]int, len(t.columns))
	lines := append([][]Cell{headings}, t.rows...)
	for _, line := range lines {
		for i, cell := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell.Text))
		}
	}
	var text strings.Builder
	for _, line := range lines {
		text.WriteString(indent)
		t.writeLine(&text, out, line, widths)
	}
	_, err := out.Write([]byte(text.String()))
	return err
}

func (t *Table) writeLine(text *strings.Builder, out Output, line []Cell, widths []int) {
	pending := "" // so that no line ends in blanks
	for i, cell := range line {
		padding := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell.Text))
		if t.columns[i].Right {
			pending += padding
			padding = ""
		}
		if cell.Text != "" {
			text.WriteString(pending + out.Paint(cell.Style, cell.Text))
			pending = ""
		}
		pending += padding + columnGap
	}
	text.WriteByte('\n')
}
