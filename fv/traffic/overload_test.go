package traffic_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/fv/infra"
	"github.com/manx-dataplane/manx/rtnl"
)

const (
	// socketBuffer is more than any queue that is to be measured holds, so that it is
	// the shaper that drops, and not a socket that waits.
	socketBuffer = 256 << 20
	// segments is how many packets one system call sends where the rate needs it.
	segments = 40
)

// overload is a flow of UDP packets, each with the time it was sent.
type overload struct {
	payload int         // bytes in a packet
	offered float64     // payload bits per second; zero means as fast as it can
	burst   infra.Burst // to let pass, as fast as it can, before what is offered counts
	// settling is how long an overloaded queue then has to fill and to pass once, and
	// window how long the flow is measured.
	settling, window time.Duration
	batched          bool // many packets a system call, also afterwards

	sender, receiver *net.UDPConn
	base             time.Time
	sent, received   atomic.Uint64 // bytes
	paced            atomic.Bool
	measuring        atomic.Bool

	mutex  sync.Mutex
	delays []time.Duration
}

// measured is what became of a flow.
type measured struct {
	offered     float64 // payload bits per second
	rate        float64
	median, p99 time.Duration
}

// run sends from one namespace to an address in another and measures.
func (o *overload) run(from, to *rtnl.Namespace, dst netip.Addr) measured {
	GinkgoHelper()
	Expect(to.Do(func() (err error) {
		o.receiver, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(dst, 0)))
		return err
	})).To(Succeed())
	port := o.receiver.LocalAddr().(*net.UDPAddr).AddrPort()
	Expect(from.Do(func() (err error) {
		o.sender, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(port))
		return err
	})).To(Succeed())
	set(o.receiver, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuffer)
	set(o.sender, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketBuffer)
	set(o.receiver, unix.SOL_UDP, unix.UDP_GRO, 1)
	set(o.sender, unix.SOL_UDP, unix.UDP_SEGMENT, o.payload)
	o.base = time.Now()
	var group sync.WaitGroup
	stop := make(chan struct{})
	group.Go(o.receive)
	// One packet first: what resolves the neighbour would hardly get past a full queue.
	Eventually(func() uint64 {
		_, _ = o.sender.Write(make([]byte, 8))
		return o.received.Load()
	}).WithTimeout(10 * time.Second).WithPolling(20 * time.Millisecond).Should(BeNumerically(">", 0))
	group.Go(func() { o.send(stop) })

	o.burst.Spend(o.received.Load)
	o.paced.Store(true)
	time.Sleep(o.settling)
	o.measuring.Store(true)
	start, sent, received := time.Now(), o.sent.Load(), o.received.Load()
	time.Sleep(o.window)
	perSecond := 8 / time.Since(start).Seconds()
	m := measured{
		offered: float64(o.sent.Load()-sent) * perSecond,
		rate:    float64(o.received.Load()-received) * perSecond,
	}
	o.measuring.Store(false)

	close(stop)
	Expect(o.receiver.Close()).To(Succeed())
	group.Wait()
	Expect(o.sender.Close()).To(Succeed())
	if n := len(o.delays); n > 0 {
		slices.Sort(o.delays)
		m.median, m.p99 = o.delays[n/2], o.delays[n*99/100]
	}
	return m
}

// send keeps to the schedule over time: after a stall it catches up.
func (o *overload) send(stop <-chan struct{}) {
	size := min(segments, 65000/o.payload) * o.payload
	packet := make([]byte, size)
	var start time.Time
	bits := 0.0
	for {
		select {
		case <-stop:
			return
		default:
		}
		if o.offered > 0 && o.paced.Load() {
			if start.IsZero() {
				start = time.Now()
				if !o.batched {
					size = o.payload
				}
			}
			due := start.Add(time.Duration(bits / o.offered * float64(time.Second)))
			if wait := time.Until(due); wait > 0 {
				time.Sleep(wait)
			}
			bits += float64(size * 8)
		}
		stamp := uint64(time.Since(o.base))
		for at := 0; at < size; at += o.payload {
			binary.BigEndian.PutUint64(packet[at:], stamp)
		}
		_, _ = o.sender.Write(packet[:size]) // ENOBUFS is the shaper's drop, told to a local sender
		o.sent.Add(uint64(size))
	}
}

func (o *overload) receive() {
	packet := make([]byte, 1<<16)
	for {
		n, err := o.receiver.Read(packet)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n < 8 {
			continue
		}
		o.received.Add(uint64(n))
		if o.measuring.Load() {
			sent := time.Duration(binary.BigEndian.Uint64(packet))
			o.mutex.Lock()
			o.delays = append(o.delays, time.Since(o.base)-sent)
			o.mutex.Unlock()
		}
	}
}

func set(conn *net.UDPConn, level, option, value int) {
	GinkgoHelper()
	raw, err := conn.SyscallConn()
	Expect(err).NotTo(HaveOccurred())
	var optErr error
	Expect(raw.Control(func(fd uintptr) { optErr = unix.SetsockoptInt(int(fd), level, option, value) })).To(Succeed())
	Expect(optErr).NotTo(HaveOccurred(), fmt.Sprintf("socket option %d of level %d", option, level))
}
