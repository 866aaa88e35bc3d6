package dataplane

import (
	"testing"
	"time"

	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/routetable"
)

type idle struct{}

func (idle) OnUpdate(any)                                        {}
func (idle) CompleteDeferredWork() error                         { return nil }
func (idle) OnIfaceStateChanged(string, int, ifacemonitor.State) {}
func (idle) QueueResync()                                        {}
func (idle) Apply() error                                        { return nil }
func (idle) NextRecheck() (time.Time, bool)                      { return time.Time{}, false }
func (idle) GetRouteTableSyncers() []routetable.SyncerInterface {
	return []routetable.SyncerInterface{idle{}, idle{}}
}

// BenchmarkRound measures what the driver itself costs.
func BenchmarkRound(b *testing.B) {
	newIdleLoop := func() *loop {
		d := NewDriver(Config{})
		d.RegisterManager(idle{})
		d.RegisterSyncer("qos", idle{})
		return newLoop(d)
	}
	b.Run("message", func(b *testing.B) {
		l := newIdleLoop()
		var msg any = IfaceStateUpdate{Name: "cali1", State: ifacemonitor.StateUp, Index: 1}
		b.ReportAllocs()
		for b.Loop() {
			l.handle(msg)
		}
	})
	b.Run("apply with nothing to do", func(b *testing.B) {
		l := newIdleLoop()
		now := time.Now()
		b.ReportAllocs()
		for b.Loop() {
			l.apply(now)
		}
	})
}
