package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

// Format is a form of output.
type Format string

// The formats.
const (
	FormatTable Format = "table"
	FormatJSON  Format = "json"
)

// AddFormat gives a command the flag -o.
func AddFormat(cmd *cobra.Command, format *Format) {
	*format = FormatTable
	cmd.Flags().VarP(format, "output", "o", "form of the output: table or json")
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{string(FormatTable), string(FormatJSON)}, cobra.ShellCompDirectiveNoFileComp)))
}

// String returns the format's name.
func (f *Format) String() string { return string(*f) }

// Set takes a format's name.
func (f *Format) Set(value string) error {
	switch Format(value) {
	case FormatTable, FormatJSON:
		*f = Format(value)
		return nil
	}
	return fmt.Errorf("must be %s or %s", FormatTable, FormatJSON)
}

// Type returns what the flag's help calls the value.
func (f *Format) Type() string { return "FORMAT" }
