package filewatch

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/sirupsen/logrus"
)

// Defaults of Options.
const (
	// DefaultSettle is long enough for a program that writes a small file in place
	// to be done with it.
	DefaultSettle = 50 * time.Millisecond
	// DefaultPoll is how late a change may be seen that inotify did not report.
	DefaultPoll = 10 * time.Second
)

// maxLinks is how many symbolic links a path may lead through, as in Linux.
const maxLinks = 40

// Options tune a watch; the zero value is usable.
type Options struct {
	// Settle is how long after the first event of several the signal is given.
	Settle time.Duration
	// Poll is the interval of signals without an event.
	Poll time.Duration
	// Log gets a message when inotify cannot be used; nil discards it.
	Log logrus.FieldLogger
}

// Watch watches the path, which need not exist, until the context is done. It
// returns a channel that receives a value when something about the path, or about
// an entry of the directory that it leads to, may have changed; changes from before
// Watch returned are not signalled. One value stands for all changes since the last
// one was received. The channel is never closed.
func Watch(ctx context.Context, path string, options Options) (<-chan struct{}, error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", path, err)
	}
	if options.Settle <= 0 {
		options.Settle = DefaultSettle
	}
	if options.Poll <= 0 {
		options.Poll = DefaultPoll
	}
	if options.Log == nil {
		logger := logrus.New()
		logger.SetOutput(io.Discard)
		options.Log = logger
	}
	w := &watcher{path: absolute, options: options, signal: make(chan struct{}, 1)}
	w.follow()
	go w.run(ctx)
	return w.signal, nil
}

type watcher struct {
	path    string
	options Options
	signal  chan struct{}

	notify  *fsnotify.Watcher  // nil while inotify cannot be used
	watched map[string]inodeID // the directories that notify watches
	warned  bool               // said that inotify cannot be used
}

// inodeID tells a directory from another one of the same name.
type inodeID struct {
	device, inode uint64
}

func (w *watcher) run(ctx context.Context) {
	poll := time.NewTicker(w.options.Poll)
	defer poll.Stop()
	defer w.close()
	var settled <-chan time.Time // nil unless an event waits to be signalled
	for {
		var events <-chan fsnotify.Event
		var errs <-chan error
		if w.notify != nil {
			events, errs = w.notify.Events, w.notify.Errors
		}
		select {
		case <-ctx.Done():
			return
		case event, open := <-events:
			if !open {
				w.close() // the next poll starts anew
				continue
			}
			if _, own := w.watched[event.Name]; own {
				// The directory itself went, or was replaced.
				w.watched = nil
			}
			if settled == nil {
				settled = time.After(w.options.Settle)
			}
		case _, open := <-errs:
			if !open {
				w.close()
				continue
			}
			// Events were lost.
			if settled == nil {
				settled = time.After(w.options.Settle)
			}
		case <-settled:
			settled = nil
			w.tell()
		case <-poll.C:
			w.tell()
		}
	}
}

// tell signals, after the watches have been moved to where the path leads now: what
// changes later is seen by them, what changed before by the reader.
func (w *watcher) tell() {
	w.follow()
	select {
	case w.signal <- struct{}{}:
	default:
	}
}

// follow watches the directories in which the path can change. When they are others
// than before, all watches are made anew: inotify follows inodes and fsnotify names,
// and only from a new start do the two surely agree.
func (w *watcher) follow() {
	// Looking and watching are two steps: look again until both agree.
	const tries = 3
	for range tries {
		wanted := identify(directories(w.path))
		if w.notify != nil && maps.Equal(wanted, w.watched) {
			return
		}
		if err := w.watch(wanted); err != nil {
			w.close()
			if !w.warned {
				w.options.Log.WithError(err).WithField("path", w.path).
					Warnf("Cannot watch for changes; looking every %v instead", w.options.Poll)
				w.warned = true
			}
			return
		}
	}
}

// watch replaces all watches.
func (w *watcher) watch(wanted map[string]inodeID) error {
	fresh, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	for directory := range wanted {
		// One that has gone meanwhile is found out by looking again.
		if err := fresh.Add(directory); err != nil && !os.IsNotExist(err) {
			_ = fresh.Close()
			return fmt.Errorf("watch directory %s: %w", directory, err)
		}
	}
	w.close()
	w.notify, w.watched = fresh, wanted
	return nil
}

func (w *watcher) close() {
	if w.notify != nil {
		_ = w.notify.Close()
	}
	w.notify, w.watched = nil, nil
}

// identify returns the directories that exist, with their inodes.
func identify(directories []string) map[string]inodeID {
	found := make(map[string]inodeID)
	for _, directory := range directories {
		info, err := os.Stat(directory)
		if err != nil {
			continue
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			found[directory] = inodeID{device: stat.Dev, inode: stat.Ino}
		}
	}
	return found
}

// directories returns those in which a change can change what the path leads to: the
// one that holds its last component, the ones that hold a symbolic link on the way,
// where the way ends early the last one that exists, and the one that the path leads
// to if it is one.
func directories(path string) []string {
	var found []string
	links := 0
	directory, rest := "/", splitPath(path)
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		if name == ".." {
			directory = filepath.Dir(directory)
			continue
		}
		entry := filepath.Join(directory, name)
		info, err := os.Lstat(entry)
		if err != nil {
			return append(found, directory)
		}
		if info.Mode()&os.ModeSymlink != 0 {
			found = append(found, directory)
			target, err := os.Readlink(entry)
			if links++; err != nil || links > maxLinks {
				return found
			}
			if filepath.IsAbs(target) {
				directory = "/"
			}
			rest = append(splitPath(target), rest...)
			continue
		}
		if len(rest) == 0 {
			found = append(found, directory)
		}
		directory = entry
		if !info.IsDir() {
			return found
		}
	}
	return append(found, directory)
}

// splitPath returns the components of a path, without the empty ones and dots.
func splitPath(path string) []string {
	var components []string
	for component := range strings.SplitSeq(path, "/") {
		if component != "" && component != "." {
			components = append(components, component)
		}
	}
	return components
}
