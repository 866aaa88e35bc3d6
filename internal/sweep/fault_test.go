package sweep_test

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/internal/nodetest"
	"github.com/manx-dataplane/manx/internal/sweep"
	"github.com/manx-dataplane/manx/mocks"
	"github.com/manx-dataplane/manx/qos"
)

// TestAnyFailingCallDoesNoHarm fails each kernel call of a sweep with each errno:
// the device in use stays under its name, the sweep says which orphans it could not
// delete, and the next one deletes the rest.
func TestAnyFailingCallDoesNoHarm(t *testing.T) {
	calls := sweepWithFault(t, 0, 0)
	if calls < 10 {
		t.Fatalf("a sweep makes %d calls only", calls)
	}
	for _, errno := range []syscall.Errno{unix.EINTR, unix.EPERM, unix.EBUSY, unix.ENOBUFS, unix.ENOMEM, unix.EOPNOTSUPP} {
		for n := 1; n <= calls; n++ {
			t.Run(fmt.Sprintf("call %d %s", n, errno.Error()), func(t *testing.T) {
				t.Parallel()
				sweepWithFault(t, n, errno)
			})
		}
	}
}

// sweepWithFault sweeps a node with two orphans and a device in use, with call n
// failing, and returns how many calls there were.
func sweepWithFault(t *testing.T, n int, errno syscall.Errno) int {
	kernel := mocks.NewKernel()
	outside := kernel.Outside()
	used := nodetest.IFBName(veth)
	if _, err := kernel.AddPod(veth); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{used, "bwcali000000001", "bwcali000000002"} {
		if err := outside.LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: name}}); err != nil {
			t.Fatal(err)
		}
	}
	kernel.OnCall(func(call mocks.Call) error {
		if call.N == n {
			return errno
		}
		return nil
	})
	sweeper, err := sweep.New(sweep.Config{
		Kernel: kernel.NewHandle(), OpenReaper: func() (qos.ReaperKernel, error) { return kernel.NewHandle(), nil }, Grace: time.Nanosecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	result, err := sweeper.Sweep(t.Context())
	calls := kernel.Calls()
	kernel.OnCall(nil)
	left := devices(t, outside)
	if !slices.Contains(left, used) {
		t.Fatalf("the device in use is gone: %v", left)
	}
	if err == nil && len(left) > 1 && result.Count(sweep.Deleted) == len(result.Orphans) {
		t.Fatalf("all is well, it says, and left are %v: %+v", left, result)
	}
	if _, err := sweeper.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := devices(t, outside); !slices.Equal(left, []string{used}) {
		t.Fatalf("the next sweep has left %v", left)
	}
	return calls
}

func devices(t *testing.T, kernel *mocks.Handle) []string {
	links, err := kernel.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, link := range links {
		if strings.HasPrefix(link.Attrs().Name, sweep.DefaultPrefix) {
			names = append(names, link.Attrs().Name)
		}
	}
	return names
}
