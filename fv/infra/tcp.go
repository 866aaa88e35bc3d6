package infra

import (
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/manx-dataplane/manx/rtnl"
)

// TCP is measured over this many windows of this length.
const (
	tcpWindows = 5
	tcpWindow  = 300 * time.Millisecond
)

// MeasureTCP sends one TCP stream from one namespace to an address in another and
// returns the sustained rate in payload bits per second at which bytes arrive once
// skip bytes (the burst, and what the overshoot after it takes to recover) have
// arrived: the median of several windows, so that one stall of a busy machine does
// not count.
func MeasureTCP(from, to *rtnl.Namespace, dst netip.Addr, skip int64) float64 {
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
	defer sender.Close() // which ends the goroutine below
	receiver, err := listener.AcceptTCP()
	Expect(err).NotTo(HaveOccurred())
	defer receiver.Close()

	go func() {
		chunk := make([]byte, 64<<10)
		for {
			if _, err := sender.Write(chunk); err != nil {
				return
			}
		}
	}()
	return receiveRate(receiver, skip)
}

func receiveRate(conn *net.TCPConn, skip int64) float64 {
	GinkgoHelper()
	Expect(conn.SetReadDeadline(time.Now().Add(60 * time.Second))).To(Succeed())
	_, err := io.CopyN(io.Discard, conn, skip)
	Expect(err).NotTo(HaveOccurred(), "while the burst passes")
	rates := make([]float64, tcpWindows)
	buf := make([]byte, 64<<10)
	for i := range rates {
		var bytes int64
		start := time.Now()
		for time.Since(start) < tcpWindow {
			n, err := conn.Read(buf)
			Expect(err).NotTo(HaveOccurred())
			bytes += int64(n)
		}
		rates[i] = float64(bytes) * 8 / time.Since(start).Seconds()
	}
	slices.Sort(rates)
	return rates[len(rates)/2]
}
