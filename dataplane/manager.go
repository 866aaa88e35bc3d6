package dataplane

import (
	"time"

	"github.com/manx-dataplane/manx/routetable"
)

// Manager turns messages into desired state. Its methods are called from the
// driver's goroutine only.
type Manager interface {
	// OnUpdate takes note of a message. It is cheap, does no I/O and ignores
	// messages it does not know.
	OnUpdate(msg any)
	// CompleteDeferredWork acts on what was noted. It is called only after the
	// datastore and the interface monitor are in sync. On error what failed stays
	// dirty and is retried at the next call.
	CompleteDeferredWork() error
}

// UpdateBatchResolver is a Manager with work to do before any manager's
// CompleteDeferredWork, such as settling conflicts that others depend on.
type UpdateBatchResolver interface {
	Manager
	ResolveUpdateBatch() error
}

// ManagerWithRouteTables is a Manager that owns route tables, which the driver
// applies after all managers have completed their work.
type ManagerWithRouteTables interface {
	Manager
	GetRouteTableSyncers() []routetable.SyncerInterface
}

// ApplyCompleter is a Manager that reports on what has reached the kernel: the
// endpoint status that a CNI plugin waits for must not be written before the
// endpoint's routes are in.
type ApplyCompleter interface {
	Manager
	// OnApplied is called once at the end of every apply, after all syncers have
	// returned. applyErr joins what they returned; nil means that all of them
	// succeeded. On error what failed stays dirty and is retried at the next call.
	OnApplied(applyErr error) error
}

// Resyncer is a Manager that keeps something of its own true outside of its route
// tables, where others may change it.
type Resyncer interface {
	Manager
	// QueueResync has it looked at anew in the next apply. The driver calls it when it
	// refreshes the route tables.
	QueueResync()
}

// MTUListener is a syncer that wants to know interfaces' MTUs.
type MTUListener interface {
	// OnIfaceMTUChanged tells the MTU, in bytes, of an interface that is present.
	OnIfaceMTUChanged(name string, ifindex, mtu int)
}

// Rechecker is a Manager that has work to do at a certain time though no message
// arrives until then. Syncers have the same method.
type Rechecker interface {
	// NextRecheck returns that time, and whether there is one. It is asked after
	// every apply.
	NextRecheck() (time.Time, bool)
}

// HealthDetailer is a Manager or a syncer that has something to tell an operator,
// such as a device whose deletion never returned.
type HealthDetailer interface {
	// HealthDetail returns one line per finding, none when all is well. It is called
	// from the driver's goroutine, after every apply and every few seconds.
	HealthDetail() []string
}
