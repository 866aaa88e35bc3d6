package stats

import (
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/manx-dataplane/manx/rtnl"
)

// TestLatencyIsThatOfTheWholeQueue: of the one that packets wait in.
func TestLatencyIsThatOfTheWholeQueue(t *testing.T) {
	const rate, burst = 10_000_000 / 8, 1 << 20 // bytes a second, bytes
	tbf := &netlink.Tbf{Rate: rate, Buffer: netlink.Xmittime(rate, burst), Limit: rate*25/1000 + burst}
	for _, c := range []struct {
		name  string
		queue netlink.Qdisc
		want  float64
	}{
		{"the kernel's own", nil, 0.025 + float64(burst)/rate},
		{"ours", &rtnl.Bfifo{Limit: rate * 25 / 1000}, 0.025},
		{"one of which nothing is known", &netlink.GenericQdisc{QdiscType: "fq_codel"}, 0},
	} {
		if got := newShaping(tbf, c.queue).LatencySeconds; got != c.want {
			t.Errorf("%s: latency %v s, want %v", c.name, got, c.want)
		}
	}
}
