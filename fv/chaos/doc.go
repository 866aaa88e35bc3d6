// Package chaos churns pods at random beside a vandal who breaks what the agent has
// made, with an event socket that overruns and an agent that is killed now and then,
// and expects that within one refresh after the vandal stops all is right, and that
// nothing is left once all pods are gone.
//
// MANX_CHAOS_DURATION is for how long (default 12s). MANX_CHAOS_SEED repeats the
// choices of a run, whose seed is in its report; what the kernel and the agent make
// of them depends on time as well.
package chaos
