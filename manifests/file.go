package manifests

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/manx-dataplane/manx/dataplane"
	"github.com/manx-dataplane/manx/internal/filewatch"
)

// MaxFileBytes is how large a file may be.
const MaxFileBytes = 10 << 20

// maxProblems is how many problems of one file are reported.
const maxProblems = 20

// file is what a file holds that is in force.
type file struct {
	signature signature
	claims    []claim
	problems  []problem
}

// claim is an endpoint as a file describes it.
type claim struct {
	id       dataplane.WorkloadEndpointID
	endpoint *dataplane.WorkloadEndpoint
	document int
}

// problem is a fault that is reported while it lasts.
type problem struct {
	file     string
	document int // 0: the file as a whole
	text     string
	harmless bool // what is in force is what was meant
}

// signature changes whenever a file's contents do, unless the changes follow each
// other within the resolution of the file system's clock.
type signature struct {
	device, inode   uint64
	size            int64
	changed         syscall.Timespec
	resolvedByClock bool
}

// clockResolution is longer than the time stamps of any file system are coarse: FAT's
// are even, others' follow the kernel's tick.
const clockResolution = 2 * time.Second

// sign returns the signature of a file that is looked at now.
func sign(info os.FileInfo, now time.Time) signature {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return signature{}
	}
	return signature{
		device: stat.Dev, inode: stat.Ino, size: stat.Size, changed: stat.Ctim,
		resolvedByClock: now.Sub(time.Unix(stat.Ctim.Unix())) > clockResolution,
	}
}

// unchanged tells whether a file that looks like this certainly is as it was when its
// signature was s.
func (s signature) unchanged(info os.FileInfo) bool {
	now := sign(info, time.Now())
	now.resolvedByClock = true
	return s == now
}

// isManifest tells whether the directory entry of this name is read.
func isManifest(name string) bool {
	if strings.HasPrefix(name, ".") {
		return false
	}
	for _, suffix := range []string{".yaml", ".yml", ".json"} {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	return false
}

// readFile reads the file anew. What it held before stays in force as far as the
// package's rules say. It returns an error that is os.ErrNotExist only if the file is
// gone; every other fault is one of the file's problems.
func readFile(path, name string, before *file, interfacePrefixes []string) (*file, error) {
	after := &file{}
	data, info, err := filewatch.ReadFile(path, MaxFileBytes)
	if err != nil {
		if _, lstatErr := os.Lstat(path); os.IsNotExist(lstatErr) {
			return nil, lstatErr
		}
		return after.holding(before, name, err), nil
	}
	after.signature = sign(info, time.Now())
	if len(data) == 0 {
		return after.holding(before, name, fmt.Errorf("file is empty; to remove its endpoints, remove the file")), nil
	}
	documents, err := parse(data, interfacePrefixes)
	if err != nil {
		return after.holding(before, name, err), nil
	}
	after.take(before, name, documents)
	return after, nil
}

// holding leaves everything as it was before, because of err.
func (f *file) holding(before *file, name string, err error) *file {
	f.problems = []problem{{file: name, text: err.Error()}}
	f.claims = before.claims
	return f
}

// take makes claims of the documents, and of what was claimed before where a bad
// document stands for it or may do so.
func (f *file) take(before *file, name string, documents []document) {
	first := make(map[dataplane.WorkloadEndpointID]int)
	stays := make(map[dataplane.WorkloadEndpointID]bool)
	allStay := false
	for _, d := range documents {
		switch number, again := first[d.id]; {
		case d.err != nil:
			f.report(problem{file: name, document: d.number, text: d.err.Error()})
			stays[d.id] = stays[d.id] || d.known
			allStay = allStay || !d.known
		case again:
			f.report(problem{file: name, document: d.number,
				text: fmt.Sprintf("endpoint %q: is described by document %d too, which is in force", d.id, number)})
		default:
			first[d.id] = d.number
			f.claims = append(f.claims, claim{id: d.id, endpoint: d.endpoint, document: d.number})
			if len(d.unused) > 0 {
				f.report(problem{file: name, document: d.number, harmless: true,
					text: "spec.qosControls: only bandwidth is limited here; not used: " + strings.Join(d.unused, ", ")})
			}
		}
	}
	for _, old := range before.claims {
		if _, replaced := first[old.id]; !replaced && (allStay || stays[old.id]) {
			f.claims = append(f.claims, old)
		}
	}
	if more := len(f.problems) - maxProblems; more > 0 {
		f.problems = append(f.problems[:maxProblems:maxProblems],
			problem{file: name, text: fmt.Sprintf("%d more documents have problems", more)})
	}
}

func (f *file) report(p problem) {
	f.problems = append(f.problems, p)
}

// forPrefixes returns the file without the endpoints whose interface's name has none
// of the prefixes, and without a signature, so that it will be read anew.
func (f *file) forPrefixes(interfacePrefixes []string) *file {
	return &file{
		problems: f.problems,
		claims: slices.DeleteFunc(slices.Clone(f.claims), func(c claim) bool {
			return !hasPrefix(c.endpoint.InterfaceName, interfacePrefixes)
		}),
	}
}
