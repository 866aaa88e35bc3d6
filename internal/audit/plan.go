package audit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// FileState tells whether a file is still the same, unchanged.
type FileState struct {
	Device   uint64    `json:"device"`
	Inode    uint64    `json:"inode"`
	Modified time.Time `json:"modified"`
	Size     int64     `json:"size"`
	SHA256   string    `json:"sha256"`
}

func (f FileState) same(other FileState) bool {
	modified := f.Modified.Equal(other.Modified)
	f.Modified, other.Modified = time.Time{}, time.Time{}
	return modified && f == other
}

// readState reads a regular file and its state.
func readState(root *os.Root, path string) ([]byte, FileState, error) {
	info, err := root.Lstat(path)
	if err != nil {
		return nil, FileState{}, err
	}
	if !info.Mode().IsRegular() {
		return nil, FileState{}, fmt.Errorf("%s is no regular file", path)
	}
	file, err := root.Open(path)
	if err != nil {
		return nil, FileState{}, err
	}
	defer file.Close()
	if info, err = file.Stat(); err != nil {
		return nil, FileState{}, err
	}
	content, err := io.ReadAll(io.LimitReader(file, maxAllocationBytes+1))
	if err != nil {
		return nil, FileState{}, err
	}
	if len(content) > maxAllocationBytes {
		content = nil // no allocation
	}
	sum := sha256.Sum256(content)
	state := FileState{Modified: info.ModTime().UTC(), Size: info.Size(), SHA256: hex.EncodeToString(sum[:])}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		state.Device, state.Inode = stat.Dev, stat.Ino
	}
	return content, state, nil
}

// Plan is a list of addresses to release, written down with all that it was made
// from.
type Plan struct {
	Version  int       `json:"version"`
	Written  time.Time `json:"written"`
	StateDir string    `json:"stateDir"`
	// LiveIDs is the list that the plan was made from, and LiveWritten its time.
	LiveIDs     []string    `json:"liveIDs"`
	LiveWritten time.Time   `json:"liveWritten"`
	Entries     []PlanEntry `json:"entries"`
}

// PlanEntry is one address to release.
type PlanEntry struct {
	Network     string    `json:"network,omitempty"`
	Address     string    `json:"address"`
	ContainerID string    `json:"containerID"`
	Interface   string    `json:"interface,omitempty"`
	File        FileState `json:"file"`
}

func (e PlanEntry) path() string { return Allocation{Network: e.Network, Address: e.Address}.path() }

const planVersion = 1

// plan lists the addresses that are held by sandboxes that do not live. Those
// allocated less than minAge before the list of live IDs was written are left out
// and counted: their sandbox may not have been listed yet.
func (s ipamState) plan(stateDir string, minAge time.Duration, now time.Time) (plan Plan, young int, err error) {
	plan = Plan{
		Version: planVersion, Written: now.UTC(),
		LiveIDs: s.live.IDs, LiveWritten: s.live.Written.UTC(), Entries: []PlanEntry{},
	}
	if plan.StateDir, err = filepath.Abs(stateDir); err != nil {
		return plan, 0, err
	}
	for _, allocation := range s.store.Allocations {
		switch {
		case s.live.Has(allocation.ContainerID):
		case allocation.File.Modified.After(s.live.Written.Add(-minAge)):
			young++
		default:
			plan.Entries = append(plan.Entries, PlanEntry(allocation))
		}
	}
	return plan, young, nil
}

// write writes the plan to a new file; it never overwrites one.
func (p Plan) write(path string) error {
	data, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write plan: %w", err)
	}
	_, err = file.Write(append(data, '\n'))
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("write plan: %w", err)
	}
	return nil
}

// ReadPlan reads a plan, and refuses one that could lead out of its store.
func ReadPlan(path string) (Plan, error) {
	file, err := os.Open(path)
	if err != nil {
		return Plan{}, fmt.Errorf("read plan: %w", err)
	}
	defer file.Close()
	return decodePlan(file, path)
}

func decodePlan(data io.Reader, path string) (Plan, error) {
	var plan Plan
	decoder := json.NewDecoder(data)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&plan); err != nil {
		return plan, fmt.Errorf("read plan %s: %w", path, err)
	}
	if plan.Version != planVersion {
		return plan, fmt.Errorf("read plan %s: version %d is not known; this program writes and reads %d", path, plan.Version, planVersion)
	}
	if !filepath.IsAbs(plan.StateDir) || plan.Written.IsZero() || len(plan.LiveIDs) == 0 {
		return plan, fmt.Errorf("read plan %s: stateDir, written and liveIDs must be there", path)
	}
	for i, entry := range plan.Entries {
		_, err := netip.ParseAddr(entry.Address)
		if err != nil || strings.ContainsAny(entry.Address, "/%") || strings.ContainsRune(entry.Network, '/') ||
			entry.Network == "." || entry.Network == ".." || !containerID.MatchString(entry.ContainerID) {
			return plan, fmt.Errorf("read plan %s: entry %d (%s) is not one that this program writes", path, i+1, entry.path())
		}
	}
	return plan, nil
}

// Outcome is what became of one entry of a plan.
type Outcome struct {
	Address     string `json:"address"`
	ContainerID string `json:"containerID"`
	Released    bool   `json:"released"`
	// Refused is why the entry may not be released; empty where nothing speaks
	// against it.
	Refused string `json:"refused,omitempty"`
}

// ErrRefused is returned by Release where a check said no.
var ErrRefused = errors.New("refused")

// Release carries out a plan with a fresh list of live IDs: one written after the
// plan. It checks every entry first (the file is the same and unchanged, its
// container does not live) and deletes nothing if one does not pass; then it takes
// the lock of host-local IPAM for each entry, checks it once more and deletes the
// file. The outcomes come with the error, one for each entry.
func Release(ctx context.Context, plan Plan, live LiveIDs) ([]Outcome, error) {
	if !live.Written.After(plan.Written) {
		return nil, fmt.Errorf("%w: the list of live IDs (%s) is not newer than the plan (%s); make a fresh one",
			ErrRefused, live.Written.Format(time.RFC3339), plan.Written.Format(time.RFC3339))
	}
	root, err := os.OpenRoot(plan.StateDir)
	if err != nil {
		return nil, fmt.Errorf("release: %w", err)
	}
	defer root.Close()
	var store Store
	outcomes := make([]Outcome, len(plan.Entries))
	refused := 0
	for i, entry := range plan.Entries {
		store.Allocations = append(store.Allocations, Allocation(entry))
		outcomes[i] = Outcome{Address: entry.path(), ContainerID: entry.ContainerID, Refused: check(root, entry, live)}
		if outcomes[i].Refused != "" {
			refused++
		}
	}
	if err := live.checkWhole(store); err != nil {
		return outcomes, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if refused > 0 {
		return outcomes, fmt.Errorf("%w: %d of %d entries did not pass; nothing was released. Write a new plan", ErrRefused, refused, len(plan.Entries))
	}
	for i, entry := range plan.Entries {
		if err := ctx.Err(); err != nil {
			return outcomes, err
		}
		if outcomes[i].Refused, err = releaseOne(ctx, root, entry, live); err != nil {
			return outcomes, err
		}
		if outcomes[i].Refused != "" {
			return outcomes, fmt.Errorf("%w: %s: %s; stopped there", ErrRefused, entry.path(), outcomes[i].Refused)
		}
		outcomes[i].Released = true
	}
	return outcomes, nil
}

// check says why an entry may not be released; empty if it may.
func check(root *os.Root, entry PlanEntry, live LiveIDs) string {
	if live.Has(entry.ContainerID) {
		return "its container lives"
	}
	content, state, err := readState(root, entry.path())
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "the file is gone"
	case err != nil:
		return err.Error()
	case !state.same(entry.File):
		return "the file has changed since the plan was written"
	}
	if id, _ := parseAllocation(content); id != entry.ContainerID {
		return "the file is another container's"
	}
	return ""
}

// releaseOne deletes one entry's file while no CNI plugin works on its network.
func releaseOne(ctx context.Context, root *os.Root, entry PlanEntry, live LiveIDs) (refused string, err error) {
	unlock, err := lock(ctx, root, filepath.Join(entry.Network, "lock"))
	if err != nil {
		return "", fmt.Errorf("release %s: %w", entry.path(), err)
	}
	defer unlock()
	if refused := check(root, entry, live); refused != "" {
		return refused, nil
	}
	if err := root.Remove(entry.path()); err != nil {
		return "", fmt.Errorf("release %s: %w", entry.path(), err)
	}
	return "", nil
}

// lockTimeout is far longer than the plugin holds its lock for one allocation.
const lockTimeout = 10 * time.Second

// lock takes the lock that host-local IPAM takes (flock on the file "lock"; made
// where it is missing, as the plugin does).
func lock(ctx context.Context, root *os.Root, path string) (unlock func(), err error) {
	file, err := root.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			file.Close()
			return nil, &os.PathError{Op: "lock", Path: path, Err: err}
		}
		select {
		case <-ctx.Done():
			file.Close()
			return nil, fmt.Errorf("lock %s: a CNI plugin holds it: %w", path, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}
