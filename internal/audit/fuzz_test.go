package audit

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// FuzzReadPlan: whatever a plan says, each entry that is accepted is an address
// file of the store, or of one directory in it, and never bookkeeping.
func FuzzReadPlan(f *testing.F) {
	good, err := json.Marshal(Plan{
		Version: planVersion, Written: time.Unix(1, 0), StateDir: "/var/lib/cni/networks", LiveIDs: []string{"a"},
		Entries: []PlanEntry{{Network: "k8s-pod-network", Address: "10.0.0.1", ContainerID: "b"}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	for _, change := range [][2]string{
		{"k8s-pod-network", ".."}, {"k8s-pod-network", "a/../.."}, {"k8s-pod-network", "a\\u0000b"}, {"10.0.0.1", "fd00::1"},
		{"10.0.0.1", "::1%/../x"}, {"10.0.0.1", "lock"}, {"10.0.0.1", "../10.0.0.1"},
	} {
		f.Add([]byte(strings.Replace(string(good), change[0], change[1], 1)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		plan, err := decodePlan(bytes.NewReader(data), "plan.json")
		if err != nil {
			return
		}
		for _, entry := range plan.Entries {
			dir, name := filepath.Split(entry.path())
			if !filepath.IsLocal(entry.path()) || strings.Count(dir, "/") > 1 || isBookkeeping(name) || name != entry.Address {
				t.Fatalf("entry %+v leads to %q", entry, entry.path())
			}
		}
	})
}

// FuzzKernelLog: no line makes a device that has no name or more lines than there
// are.
func FuzzKernelLog(f *testing.F) {
	f.Add("[  100.000000] unregister_netdevice: waiting for cali1 to become free. Usage count = 1\n[  105.0] x")
	f.Add("unregister_netdevice: waiting for  to become free. Usage count = 1")
	f.Add("[99999999999999999999.9] unregister_netdevice: waiting for cali1 to become free. Usage count = -3")
	f.Fuzz(func(t *testing.T, text string) {
		log := &kernelLog{repeat: defaultRepeat}
		if err := log.readLines(strings.NewReader(text)); err != nil {
			return
		}
		for name, device := range log.stuck() {
			if name == "" || device.name != name || device.lines < 1 || device.age < 0 || device.said() == "" {
				t.Fatalf("%q: %+v", name, device)
			}
		}
	})
}
