package qos

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	"k8s.io/utils/clock"

	"github.com/manx-dataplane/manx/internal/logging"
)

// Device names a device to delete. Both must still be true of it when its turn
// comes, or it is left alone.
type Device struct {
	Name  string
	Index int
}

// Reason says why a device is deleted. It is a metric's label value.
type Reason string

// The reasons. ReasonStale is a device of an earlier life of its interface's
// name, which a new one replaces.
const (
	ReasonStartup       Reason = "startup_sweep"
	ReasonPeriodic      Reason = "periodic_sweep"
	ReasonInterfaceGone Reason = "interface_gone"
	ReasonEndpointGone  Reason = "endpoint_gone"
	ReasonLimitCleared  Reason = "limit_cleared"
	ReasonDisabled      Reason = "disabled"
	ReasonStale         Reason = "stale"
)

// allReasons is every reason, for metrics that are there from the start.
func allReasons() []Reason {
	return []Reason{
		ReasonStartup, ReasonPeriodic, ReasonInterfaceGone, ReasonEndpointGone,
		ReasonLimitCleared, ReasonDisabled, ReasonStale,
	}
}

// ReaperConfig configures a Reaper. Open must be set.
type ReaperConfig struct {
	// Open opens a handle of the Reaper's own. It is called again for each worker
	// that replaces one that is stuck.
	Open func() (ReaperKernel, error)
	// Clock; nil means the real one.
	Clock clock.Clock
	// Log; nil means none.
	Log logrus.FieldLogger
	// Registerer of metrics; nil means none.
	Registerer prometheus.Registerer
	// StuckAfter is how long one delete may take before it is reported as stuck and
	// left behind; zero means DefaultStuckAfter.
	StuckAfter time.Duration
}

// DefaultStuckAfter is far above what a delete takes under load (20 ms of RTNL,
// times those that wait before us), and what the kernel waits before it starts to
// complain about a device ("unregister_netdevice: waiting for").
const DefaultStuckAfter = 10 * time.Second

const (
	// slowAfter is how long others wait for one delete before they go on beside it: a
	// few devices that turn out to be stuck must not add up their StuckAfters.
	slowAfter = time.Second

	// maxWorkers bounds the deletes that are under way, stuck ones included: each holds
	// a thread and a handle.
	maxWorkers = 32
)

// The batch sizes bound how long one group delete holds RTNL: measured 66 ms for 64
// devices, 119 ms for 256. A backlog is worth the longer hold: 1,558 devices take
// 1.2 s in the small batches, 0.7 s in the large ones.
const (
	smallBatch = 64
	largeBatch = 256
	backlog    = 256 // more than this many devices are deleted in large batches
)

// Reaper deletes IFB devices off everyone else's goroutine, many at a time.
//
// A delete takes 20 ms, nearly all of it waiting for RCU, and the kernel waits
// once for all devices of a link group: so the Reaper puts many of them into a
// group that nothing else is in, and deletes the group. Where the kernel
// refuses, it deletes one by one. What fails is retried with backoff.
//
// A delete that does not come back soon is left behind with its goroutine and its
// handle; a new worker carries on with the rest. After a while it counts as stuck. See
// Stuck.
//
// While a device is queued or being deleted its name is reserved: whoever wants
// to create a device of that name waits. All methods are safe for concurrent use.
type Reaper struct {
	config  ReaperConfig
	log     logrus.FieldLogger
	clock   clock.Clock
	metrics reaperMetrics
	wake    chan struct{}
	workers chan struct{} // holds one for each that is at work

	mu     sync.Mutex
	items  map[Device]*item
	names  map[string]int // how many items have that name
	queue  []*item        // those that no job has
	stuck  []*job
	onGone []func(Device)

	group     int // link group last used; zero means to choose one from groupBase
	groupBase int
}

// item is one device to delete.
type item struct {
	Device
	reason    Reason
	single    bool // to be deleted by itself
	look      bool // its delete is stuck: only look whether it is still there
	tries     int
	notBefore time.Time
	said      string // the error that was last logged
}

// NewReaper returns a Reaper that collects devices; Run makes it work.
func NewReaper(config ReaperConfig) *Reaper {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	config.StuckAfter = cmp.Or(config.StuckAfter, DefaultStuckAfter)
	return &Reaper{
		config:  config,
		log:     logging.OrDiscard(config.Log),
		clock:   config.Clock,
		metrics: newReaperMetrics(config.Registerer),
		wake:    make(chan struct{}, 1),
		workers: make(chan struct{}, maxWorkers),
		items:   make(map[Device]*item),
		names:   make(map[string]int),

		groupBase: firstGroup,
	}
}

// Delete queues devices and reserves their names. A device that is queued
// already stays where it is. Devices that someone waits for go first.
func (r *Reaper) Delete(reason Reason, urgent bool, devices ...Device) {
	r.mu.Lock()
	var added []*item
	for _, device := range devices {
		if r.items[device] != nil {
			continue
		}
		it := &item{Device: device, reason: reason}
		r.items[device] = it
		r.names[device.Name]++
		added = append(added, it)
	}
	if urgent {
		r.queue = slices.Insert(r.queue, 0, added...)
	} else {
		r.queue = append(r.queue, added...)
	}
	r.updateMetrics()
	r.mu.Unlock()
	r.wakeUp()
}

// hurry has the device of that name go first, because someone waits for it now.
func (r *Reaper) hurry(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := slices.IndexFunc(r.queue, func(it *item) bool { return it.Name == name })
	if at > 0 {
		it := r.queue[at]
		r.queue = slices.Insert(slices.Delete(r.queue, at, at+1), 0, it)
	}
}

// Reserved reports whether a device of that name is queued or being deleted.
func (r *Reaper) Reserved(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.names[name] > 0
}

// Pending returns how many devices are queued or being deleted, stuck ones that
// can still be seen included.
func (r *Reaper) Pending() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.items)
}

// Run deletes what is queued, until ctx is done; it then returns nil at once,
// also while a delete is under way. It may be called again, but not by two
// goroutines at a time.
func (r *Reaper) Run(ctx context.Context) error {
	var kernel ReaperKernel
	var watched sync.WaitGroup
	defer func() {
		watched.Wait()
		if kernel != nil {
			kernel.Close()
		}
	}()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			continue
		case r.workers <- struct{}{}:
		}
		j, wait := r.next()
		if j == nil {
			<-r.workers
			r.sleep(ctx, wait)
			continue
		}
		if kernel == nil {
			var err error
			if kernel, err = r.config.Open(); err != nil {
				kernel = nil
				<-r.workers
				r.postpone(j, fmt.Errorf("open a handle to delete devices: %w", err))
				continue
			}
		}
		j.kernel = kernel
		go r.work(j)
		if !r.await(ctx, j) {
			kernel = nil // the job's now
			watched.Go(func() { r.watch(ctx, j) })
		}
	}
	return nil
}

// subscribe has fn called, from the Reaper's goroutine, for each device that is
// no longer in the namespace.
func (r *Reaper) subscribe(fn func(Device)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.onGone = append(r.onGone, fn)
}

// next takes a job from the queue, or says how long there will be none; zero
// means until woken.
func (r *Reaper) next() (*job, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	var first *item
	var earliest time.Time
	for _, it := range r.queue {
		if it.notBefore.After(now) {
			if earliest.IsZero() || it.notBefore.Before(earliest) {
				earliest = it.notBefore
			}
			continue
		}
		first = it
		break
	}
	if first == nil {
		if earliest.IsZero() {
			return nil, 0
		}
		return nil, earliest.Sub(now)
	}
	j := &job{started: now, group: r.group, groupBase: r.groupBase, look: first.look, done: make(chan struct{})}
	size := smallBatch
	if len(r.queue) > backlog {
		size = largeBatch
	}
	r.queue = slices.DeleteFunc(r.queue, func(it *item) bool {
		fits := it == first || !first.single && !it.single && it.look == first.look &&
			len(j.items) < size && !it.notBefore.After(now)
		if fits {
			j.items = append(j.items, it)
		}
		return fits
	})
	return j, 0
}

func (r *Reaper) sleep(ctx context.Context, wait time.Duration) {
	var expired <-chan time.Time
	if wait > 0 {
		timer := r.clock.NewTimer(wait)
		defer timer.Stop()
		expired = timer.C()
	}
	select {
	case <-ctx.Done():
	case <-r.wake:
	case <-expired:
	}
}

// work carries out a job on a goroutine of its own.
func (r *Reaper) work(j *job) {
	outcomes := j.run()
	r.mu.Lock()
	var gone []Device
	if j.left {
		r.comeBack(j)
	} else {
		gone = r.settle(j, outcomes)
	}
	if j.abandoned {
		j.kernel.Close()
	}
	j.finished = true
	onGone := r.onGone
	r.updateMetrics()
	r.mu.Unlock()
	for _, device := range gone {
		for _, fn := range onGone {
			fn(device)
		}
	}
	close(j.done)
	<-r.workers
	r.wakeUp()
}

// settle takes note of what became of a job's devices, and returns those gone.
// Called with the lock held.
func (r *Reaper) settle(j *job, outcomes []outcome) (gone []Device) {
	now := r.clock.Now()
	if !j.abandoned {
		r.group = j.group
	}
	for n, it := range j.items {
		switch o := outcomes[n]; o.result {
		case deleted, absent:
			if o.result == deleted || it.look {
				r.metrics.deletions.WithLabelValues(string(it.reason)).Inc()
			}
			r.release(it)
			gone = append(gone, it.Device)
		case refused:
			it.single, it.look = true, false
			r.queue = append(r.queue, it)
		case present:
			r.settlePresent(it, now)
		case failed:
			r.retry(it, now, o.err)
		}
	}
	return gone
}

// postpone puts a job's devices back, for the same error all.
func (r *Reaper) postpone(j *job, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	for n, it := range j.items {
		if n > 0 {
			err = nil // said once
		}
		r.retry(it, now, err)
	}
	r.updateMetrics()
}

// retry queues a device again after a while. Called with the lock held.
func (r *Reaper) retry(it *item, now time.Time, err error) {
	const longest = time.Minute
	delay := min(time.Second<<min(it.tries, 10), longest)
	it.tries++
	it.notBefore = now.Add(delay)
	r.queue = append(r.queue, it)
	r.metrics.retries.Inc()
	if err != nil && err.Error() != it.said {
		it.said = err.Error()
		r.log.WithFields(logrus.Fields{"ifb": it.Name, "ifindex": it.Index, "reason": it.reason}).
			WithError(err).Warn("Cannot delete a device; will retry")
	}
}

// release ends an item. Called with the lock held.
func (r *Reaper) release(it *item) {
	delete(r.items, it.Device)
	if r.names[it.Name]--; r.names[it.Name] == 0 {
		delete(r.names, it.Name)
	}
}

func (r *Reaper) wakeUp() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *Reaper) updateMetrics() {
	r.metrics.queue.Set(float64(len(r.items)))
	suspects := 0
	for _, j := range r.stuck {
		suspects += len(j.suspects)
	}
	r.metrics.stuck.Set(float64(suspects))
}
