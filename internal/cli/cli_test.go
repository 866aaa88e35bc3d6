package cli_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/spf13/cobra"

	"github.com/manx-dataplane/manx/internal/cli"
)

func TestCLI(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "cli")
}

var _ = Describe("A table", func() {
	sample := func() *cli.Table {
		table := cli.NewTable(cli.Left("IFACE"), cli.Right("PACKETS"), cli.Left("STATE"))
		table.Row("cali1", "9", cli.Cell{Text: "ok", Style: cli.Green})
		table.Row("cali1234567", "1,558", cli.Cell{Text: "GAP", Style: cli.Red})
		table.Row("cali2", "", "")
		return table
	}
	plain := "" +
		"  IFACE         PACKETS   STATE\n" +
		"  cali1               9   ok\n" +
		"  cali1234567     1,558   GAP\n" +
		"  cali2\n"

	It("aligns words left and numbers right, and ends no line in blanks", func() {
		var out bytes.Buffer
		Expect(sample().Write(cli.NewOutput(&out), "  ")).To(Succeed())
		Expect(out.String()).To(Equal(plain))
	})

	It("is aligned the same with colour", func() {
		var out bytes.Buffer
		Expect(sample().Write(cli.Output{Writer: &out, Colour: true}, "  ")).To(Succeed())
		Expect(out.String()).To(ContainSubstring("1,558   \x1b[31mGAP\x1b[0m\n"))
		stripped := out.String()
		for _, code := range []string{"\x1b[0m", "\x1b[1m", "\x1b[31m", "\x1b[32m"} {
			stripped = string(bytes.ReplaceAll([]byte(stripped), []byte(code), nil))
		}
		Expect(stripped).To(Equal(plain))
	})
})

var _ = Describe("An output that is no terminal", func() {
	It("has no colour, no progress bar and no cursor movement", func() {
		var out bytes.Buffer
		o := cli.NewOutput(&out)
		Expect(o.Paint(cli.Red, "GAP")).To(Equal("GAP"))
		o.Progress(3, "deleting")(3)
		Expect(out.String()).To(BeEmpty())
		o.Refresh()
		Expect(out.String()).To(Equal("\n"))
	})
})

var _ = DescribeTable("Numbers have units",
	func(got, want string) { Expect(got).To(Equal(want)) },
	Entry(nil, cli.Bytes(0), "0 B"),
	Entry(nil, cli.Bytes(1023), "1023 B"),
	Entry(nil, cli.Bytes(1536), "1.5 KiB"),
	Entry(nil, cli.Bytes(512<<20), "512 MiB"),
	Entry(nil, cli.Bytes(1<<63), "8 EiB"),
	Entry(nil, cli.BitRate(999), "999 bit/s"),
	Entry(nil, cli.BitRate(30e6), "30 Mbit/s"),
	Entry(nil, cli.BitRate(1250e6), "1.25 Gbit/s"),
	Entry(nil, cli.BitRate(1e15), "1 Pbit/s"),
	Entry(nil, cli.Count(0), "0"),
	Entry(nil, cli.Count(999), "999"),
	Entry(nil, cli.Count(1558), "1,558"),
	Entry(nil, cli.Count(-210), "-210"),
	Entry(nil, cli.Count(-1000), "-1,000"),
	Entry(nil, cli.Count(uint64(1234567)), "1,234,567"),
	Entry(nil, cli.Plural(1, "device", "devices"), "1 device"),
	Entry(nil, cli.Plural(1558, "device", "devices"), "1,558 devices"),
	Entry(nil, cli.Duration(25*time.Millisecond), "25ms"),
	Entry(nil, cli.Duration(1234*time.Millisecond), "1.2s"),
	Entry(nil, cli.Duration(453*time.Second), "7m33s"),
	Entry(nil, cli.Duration(0), "0s"),
	Entry(nil, cli.Duration(3*time.Hour+5*time.Minute), "3h5m"),
	Entry(nil, cli.Duration(14*24*time.Hour), "14 days"),
	Entry(nil, cli.Wrap("one two three", 8, "  "), "one two\n  three"),
	Entry(nil, cli.Wrap("unbreakable", 3, "  "), "unbreakable"),
)

var _ = Describe("Exit codes", func() {
	DescribeTable("come from the error",
		func(err error, code int, said string) {
			got, left := cli.ExitCode(err)
			Expect(got).To(Equal(code))
			if said == "" {
				Expect(left).NotTo(HaveOccurred())
			} else {
				Expect(left).To(MatchError(said))
			}
		},
		Entry("none", nil, 0, ""),
		Entry("of no code", errors.New("boom"), 1, "boom"),
		Entry("a gap that the output has told of", cli.Exit(cli.ExitGap, nil), 1, ""),
		Entry("wrapped", fmt.Errorf("audit: %w", cli.Exit(cli.ExitCannotLook, errors.New("boom"))), 2, "audit: boom"),
	)

	It("never take wrong usage for a gap", func() {
		for _, args := range [][]string{{"--nonsense"}, {"surplus"}, {"-o", "xml"}, {"--fail"}} {
			var format cli.Format
			cmd := &cobra.Command{Use: "look", Args: cobra.NoArgs, SilenceErrors: true, SilenceUsage: true}
			fail := cmd.Flags().Bool("fail", false, "")
			cmd.RunE = func(*cobra.Command, []string) error {
				if *fail {
					return errors.New("cannot")
				}
				return nil
			}
			cli.AddFormat(cmd, &format)
			cli.Looks(cmd).SetArgs(args)
			code, err := cli.ExitCode(cmd.Execute())
			Expect(code).To(Equal(cli.ExitCannotLook), "%v", args)
			Expect(err).To(HaveOccurred())
		}
	})
})
