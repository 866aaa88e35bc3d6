package routetable

import (
	"time"

	"github.com/manx-dataplane/manx/ifacemonitor"
)

// SyncerInterface is what a driver's loop does with a route table, whoever
// decides what routes it holds.
type SyncerInterface interface {
	// OnIfaceStateChanged tells the table what the interface monitor said.
	OnIfaceStateChanged(name string, ifindex int, state ifacemonitor.State)
	// QueueResync makes the next Apply read the whole kernel table.
	QueueResync()
	// Apply brings the kernel's table to the desired state. On error what failed
	// stays dirty, and calling Apply again retries it.
	Apply() error
	// NextRecheck returns the time at which Apply has something to do though
	// nothing is told to the table until then (a grace period that ends), and
	// whether there is such a time.
	NextRecheck() (time.Time, bool)
}
