package main

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// errNoNetAdmin says that the process may not change the kernel's network state.
var errNoNetAdmin = errors.New("CAP_NET_ADMIN is missing: run as root, or give the process or its container this capability (--cap-add NET_ADMIN)")

// requireNetAdmin returns errNoNetAdmin where CAP_NET_ADMIN is not in the effective
// set.
func requireNetAdmin() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read the process's capabilities: %w", err)
	}
	if data[0].Effective&(1<<unix.CAP_NET_ADMIN) == 0 {
		return errNoNetAdmin
	}
	return nil
}
