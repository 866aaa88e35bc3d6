package audit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/internal/audit"
	"github.com/manx-dataplane/manx/internal/cli"
	"github.com/manx-dataplane/manx/internal/nodetest"
)

// id is a container ID as runtimes have them.
func id(n int) string { return fmt.Sprintf("%064x", n) }

func ids(from, to int) string {
	var list strings.Builder
	for n := from; n <= to; n++ {
		fmt.Fprintln(&list, id(n))
	}
	return list.String()
}

// store is a host-local IPAM directory with one network.
type store struct{ dir string }

func newStore(allocations int) store {
	GinkgoHelper()
	s := store{dir: GinkgoT().TempDir()}
	Expect(os.Mkdir(s.network(), 0o755)).To(Succeed())
	s.write("last_reserved_ip.0", "10.0.0.254")
	s.write("lock", "")
	for n := 1; n <= allocations; n++ {
		s.allocate(n)
	}
	return s
}

func (s store) network() string            { return filepath.Join(s.dir, "k8s-pod-network") }
func (s store) file(name string) string    { return filepath.Join(s.network(), name) }
func (s store) address(n int) string       { return fmt.Sprintf("10.0.0.%d", n) }
func (s store) write(name, content string) { s.writeAged(name, content, time.Hour) }
func (s store) allocate(n int)             { s.write(s.address(n), id(n)+"\r\neth0") }

func (s store) writeAged(name, content string, age time.Duration) {
	GinkgoHelper()
	Expect(os.WriteFile(s.file(name), []byte(content), 0o600)).To(Succeed())
	then := time.Now().Add(-age)
	Expect(os.Chtimes(s.file(name), then, then)).To(Succeed())
}

func (s store) files() []string {
	GinkgoHelper()
	entries, err := os.ReadDir(s.network())
	Expect(err).NotTo(HaveOccurred())
	names := []string{}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

var _ = Describe("IPAM allocations", func() {
	compare := func(s store, live string, more ...string) audit.Pair {
		GinkgoHelper()
		options := audit.IPAMOptions{StateDir: s.dir, Live: writeFile("live", live)}
		if len(more) > 0 {
			options.NoAddress = writeFile("no-address", more[0])
		}
		return audit.CompareIPAM(options, nil, time.Now())
	}

	It("and live sandboxes are equal on a node that is well", func() {
		pair := compare(newStore(3), ids(1, 3))
		Expect(pair.Status).To(Equal(audit.Equal), "%+v", pair)
		Expect(pair.Left.Count).To(Equal(3))
	})
	It("of sandboxes that do not live are a gap (case C)", func() {
		pair := compare(newStore(254), ids(1, 44))
		Expect(pair.Status).To(Equal(audit.Gap))
		Expect([]int{pair.Left.Count, pair.Right.Count, pair.Difference, len(pair.Offenders)}).To(Equal([]int{254, 44, 210, 210}))
		Expect(pair.Offenders[0].Name).To(HavePrefix("k8s-pod-network/10.0.0."))
	})
	It("are a gap also where there are too few: equal is the test, not lower", func() {
		pair := compare(newStore(3), ids(1, 4))
		Expect(pair.Status).To(Equal(audit.Gap))
		Expect(offenders(pair)).To(Equal([]string{id(4)}))
		pair = compare(newStore(3), ids(2, 4))
		Expect(pair.Difference).To(BeZero())
		Expect(pair.Status).To(Equal(audit.Gap))
		Expect(offenders(pair)).To(ConsistOf("k8s-pod-network/10.0.0.1", id(4)))
	})
	It("are not missed of sandboxes that are listed as holding none", func() {
		pair := compare(newStore(3), ids(1, 4), id(4)+"\n")
		Expect(pair.Status).To(Equal(audit.Equal))
		Expect(pair.Right.Count).To(Equal(3))
	})
	It("count a sandbox with two addresses once", func() {
		s := newStore(2)
		s.write("fd00::1", id(1)+"\neth0\n")
		pair := compare(s, ids(1, 2))
		Expect(pair.Status).To(Equal(audit.Equal))
		Expect(pair.Notes).To(ConsistOf("they hold 3 addresses"))
	})
	It("may be given as one network's directory", func() {
		pair := audit.CompareIPAM(audit.IPAMOptions{StateDir: newStore(2).network(), Live: writeFile("live", ids(1, 2))}, nil, time.Now())
		Expect(pair.Status).To(Equal(audit.Equal))
	})
	It("that hold no ID are an offence, and files of other names a note", func() {
		s := newStore(1)
		s.write("10.0.0.9", "")
		s.write("README", "hello")
		pair := compare(s, ids(1, 1))
		Expect(offenders(pair)).To(Equal([]string{"k8s-pod-network/10.0.0.9"}))
		Expect(pair.Notes).To(ConsistOf(ContainSubstring("README")))
	})
	DescribeTable("are not compared with a list that cannot be right",
		func(live, says string) {
			pair := compare(newStore(3), live)
			Expect(pair.Status).To(Equal(audit.NoLook))
			Expect(pair.Problem).To(ContainSubstring(says))
		},
		Entry("an empty one, as a failed command leaves", "", "empty list"),
		Entry("a table instead of IDs", "POD ID   CREATED\n"+id(1)+"   2 days ago\n", "line 1"),
		Entry("IDs shortened for display", id(1)+"\n"+id(2)[:13]+"\n", "beginning"),
	)
})

var _ = Describe("A release", func() {
	var s store
	var plan string
	BeforeEach(func() {
		s = newStore(5)
		plan = filepath.Join(GinkgoT().TempDir(), "plan.json")
	})
	run := func(command audit.IPAMCommand) (string, int, error) {
		GinkgoHelper()
		var out strings.Builder
		command.Out, command.Format = cli.NewOutput(&out), cli.FormatTable
		code, err := cli.ExitCode(command.Run(GinkgoT().Context()))
		return out.String(), code, err
	}
	writePlan := func(live string) {
		GinkgoHelper()
		out, code, err := run(audit.IPAMCommand{
			IPAMOptions: audit.IPAMOptions{StateDir: s.dir, Live: "-"}, Stdin: strings.NewReader(live), WritePlan: plan, MinAge: time.Minute,
		})
		Expect(err).NotTo(HaveOccurred())
		Expect(code).To(Equal(cli.ExitGap))
		Expect(out).To(ContainSubstring("Nothing was deleted."))
	}
	release := func(live string) (string, int, error) {
		GinkgoHelper()
		return run(audit.IPAMCommand{IPAMOptions: audit.IPAMOptions{Live: "-"}, Stdin: strings.NewReader(live), Release: plan})
	}

	It("deletes what the plan says, nothing else, and ends equal", func() {
		before := s.files()
		writePlan(ids(1, 3))
		Expect(s.files()).To(Equal(before))
		out, code, err := release(ids(1, 3))
		Expect(err).NotTo(HaveOccurred())
		Expect(code).To(Equal(cli.ExitOK))
		Expect(out).To(ContainSubstring("released"))
		Expect(s.files()).To(ConsistOf("last_reserved_ip.0", "lock", s.address(1), s.address(2), s.address(3)))
	})
	It("is planned on the list that the plan holds", func() {
		writePlan(ids(1, 3))
		var written audit.Plan
		data, err := os.ReadFile(plan)
		Expect(err).NotTo(HaveOccurred())
		Expect(json.Unmarshal(data, &written)).To(Succeed())
		Expect(written.LiveIDs).To(Equal([]string{id(1), id(2), id(3)}))
		Expect(written.Entries).To(HaveLen(2))
		Expect(written.Entries[0].ContainerID).To(Equal(id(4)))
		Expect(written.Entries[0].Interface).To(Equal("eth0"))
	})

	DescribeTable("refuses the whole plan where one entry does not pass",
		func(change func(), live, says string) {
			writePlan(ids(1, 3))
			change()
			before := s.files()
			out, code, err := release(live)
			Expect(code).To(Equal(cli.ExitRefused))
			Expect(err).To(MatchError(audit.ErrRefused))
			Expect(out).To(ContainSubstring("REFUSED: " + says))
			Expect(s.files()).To(Equal(before))
		},
		Entry("as its container lives now", func() {}, ids(1, 4), "its container lives"),
		Entry("as the last one's container lives now", func() {}, ids(1, 3)+id(5)+"\n", "its container lives"),
		Entry("as the file is another container's", func() { s.write(s.address(4), id(9)+"\r\neth0") }, ids(1, 3), "the file has changed"),
		Entry("as the file was written again with the same content", func() { s.writeAged(s.address(4), id(4)+"\r\neth0", time.Minute) }, ids(1, 3), "the file has changed"),
		Entry("as another file has its place, of the same content and time", func() {
			info, err := os.Stat(s.file(s.address(4)))
			Expect(err).NotTo(HaveOccurred())
			Expect(os.Rename(s.file(s.address(4)), s.file("moved"))).To(Succeed())
			Expect(os.WriteFile(s.file(s.address(4)), []byte(id(4)+"\r\neth0"), 0o600)).To(Succeed())
			Expect(os.Chtimes(s.file(s.address(4)), info.ModTime(), info.ModTime())).To(Succeed())
		}, ids(1, 3), "the file has changed"),
		Entry("as the file is gone", func() { Expect(os.Remove(s.file(s.address(4)))).To(Succeed()) }, ids(1, 3), "the file is gone"),
		Entry("as a symbolic link has its place", func() {
			Expect(os.Rename(s.file(s.address(4)), s.file("target"))).To(Succeed())
			Expect(os.Symlink("target", s.file(s.address(4)))).To(Succeed())
		}, ids(1, 3), ""),
	)

	It("needs a list that is newer than the plan", func() {
		live := writeFile("live", ids(1, 3))
		_, _, err := run(audit.IPAMCommand{IPAMOptions: audit.IPAMOptions{StateDir: s.dir, Live: live}, WritePlan: plan})
		Expect(err).NotTo(HaveOccurred())
		_, code, err := run(audit.IPAMCommand{IPAMOptions: audit.IPAMOptions{Live: live}, Release: plan})
		Expect(code).To(Equal(cli.ExitRefused))
		Expect(err).To(MatchError(ContainSubstring("make a fresh one")))
		Expect(s.files()).To(ContainElement(s.address(4)))
	})
	It("leaves addresses out that are too young to tell", func() {
		s.writeAged(s.address(6), id(6), time.Second)
		writePlan(ids(1, 5) + id(7) + "\n")
		data, err := os.ReadFile(plan)
		Expect(err).NotTo(HaveOccurred())
		Expect(string(data)).To(ContainSubstring(`"entries": []`))
	})
	It("never takes a plan that is there already for a new one", func() {
		writePlan(ids(1, 3))
		_, code, err := run(audit.IPAMCommand{
			IPAMOptions: audit.IPAMOptions{StateDir: s.dir, Live: "-"}, Stdin: strings.NewReader(ids(1, 2)), WritePlan: plan,
		})
		Expect(code).NotTo(BeZero())
		Expect(err).To(MatchError(os.ErrExist))
	})
	DescribeTable("never leaves the store, whatever the plan says",
		func(from, to string) {
			writePlan(ids(1, 3))
			data, err := os.ReadFile(plan)
			Expect(err).NotTo(HaveOccurred())
			text := string(data)
			Expect(text).To(ContainSubstring(from))
			Expect(os.WriteFile(plan, []byte(strings.Replace(text, from, to, 1)), 0o600)).To(Succeed())
			before := s.files()
			_, code, err := release(ids(1, 3))
			Expect(code).NotTo(BeZero())
			Expect(err).To(HaveOccurred())
			Expect(s.files()).To(Equal(before))
		},
		Entry("by its address", `"address": "10.0.0.4"`, `"address": "../../etc/passwd"`),
		Entry("by its network", `"network": "k8s-pod-network"`, `"network": ".."`),
		Entry("by bookkeeping", `"address": "10.0.0.4"`, `"address": "lock"`),
		Entry("by an unknown version", `"version": 1`, `"version": 2`),
		Entry("by an unknown field", `"version": 1`, `"version": 1, "force": true`),
	)
	It("waits for a CNI plugin that works on the network", func() {
		writePlan(ids(1, 3))
		lock, err := os.Open(s.file("lock"))
		Expect(err).NotTo(HaveOccurred())
		defer lock.Close()
		Expect(unix.Flock(int(lock.Fd()), unix.LOCK_EX)).To(Succeed())
		read, err := audit.ReadPlan(plan)
		Expect(err).NotTo(HaveOccurred())
		ctx, cancel := context.WithCancel(GinkgoT().Context())
		done := make(chan error)
		go func() {
			_, err := audit.Release(ctx, read, audit.LiveIDs{IDs: []string{id(1)}, Written: time.Now()})
			done <- err
		}()
		Consistently(done).WithTimeout(50 * time.Millisecond).ShouldNot(Receive())
		cancel()
		var failure error
		Eventually(done).Should(Receive(&failure))
		Expect(errors.Is(failure, context.Canceled)).To(BeTrue())
		Expect(s.files()).To(ContainElements(s.address(4), s.address(5)))
	})

	It("checks once more when a CNI plugin that worked on the network is done", func() {
		writePlan(ids(1, 3))
		lock, err := os.Open(s.file("lock"))
		Expect(err).NotTo(HaveOccurred())
		Expect(unix.Flock(int(lock.Fd()), unix.LOCK_EX)).To(Succeed())
		read, err := audit.ReadPlan(plan)
		Expect(err).NotTo(HaveOccurred())
		done := make(chan error)
		var outcomes []audit.Outcome
		go func() {
			var err error
			outcomes, err = audit.Release(GinkgoT().Context(), read, audit.LiveIDs{IDs: []string{id(1)}, Written: time.Now()})
			done <- err
		}()
		Consistently(done).WithTimeout(50 * time.Millisecond).ShouldNot(Receive())
		s.write(s.address(4), id(9)+"\r\neth0") // given out again
		Expect(lock.Close()).To(Succeed())
		var failure error
		Eventually(done).Should(Receive(&failure))
		Expect(failure).To(MatchError(audit.ErrRefused))
		Expect(outcomes[0].Refused).To(ContainSubstring("changed"))
		Expect(s.files()).To(ContainElements(s.address(4), s.address(5)))
	})

	It("goes the same way through the binary, with crictl's list on standard input", func() {
		node := nodetest.New()
		planned := node.Manx(ids(1, 3), "audit", "ipam", "--cni-state", s.dir, "--live", "-", "--write-plan", plan)
		Expect(planned.Code).To(Equal(cli.ExitGap), planned.Stderr)
		Expect(planned.Stdout).To(ContainSubstring("Wrote a plan to release 2 addresses"))
		refused := node.Manx(ids(1, 5), "audit", "ipam", "--live", "-", "--release", plan)
		Expect(refused.Code).To(Equal(cli.ExitRefused))
		Expect(refused.Stderr).To(ContainSubstring("2 of 2 entries did not pass"))
		done := node.Manx(ids(1, 3), "audit", "ipam", "--live", "-", "--release", plan, "-o", "json")
		Expect(done.Code).To(Equal(cli.ExitOK), done.Stderr)
		var output map[string]any
		Expect(json.Unmarshal([]byte(done.Stdout), &output)).To(Succeed())
		Expect(output["outcomes"]).To(HaveLen(2))
		again := node.Manx(ids(1, 3), "audit", "ipam", "--live", "-", "--release", plan)
		Expect(again.Code).To(Equal(cli.ExitRefused))
	})
	DescribeTable("exits with 2 at wrong usage",
		func(args ...string) {
			result := nodetest.New().Manx("", append([]string{"audit", "ipam"}, args...)...)
			Expect(result.Code).To(Equal(cli.ExitCannotLook))
			Expect(result.Stderr).To(HavePrefix("Error: "))
		},
		Entry(nil, "--cni-state", "/nonexistent"),
		Entry(nil, "--cni-state", "/nonexistent", "--live", "-"),
		Entry(nil, "--live", "-"),
		Entry(nil, "--live", "-", "--release", "/nonexistent"),
		Entry(nil, "--live", "-", "--release", "x", "--write-plan", "y"),
	)
})
