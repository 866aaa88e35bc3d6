// Package filewatch tells when anything about a file or directory may have changed,
// whatever way it changes: written in place, replaced by an atomic rename, swapped
// behind a symbolic link (as Kubernetes does with mounted ConfigMaps), removed and
// created again, on a path that does not exist yet.
//
// It does not say what changed. A reader that gets a signal reads what it is
// interested in anew, and compares. Signals are coalesced, and the signal that
// follows a change always comes after it: who reads after each signal has seen the
// last state. Beside inotify there is a slow poll, for what inotify does not see:
// network file systems, a directory far up the path that is renamed, a machine that
// is out of inotify instances.
package filewatch
