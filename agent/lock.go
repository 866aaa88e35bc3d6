package agent

import (
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// ErrAlreadyRunning says that another agent works in the same network namespace.
var ErrAlreadyRunning = errors.New("another manx agent is running in this network namespace")

// lockName is an abstract unix socket. The kernel keeps those apart by network
// namespace and frees them when their process ends, however it ends: just the
// scope and the lifetime that the lock should have (unix(7), "Abstract sockets").
const lockName = "@manx-dataplane/agent"

// lockNamespace makes sure that no other agent works in the network namespace of
// the caller until the returned Closer is closed.
func lockNamespace() (io.Closer, error) {
	listener, err := net.Listen("unix", lockName)
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return nil, ErrAlreadyRunning
	case err != nil:
		return nil, fmt.Errorf("lock network namespace with unix socket %s: %w", lockName, err)
	}
	return listener, nil
}
