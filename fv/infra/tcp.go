package infra

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/rtnl"
)

// tcpWindow is how long ExpectTCP measures.
const tcpWindow = 1500 * time.Millisecond

// ExpectTCP expects a TCP stream to run within 10 % of a limit in bits per second
// once 0.4 s worth of bytes, and so any burst below that, has passed.
//
// A machine that is short of CPU makes a stream slower, never faster: the lower bound
// has several attempts, the upper one none.
func ExpectTCP(from, to *rtnl.Namespace, dst netip.Addr, limit uint64) {
	GinkgoHelper()
	for attempt := 1; ; attempt++ {
		got := MeasureTCP(from, to, dst, Burst{Bytes: limit / 20}, tcpWindow)
		AddReportEntry("to "+dst.String(), fmt.Sprintf("%.2f of %.2f Mbit/s", got/1e6, float64(limit)/1e6))
		Expect(got).To(BeNumerically("<=", float64(limit)*1.1), "to %s", dst)
		if got >= float64(limit)*0.9 {
			return
		}
		Expect(attempt).To(BeNumerically("<", 5), "to %s: only %.2f Mbit/s", dst, got/1e6)
	}
}

// Burst is what passes before a limit shows.
type Burst struct {
	// Bytes is its size, as the shaper counts it, and Refill by how many bytes a second it
	// grows meanwhile.
	Bytes, Refill uint64
	// Overhead is how many bytes the shaper counts for one of payload; zero means one.
	Overhead float64
	// Settling is how long to wait after it.
	Settling time.Duration
}

// Spend waits until a flow that starts now has spent the burst and settled. It does not
// wait for longer than ten seconds for a path that is too slow to spend it. The function
// says how much payload has arrived.
func (b Burst) Spend(received func() uint64) {
	GinkgoHelper()
	const patience = 10 * time.Second
	// Not all that a sender has sent arrives.
	const nearly = 0.99
	start := time.Now()
	spent := func() float64 {
		return float64(received())*cmp.Or(b.Overhead, 1) - time.Since(start).Seconds()*float64(b.Refill)
	}
	for time.Since(start) < patience && spent() < nearly*float64(b.Bytes) {
		time.Sleep(time.Millisecond)
	}
	Expect(received()).To(BeNumerically(">=", min(b.Bytes, 1)), "while the burst passes")
	time.Sleep(b.Settling)
}

// MeasureTCP sends one TCP stream from one namespace to an address in another and
// returns the sustained rate in payload bits per second at which the kernel receives
// it in order, over a window of that length once the burst has passed. The kernel's own count is used, so that this
// process may stall without the rate seeming to change.
func MeasureTCP(from, to *rtnl.Namespace, dst netip.Addr, burst Burst, window time.Duration) float64 {
	GinkgoHelper()
	var listener *net.TCPListener
	Expect(to.Do(func() (err error) {
		listener, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(dst, 0)))
		return err
	})).To(Succeed())
	defer listener.Close()
	Expect(listener.SetDeadline(time.Now().Add(10 * time.Second))).To(Succeed())

	var sender *net.TCPConn
	addr := listener.Addr().(*net.TCPAddr)
	Expect(from.Do(func() (err error) {
		sender, err = net.DialTCP("tcp", nil, addr)
		return err
	})).To(Succeed(), "connect to %s", addr)
	defer sender.Close()
	receiver, err := listener.AcceptTCP()
	Expect(err).NotTo(HaveOccurred())
	defer receiver.Close()

	go func() { // ends when the sender is closed
		chunk := make([]byte, 64<<10)
		for {
			if _, err := sender.Write(chunk); err != nil {
				return
			}
		}
	}()
	go func() { _, _ = io.Copy(io.Discard, receiver) }() // ends when the receiver is closed

	received := func() uint64 { return receivedBytes(receiver) }
	burst.Spend(received)
	start, first := time.Now(), received()
	time.Sleep(window)
	bytes := received() - first
	return float64(bytes) * 8 / time.Since(start).Seconds()
}

// receivedBytes is how much a connection has received in order, read or not.
func receivedBytes(conn *net.TCPConn) uint64 {
	GinkgoHelper()
	raw, err := conn.SyscallConn()
	Expect(err).NotTo(HaveOccurred())
	var info *unix.TCPInfo
	Expect(raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	})).To(Succeed())
	Expect(err).NotTo(HaveOccurred())
	return info.Bytes_received
}
