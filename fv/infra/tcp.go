package infra

import (
	"io"
	"net"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/manx-dataplane/manx/rtnl"
)

// MeasureTCP sends one TCP stream from one namespace to an address in another and
// returns the rate in payload bits per second at which bytes arrive, over the given
// window, which begins when skip bytes (the burst and what fills queues) have
// arrived.
func MeasureTCP(from, to *rtnl.Namespace, dst netip.Addr, skip int64, window time.Duration) float64 {
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
	return receiveRate(receiver, skip, window)
}

func receiveRate(conn *net.TCPConn, skip int64, window time.Duration) float64 {
	GinkgoHelper()
	Expect(conn.SetReadDeadline(time.Now().Add(window + 60*time.Second))).To(Succeed())
	_, err := io.CopyN(io.Discard, conn, skip)
	Expect(err).NotTo(HaveOccurred(), "while the burst passes")
	start := time.Now()
	buf := make([]byte, 64<<10)
	var bytes int64
	for {
		n, err := conn.Read(buf)
		Expect(err).NotTo(HaveOccurred())
		bytes += int64(n)
		if elapsed := time.Since(start); elapsed >= window {
			return float64(bytes) * 8 / elapsed.Seconds()
		}
	}
}
