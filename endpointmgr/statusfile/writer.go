// Package statusfile keeps one file for each workload endpoint that is up, for the
// CNI plugin to wait for, named and written as Felix does.
package statusfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/manx-dataplane/manx/dataplane"
	"github.com/manx-dataplane/manx/endpointmgr"
)

// longestName is NAME_MAX of linux/limits.h: no file system takes more. Namespace and
// name of a pod may have 63 and 253 characters, and so be too long together.
const longestName = 255

// tempName is the file that is renamed into place. It cannot be an endpoint's: that
// has two spaces in its name.
const tempName = ".manx-endpoint-status.tmp"

// Writer writes and removes the files. It is an [endpointmgr.StatusReporter], for
// one goroutine.
type Writer struct {
	dir     string            // empty: off
	written map[string]string // content by file name
}

var _ endpointmgr.StatusReporter = (*Writer)(nil)

// NewWriter returns a writer of files in the directory endpoint-status below
// prefix, which is created by the first call that needs it. The empty prefix means that no files
// are written.
func NewWriter(prefix string) *Writer {
	w := &Writer{written: map[string]string{}}
	if prefix != "" {
		w.dir = filepath.Join(prefix, "endpoint-status")
	}
	return w
}

// FileName returns the name of an endpoint's file: its parts, each escaped as a URL
// path segment, separated by spaces.
func FileName(id dataplane.WorkloadEndpointID) string {
	return url.PathEscape(id.Orchestrator) + " " + url.PathEscape(id.Workload) + " " + url.PathEscape(id.Endpoint)
}

// OnStatus writes the file of an endpoint that is up, atomically, and removes that of
// one that is not. The error is endpointmgr.ErrNotReportable where no file can have its
// name.
func (w *Writer) OnStatus(id dataplane.WorkloadEndpointID, ep *dataplane.WorkloadEndpoint, status endpointmgr.Status) error {
	if w.dir == "" {
		return nil
	}
	name := FileName(id)
	switch {
	case status == endpointmgr.StatusUp && len(name) > longestName:
		return fmt.Errorf("endpoint status file %q: a name of %d bytes, where %d are possible: %w",
			name, len(name), longestName, endpointmgr.ErrNotReportable)
	case len(name) > longestName:
		return nil // there is none
	case status == endpointmgr.StatusUp:
		return w.write(name, content(ep))
	}
	return w.remove(name)
}

// OnAllReported removes files about endpoints that are not up, which an earlier
// process left, and writes those again that somebody removed. Files that are not named
// like ours stay. The directory is there afterwards, even if it is empty: a CNI plugin
// wants to watch it.
func (w *Writer) OnAllReported() error {
	if w.dir == "" {
		return nil
	}
	if err := w.makeDir(); err != nil {
		return err
	}
	entries, err := os.ReadDir(w.dir)
	if err != nil {
		return fmt.Errorf("list endpoint status files: %w", err)
	}
	var errs []error
	missing := maps.Clone(w.written)
	for _, e := range entries {
		name := e.Name()
		if !e.Type().IsRegular() {
			continue
		}
		delete(missing, name)
		_, current := w.written[name]
		isOurs := name == tempName || strings.Count(name, " ") == 2
		if isOurs && !current {
			errs = append(errs, w.remove(name))
		}
	}
	for name, content := range missing {
		errs = append(errs, w.put(name, content))
	}
	return errors.Join(errs...)
}

func (w *Writer) write(name, content string) error {
	if w.written[name] == content {
		return nil
	}
	if err := w.makeDir(); err != nil {
		return err
	}
	return w.put(name, content)
}

// put writes a file into the directory, which exists.
func (w *Writer) put(name, content string) error {
	temp := filepath.Join(w.dir, tempName)
	if err := os.WriteFile(temp, []byte(content), 0o644); err != nil {
		return fmt.Errorf("write endpoint status file: %w", err)
	}
	if err := os.Rename(temp, filepath.Join(w.dir, name)); err != nil {
		return fmt.Errorf("put endpoint status file into place: %w", err)
	}
	w.written[name] = content
	return nil
}

func (w *Writer) makeDir() error {
	if err := os.MkdirAll(w.dir, 0o755); err != nil {
		return fmt.Errorf("create directory of endpoint status files: %w", err)
	}
	return nil
}

func (w *Writer) remove(name string) error {
	if err := os.Remove(filepath.Join(w.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove endpoint status file: %w", err)
	}
	delete(w.written, name)
	return nil
}

// content returns what stands in an endpoint's file.
func content(ep *dataplane.WorkloadEndpoint) string {
	b, err := json.Marshal(struct {
		IfaceName string         `json:"ifaceName"`
		MAC       string         `json:"mac"`
		IPv4Nets  []netip.Prefix `json:"ipv4Nets"`
		IPv6Nets  []netip.Prefix `json:"ipv6Nets"`
	}{ep.InterfaceName, ep.MAC.String(), notNil(ep.IPv4Nets), notNil(ep.IPv6Nets)})
	if err != nil {
		panic(err) // strings only
	}
	return string(b)
}

// notNil makes JSON say [] rather than null.
func notNil(nets []netip.Prefix) []netip.Prefix {
	return append([]netip.Prefix{}, nets...)
}
