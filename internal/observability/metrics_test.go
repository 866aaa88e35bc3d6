package observability_test

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("What a run exposes", func() {
	It("passes Prometheus's own linter", func() {
		var ours strings.Builder
		for line := range strings.Lines(exposition()) {
			if strings.HasPrefix(line, "manx_") || strings.HasPrefix(line, "# HELP manx_") || strings.HasPrefix(line, "# TYPE manx_") {
				ours.WriteString(line)
			}
		}
		promtool(ours.String(), "check", "metrics")
	})

	It("shows no gap once the agent has done its work", func() {
		for _, line := range []string{
			"manx_qos_wanted_devices 1", "manx_qos_present_devices 1", "manx_qos_orphaned_devices 0", "manx_qos_missing_devices 0",
			"manx_dataplane_active_endpoints 1", `manx_dataplane_endpoints{status="up"} 1`, `manx_dataplane_endpoints{status="down"} 0`,
			`manx_routetable_wanted_routes{ip_version="4",table="254"} 1`, `manx_routetable_routes{ip_version="4",table="254"} 1`,
			`manx_routetable_wanted_routes{ip_version="6",table="254"} 1`, `manx_routetable_routes{ip_version="6",table="254"} 1`,
		} {
			Expect(exposition()).To(ContainSubstring("\n" + line + "\n"))
		}
	})

	It("is described in docs/operations.md, metric by metric with its labels, and nothing else is", func() {
		var described, run []string
		row := regexp.MustCompile("(?m)^\\| `(manx_[a-z_]+)` \\| ([a-z]+) \\|([^|]*)\\|")
		for _, match := range row.FindAllStringSubmatch(rootFile("docs/operations.md"), -1) {
			var labels []string
			for _, label := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(match[3], -1) {
				labels = append(labels, label[1])
			}
			slices.Sort(labels)
			described = append(described, strings.Join(append([]string{match[1], match[2]}, labels...), " "))
		}
		families := exposed()
		for _, name := range slices.Sorted(maps.Keys(families)) {
			f := families[name]
			run = append(run, strings.Join(append([]string{name, f.kind}, f.labels...), " "))
		}
		Expect(described).To(ConsistOf(run))
	})
})
