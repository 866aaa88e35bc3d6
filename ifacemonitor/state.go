package ifacemonitor

// State is what the monitor believes about one interface.
type State string

// The states, spelt as Felix spells them.
const (
	// StateNotPresent: no interface of that name exists.
	StateNotPresent State = ""
	// StateUp: it exists and its oper state is up (IFF_RUNNING).
	StateUp State = "up"
	// StateDown: it exists and is not up.
	StateDown State = "down"
)
