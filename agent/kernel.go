package agent

import (
	"io"

	"github.com/manx-dataplane/manx/endpointmgr"
	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/qos"
	"github.com/manx-dataplane/manx/routetable"
	"github.com/manx-dataplane/manx/rtnl"
)

// Handle is all that the agent's parts ask of the kernel in request and answer.
type Handle interface {
	qos.Kernel
	qos.ReaperKernel
	routetable.Kernel
	Close()
}

// Conntrack deletes connection-tracking entries.
type Conntrack interface {
	routetable.Conntrack
	io.Closer
}

// Kernel is one network namespace as the agent needs it. LinuxKernel is the real
// one; package mocks can stand in for tests.
type Kernel interface {
	// Handle opens a socket for requests; the agent closes it.
	Handle(options rtnl.Options) (Handle, error)
	// Events opens the event socket; the interface monitor closes it.
	Events(options rtnl.EventOptions) (ifacemonitor.EventSocket, error)
	// Sysctls is how per-interface sysctls are written.
	Sysctls() endpointmgr.Sysctls
	// Conntrack opens what deletes connection-tracking entries; the agent closes it.
	Conntrack(options rtnl.Options) (Conntrack, error)
	// Lock makes sure that no other agent works in the namespace until the Closer is
	// closed; ErrAlreadyRunning where one does.
	Lock() (io.Closer, error)
}

// LinuxKernel is the network namespace of the process.
type LinuxKernel struct {
	// BeforeWrite is called before every kernel write; see rtnl.Options.
	BeforeWrite func(op string)
}

// Handle opens an rtnl.Handle.
func (k LinuxKernel) Handle(options rtnl.Options) (Handle, error) {
	options.BeforeWrite = k.BeforeWrite
	return rtnl.Open(options)
}

// Events opens an rtnl.EventSocket.
func (k LinuxKernel) Events(options rtnl.EventOptions) (ifacemonitor.EventSocket, error) {
	return rtnl.OpenEvents(options)
}

// Sysctls writes below /proc/sys.
func (k LinuxKernel) Sysctls() endpointmgr.Sysctls { return endpointmgr.ProcSys{Root: "/proc/sys"} }

// Conntrack opens an rtnl.Conntrack.
func (k LinuxKernel) Conntrack(options rtnl.Options) (Conntrack, error) {
	options.BeforeWrite = k.BeforeWrite
	return rtnl.OpenConntrack(options)
}

// Lock takes an abstract unix socket in the network namespace.
func (k LinuxKernel) Lock() (io.Closer, error) { return lockNamespace() }
