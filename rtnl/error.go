package rtnl

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// OpError says which request failed, on which object, and with what errno. It
// unwraps to the errno, so errors.Is(err, unix.ENODEV) works; an interrupted
// dump is EINTR, whatever way the kernel reported it.
type OpError struct {
	// Op is the request in words, such as "delete link" or "replace qdisc".
	Op string
	// Object names what it was done to, such as "bwcali6514ff3bb (ifindex 12)".
	// Empty for dumps.
	Object string
	// Err is the cause; usually an errno.
	Err error
}

func (e *OpError) Error() string {
	if e.Object == "" {
		return fmt.Sprintf("%s: %v", e.Op, e.Err)
	}
	return fmt.Sprintf("%s %s: %v", e.Op, e.Object, e.Err)
}

// Unwrap returns the cause.
func (e *OpError) Unwrap() error { return e.Err }

// opError wraps err, or returns nil where err is nil.
func opError(op, object string, err error) error {
	if err == nil {
		return nil
	}
	var notFound netlink.LinkNotFoundError
	switch {
	case errors.As(err, &notFound):
		err = unix.ENODEV
	case errors.Is(err, netlink.ErrDumpInterrupted):
		err = unix.EINTR
	}
	return &OpError{Op: op, Object: object, Err: err}
}

// linkObject names a link for an OpError.
func linkObject(link netlink.Link) string {
	attrs := link.Attrs()
	switch {
	case attrs.Index == 0:
		return attrs.Name
	case attrs.Name == "":
		return fmt.Sprintf("ifindex %d", attrs.Index)
	}
	return fmt.Sprintf("%s (ifindex %d)", attrs.Name, attrs.Index)
}

// isAny reports whether err is one of the errnos.
func isAny(err error, errnos ...syscall.Errno) bool {
	return slices.ContainsFunc(errnos, func(errno syscall.Errno) bool { return errors.Is(err, errno) })
}
