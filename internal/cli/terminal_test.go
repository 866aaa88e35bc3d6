package cli_test

import (
	"fmt"
	"os"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/internal/cli"
)

// terminal opens a pseudo-terminal: what a program takes for one, and the other
// end, where what it shows can be read.
func terminal() (screen, reader *os.File) {
	GinkgoHelper()
	reader, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(reader.Close)
	fd := int(reader.Fd())
	Expect(unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)).To(Succeed())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	Expect(err).NotTo(HaveOccurred())
	screen, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(screen.Close)
	return screen, reader
}

// shown returns what has been written to the screen.
func shown(reader *os.File) string {
	GinkgoHelper()
	buffer := make([]byte, 64<<10)
	n, err := reader.Read(buffer)
	Expect(err).NotTo(HaveOccurred())
	return string(buffer[:n])
}

var _ = Describe("An output that is a terminal", func() {
	It("has colour, unless NO_COLOR is set and not empty", func() {
		screen, _ := terminal()
		GinkgoT().Setenv("NO_COLOR", "")
		Expect(cli.NewOutput(screen).Paint(cli.Red, "GAP")).To(Equal("\x1b[31mGAP\x1b[0m"))
		GinkgoT().Setenv("NO_COLOR", "1")
		out := cli.NewOutput(screen)
		Expect(out.Terminal).To(BeTrue())
		Expect(out.Paint(cli.Red, "GAP")).To(Equal("GAP"))
	})
	It("shows how far long work is", func() {
		screen, reader := terminal()
		done := cli.NewOutput(screen).Progress(1558, "deleting")
		done(1558)
		Expect(shown(reader)).To(SatisfyAll(ContainSubstring("deleting"), ContainSubstring("1558/1558")))
	})
	It("is refreshed in place", func() {
		screen, reader := terminal()
		cli.NewOutput(screen).Refresh()
		Expect(strings.TrimSpace(shown(reader))).To(Equal("\x1b[H\x1b[J"))
	})
})
