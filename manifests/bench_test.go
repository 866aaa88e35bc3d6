package manifests

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkParse gives the cost of one document in files of one and of a thousand; the
// two should be alike.
func BenchmarkParse(b *testing.B) {
	for _, documents := range []int{1, 1000} {
		data := []byte(strings.Repeat(pod("a", "ipNetworks: [10.0.0.1/32, '2001:db8::1/128']", "mac: 0a:58:0a:00:00:01")+"---\n", documents))
		b.Run(fmt.Sprint(documents), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := parse(data, prefixes); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*documents), "ns/document")
		})
	}
}
