package ifacemonitor_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/manx-dataplane/manx/ifacemonitor"
)

// recorder keeps what a Monitor reports and checks the contract's rules 1, 5 and
// 6 at every callback.
type recorder struct {
	mu         sync.Mutex
	interfaces map[string]iface
	log        []string // "eth0 up 3", "eth0 [10.0.0.1]", "eth0 mtu 1500", "in sync"
	inSync     int
	violations []string
	excluded   func(string) bool
}

// iface is what was last reported about a name.
type iface struct {
	state    ifacemonitor.State
	index    int
	mtu      int
	addrs    []netip.Addr
	addrsNil bool // absence reported by addresses too
}

func newRecorder() *recorder {
	return &recorder{interfaces: map[string]iface{}, excluded: func(string) bool { return false }}
}

// configure puts the recorder's callbacks into a Config.
func (r *recorder) configure(config *ifacemonitor.Config) {
	config.StateCallback = r.onState
	config.AddrCallback = r.onAddrs
	config.MTUCallback = r.onMTU
	config.InSyncCallback = func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.inSync++
		r.log = append(r.log, "in sync")
	}
}

func (r *recorder) onState(name string, state ifacemonitor.State, index int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.interfaces[name]
	r.log = append(r.log, strings.TrimSpace(fmt.Sprintf("%s %s %d", name, orAbsent(state), index)))
	switch {
	case old.state == state:
		r.violate("rule 1: %s repeated as %s", name, orAbsent(state))
	case old.state != ifacemonitor.StateNotPresent && old.index != index:
		r.violate("rule 1: index %d speaks for %s, which %d has not given up", index, name, old.index)
	case old.state == ifacemonitor.StateNotPresent && old.index != 0 && !old.addrsNil && !r.excluded(name):
		r.violate("rule 5: %s is back and its addresses were not reported nil before", name)
	}
	if state == ifacemonitor.StateNotPresent || old.state == ifacemonitor.StateNotPresent {
		old = iface{}
	}
	old.state, old.index = state, index
	r.interfaces[name] = old
}

func (r *recorder) onAddrs(name string, addrs []netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.interfaces[name]
	r.log = append(r.log, fmt.Sprintf("%s %s", name, addrsText(addrs)))
	switch {
	case r.excluded(name):
		r.violate("rule 6: addresses of %s, which is excluded", name)
	case old.state == ifacemonitor.StateNotPresent && addrs != nil:
		r.violate("rule 5: addresses %v of %s, which is absent", addrs, name)
	case old.state == ifacemonitor.StateNotPresent && old.addrsNil:
		r.violate("rule 5: absence of the addresses of %s repeated", name)
	case old.state != ifacemonitor.StateNotPresent && addrs == nil:
		r.violate("rule 5: nil addresses of %s, which is present", name)
	case addrs != nil && old.addrs != nil && slices.Equal(old.addrs, addrs):
		r.violate("addresses %v of %s repeated", addrs, name)
	case !slices.IsSortedFunc(addrs, netip.Addr.Compare):
		r.violate("addresses %v of %s are not sorted", addrs, name)
	}
	old.addrs, old.addrsNil = addrs, addrs == nil
	r.interfaces[name] = old
}

func (r *recorder) onMTU(name string, index, mtu int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.interfaces[name]
	r.log = append(r.log, fmt.Sprintf("%s mtu %d", name, mtu))
	switch {
	case old.state == ifacemonitor.StateNotPresent || old.index != index:
		r.violate("MTU of %s by index %d, which does not own it", name, index)
	case old.mtu == mtu || mtu <= 0:
		r.violate("MTU of %s repeated or not positive: %d", name, mtu)
	}
	old.mtu = mtu
	r.interfaces[name] = old
}

func (r *recorder) violate(format string, args ...any) {
	r.violations = append(r.violations, fmt.Sprintf(format, args...)+"\n\tafter "+strings.Join(r.log, "; "))
}

// present returns what is reported as present, in words: "3 up 1500
// [10.0.0.1]" by name.
func (r *recorder) present() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	present := map[string]string{}
	for name, i := range r.interfaces {
		if i.state != ifacemonitor.StateNotPresent {
			present[name] = fmt.Sprintf("%d %s %d %s", i.index, i.state, i.mtu, addrsText(i.addrs))
		}
	}
	return present
}

// of returns the log about one name, without that name.
func (r *recorder) of(name string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var lines []string
	for _, line := range r.log {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			lines = append(lines, rest)
		}
	}
	return lines
}

// states is of without addresses and MTUs.
func (r *recorder) states(name string) []string {
	return slices.DeleteFunc(r.of(name), func(line string) bool {
		return strings.HasPrefix(line, "[") || strings.HasPrefix(line, "mtu") || line == "nil"
	})
}

func (r *recorder) isInSync() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.inSync == 1
}

func (r *recorder) broken() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.violations)
}

func (r *recorder) names() []string { return slices.Sorted(maps.Keys(r.present())) }

func orAbsent(state ifacemonitor.State) string {
	if state == ifacemonitor.StateNotPresent {
		return "absent"
	}
	return string(state)
}

func addrsText(addrs []netip.Addr) string {
	if addrs == nil {
		return "nil"
	}
	return fmt.Sprint(addrs)
}

// counter returns the value of a counter, or of the one with that only label; -1
// where there is none.
func counter(registry *prometheus.Registry, name string, label ...string) float64 {
	families, _ := registry.Gather()
	for _, family := range families {
		for _, metric := range family.Metric {
			if family.GetName() == name && (len(label) == 0 || metric.Label[0].GetValue() == label[0]) {
				return metric.Counter.GetValue()
			}
		}
	}
	return -1
}
