package endpointmgr_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/manx-dataplane/manx/endpointmgr"
)

func TestProcSysWritesWhatIsThereAndCreatesNothing(t *testing.T) {
	g := NewWithT(t)
	root := t.TempDir()
	path := "net/ipv4/conf/cali1/forwarding"
	g.Expect(os.MkdirAll(filepath.Join(root, filepath.Dir(path)), 0o755)).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(root, path), []byte("0"), 0o644)).To(Succeed())

	sys := endpointmgr.ProcSys{Root: root}
	g.Expect(sys.WriteSysctl(path, "1")).To(Succeed())
	g.Expect(os.ReadFile(filepath.Join(root, path))).To(BeEquivalentTo("1"))

	err := sys.WriteSysctl("net/ipv4/conf/cali2/forwarding", "1")
	g.Expect(err).To(MatchError(fs.ErrNotExist))
	g.Expect(err).To(MatchError(ContainSubstring("net/ipv4/conf/cali2/forwarding")))
	g.Expect(filepath.Join(root, "net/ipv4/conf/cali2")).NotTo(BeADirectory())
}

func TestProcSysStaysBelowItsRoot(t *testing.T) {
	g := NewWithT(t)
	outside := filepath.Join(t.TempDir(), "outside")
	g.Expect(os.WriteFile(outside, []byte("0"), 0o644)).To(Succeed())
	sys := endpointmgr.ProcSys{Root: filepath.Join(filepath.Dir(outside), "sys")}
	g.Expect(sys.WriteSysctl("../outside", "1")).To(MatchError(ContainSubstring("must be a path below")))
	g.Expect(sys.WriteSysctl(outside, "1")).To(HaveOccurred())
	g.Expect(os.ReadFile(outside)).To(BeEquivalentTo("0"))
}
