package config

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/sirupsen/logrus"

	"github.com/manx-dataplane/manx/internal/filewatch"
	"github.com/manx-dataplane/manx/internal/logging"
)

// maxFileBytes is the size above which a configuration file is refused: nothing that
// could be an object in a cluster is larger.
const maxFileBytes = 1 << 20

// WatcherOptions say what to load and follow.
type WatcherOptions struct {
	// Path is the manifest's file; empty means that there is none.
	Path string
	// Environ is the environment in os.Environ's form.
	Environ []string
	// Log gets one line for fields that are set but not used, and errors of a file
	// that changed for the worse. Nil discards them.
	Log logrus.FieldLogger
	// Watch tunes how the file is watched.
	Watch filewatch.Options
}

// Watcher loads a configuration file and follows its changes. Its methods are for
// one goroutine.
type Watcher struct {
	options WatcherOptions
	current *Config
	data    []byte // what current was made of
	unused  string // the unused fields that were last logged
	problem string // the error that was last logged
}

// NewWatcher returns a Watcher; it reads nothing yet.
func NewWatcher(options WatcherOptions) *Watcher {
	options.Log = logging.OrDiscard(options.Log)
	if options.Watch.Log == nil {
		options.Watch.Log = options.Log
	}
	return &Watcher{options: options}
}

// Load reads the file, which has to exist if there is a path to it, and returns the
// first Config.
func (w *Watcher) Load() (*Config, error) {
	var data []byte
	if w.options.Path != "" {
		var err error
		if data, _, err = filewatch.ReadFile(w.options.Path, maxFileBytes); err != nil {
			return nil, fmt.Errorf("read the configuration: %w", err)
		}
	}
	return w.load(data)
}

// Run follows the file until the context is done and calls changed, from its own
// goroutine, with each Config that differs from the one before, the one that Load
// returned first. A file that is missing, empty or invalid is logged once, and the
// last good Config stays. Load has to have succeeded before. Run returns an error
// only if it cannot start.
func (w *Watcher) Run(ctx context.Context, changed func(*Config)) error {
	if w.options.Path == "" {
		<-ctx.Done()
		return nil
	}
	signals, err := filewatch.Watch(ctx, w.options.Path, w.options.Watch)
	if err != nil {
		return fmt.Errorf("follow the configuration: %w", err)
	}
	for {
		// Once before the first signal: the file may have changed since Load.
		if err := w.reload(changed); err == nil {
			w.problem = ""
		} else if w.problem != err.Error() {
			w.problem = err.Error()
			w.options.Log.WithField("reason", w.problem).Error("Configuration cannot be used; the last good one stays in force")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-signals:
		}
	}
}

func (w *Watcher) reload(changed func(*Config)) error {
	data, _, err := filewatch.ReadFile(w.options.Path, maxFileBytes)
	if err != nil {
		return err
	}
	if bytes.Equal(data, w.data) {
		return nil
	}
	if len(data) == 0 {
		// It is about to be written. Defaults take a file with a document in it.
		return errors.New(w.options.Path + " is empty")
	}
	before := w.current
	after, err := w.load(data)
	if err != nil {
		return err
	}
	if !after.Equal(before) {
		changed(after)
	}
	return nil
}

func (w *Watcher) load(data []byte) (*Config, error) {
	loaded, unused, err := Load(data, w.options.Environ)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cmp.Or(w.options.Path, "environment"), err)
	}
	w.current, w.data = loaded, data
	if list := strings.Join(unused, ", "); list != w.unused {
		w.unused = list
		if list != "" {
			w.options.Log.WithField("fields", list).Info("Configuration sets fields that are not used here")
		}
	}
	return loaded, nil
}
