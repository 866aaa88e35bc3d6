package rtnl

import (
	"math"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestTBFReadsBackAsWritten: what goes in comes out, over the whole range, to the
// tick that the kernel's own rounding costs.
func TestTBFReadsBackAsWritten(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("needs root")
		}
		t.Skip("NOT RUN: needs root")
	}
	ns, err := NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	h, err := Open(Options{Namespace: ns})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	ifb := &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "ifb", TxQLen: -1}}
	if err := h.LinkAdd(ifb); err != nil {
		t.Fatal(err)
	}

	for _, want := range []netlink.Tbf{
		{Rate: 125, Limit: 34_000, Buffer: math.MaxUint32 - 7295},
		{Rate: 3_750_000, Limit: 1 << 29, Buffer: 2_236_962_134},
		{Rate: 125_000_000, Limit: 1 << 20, Buffer: 189, Peakrate: 250_000_000, Minburst: 1514},
		{Rate: 126, Limit: 4000, Buffer: 187_757_937, Peakrate: 127, Minburst: 1514},
		{Rate: 1 << 32, Limit: math.MaxUint32, Buffer: 15_625, Peakrate: 1 << 33, Minburst: 100_000_000},
		{Rate: 125_000_000_000_000, Limit: math.MaxUint32, Buffer: 1, Peakrate: 126_250_000_000_000, Minburst: 100_000_000},
		{Rate: 1000, Limit: 1514, Buffer: 23_656_250, Peakrate: 1 << 34, Minburst: 65_549},
	} {
		want.QdiscAttrs = netlink.QdiscAttrs{LinkIndex: ifb.Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(0xca11, 0)}
		if err := h.QdiscReplace(&want); err != nil {
			t.Fatalf("%+v: %v", want, err)
		}
		for range 2 { // reading and writing again and again changes nothing
			qdiscs, err := h.QdiscList()
			if err != nil {
				t.Fatal(err)
			}
			var got *netlink.Tbf
			for _, qdisc := range qdiscs {
				if tbf, ok := qdisc.(*netlink.Tbf); ok {
					got = tbf
				}
			}
			if got == nil {
				t.Fatal("no TBF in the dump")
			}
			if got.Handle != want.Handle || got.Parent != want.Parent || got.Statistics == nil ||
				got.Rate != want.Rate || got.Peakrate != want.Peakrate || got.Limit != want.Limit {
				t.Errorf("got %+v, want %+v", got, want)
			}
			oneByte := int64(1_000_000_000 / 64 / want.Rate)
			if off := int64(want.Buffer) - int64(got.Buffer); off > 2+oneByte || off < -oneByte {
				t.Errorf("rate %d: buffer %d, want %d", want.Rate, got.Buffer, want.Buffer)
			}
			slack := int64(2 * want.Peakrate * 64 / 1_000_000_000)
			if off := int64(want.Minburst) - int64(got.Minburst); off > slack || off < -slack {
				t.Errorf("peak rate %d: minburst %d, want %d", want.Peakrate, got.Minburst, want.Minburst)
			}
			if got.Buffer == 0 { // less than one tick
				break
			}
			if err := h.QdiscReplace(got); err != nil {
				t.Fatal(err)
			}
		}
	}
}
