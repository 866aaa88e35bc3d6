package dataplane

import "github.com/manx-dataplane/manx/routetable"

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
