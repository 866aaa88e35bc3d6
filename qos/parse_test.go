package qos_test

import (
	"errors"
	"fmt"
	"maps"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"github.com/manx-dataplane/manx/qos"
)

var _ = Describe("ParseLimits", func() {
	both := qos.ParseOptions{KubernetesAnnotations: true}

	DescribeTable("reads what Calico reads",
		func(annotations map[string]string, controls *qos.Controls, options qos.ParseOptions, want qos.Limits) {
			limits, err := qos.ParseLimits(annotations, controls, options)
			Expect(err).NotTo(HaveOccurred())
			Expect(limits).To(Equal(want))
		},
		Entry("nothing", nil, nil, both, qos.Limits{}),
		Entry("Kubernetes annotations", map[string]string{"kubernetes.io/ingress-bandwidth": "10M", "kubernetes.io/egress-bandwidth": "30M"}, nil, both,
			qos.Limits{Ingress: mbit(10), Egress: mbit(30)}),
		Entry("Kubernetes annotations, ignored", map[string]string{"kubernetes.io/ingress-bandwidth": "rubbish", "kubernetes.io/egress-bandwidth": "30M"}, nil, qos.ParseOptions{},
			qos.Limits{}),
		Entry("Calico's override, value by value",
			map[string]string{"kubernetes.io/ingress-bandwidth": "10M", "qos.projectcalico.org/ingressBandwidth": "20M", "kubernetes.io/egress-bandwidth": "30M"}, nil, both,
			qos.Limits{Ingress: mbit(20), Egress: mbit(30)}),
		Entry("a burst for the other family's bandwidth", map[string]string{"kubernetes.io/egress-bandwidth": "30M", "qos.projectcalico.org/egressBurst": "1Mi"}, nil, both,
			qos.Limits{Egress: &qos.Limit{RateBits: 30e6, BurstBits: 1 << 20}}),
		Entry("everything", map[string]string{
			"qos.projectcalico.org/egressBandwidth": "1G", "qos.projectcalico.org/egressBurst": "34359738360",
			"qos.projectcalico.org/egressPeakrate": "1.01P", "qos.projectcalico.org/egressMinburst": "100M",
		}, nil, both, qos.Limits{Egress: &qos.Limit{RateBits: 1e9, BurstBits: 34359738360, PeakRateBits: 1.01e15, MinBurstBytes: 100e6}}),
		Entry("the smallest", map[string]string{
			"qos.projectcalico.org/ingressBandwidth": "1k", "qos.projectcalico.org/ingressBurst": "1k",
			"qos.projectcalico.org/ingressPeakrate": "1.01k", "qos.projectcalico.org/ingressMinburst": "1k",
		}, nil, both, qos.Limits{Ingress: &qos.Limit{RateBits: 1000, BurstBits: 1000, PeakRateBits: 1010, MinBurstBytes: 1000}}),
		Entry("controls override annotations", map[string]string{"qos.projectcalico.org/egressBandwidth": "1G", "kubernetes.io/ingress-bandwidth": "1M"},
			&qos.Controls{EgressBandwidth: 30e6}, both, qos.Limits{Ingress: mbit(1), Egress: mbit(30)}),
		Entry("a default burst", map[string]string{"kubernetes.io/egress-bandwidth": "30M"}, nil, qos.ParseOptions{KubernetesAnnotations: true, DefaultBurstBits: 1e6},
			qos.Limits{Egress: &qos.Limit{RateBits: 30e6, BurstBits: 1e6}}),
	)

	DescribeTable("refuses a value by name, and applies the rest",
		func(annotations map[string]string, controls *qos.Controls, field, value, allowed string) {
			annotations = maps.Clone(annotations)
			if annotations == nil {
				annotations = map[string]string{}
			}
			annotations["kubernetes.io/ingress-bandwidth"] = "7M"
			limits, err := qos.ParseLimits(annotations, controls, both)
			var refused *qos.ValueError
			Expect(errors.As(err, &refused)).To(BeTrue())
			Expect(refused.Field).To(Equal(field))
			Expect(refused.Value).To(Equal(value))
			Expect(refused.Allowed).To(ContainSubstring(allowed))
			Expect(limits.Ingress).To(Equal(mbit(7)))
		},
		Entry("not a quantity", map[string]string{"kubernetes.io/egress-bandwidth": "fast"}, nil, "kubernetes.io/egress-bandwidth", "fast", "from 1k to 1P (bits per second)"),
		Entry("below", map[string]string{"kubernetes.io/egress-bandwidth": "999"}, nil, "kubernetes.io/egress-bandwidth", "999", "1k"),
		Entry("above", map[string]string{"kubernetes.io/egress-bandwidth": "1.001P"}, nil, "kubernetes.io/egress-bandwidth", "1.001P", "1P"),
		Entry("negative", map[string]string{"qos.projectcalico.org/egressBandwidth": "-1M"}, nil, "qos.projectcalico.org/egressBandwidth", "-1M", "1k"),
		Entry("empty", map[string]string{"qos.projectcalico.org/egressBandwidth": ""}, nil, "qos.projectcalico.org/egressBandwidth", "", "1k"),
		Entry("burst above", map[string]string{"qos.projectcalico.org/ingressBurst": "34359738361"}, nil, "qos.projectcalico.org/ingressBurst", "34359738361", "34359738360 (bits)"),
		Entry("burst without bandwidth", map[string]string{"qos.projectcalico.org/egressBurst": "1M"}, nil, "qos.projectcalico.org/egressBurst", "1M", "needs a bandwidth"),
		Entry("peakrate not above", map[string]string{"qos.projectcalico.org/ingressPeakrate": "7M"}, nil, "qos.projectcalico.org/ingressPeakrate", "7M", "above the bandwidth, 7000000"),
		Entry("minburst without peakrate", map[string]string{"qos.projectcalico.org/ingressMinburst": "2k"}, nil, "qos.projectcalico.org/ingressMinburst", "2k", "needs a peakrate"),
		Entry("a control", nil, &qos.Controls{IngressBurst: -5}, "qosControls.ingressBurst", "-5", "1k"),
	)

	It("falls back to the value that a refused one would have overridden", func() {
		limits, err := qos.ParseLimits(map[string]string{"qos.projectcalico.org/egressBandwidth": "x", "kubernetes.io/egress-bandwidth": "30M"}, nil, both)
		Expect(err).To(MatchError(ContainSubstring("qos.projectcalico.org/egressBandwidth")))
		Expect(limits).To(Equal(qos.Limits{Egress: mbit(30)}))
	})

	It("says everything that is wrong, each once", func() {
		_, err := qos.ParseLimits(map[string]string{
			"qos.projectcalico.org/egressBandwidth": "x", "qos.projectcalico.org/egressBurst": "1M", "qos.projectcalico.org/ingressMinburst": "y",
		}, nil, both)
		Expect(err.(interface{ Unwrap() []error }).Unwrap()).To(HaveLen(2))
	})
})

// TestParseLimitsIsComplete: whatever is given, limits that come out are in range
// and consistent, a value in range counts, and one out of range is named.
func TestParseLimitsIsComplete(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bandwidth := rapid.Int64Range(1, 2*qos.MaxBandwidth).Draw(t, "bandwidth")
		burst := rapid.Int64Range(1, 2*qos.MaxBurst).Draw(t, "burst")
		peakrate := rapid.Int64Range(1, 2*qos.MaxPeakrate).Draw(t, "peakrate")
		minburst := rapid.Int64Range(1, 2*qos.MaxMinburst).Draw(t, "minburst")
		format := rapid.SampledFrom([]resource.Format{resource.DecimalSI, resource.BinarySI, resource.DecimalExponent}).Draw(t, "format")
		annotations := map[string]string{}
		for field, value := range map[string]int64{"Bandwidth": bandwidth, "Burst": burst, "Peakrate": peakrate, "Minburst": minburst} {
			annotations[qos.AnnotationPrefix+"egress"+field] = resource.NewQuantity(value, format).String()
		}
		limits, err := qos.ParseLimits(annotations, nil, qos.ParseOptions{})
		in := func(v, low, high int64) bool { return low <= v && v <= high }
		good := in(bandwidth, qos.MinBandwidth, qos.MaxBandwidth)
		goodBurst := in(burst, qos.MinBurst, qos.MaxBurst)
		goodPeak := in(peakrate, qos.MinPeakrate, qos.MaxPeakrate)
		goodMin := in(minburst, qos.MinMinburst, qos.MaxMinburst)
		usedPeak := goodPeak && peakrate > bandwidth
		var want qos.Limits
		if good {
			want.Egress = &qos.Limit{RateBits: uint64(bandwidth), BurstBits: qos.DefaultBurst}
			if goodBurst {
				want.Egress.BurstBits = uint64(burst)
			}
			if usedPeak {
				want.Egress.PeakRateBits = uint64(peakrate)
				if goodMin {
					want.Egress.MinBurstBytes = uint32(minburst)
				}
			}
		}
		if !limits.Equal(want) {
			t.Fatalf("%v gave %+v, want %+v", annotations, limits.Egress, want.Egress)
		}
		if (err == nil) != (good && goodBurst && usedPeak && goodMin) {
			t.Fatalf("%v: error %v", annotations, err)
		}
	})
}

func FuzzParseLimits(f *testing.F) {
	for _, seed := range []string{"30M", "1e9", "-1", "1.5Ki", "", "0x10", "1E-400", "999999999999999999999P", "1e2147483648"} {
		f.Add(seed, "4Gi", "40M", "1500", int64(0))
	}
	f.Fuzz(func(t *testing.T, bandwidth, burst, peakrate, minburst string, control int64) {
		annotations := map[string]string{
			qos.AnnotationKubernetesEgress: bandwidth, qos.AnnotationPrefix + "egressBurst": burst,
			qos.AnnotationPrefix + "egressPeakrate": peakrate, qos.AnnotationPrefix + "egressMinburst": minburst,
		}
		limits, err := qos.ParseLimits(annotations, &qos.Controls{IngressBandwidth: control}, qos.ParseOptions{KubernetesAnnotations: true})
		for _, limit := range []*qos.Limit{limits.Ingress, limits.Egress} {
			if limit == nil {
				continue
			}
			if limit.RateBits < qos.MinBandwidth || limit.RateBits > qos.MaxBandwidth ||
				limit.BurstBits < qos.MinBurst || limit.BurstBits > qos.MaxBurst ||
				limit.PeakRateBits != 0 && limit.PeakRateBits <= limit.RateBits || limit.PeakRateBits > qos.MaxPeakrate ||
				limit.MinBurstBytes > qos.MaxMinburst || limit.MinBurstBytes != 0 && limit.PeakRateBits == 0 {
				t.Errorf("limit out of range: %+v", *limit)
			}
		}
		if limits.Egress == nil && err == nil {
			t.Error("a given bandwidth neither counts nor is refused")
		}
		if err != nil && len(fmt.Sprint(err)) > 5*400 {
			t.Errorf("error of %d bytes", len(fmt.Sprint(err)))
		}
	})
}
