package soak_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/manx-dataplane/manx/fv/infra"
)

// atATime is how many pods live at the same time.
const atATime = 8

// lives are pod lives on one node, atATime at a time.
type lives struct {
	node *infra.Node
	// started is the number of lives so far.
	started atomic.Int64

	mutex sync.Mutex
	names int // of pods, guarded by mutex
	// served is how often a pod was served, and how long that took at most.
	served int
	worst  time.Duration
}

// run lives that many lives. After each every-th of them, counted over all, it calls
// interrupt, once at a time, while the others go on.
func (l *lives) run(count, every int, interrupt func()) {
	GinkgoHelper()
	var interrupting sync.Mutex
	end := l.started.Load() + int64(count)
	infra.InParallel(atATime, func(worker int) {
		random := rand.New(rand.NewPCG(uint64(worker), uint64(end)))
		var used []*infra.Pod
		for {
			life := l.started.Add(1)
			if life > end {
				l.started.Add(-1)
				return
			}
			pod := l.pick(random, &used)
			l.live(random, pod)
			if int(life)%every == 0 {
				interrupting.Lock()
				interrupt()
				interrupting.Unlock()
			}
		}
	})
}

// pick returns a pod to live: one in four has the name and addresses of an earlier
// one.
func (l *lives) pick(random *rand.Rand, used *[]*infra.Pod) *infra.Pod {
	if len(*used) > 0 && random.IntN(4) == 0 {
		return (*used)[random.IntN(len(*used))]
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	pod := l.node.NewPod(fmt.Sprintf("soak-%d", l.names))
	l.names++
	*used = append(*used, pod)
	return pod
}

// live has a pod start, be served or not, and end, each in one order or the other.
func (l *lives) live(random *rand.Rand, pod *infra.Pod) {
	GinkgoHelper()
	limit := &infra.Limit{RateBits: 1e6 * (1 + random.Uint64N(1000))}
	limits := infra.Limits{Ingress: limit, Egress: limit}
	text := fmt.Sprint(limit.RateBits)
	publish := func() { pod.Publish(infra.KubernetesAnnotations(text, text)) }
	inEitherOrder(random, pod.Create, publish)
	start := time.Now()
	if random.IntN(2) == 0 {
		Eventually(l.node.CheckServed).WithArguments(pod, limits).WithTimeout(2 * infra.StartTimeout).Should(Succeed())
		l.mutex.Lock()
		l.served++
		l.worst = max(l.worst, time.Since(start))
		l.mutex.Unlock()
	} else {
		time.Sleep(time.Duration(random.IntN(50)) * time.Millisecond)
	}
	inEitherOrder(random, pod.Delete, pod.Unpublish)
}

func inEitherOrder(random *rand.Rand, a, b func()) {
	if random.IntN(2) == 0 {
		a, b = b, a
	}
	a()
	b()
}
