package traffic_test

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// report is what docs/traffic.md says.
type report struct {
	paths   []result
	rows    []string
	faults  []string
	changes []changed
}

func (r *report) add(got, path result) {
	r.rows = append(r.rows, row(got, path))
	for _, fault := range got.wrong(path) {
		r.faults = append(r.faults, fmt.Sprintf("%s: %s", got.kase, fault))
	}
}

const intro = `# Traffic against the limit

Written by ` + "`make traffic`" + `, on %s, kernel %s, %d CPUs.

*wire* is the rate of whole frames, which is what a shaper counts (payload, headers and 14 bytes of Ethernet), as a
percentage of the limit; *payload* is what an application sees of it. Each figure is of 1.5 s (6 s at 1 Mbit/s) after the burst was
spent. UDP is sent at 1.5 times the limit, and *delay* is how long its packets took, median and 99th percentile.

A packet of an overloaded shaper waits for as long as the queue takes to pass, which is 25 ms at the limit. The queue has
room for one packet of 64 KiB, though, as TCP hands them over before they are cut into segments: where the burst lets such
a packet pass and 25 ms are less than it (below 26 Mbit/s), the queue is 80 KiB long, which takes 65 ms at 10 Mbit/s and
655 ms at 1 Mbit/s. A smaller burst, or a peak rate, makes the queue shorter there, at TCP's expense. While a burst passes
at the peak rate the queue takes half as long, the peak rate being twice the limit here.

A burst that is spent in less than 1 ms keeps traffic below the limit, since the timer that waits for more comes too late: see one
frame at 100 Mbit/s and more. And TCP needs a queue of about ten frames to fill a limit, which 25 ms at 1 Mbit/s are not.
`

// String writes it in Markdown.
func (r *report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, intro, time.Now().UTC().Format(time.DateOnly), kernelRelease(), runtime.NumCPU())
	b.WriteString("\n## The path without a limit\n\nWhat this machine cannot send it cannot be limited to.\n\n" +
		"| direction | IP | MTU | TCP wire | UDP wire |\n|---|---|---|---|---|\n")
	for _, p := range r.paths {
		fmt.Fprintf(&b, "| %s | %s | %d | %s | %s |\n", p.direction(), p.ip(), p.mtu, bits(p.tcpWire), bits(p.udpWire))
	}
	b.WriteString("\n## With a limit\n\n| limit | burst | peak rate | direction | IP | MTU | TCP payload | TCP wire | UDP payload | UDP wire | delay | note |\n" +
		"|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, row := range r.rows {
		b.WriteString(row + "\n")
	}
	if len(r.faults) > 0 {
		b.WriteString("\nNot as expected:\n\n- " + strings.Join(r.faults, "\n- ") + "\n")
	}
	b.WriteString("\n## Changing a limit under load\n\nUDP at 0.8 times the lower of two limits, which take turns.\n\n" +
		"| direction | IP | changes | packets sent | lost |\n|---|---|---|---|---|\n")
	for _, c := range r.changes {
		fmt.Fprintf(&b, "| %s | %s | %d | %d | %d |\n", c.direction(), c.ip(), c.times, c.result.Sent, c.result.Lost)
	}
	return b.String()
}

func row(r, path result) string {
	peak := "none"
	if r.peak {
		peak = quantity(2 * r.rate)
	}
	percent := func(wire float64) string { return fmt.Sprintf("%.1f %%", 100*wire/float64(r.expected())) }
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %d | %s | %s | %s | %s | %s, %s | %s |",
		quantity(r.rate), r.burst, peak, r.direction(), r.ip(), r.mtu, bits(r.tcp), percent(r.tcpWire), bits(r.udp),
		percent(r.udpWire), r.median.Round(100*time.Microsecond), r.p99.Round(100*time.Microsecond), r.note(path))
}

// String names the case.
func (k kase) String() string {
	return fmt.Sprintf("%s, burst %s, peak rate %t, %s, %s, MTU %d", quantity(k.rate), k.burst, k.peak, k.direction(), k.ip(), k.mtu)
}

// String says what became of the flow.
func (c changed) String() string { return fmt.Sprintf("%s: %s", c.kase, c.result) }

func (k kase) direction() string {
	if k.egress {
		return "egress"
	}
	return "ingress"
}

func (k kase) ip() string {
	if k.ipv6 {
		return "IPv6"
	}
	return "IPv4"
}

func kernelRelease() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "unknown"
	}
	version, _, _ := strings.Cut(unix.ByteSliceToString(name.Release[:]), "-")
	return version
}
