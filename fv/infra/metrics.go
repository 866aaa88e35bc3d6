package infra

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// MetricsOn are the fields that make the agent serve what Metrics reads.
func MetricsOn() Spec {
	return Spec{
		"prometheusMetricsEnabled": true,
		"prometheusMetricsHost":    "127.0.0.1",
		"prometheusMetricsPort":    9091,
	}
}

// Metrics returns the agent's metrics, each keyed by its name and labels as the
// agent writes them.
func (n *Node) Metrics() (map[string]float64, error) {
	text, err := n.fetch("http://127.0.0.1:9091/metrics")
	if err != nil {
		return nil, err
	}
	metrics := make(map[string]float64)
	for line := range strings.Lines(text) {
		name, value, found := strings.Cut(strings.TrimSpace(line), "} ")
		if found {
			name += "}"
		} else {
			name, value, _ = strings.Cut(strings.TrimSpace(line), " ")
		}
		if number, err := strconv.ParseFloat(value, 64); err == nil && !strings.HasPrefix(name, "#") {
			metrics[name] = number
		}
	}
	return metrics, nil
}

// Footprint is what a process takes up.
type Footprint struct {
	Memory          int // resident, in KiB
	FileDescriptors int
	Threads         int
	Goroutines      int
}

// Footprint reads a running agent's; it must serve metrics.
func (a *Agent) Footprint() (Footprint, error) {
	var f Footprint
	dir := fmt.Sprintf("/proc/%d", a.pid)
	fds, err := os.ReadDir(dir + "/fd")
	if err != nil {
		return f, err
	}
	f.FileDescriptors = len(fds)
	status, err := os.ReadFile(dir + "/status")
	if err != nil {
		return f, err
	}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		number, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
		switch key {
		case "VmRSS":
			f.Memory = number
		case "Threads":
			f.Threads = number
		}
	}
	metrics, err := a.node.Metrics()
	f.Goroutines = int(metrics["go_goroutines"])
	if err == nil && (f.Memory == 0 || f.Threads == 0 || f.Goroutines == 0) {
		err = errors.New("the kernel or the agent leaves something out")
	}
	return f, err
}
