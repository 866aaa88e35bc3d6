package filewatch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/internal/logging"
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
	options.Log = logging.OrDiscard(options.Log)
	w := &watcher{
		path:    absolute,
		options: options,
		signal:  make(chan struct{}, 1),
		events:  make(chan struct{}, 1),
	}
	if err := w.open(); err != nil {
		w.warn(err)
	}
	w.follow()
	go w.run(ctx)
	return w.signal, nil
}

type watcher struct {
	path    string
	options Options
	signal  chan struct{} // to the reader
	events  chan struct{} // from inotify

	inotify *os.File     // nil where inotify cannot be used
	fd      int          // inotify's
	watches map[int]bool // inotify's watch descriptors
	warned  bool         // said that inotify cannot be used
}

// eventMask is all that can change what a directory holds, or which one it is.
const eventMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MODIFY | unix.IN_CLOSE_WRITE | unix.IN_ATTRIB |
	unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// open starts inotify. What the events say is of no interest, only that there are some.
func (w *watcher) open() error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return os.NewSyscallError("inotify_init1", err)
	}
	w.fd, w.inotify = fd, os.NewFile(uintptr(fd), "inotify")
	go func(inotify *os.File) {
		buffer := make([]byte, 64<<10)
		for {
			if _, err := inotify.Read(buffer); err != nil {
				return // closed
			}
			offer(w.events)
		}
	}(w.inotify)
	return nil
}

// offer puts a value into a channel that holds one, unless there is one already.
func offer(channel chan<- struct{}) {
	select {
	case channel <- struct{}{}:
	default:
	}
}

func (w *watcher) run(ctx context.Context) {
	poll := time.NewTicker(w.options.Poll)
	defer poll.Stop()
	if w.inotify != nil {
		defer w.inotify.Close()
	}
	var settled <-chan time.Time // nil unless an event waits to be signalled
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.events:
			if settled == nil {
				settled = time.After(w.options.Settle)
			}
			continue
		case <-settled:
			settled = nil
		case <-poll.C:
		}
		// First the watches move to where the path leads now: what changes later is
		// seen by them, what changed before by the reader.
		w.follow()
		offer(w.signal)
	}
}

// follow watches the directories in which the path can change, as they are now. The
// kernel's watches belong to inodes, so that watching again is right and cheap both
// where a directory is the same as before and where only its name is.
func (w *watcher) follow() {
	if w.inotify == nil {
		return
	}
	// Looking and watching are two steps: look again until both agree.
	const tries = 10
	wanted := directories(w.path)
	for range tries {
		w.watch(wanted)
		again := directories(w.path)
		if slices.Equal(again, wanted) {
			return
		}
		wanted = again
	}
}

// watch makes the directories the ones that are watched.
func (w *watcher) watch(directories []string) {
	watches := make(map[int]bool, len(directories))
	for _, directory := range directories {
		switch wd, err := unix.InotifyAddWatch(w.fd, directory, eventMask); {
		case err == nil:
			watches[wd] = true
		case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR):
			// It went meanwhile; follow looks again.
		default:
			w.warn(fmt.Errorf("watch directory %s: %w", directory, err))
		}
	}
	for wd := range w.watches {
		if !watches[wd] {
			// An error says that the kernel has dropped it already.
			_, _ = unix.InotifyRmWatch(w.fd, uint32(wd))
		}
	}
	w.watches = watches
}

// warn says once that changes may be seen late.
func (w *watcher) warn(err error) {
	if w.warned {
		return
	}
	w.warned = true
	w.options.Log.WithError(err).WithFields(logrus.Fields{"path": w.path, "interval": w.options.Poll}).
		Warn("Cannot watch for all changes; also looking from time to time")
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
