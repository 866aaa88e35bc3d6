package routetable

import (
	"errors"
	"fmt"
	"net/netip"
)

// ErrConflict is in Apply's error where a wanted route's place in the kernel's
// table is taken by a route that is not ours. Ours waits until a resync finds the
// place free.
var ErrConflict = errors.New("place is taken by a route that is not ours")

// ErrInterfacesFlapping is in Apply's error where interfaces kept changing while
// it wrote, so that it gave up settling their routes: call it again.
var ErrInterfacesFlapping = errors.New("interfaces keep changing")

// ConntrackError is in Apply's error once for an address whose old flows could
// not be deleted. Its new route has been let in all the same.
type ConntrackError struct {
	Addr netip.Addr
	// Err is what the last attempt failed with, or context.DeadlineExceeded where it
	// has not come back in time.
	Err error
}

func (e *ConntrackError) Error() string {
	return fmt.Sprintf("delete conntrack entries of %s: %v", e.Addr, e.Err)
}

// Unwrap returns the cause.
func (e *ConntrackError) Unwrap() error { return e.Err }

// maxJoined bounds the errors that one Apply returns: thousands of routes can
// fail for one reason.
const maxJoined = 16

func join(errs []error) error {
	if more := len(errs) - maxJoined; more > 0 {
		errs = append(errs[:maxJoined:maxJoined], fmt.Errorf("and %d more errors", more))
	}
	return errors.Join(errs...)
}
