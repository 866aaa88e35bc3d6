package manifests

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"

	"github.com/manx-dataplane/manx/dataplane"
	"github.com/manx-dataplane/manx/internal/filewatch"
	"github.com/manx-dataplane/manx/internal/logging"
)

// MaxEndpoints is how many endpoints are taken from all files together: far more than
// any node has, few enough to keep in memory.
const MaxEndpoints = 100_000

// Options say what a Source reads.
type Options struct {
	// Dir is the directory of manifests.
	Dir string
	// InterfacePrefixes are what the names of workload interfaces begin with; endpoints
	// on other interfaces are refused.
	InterfacePrefixes []string
	// Log gets each fault once when it appears and once when it is gone. Nil discards
	// them.
	Log logrus.FieldLogger
	// Watch tunes how the directory is watched.
	Watch filewatch.Options
}

// Source reads a directory of manifests and sends what they say. It remembers the last
// good state of each file from one Run to the next. Its methods are for one goroutine.
type Source struct {
	options  Options
	files    map[string]*file
	reported map[problem]bool
	read     bool // the directory could be read once

	// sent is what the receiver of the current Run has been told.
	sent map[dataplane.WorkloadEndpointID]*dataplane.WorkloadEndpoint
}

// NewSource returns a Source; it reads nothing yet.
func NewSource(options Options) *Source {
	options.Log = logging.OrDiscard(options.Log)
	if options.Watch.Log == nil {
		options.Watch.Log = options.Log
	}
	return &Source{options: options, files: make(map[string]*file), reported: make(map[problem]bool)}
}

// SetInterfacePrefixes replaces Options.InterfacePrefixes from the next Run on.
func (s *Source) SetInterfacePrefixes(prefixes []string) {
	if slices.Equal(prefixes, s.options.InterfacePrefixes) {
		return
	}
	s.options.InterfacePrefixes = slices.Clone(prefixes)
	for name, f := range s.files {
		s.files[name] = f.forPrefixes(prefixes)
	}
}

// Send takes one message. It may block, but has to return when the context is done.
type Send func(ctx context.Context, message any) error

// Run reads the directory, sends a dataplane.WorkloadEndpointUpdate for each endpoint
// and then a dataplane.InSync, and after that follows the directory and sends an update
// or a dataplane.WorkloadEndpointRemove for each endpoint that changed, one message at a
// time and from its own goroutine.
//
// It returns nil when the context is done, the error of send as it is, and an error if
// the directory cannot be read at first; one that disappears later is only reported. Run
// can be called again after it returned, for a receiver that knows nothing yet: what is
// in force from files that are broken now is sent to that one too.
func (s *Source) Run(ctx context.Context, send Send) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the watch
	signals, err := filewatch.Watch(ctx, s.options.Dir, s.options.Watch)
	if err != nil {
		return fmt.Errorf("follow endpoint manifests: %w", err)
	}
	s.sent = make(map[dataplane.WorkloadEndpointID]*dataplane.WorkloadEndpoint)
	if err := s.update(ctx, send); err != nil {
		return err
	}
	if err := send(ctx, dataplane.InSync{}); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-signals:
		}
		if err := s.update(ctx, send); err != nil {
			return err
		}
	}
}

// update reads what changed, reports what is wrong and sends what is different.
func (s *Source) update(ctx context.Context, send Send) error {
	unreadable, err := s.scan()
	if err != nil {
		return err
	}
	claims, problems := s.merge()
	s.report(append(unreadable, problems...))
	return s.send(ctx, claims, send)
}

// scan reads the files that changed. A directory that cannot be read is an error the
// first time and a problem later.
func (s *Source) scan() ([]problem, error) {
	entries, err := os.ReadDir(s.options.Dir)
	if err != nil && !s.read {
		return nil, fmt.Errorf("read endpoint manifests: %w", err)
	}
	if err != nil {
		return []problem{{text: err.Error() + "; the endpoints last known stay"}}, nil
	}
	s.read = true
	present := make(map[string]bool)
	for _, entry := range entries {
		name := entry.Name()
		if !isManifest(name) {
			continue
		}
		path := filepath.Join(s.options.Dir, name)
		before := s.files[name]
		if before == nil {
			before = &file{}
		} else if info, err := os.Stat(path); err == nil && before.signature.unchanged(info) {
			present[name] = true
			continue
		}
		after, err := readFile(path, name, before, s.options.InterfacePrefixes)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		s.files[name] = after
		present[name] = true
	}
	maps.DeleteFunc(s.files, func(name string, _ *file) bool { return !present[name] })
	return nil, nil
}

// merge decides which claim to each endpoint is in force, and returns those claims in
// order and all problems of the files.
func (s *Source) merge() ([]claim, []problem) {
	var winners []claim
	var problems []problem
	owner := make(map[dataplane.WorkloadEndpointID]string)
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		f := s.files[name]
		problems = append(problems, f.problems...)
		for i, c := range f.claims {
			if first, claimed := owner[c.id]; claimed {
				problems = append(problems, problem{file: name, document: c.document,
					text: fmt.Sprintf("endpoint %q: is described in file %s too, which is in force", c.id, first)})
				continue
			}
			if len(winners) == MaxEndpoints {
				problems = append(problems, problem{file: name,
					text: fmt.Sprintf("more than %d endpoints: %d of this file are not taken", MaxEndpoints, len(f.claims)-i)})
				break
			}
			owner[c.id] = name
			winners = append(winners, c)
		}
	}
	return winners, problems
}

// report logs the problems that are new, and those that are no more.
func (s *Source) report(problems []problem) {
	current := make(map[problem]bool, len(problems))
	for _, p := range problems {
		if current[p] {
			continue
		}
		current[p] = true
		if s.reported[p] {
			continue
		}
		if p.harmless {
			s.log(p).Warn("Endpoint manifest asks for what is not done here")
		} else {
			s.log(p).Error("Endpoint manifest cannot be used")
		}
	}
	for p := range s.reported {
		if !current[p] {
			s.log(p).Info("Problem with an endpoint manifest is gone")
		}
	}
	s.reported = current
}

func (s *Source) log(p problem) logrus.FieldLogger {
	log := s.options.Log.WithField("reason", p.text)
	if p.file != "" {
		log = log.WithField("file", p.file)
	}
	if p.document != 0 {
		log = log.WithField("document", p.document)
	}
	return log
}

// send sends the difference between what was sent and the claims: first what goes, so
// that an interface or address that moves from one endpoint to another is free.
func (s *Source) send(ctx context.Context, claims []claim, send Send) error {
	wanted := make(map[dataplane.WorkloadEndpointID]bool, len(claims))
	for _, c := range claims {
		wanted[c.id] = true
	}
	var gone []dataplane.WorkloadEndpointID
	for id := range s.sent {
		if !wanted[id] {
			gone = append(gone, id)
		}
	}
	slices.SortFunc(gone, func(a, b dataplane.WorkloadEndpointID) int { return strings.Compare(a.String(), b.String()) })
	for _, id := range gone {
		if err := send(ctx, dataplane.WorkloadEndpointRemove{ID: id}); err != nil {
			return err
		}
		delete(s.sent, id)
	}
	for _, c := range claims {
		if have := s.sent[c.id]; have == c.endpoint || have != nil && reflect.DeepEqual(have, c.endpoint) {
			continue
		}
		if err := send(ctx, dataplane.WorkloadEndpointUpdate{ID: c.id, Endpoint: c.endpoint}); err != nil {
			return err
		}
		s.sent[c.id] = c.endpoint
	}
	return nil
}
