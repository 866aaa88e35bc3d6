package rtnl

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Namespace is an open network namespace. It owns one file descriptor, which
// keeps the namespace alive until Close even when no process is left inside.
//
// Its methods are safe for concurrent use, except that nothing may be called
// during or after Close.
type Namespace struct {
	file *os.File
}

// NewNamespace creates an empty network namespace (loopback only, and that
// down) that nothing else refers to; it vanishes on Close, with every device in
// it. It needs CAP_SYS_ADMIN and fails with EPERM without.
func NewNamespace() (*Namespace, error) {
	var ns *Namespace
	err := onLockedThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("create network namespace: %w", err)
		}
		var err error
		ns, err = CurrentNamespace()
		return err
	})
	return ns, err
}

// CurrentNamespace opens the network namespace of the calling thread. A
// goroutine that has not locked its thread gets the process's own.
func CurrentNamespace() (*Namespace, error) {
	return OpenNamespace(fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid()))
}

// OpenNamespace opens a network namespace by a path such as /proc/PID/ns/net or
// /run/netns/NAME.
func OpenNamespace(path string) (*Namespace, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	return &Namespace{file: file}, nil
}

// Do runs fn on a thread that is inside the namespace; processes that fn starts
// and sockets that it opens belong to the namespace. It returns fn's error. fn
// must not start goroutines that rely on the namespace: they run elsewhere.
func (n *Namespace) Do(fn func() error) error {
	return onLockedThread(func() error {
		if err := netns.Set(netns.NsHandle(n.file.Fd())); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		return fn()
	})
}

// FD returns the file descriptor, which stays owned by the Namespace. It is what
// moving a link into the namespace (IFLA_NET_NS_FD) asks for.
func (n *Namespace) FD() int { return int(n.file.Fd()) }

// Path returns a path that opens the same namespace as long as this process
// lives and the Namespace is not closed.
func (n *Namespace) Path() string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.FD())
}

// Close releases the file descriptor. The kernel destroys the namespace once
// nothing else refers to it.
func (n *Namespace) Close() error {
	if err := n.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close network namespace: %w", err)
	}
	return nil
}

// onLockedThread runs fn on a thread of its own, which ends with fn: a thread
// whose namespace was changed is never handed back to the Go scheduler. A panic
// in fn is carried over to the caller.
func onLockedThread(fn func() error) error {
	type result struct {
		err   error
		panic any
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread exits with the goroutine
		res := result{panic: "goroutine exited"}
		defer func() {
			if p := recover(); p != nil {
				res.panic = p
			}
			done <- res
		}()
		res = result{err: fn()}
	}()
	res := <-done
	if res.panic != nil {
		panic(res.panic)
	}
	return res.err
}
