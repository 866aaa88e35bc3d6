// Package soak lives through many short pod lives with limits, eight at a time: in a
// first part the agent is SIGKILLed every 50 lives, and nothing may be left at the
// end; in a second one a single agent sees them all, and its memory, file
// descriptors, goroutines and threads must stay what they were.
//
// MANX_SOAK_LIVES is the number of lives with kills (default 150); a quarter as many,
// but at least 100, follow without.
package soak
