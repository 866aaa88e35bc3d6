package endpointmgr_test

import (
	"fmt"
	"testing"

	"github.com/manx-dataplane/manx/endpointmgr"
)

// prepared returns a world with n endpoints up.
func prepared(b *testing.B, n int) *world {
	w := newWorld(func(c *endpointmgr.Config) { c.Status = nil }) // the fake keeps a history
	for i := range n {
		name := fmt.Sprintf("cali%d", i)
		w.link(name, i+1, up)
		w.update(id(name), pod(name))
	}
	if err := w.apply(); err != nil {
		b.Fatal(err)
	}
	return w
}

// BenchmarkUpdate measures an apply after updates of all endpoints, of one, and of
// none. "All" is the baseline of the other two: what a manager that does not know
// what is dirty pays for any change.
func BenchmarkUpdate(b *testing.B) {
	for _, n := range []int{250, 1000} {
		w := prepared(b, n)
		b.Run(fmt.Sprintf("all of %d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				for i := range n {
					name := fmt.Sprintf("cali%d", i)
					w.update(id(name), pod(name))
				}
				_ = w.apply()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/endpoint")
		})
		b.Run(fmt.Sprintf("one of %d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				w.update(id("cali7"), pod("cali7"))
				_ = w.apply()
			}
		})
		b.Run(fmt.Sprintf("none of %d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_ = w.apply()
			}
		})
	}
}
