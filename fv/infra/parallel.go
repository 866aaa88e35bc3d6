package infra

import (
	"sync"

	. "github.com/onsi/ginkgo/v2"
)

// InParallel runs fn for 0 to n-1 at once, each in a goroutine that may fail the
// spec, and returns when all are done.
func InParallel(n int, fn func(i int)) {
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			defer GinkgoRecover()
			fn(i)
		})
	}
	group.Wait()
}
