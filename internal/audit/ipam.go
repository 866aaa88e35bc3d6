package audit

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/manx-dataplane/manx/internal/cli"
)

// IPAMOptions say what to compare the allocations of host-local IPAM with.
type IPAMOptions struct {
	// StateDir is the store: /var/lib/cni/networks, or one network's directory.
	StateDir string
	// Live is a file with the IDs of all sandboxes, one a line, as crictl pods -q
	// prints them; "-" is standard input.
	Live string
	// NoAddress is a file of the same form with the IDs of sandboxes that hold no
	// address and should not, such as those on the node's own network.
	NoAddress string
}

// Allocation is one address that the store holds: a file named by the address, with
// the container ID in its first line and the interface in its second.
type Allocation struct {
	Network     string // the directory; empty where the store is one network's
	Address     string
	ContainerID string
	Interface   string
	File        FileState
}

// path returns the allocation's file, below the store.
func (a Allocation) path() string {
	if a.Network == "" {
		return a.Address
	}
	return a.Network + "/" + a.Address
}

// Store is what a host-local IPAM directory holds.
type Store struct {
	Allocations []Allocation
	// Unreadable are the allocations that hold no container ID, and Strange the files
	// of other names. Neither is ever deleted.
	Unreadable, Strange []string
}

// maxAllocationBytes is far more than an ID and an interface's name take.
const maxAllocationBytes = 4096

// ReadStore reads a host-local IPAM directory.
func ReadStore(dir string) (Store, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Store{}, fmt.Errorf("read IPAM state: %w", err)
	}
	defer root.Close()
	var store Store
	entries, err := readDir(root, ".")
	if err != nil {
		return Store{}, fmt.Errorf("read IPAM state: %w", err)
	}
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		files, err := readDir(root, entry.Name())
		if err != nil {
			return Store{}, fmt.Errorf("read IPAM state: %w", err)
		}
		if err := store.read(root, entry.Name(), files); err != nil {
			return Store{}, err
		}
	}
	if err := store.read(root, "", entries); err != nil {
		return Store{}, err
	}
	return store, nil
}

func readDir(root *os.Root, name string) ([]os.DirEntry, error) {
	dir, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}

// isBookkeeping tells the files that are the store's own.
func isBookkeeping(name string) bool {
	return name == "lock" || strings.HasPrefix(name, "last_reserved_ip.")
}

func (s *Store) read(root *os.Root, network string, entries []os.DirEntry) error {
	for _, entry := range entries {
		allocation := Allocation{Network: network, Address: entry.Name()}
		if entry.IsDir() || isBookkeeping(entry.Name()) {
			continue
		}
		if _, err := netip.ParseAddr(entry.Name()); err != nil || !entry.Type().IsRegular() {
			s.Strange = append(s.Strange, allocation.path())
			continue
		}
		content, state, err := readState(root, allocation.path())
		switch {
		case errors.Is(err, os.ErrNotExist): // released meanwhile
			continue
		case err != nil:
			return fmt.Errorf("read IPAM state: %w", err)
		}
		allocation.File = state
		allocation.ContainerID, allocation.Interface = parseAllocation(content)
		if allocation.ContainerID == "" {
			s.Unreadable = append(s.Unreadable, allocation.path())
			continue
		}
		s.Allocations = append(s.Allocations, allocation)
	}
	return nil
}

func parseAllocation(content []byte) (id, iface string) {
	first, rest, _ := strings.Cut(string(content), "\n")
	second, _, _ := strings.Cut(rest, "\n")
	id = strings.TrimSpace(first)
	if !containerID.MatchString(id) {
		return "", ""
	}
	return id, strings.TrimSpace(second)
}

// containerID is what a container runtime's IDs look like.
var containerID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)

// LiveIDs is a list of container IDs that was read whole.
type LiveIDs struct {
	IDs []string // sorted, each once
	// Written is when the list was written: the file's time, or when reading began.
	Written time.Time
}

// Has reports whether the list has that ID.
func (l LiveIDs) Has(id string) bool {
	_, found := slices.BinarySearch(l.IDs, id)
	return found
}

// ReadLiveIDs reads a list of IDs, one a line, to its end. It fails where a line is
// no ID, and where there is none at all: an empty list is what a failed command
// leaves, and would make every address look free.
func ReadLiveIDs(name string, stdin io.Reader, now time.Time) (LiveIDs, error) {
	live := LiveIDs{Written: now}
	source, said := stdin, "standard input"
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return live, fmt.Errorf("read live IDs: %w", err)
		}
		defer file.Close()
		info, err := file.Stat()
		if err != nil {
			return live, fmt.Errorf("read live IDs: %w", err)
		}
		source, said, live.Written = file, name, info.ModTime()
	}
	scanner := bufio.NewScanner(source)
	for line := 1; scanner.Scan(); line++ {
		id := strings.TrimSpace(scanner.Text())
		if id == "" {
			continue
		}
		if !containerID.MatchString(id) {
			return live, fmt.Errorf("read live IDs: line %d of %s is no container ID: %q; "+
				"give one ID a line, as \"crictl pods -q\" prints them", line, said, id)
		}
		live.IDs = append(live.IDs, id)
	}
	if err := scanner.Err(); err != nil {
		return live, fmt.Errorf("read live IDs: %s: %w", said, err)
	}
	if len(live.IDs) == 0 {
		return live, fmt.Errorf("read live IDs: %s has none; an empty list is not trusted, since a command that failed leaves one", said)
	}
	slices.Sort(live.IDs)
	live.IDs = slices.Compact(live.IDs)
	return live, nil
}

// checkWhole fails where the list has an ID that is but the beginning of one in the
// store: then it has been shortened for display, and nothing would match.
func (l LiveIDs) checkWhole(store Store) error {
	held := make([]string, len(store.Allocations))
	for i, allocation := range store.Allocations {
		held[i] = allocation.ContainerID
	}
	slices.Sort(held)
	for _, id := range l.IDs {
		at, found := slices.BinarySearch(held, id)
		if !found && at < len(held) && strings.HasPrefix(held[at], id) {
			return fmt.Errorf("read live IDs: %s is the beginning of %s only; give whole IDs, as \"crictl pods -q\" prints them", id, held[at])
		}
	}
	return nil
}

// ipamState is both sides, read.
type ipamState struct {
	store         Store
	live, without LiveIDs
}

// readIPAM reads both sides: first the store, so that a sandbox that starts
// meanwhile is not missed on the live side.
func readIPAM(options IPAMOptions, stdin io.Reader, now time.Time) (ipamState, error) {
	var state ipamState
	var err error
	if state.store, err = ReadStore(options.StateDir); err != nil {
		return state, err
	}
	if state.live, err = ReadLiveIDs(options.Live, stdin, now); err != nil {
		return state, err
	}
	if options.NoAddress != "" {
		if state.without, err = ReadLiveIDs(options.NoAddress, stdin, now); err != nil {
			return state, err
		}
	}
	return state, state.live.checkWhole(state.store)
}

// CompareIPAM compares the sandboxes that hold an address with those that live.
func CompareIPAM(options IPAMOptions, stdin io.Reader, now time.Time) Pair {
	if options.StateDir == "" || options.Live == "" {
		return notAsked(PairIPAM, "--cni-state DIR and --live FILE")
	}
	state, err := readIPAM(options, stdin, now)
	if err != nil {
		return noLook(PairIPAM, err)
	}
	return state.compare(now)
}

func (s ipamState) compare(now time.Time) Pair {
	p := &Pair{
		Name: PairIPAM,
		Left: Number{Of: "sandboxes that hold an address"}, Right: Number{Of: "live sandboxes"},
		Meaning: "An address held by a sandbox that does not live was never given back: a delete failed silently. When the range " +
			"is used up no new pod gets an address, while the node reports ready. A live sandbox that holds none is on the node's " +
			"own network, has ended, or has an address that may be given out twice.",
		Do: "Write a plan (manx audit ipam --write-plan), read it, carry it out with a fresh list (--release), and look again: " +
			"equal is the test, not lower. Then delete one pod and see the count drop by one, and look again a day later. List " +
			"sandboxes that rightly hold no address in --no-address.",
		DoNot: "Do not remove files by hand, nor from a list made after the fact; do not delete last_reserved_ip.* or lock; do not " +
			"only restart the runtime: it hides the fault until the next time.",
	}
	held := make(map[string]bool)
	for _, allocation := range s.store.Allocations {
		held[allocation.ContainerID] = true
		if !s.live.Has(allocation.ContainerID) {
			p.offend(allocation.path(), "held for %s by %s, which does not live",
				cli.Duration(now.Sub(allocation.File.Modified)), allocation.holder())
		}
	}
	p.Left.Count = len(held)
	for _, id := range s.live.IDs {
		switch {
		case held[id]:
			p.Right.Count++
		case !s.without.Has(id):
			p.Right.Count++
			p.offend(id, "lives and holds no address")
		}
	}
	for _, path := range s.store.Unreadable {
		p.offend(path, "holds no container ID")
	}
	if len(s.store.Allocations) != p.Left.Count {
		p.note("they hold %s", cli.Plural(len(s.store.Allocations), "address", "addresses"))
	}
	for _, path := range s.store.Strange {
		p.note("%s is no file of host-local IPAM; left alone", path)
	}
	return p.settle()
}

func (a Allocation) holder() string {
	if a.Interface == "" {
		return a.ContainerID
	}
	return a.ContainerID + " (" + a.Interface + ")"
}
