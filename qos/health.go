package qos

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// HealthDetail returns one line for each device whose deletion does not come back,
// and one for each kind of object that limits need and the kernel lacks. None means
// that all is well.
func (s *Syncer) HealthDetail() (lines []string) {
	now := s.config.Clock.Now()
	for _, device := range s.config.Reaper.Stuck() {
		lines = append(lines, device.describe(now))
	}
	for _, kind := range slices.Sorted(maps.Keys(s.memory.unsupported)) {
		if s.memory.unsupported[kind] {
			lines = append(lines, fmt.Sprintf("qos: the kernel lacks %s; limits that need it are not enforced", kind))
		}
	}
	return lines
}

// describe says how a device is stuck: unlisted, it only waits in the kernel for its
// last reference; listed, the request itself has not been carried out.
func (d StuckDevice) describe(now time.Time) string {
	line := fmt.Sprintf("qos: the deletion of %s (ifindex %d) has not come back for %s", d.Name, d.Index, now.Sub(d.Since).Round(time.Second))
	if d.Candidates > 1 {
		line += fmt.Sprintf(", or that of one of %d others in its batch", d.Candidates-1)
	}
	if d.Listed {
		return line + "; the device is still there"
	}
	return line + "; its name is free, the kernel waits for the last reference to it"
}
