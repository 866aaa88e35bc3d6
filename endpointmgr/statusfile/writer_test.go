package statusfile_test

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/manx-dataplane/manx/dataplane"
	"github.com/manx-dataplane/manx/endpointmgr"
	"github.com/manx-dataplane/manx/endpointmgr/statusfile"
)

var (
	id = dataplane.WorkloadEndpointID{Orchestrator: "k8s", Workload: "default/ifb-repro", Endpoint: "eth0"}
	ep = &dataplane.WorkloadEndpoint{
		InterfaceName: "cali0027f0645a2",
		MAC:           net.HardwareAddr{0x0a, 0x58, 0x0a, 0, 0, 1},
		IPv4Nets:      []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")},
	}
)

const name = "k8s default%2Fifb-repro eth0"

// files returns the names in endpoint-status below a prefix.
func files(prefix string) []string {
	entries, err := os.ReadDir(filepath.Join(prefix, "endpoint-status"))
	if err != nil {
		panic(err)
	}
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestEachPartOfAFileNameIsPathEscaped(t *testing.T) {
	g := NewWithT(t)
	g.Expect(statusfile.FileName(id)).To(Equal(name))
	g.Expect(statusfile.FileName(dataplane.WorkloadEndpointID{Orchestrator: "a b", Workload: "../x", Endpoint: "%"})).
		To(Equal("a%20b ..%2Fx %25"))
}

func TestAFileIsThereWhileTheEndpointIsUp(t *testing.T) {
	for _, end := range []endpointmgr.Status{endpointmgr.StatusDown, endpointmgr.StatusGone} {
		t.Run(string(end), func(t *testing.T) {
			g := NewWithT(t)
			prefix := filepath.Join(t.TempDir(), "calico") // created when needed
			w := statusfile.NewWriter(prefix)
			g.Expect(w.OnStatus(id, ep, end)).To(Succeed(), "none is there yet")
			g.Expect(w.OnStatus(id, ep, endpointmgr.StatusUp)).To(Succeed())
			path := filepath.Join(prefix, "endpoint-status", name)
			g.Expect(os.ReadFile(path)).To(MatchJSON(`{"ifaceName": "cali0027f0645a2", "mac": "0a:58:0a:00:00:01",
				"ipv4Nets": ["10.0.0.1/32"], "ipv6Nets": []}`))
			g.Expect(files(prefix)).To(Equal([]string{name}))
			info, err := os.Stat(path)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(info.Mode().Perm() & 0o444).To(Equal(os.FileMode(0o444)))

			g.Expect(w.OnStatus(id, ep, end)).To(Succeed())
			g.Expect(files(prefix)).To(BeEmpty())
			g.Expect(w.OnStatus(id, ep, endpointmgr.StatusUp)).To(Succeed())
			g.Expect(files(prefix)).To(Equal([]string{name}))
		})
	}
}

func TestAFileIsReplacedNotChangedAndOnlyWhenItsContentDiffers(t *testing.T) {
	g := NewWithT(t)
	prefix := t.TempDir()
	path := filepath.Join(prefix, "endpoint-status", name)
	w := statusfile.NewWriter(prefix)
	g.Expect(w.OnStatus(id, ep, endpointmgr.StatusUp)).To(Succeed())
	reader, err := os.Open(path) // has the first content whatever comes
	g.Expect(err).NotTo(HaveOccurred())
	defer reader.Close()
	first, _ := os.Stat(path)

	same := *ep
	same.Annotations = map[string]string{"not": "in the file"}
	g.Expect(w.OnStatus(id, &same, endpointmgr.StatusUp)).To(Succeed())
	second, _ := os.Stat(path)
	g.Expect(os.SameFile(first, second)).To(BeTrue())

	changed := *ep
	changed.IPv4Nets = nil
	g.Expect(w.OnStatus(id, &changed, endpointmgr.StatusUp)).To(Succeed())
	third, _ := os.Stat(path)
	g.Expect(os.SameFile(first, third)).To(BeFalse())
	g.Expect(os.ReadFile(path)).To(ContainSubstring(`"ipv4Nets":[]`))
	g.Expect(reader.Stat()).To(HaveField("Size()", first.Size()))
}

func TestFilesOfAnEarlierLifeGoOnceAllIsReported(t *testing.T) {
	g := NewWithT(t)
	prefix := t.TempDir()
	dir := filepath.Join(prefix, "endpoint-status")
	g.Expect(os.MkdirAll(filepath.Join(dir, "a directory here"), 0o755)).To(Succeed())
	for _, n := range []string{"k8s default%2Fgone eth0", name, ".manx-endpoint-status.tmp", "README"} {
		g.Expect(os.WriteFile(filepath.Join(dir, n), []byte("old"), 0o644)).To(Succeed())
	}
	w := statusfile.NewWriter(prefix)
	g.Expect(w.OnStatus(id, ep, endpointmgr.StatusUp)).To(Succeed())
	g.Expect(files(prefix)).To(ContainElement("k8s default%2Fgone eth0"), "not before it is known to be stale")
	g.Expect(w.OnAllReported()).To(Succeed())
	g.Expect(files(prefix)).To(ConsistOf(name, "README", "a directory here"), "what is not ours stays")
	g.Expect(os.ReadFile(filepath.Join(dir, name))).To(ContainSubstring("cali0027f0645a2"))
}

func TestAFileThatSomebodyRemovedComesBackAtTheNextResync(t *testing.T) {
	g := NewWithT(t)
	prefix := t.TempDir()
	w := statusfile.NewWriter(prefix)
	g.Expect(w.OnStatus(id, ep, endpointmgr.StatusUp)).To(Succeed())
	g.Expect(os.RemoveAll(filepath.Join(prefix, "endpoint-status"))).To(Succeed())
	g.Expect(w.OnAllReported()).To(Succeed())
	g.Expect(files(prefix)).To(Equal([]string{name}))
	g.Expect(os.ReadFile(filepath.Join(prefix, "endpoint-status", name))).To(ContainSubstring("cali0027f0645a2"))

	g.Expect(w.OnStatus(id, ep, endpointmgr.StatusDown)).To(Succeed())
	g.Expect(w.OnAllReported()).To(Succeed())
	g.Expect(files(prefix)).To(BeEmpty())
}

func TestANameThatNoFileCanHaveIsAnErrorThatIsNotWorthRetrying(t *testing.T) {
	g := NewWithT(t)
	prefix := t.TempDir()
	w := statusfile.NewWriter(prefix)
	long := dataplane.WorkloadEndpointID{Orchestrator: "k8s", Workload: "default/" + strings.Repeat("a", 253), Endpoint: "eth0"}
	err := w.OnStatus(long, ep, endpointmgr.StatusUp)
	g.Expect(err).To(MatchError(endpointmgr.ErrNotReportable))
	g.Expect(err).To(MatchError(ContainSubstring("272 bytes, where 255 are possible")))
	g.Expect(w.OnStatus(long, ep, endpointmgr.StatusGone)).To(Succeed())

	long.Workload = long.Workload[:len(long.Workload)-17] // as long as can be
	g.Expect(w.OnStatus(long, ep, endpointmgr.StatusUp)).To(Succeed())
	g.Expect(files(prefix)).To(HaveLen(1))
}

func TestAnErrorNamesTheFileAndTheNextCallTriesAgain(t *testing.T) {
	g := NewWithT(t)
	prefix := t.TempDir()
	dir := filepath.Join(prefix, "endpoint-status")
	g.Expect(os.WriteFile(dir, nil, 0o644)).To(Succeed()) // a file where the directory should be
	w := statusfile.NewWriter(prefix)
	g.Expect(w.OnStatus(id, ep, endpointmgr.StatusUp)).To(MatchError(ContainSubstring(dir)))
	g.Expect(w.OnAllReported()).To(MatchError(ContainSubstring(dir)))
	g.Expect(os.Remove(dir)).To(Succeed())
	g.Expect(w.OnAllReported()).To(Succeed())
	g.Expect(files(prefix)).To(BeEmpty(), "the directory is there")
	g.Expect(w.OnStatus(id, ep, endpointmgr.StatusUp)).To(Succeed())
	g.Expect(files(prefix)).To(Equal([]string{name}))

	g.Expect(os.Remove(filepath.Join(dir, name))).To(Succeed())
	g.Expect(os.MkdirAll(filepath.Join(dir, name, "in the way"), 0o755)).To(Succeed())
	changed := *ep
	changed.IPv4Nets = nil
	g.Expect(w.OnStatus(id, &changed, endpointmgr.StatusUp)).To(MatchError(ContainSubstring(name)))
	g.Expect(w.OnStatus(id, &changed, endpointmgr.StatusDown)).To(MatchError(ContainSubstring(name)))
	g.Expect(os.RemoveAll(filepath.Join(dir, name))).To(Succeed())
	g.Expect(w.OnStatus(id, &changed, endpointmgr.StatusUp)).To(Succeed())
	g.Expect(os.ReadFile(filepath.Join(dir, name))).To(ContainSubstring(`"ipv4Nets":[]`))
}

func TestTheEmptyPrefixMeansNoFiles(t *testing.T) {
	g := NewWithT(t)
	t.Chdir(t.TempDir())
	w := statusfile.NewWriter("")
	g.Expect(w.OnStatus(id, ep, endpointmgr.StatusUp)).To(Succeed())
	g.Expect(w.OnStatus(id, ep, endpointmgr.StatusDown)).To(Succeed())
	g.Expect(w.OnAllReported()).To(Succeed())
	g.Expect(os.ReadDir(".")).To(BeEmpty())
}
