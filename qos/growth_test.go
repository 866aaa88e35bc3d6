package qos

import (
	"fmt"
	"testing"

	"github.com/manx-dataplane/manx/ifacemonitor"
)

// TestNothingGrowsWhileDisabled: a disabled Syncer hears of every pod that comes and
// goes, for weeks, and must not remember those that went.
func TestNothingGrowsWhileDisabled(t *testing.T) {
	s := New(Config{Reaper: NewReaper(ReaperConfig{})})
	for n := range 100 {
		name := fmt.Sprintf("cali%d", n)
		s.SetLimits(name, Limits{Egress: &Limit{RateBits: 1e6, BurstBits: 1e6}})
		s.OnIfaceStateChanged(name, n+1, ifacemonitor.StateUp)
		s.OnIfaceMTUChanged(name, n+1, 1500)
		s.OnIfaceStateChanged(name, n+1, ifacemonitor.StateNotPresent)
		s.RemoveLimits(name)
	}
	if kept := len(s.desired) + len(s.owners) + len(s.todo.dirty) + len(s.todo.appeared) + len(s.todo.vanished) + len(s.todo.reasons); kept > 0 {
		t.Errorf("%d entries kept", kept)
	}
}
