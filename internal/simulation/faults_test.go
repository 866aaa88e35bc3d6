package simulation

import (
	"fmt"
	"hash/fnv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/mocks"
)

// The errnos that a call may fail with. Those that only say that it did not work can
// come from any call; those that say something about the object are lies, which
// mislead an agent until it looks again.
var (
	honestErrnos = []unix.Errno{unix.EINTR, unix.EBUSY, unix.ENOBUFS, unix.EPERM, unix.ENOMEM, unix.EAGAIN, unix.EIO}
	lyingErrnos  = []unix.Errno{unix.ENODEV, unix.EEXIST, unix.ENOENT, unix.EOPNOTSUPP, unix.EINVAL, unix.ENETDOWN, unix.ESRCH}
)

// faults are what goes wrong with kernel calls, until they end.
type faults struct {
	perMille  int // how many calls fail
	slow      int // how many take long, up to 3 s, per mille
	lies      bool
	liesReads bool // reads, too, say that objects are not there
}

// fate is what becomes of one call.
type fate struct {
	before, after error
	delay         time.Duration
}

// fateOf decides by the seed, the call and how often it was made before, and by
// nothing that the order of other calls could change.
func (f faults) fateOf(seed uint64, call mocks.Call, count int) (out fate) {
	if f.perMille == 0 && f.slow == 0 {
		return fate{}
	}
	bits := hash(seed, fmt.Sprint(call, count))
	draw := func(n int) int {
		value := int(bits % uint64(n))
		bits = mix(bits)
		return value
	}
	if draw(1000) < f.slow {
		out.delay = time.Duration(1+draw(3000)) * time.Millisecond
	}
	if draw(1000) >= f.perMille {
		return out
	}
	errnos, lie := honestErrnos, false
	if f.lies && (call.Op.Write() || f.liesReads) && draw(2) == 0 {
		errnos, lie = lyingErrnos, true
	}
	errno := errnos[draw(len(errnos))]
	if !lie && draw(3) == 0 && call.Op.Write() { // the answer is lost
		out.after = errno
	} else {
		out.before = errno
	}
	return out
}

// mix is the finalizer of SplitMix64.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// hash is a number that depends on the seed and the text alone.
func hash(seed uint64, text string) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s", seed, text)
	return mix(h.Sum64())
}
