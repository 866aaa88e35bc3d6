package stats_test

import (
	"bytes"
	"context"
	"strings"

	. "github.com/onsi/ginkgo/v2"

	"github.com/manx-dataplane/manx/internal/nodetest"
)

var _ = AfterSuite(nodetest.CleanUp)

func contextOf() (context.Context, context.CancelFunc) {
	return context.WithCancel(GinkgoT().Context())
}

// countingWriter calls enough once a text has been written that many times.
type countingWriter struct {
	*bytes.Buffer
	enough func()
	stopAt int
}

func (w *countingWriter) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "INTERFACE") {
		if w.stopAt--; w.stopAt == 0 {
			w.enough()
		}
	}
	return w.Buffer.Write(p)
}
