package dataplane_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/manx-dataplane/manx/dataplane"
	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/routetable"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errInjected = errors.New("injected")

// journal is what fakes did, in order.
type journal struct {
	mu    sync.Mutex
	lines []string
	start time.Time
	times []time.Duration // of each line, since start
}

func (j *journal) add(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf(format, args...))
	j.times = append(j.times, time.Since(j.start))
}

// set changes a fake, or anything else that fakes read, while the loop runs: in a
// bubble the passing of time alone orders nothing for the race detector.
func (j *journal) set(change func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	change()
}

// mark makes now the time from which timesOf counts.
func (j *journal) mark() { j.set(func() { j.start = time.Now() }) }

// locked reads what set changes.
func locked[T any](j *journal, read func() T) T {
	j.mu.Lock()
	defer j.mu.Unlock()
	return read()
}

// call calls a fake's hook, if it has one.
func (j *journal) call(hook *func() error) error {
	if f := locked(j, func() func() error { return *hook }); f != nil {
		return f()
	}
	return nil
}

// take returns the lines added since the last take.
func (j *journal) take() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	lines := j.lines
	j.lines, j.times = nil, nil
	return lines
}

// timesOf returns when a line was added.
func (j *journal) timesOf(line string) (at []time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i, l := range j.lines {
		if l == line {
			at = append(at, j.times[i])
		}
	}
	return at
}

type fakeManager struct {
	*journal
	name      string
	tables    []routetable.SyncerInterface
	work      func() error
	recheck   time.Time
	detail    []string
	onUpdate  func(any)
	onApplied func(error) error
}

func (m *fakeManager) OnUpdate(msg any) {
	m.add("%s update %v", m.name, msg)
	if m.onUpdate != nil {
		m.onUpdate(msg)
	}
}

func (m *fakeManager) ResolveUpdateBatch() error {
	m.add("%s resolve", m.name)
	return nil
}

func (m *fakeManager) CompleteDeferredWork() error {
	m.add("%s work", m.name)
	return m.call(&m.work)
}

func (m *fakeManager) OnApplied(err error) error {
	m.add("%s applied", m.name)
	if m.onApplied != nil {
		return m.onApplied(err)
	}
	return nil
}

func (m *fakeManager) GetRouteTableSyncers() []routetable.SyncerInterface { return m.tables }

func (m *fakeManager) QueueResync() { m.add("%s resync", m.name) }

func (m *fakeManager) NextRecheck() (time.Time, bool) {
	at := locked(m.journal, func() time.Time { return m.recheck })
	return at, !at.IsZero()
}

func (m *fakeManager) HealthDetail() []string {
	return locked(m.journal, func() []string { return m.detail })
}

type fakeSyncer struct {
	*journal
	name    string
	apply   func() error
	recheck time.Time
	detail  []string
}

func (s *fakeSyncer) Name() string { return s.name }

func (s *fakeSyncer) OnIfaceStateChanged(name string, ifindex int, state ifacemonitor.State) {
	s.add("%s iface %s %d %q", s.name, name, ifindex, state)
}

func (s *fakeSyncer) OnIfaceMTUChanged(name string, ifindex, mtu int) {
	s.add("%s mtu %s %d %d", s.name, name, ifindex, mtu)
}

func (s *fakeSyncer) QueueResync() { s.add("%s resync", s.name) }

func (s *fakeSyncer) Apply() error {
	s.add("%s apply", s.name)
	return s.call(&s.apply)
}

func (s *fakeSyncer) NextRecheck() (time.Time, bool) {
	at := locked(s.journal, func() time.Time { return s.recheck })
	return at, !at.IsZero()
}

func (s *fakeSyncer) HealthDetail() []string {
	return locked(s.journal, func() []string { return s.detail })
}

// rig is a driver with one manager, one route table and one other syncer. Time
// in it is the bubble's: it passes only while everyone waits.
type rig struct {
	*WithT
	*journal
	driver  *dataplane.Driver
	manager *fakeManager
	table   *fakeSyncer
	qos     *fakeSyncer
	cancel  context.CancelFunc
	done    chan error
}

// inBubble runs test with a driver that is not started yet.
func inBubble(t *testing.T, cfg dataplane.Config, test func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		j := &journal{start: time.Now()}
		r := &rig{
			WithT:   NewWithT(t),
			journal: j,
			driver:  dataplane.NewDriver(cfg),
			manager: &fakeManager{journal: j, name: "manager"},
			table:   &fakeSyncer{journal: j, name: "table"},
			qos:     &fakeSyncer{journal: j, name: "qos"},
			done:    make(chan error, 1),
		}
		r.manager.tables = []routetable.SyncerInterface{r.table}
		r.driver.RegisterManager(r.manager)
		r.driver.RegisterSyncer("qos", r.qos)
		test(r)
		if r.cancel != nil {
			r.cancel()
			synctest.Wait()
		}
	})
}

func (r *rig) run() {
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() { r.done <- r.driver.Run(ctx) }()
	synctest.Wait()
}

// runInSync starts the driver, brings it in sync and lets its first apply happen.
func (r *rig) runInSync() {
	r.run()
	r.send(dataplane.InSync{})
	r.driver.OnIfaceInSync()
	synctest.Wait()
	r.take()
}

func (r *rig) send(msg any) {
	r.Expect(r.driver.Send(context.Background(), msg)).To(Succeed())
}

func (r *rig) sleep(d time.Duration) {
	time.Sleep(d) // the bubble's time: nothing really waits
	synctest.Wait()
}

// sampleOf returns a sample by the name it has in the text format: `name`,
// `name{label="value"}` or `name_count` of a histogram.
func sampleOf(g prometheus.Gatherer, want string) float64 {
	families, err := g.Gather()
	if err != nil {
		panic(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += fmt.Sprintf("{%s=%q}", l.GetName(), l.GetValue())
			}
			switch {
			case name+"_count" == want:
				return float64(m.GetHistogram().GetSampleCount())
			case name == want && m.GetCounter() != nil:
				return m.GetCounter().GetValue()
			case name == want:
				return m.GetGauge().GetValue()
			}
		}
	}
	return -1
}
