package qos

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// The annotations. Each of the second family overrides the Kubernetes annotation
// for the same value.
const (
	AnnotationKubernetesIngress = "kubernetes.io/ingress-bandwidth"
	AnnotationKubernetesEgress  = "kubernetes.io/egress-bandwidth"
	// AnnotationPrefix is followed by ingress or egress and Bandwidth, Burst,
	// Peakrate or Minburst.
	AnnotationPrefix = "qos.projectcalico.org/"
)

// The ranges are Calico's: bits per second, bits, bits per second, bytes.
const (
	MinBandwidth = 1_000
	MaxBandwidth = 1_000_000_000_000_000
	MinBurst     = 1_000
	MaxBurst     = 34_359_738_360 // the most bits that a 32-bit number of bytes holds
	MinPeakrate  = 1_010
	MaxPeakrate  = 1_010_000_000_000_000
	MinMinburst  = 1_000
	MaxMinburst  = 100_000_000
	// DefaultBurst is the burst in bits of a limit that gives none: 4Gi, 512 MiB.
	DefaultBurst = 4 << 30
)

// ParseOptions says how to read annotations.
type ParseOptions struct {
	// KubernetesAnnotations is whether kubernetes.io/*-bandwidth count.
	KubernetesAnnotations bool
	// DefaultBurstBits is the burst of a limit that gives none; zero means
	// DefaultBurst.
	DefaultBurstBits uint64
}

// ValueError says that a bandwidth control was not accepted.
type ValueError struct {
	// Field is the annotation, or the field of Controls as qosControls.<name>.
	Field string
	// Value is what it holds, cut where it is very long.
	Value string
	// Allowed says what would be accepted.
	Allowed string
}

// Error names the field, the value and what is allowed.
func (e *ValueError) Error() string {
	return fmt.Sprintf("%s: %q is not accepted: %s", e.Field, e.Value, e.Allowed)
}

// ParseLimits works out the limits of an endpoint from its controls (nil where it
// has none) and its annotations. For each value, the first that is given and
// acceptable counts, in the order controls, qos.projectcalico.org,
// kubernetes.io.
//
// The error joins one ValueError for each value that is not accepted; the Limits
// returned with it hold all others and are meant to be applied.
func ParseLimits(annotations map[string]string, controls *Controls, options ParseOptions) (Limits, error) {
	if controls == nil {
		controls = &Controls{}
	}
	defaultBurst := cmp.Or(options.DefaultBurstBits, DefaultBurst)
	p := parser{annotations: annotations, kubernetes: options.KubernetesAnnotations}
	limits := Limits{
		Ingress: p.limit(direction{
			name: "ingress", kubernetes: AnnotationKubernetesIngress,
			bandwidth: controls.IngressBandwidth, burst: controls.IngressBurst,
			peakrate: controls.IngressPeakrate, minburst: controls.IngressMinburst,
		}, defaultBurst),
		Egress: p.limit(direction{
			name: "egress", kubernetes: AnnotationKubernetesEgress,
			bandwidth: controls.EgressBandwidth, burst: controls.EgressBurst,
			peakrate: controls.EgressPeakrate, minburst: controls.EgressMinburst,
		}, defaultBurst),
	}
	return limits, errors.Join(p.errs...)
}

// direction is one direction's controls and names.
type direction struct {
	name, kubernetes                     string
	bandwidth, burst, peakrate, minburst int64
}

// quantity is a kind of value and its range.
type quantity struct {
	suffix, unit string
	min, max     int64
	minText      string
	maxText      string
}

var (
	bandwidth = quantity{"Bandwidth", "bits per second", MinBandwidth, MaxBandwidth, "1k", "1P"}
	burst     = quantity{"Burst", "bits", MinBurst, MaxBurst, "1k", "34359738360"}
	peakrate  = quantity{"Peakrate", "bits per second", MinPeakrate, MaxPeakrate, "1.01k", "1.01P"}
	minburst  = quantity{"Minburst", "bytes", MinMinburst, MaxMinburst, "1k", "100M"}
)

func (q quantity) allowed() string {
	return fmt.Sprintf("allowed is a quantity from %s to %s (%s)", q.minText, q.maxText, q.unit)
}

// parser collects errors.
type parser struct {
	annotations map[string]string
	kubernetes  bool
	errs        []error
}

// found is what the sources say about one value.
type found struct {
	value int64  // zero: none that is acceptable
	field string // where value, or else a refused one, stands; empty: nowhere
	text  string
}

func (p *parser) limit(d direction, defaultBurst uint64) *Limit {
	rate := p.find(d, bandwidth, d.bandwidth, d.kubernetes)
	size := p.find(d, burst, d.burst, "")
	peak := p.find(d, peakrate, d.peakrate, "")
	least := p.find(d, minburst, d.minburst, "")

	p.requires(size, rate, "it needs a bandwidth in the same direction")
	p.requires(peak, rate, "it needs a bandwidth in the same direction")
	p.requires(least, peak, "it needs a peakrate in the same direction")
	if rate.value == 0 {
		return nil
	}
	if peak.value != 0 && peak.value <= rate.value {
		p.refuse(peak.field, peak.text, fmt.Sprintf("it must be above the bandwidth, %d bits per second", rate.value))
		peak.value = 0
	}
	limit := &Limit{RateBits: uint64(rate.value), BurstBits: defaultBurst, PeakRateBits: uint64(peak.value)}
	if size.value != 0 {
		limit.BurstBits = uint64(size.value)
	}
	if peak.value != 0 {
		limit.MinBurstBytes = uint32(least.value)
	}
	return limit
}

// find goes through the sources of one value, best first. It reports every value
// that is not acceptable, also one that a better source overrides.
func (p *parser) find(d direction, q quantity, control int64, kubernetes string) found {
	var first found
	take := func(field, text string, value int64, ok bool) {
		if !ok {
			p.refuse(field, text, q.allowed())
			value = 0
		}
		if first.value == 0 && (value != 0 || first.field == "") {
			first = found{value: value, field: field, text: text}
		}
	}
	if control != 0 {
		take("qosControls."+d.name+q.suffix, strconv.FormatInt(control, 10), control, q.min <= control && control <= q.max)
	}
	fields := []string{AnnotationPrefix + d.name + q.suffix}
	if kubernetes != "" && p.kubernetes {
		fields = append(fields, kubernetes)
	}
	for _, field := range fields {
		if text, given := p.annotations[field]; given {
			value, ok := q.parse(text)
			take(field, text, value, ok)
		}
	}
	return first
}

// requires refuses a value that means nothing without another one. Where the
// other was given and refused, that has been said already.
func (p *parser) requires(value, other found, allowed string) {
	if value.value != 0 && other.field == "" {
		p.refuse(value.field, value.text, allowed)
	}
}

func (p *parser) refuse(field, text, allowed string) {
	const most = 64
	if len(text) > most {
		text = text[:most] + "…"
	}
	p.errs = append(p.errs, &ValueError{Field: field, Value: text, Allowed: allowed})
}

// parse reads a Kubernetes quantity; fractions of a unit are rounded up. Its length
// and exponent are bounded first, because ParseQuantity works out all digits: it
// takes minutes over "1e2147483648".
func (q quantity) parse(text string) (int64, bool) {
	const longest, longestExponent = 64, 2
	_, exponent, _ := strings.Cut(strings.ToLower(text), "e")
	if len(text) > longest || len(strings.TrimLeft(exponent, "+-")) > longestExponent {
		return 0, false
	}
	value, err := resource.ParseQuantity(text)
	if err != nil || value.CmpInt64(q.min) < 0 || value.CmpInt64(q.max) > 0 {
		return 0, false
	}
	return value.Value(), true
}
