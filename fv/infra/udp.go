package infra

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/rtnl"
)

// udpPayload is the size in bytes of a counted packet's payload.
const udpPayload = 200

// UDPFlow is a stream of numbered packets whose losses are counted exactly.
type UDPFlow struct {
	sender, receiver *net.UDPConn
	stop             chan struct{}
	sendDone         chan struct{}
	receiveDone      chan struct{}
	sent             atomic.Uint64 // packets the kernel accepted
	received         atomic.Uint64 // distinct packets
	probed           atomic.Bool
	result           UDPResult
}

// UDPResult is what became of a flow.
type UDPResult struct {
	Sent       uint64 // packets that the kernel accepted from the sender
	Lost       uint64 // of them, those that never arrived
	Duplicates uint64
	SendErrors uint64 // packets that the kernel refused; not counted as sent
}

// String is for failure messages.
func (r UDPResult) String() string {
	return fmt.Sprintf("%d sent, %d lost, %d duplicated, %d refused", r.Sent, r.Lost, r.Duplicates, r.SendErrors)
}

// StartUDP sends packets of 200 bytes at the given rate (packets per second) from
// one namespace to an address in another, until Finish, and returns once the first
// has arrived.
func StartUDP(from, to *rtnl.Namespace, dst netip.Addr, rate int) *UDPFlow {
	GinkgoHelper()
	f := &UDPFlow{stop: make(chan struct{}), sendDone: make(chan struct{}), receiveDone: make(chan struct{})}
	Expect(to.Do(func() (err error) {
		f.receiver, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(dst, 0)))
		return err
	})).To(Succeed())
	setReceiveBuffer(f.receiver, 8<<20) // a stalled test process must not look like loss
	port := f.receiver.LocalAddr().(*net.UDPAddr).AddrPort()
	Expect(from.Do(func() (err error) {
		f.sender, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(port))
		return err
	})).To(Succeed())
	go f.receive()
	f.waitForPath()
	go f.send(rate)
	Eventually(f.received.Load).WithTimeout(5 * time.Second).WithPolling(time.Millisecond).Should(BeNumerically(">", 0))
	return f
}

// probe is the sequence number of packets that only open the path.
const probe = ^uint64(0)

// waitForPath sends probes until one arrives: neighbour discovery drops early
// packets.
func (f *UDPFlow) waitForPath() {
	GinkgoHelper()
	packet := make([]byte, udpPayload)
	binary.BigEndian.PutUint64(packet, probe)
	Eventually(func() bool {
		_, _ = f.sender.Write(packet)
		time.Sleep(time.Millisecond)
		return f.probed.Load()
	}).WithTimeout(10*time.Second).WithPolling(5*time.Millisecond).Should(BeTrue(), "no packet gets through to %s", f.receiver.LocalAddr())
}

// Sent returns how many packets have been sent so far.
func (f *UDPFlow) Sent() uint64 { return f.sent.Load() }

// WaitForPackets returns when n more packets have been sent.
func (f *UDPFlow) WaitForPackets(n uint64) {
	GinkgoHelper()
	target := f.Sent() + n
	Eventually(f.Sent).WithTimeout(30 * time.Second).WithPolling(2 * time.Millisecond).Should(BeNumerically(">=", target))
}

// Finish stops the sender, gives what is queued a second to arrive, and counts.
func (f *UDPFlow) Finish() UDPResult {
	GinkgoHelper()
	close(f.stop)
	<-f.sendDone
	deadline := time.Now().Add(time.Second)
	for f.received.Load() < f.sent.Load() && time.Now().Before(deadline) {
		time.Sleep(2 * time.Millisecond)
	}
	Expect(f.receiver.Close()).To(Succeed())
	<-f.receiveDone
	Expect(f.sender.Close()).To(Succeed())
	f.result.Sent = f.sent.Load()
	f.result.Lost = f.result.Sent - f.received.Load()
	return f.result
}

// send keeps to the schedule over time: after a stall it catches up.
func (f *UDPFlow) send(rate int) {
	defer close(f.sendDone)
	packet := make([]byte, udpPayload)
	start := time.Now()
	for attempt := uint64(0); ; attempt++ {
		due := start.Add(time.Duration(attempt) * time.Second / time.Duration(rate))
		if wait := time.Until(due); wait > 0 {
			time.Sleep(wait)
		}
		select {
		case <-f.stop:
			return
		default:
		}
		binary.BigEndian.PutUint64(packet, f.sent.Load())
		if _, err := f.sender.Write(packet); err != nil {
			f.result.SendErrors++
			continue
		}
		f.sent.Add(1)
	}
}

func (f *UDPFlow) receive() {
	defer close(f.receiveDone)
	seen := make(map[uint64]bool)
	packet := make([]byte, 2*udpPayload)
	for {
		n, err := f.receiver.Read(packet)
		if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil || n != udpPayload {
			continue
		}
		switch seq := binary.BigEndian.Uint64(packet); {
		case seq == probe:
			f.probed.Store(true)
		case seen[seq]:
			f.result.Duplicates++
		default:
			seen[seq] = true
			f.received.Add(1)
		}
	}
}

func setReceiveBuffer(conn *net.UDPConn, size int) {
	GinkgoHelper()
	raw, err := conn.SyscallConn()
	Expect(err).NotTo(HaveOccurred())
	var optErr error
	Expect(raw.Control(func(fd uintptr) {
		optErr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, size)
	})).To(Succeed())
	Expect(optErr).NotTo(HaveOccurred())
}
