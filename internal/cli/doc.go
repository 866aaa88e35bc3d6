// Package cli is what the operator's commands have in common: output made for
// people first and scripts second, and exit codes that a script can use.
//
//   - Colour only on a terminal, never where NO_COLOR is set, and never as the only
//     signal: whatever is red also says so.
//   - Numbers have units.
//   - Long work shows a progress bar, on the terminal that standard error is.
//   - Every command has -o table|json; JSON holds plain numbers in base units.
package cli
