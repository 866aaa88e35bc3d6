package audit

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// kernelLog is what the kernel log says about devices.
type kernelLog struct {
	lines []logLine
	// end is when the log was read, or its last line's time, on the lines' own clock.
	end   time.Duration
	timed bool // end is known
	// repeat is how often the kernel repeats itself about a device.
	repeat time.Duration
}

type logLine struct {
	device, usage string
	at            time.Duration // since boot
	timed         bool
}

// stuckDevice is a device that the kernel says it waits for.
type stuckDevice struct {
	name, usage string
	lines       int
	timed       bool
	age         time.Duration // of the last line, at the end of the log
	current     bool          // the kernel still says so
}

// The line of netdev_wait_allrefs_any in the kernel's net/core/dev.c.
var unregisterLine = regexp.MustCompile(`unregister_netdevice: waiting for (\S+) to become free\. Usage count = (-?\d+)`)

// bootTime matches the time that dmesg and consoles put before a line.
var bootTime = regexp.MustCompile(`\[\s*(\d+\.\d+)\]`)

// defaultRepeat is the kernel's netdev_unregister_timeout_secs where that cannot be
// read.
const defaultRepeat = 10 * time.Second

// readKernelLog reads a file of log lines (of dmesg, of journalctl -k), or
// /dev/kmsg where path is empty.
func readKernelLog(path string) (*kernelLog, error) {
	log := &kernelLog{repeat: unregisterTimeout()}
	var err error
	if path == "" {
		err = log.readDevice("/dev/kmsg")
	} else {
		err = log.readFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("read the kernel log (--kernel-log takes one from a file): %w", err)
	}
	return log, nil
}

func unregisterTimeout() time.Duration {
	text, err := os.ReadFile("/proc/sys/net/core/netdev_unregister_timeout_secs")
	if err != nil {
		return defaultRepeat
	}
	seconds, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || seconds <= 0 {
		return defaultRepeat
	}
	return time.Duration(seconds) * time.Second
}

func (l *kernelLog) readFile(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return l.readLines(file)
}

func (l *kernelLog) readLines(text io.Reader) error {
	scanner := bufio.NewScanner(text)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		line := scanner.Text()
		at, timed := timeOf(line)
		if timed {
			l.end, l.timed = max(l.end, at), true
		}
		l.take(line, at, timed)
	}
	return scanner.Err()
}

func timeOf(line string) (time.Duration, bool) {
	match := bootTime.FindStringSubmatch(line)
	if match == nil {
		return 0, false
	}
	seconds, err := strconv.ParseFloat(match[1], 64)
	return time.Duration(seconds * float64(time.Second)), err == nil
}

// readDevice reads records of the form "priority,sequence,microseconds,flags;text"
// (the kernel's Documentation/ABI/testing/dev-kmsg), one a read, until there are no
// more.
func (l *kernelLog) readDevice(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return err
	}
	l.end, l.timed = time.Duration(now.Nano()), true
	buffer := make([]byte, 16<<10) // a record is at most 8 KiB (CONSOLE_EXT_LOG_MAX)
	for {
		n, err := unix.Read(fd, buffer)
		switch {
		case errors.Is(err, unix.EAGAIN) || err == nil && n == 0:
			return nil
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINTR): // overwritten meanwhile: the next one follows
			continue
		case err != nil:
			return &os.PathError{Op: "read", Path: path, Err: err}
		}
		header, text, _ := bytes.Cut(buffer[:n], []byte(";"))
		text, _, _ = bytes.Cut(text, []byte("\n"))
		fields := strings.Split(string(header), ",")
		if len(fields) < 3 {
			continue
		}
		microseconds, err := strconv.ParseInt(fields[2], 10, 64)
		l.take(string(text), time.Duration(microseconds)*time.Microsecond, err == nil)
	}
}

func (l *kernelLog) take(text string, at time.Duration, timed bool) {
	if match := unregisterLine.FindStringSubmatch(text); match != nil {
		l.lines = append(l.lines, logLine{device: match[1], usage: match[2], at: at, timed: timed})
	}
}

// stuck returns the devices that the log speaks of. The kernel repeats the line as
// long as it waits; where it has missed several turns it waits no more. A line
// without a time counts as current.
func (l *kernelLog) stuck() map[string]stuckDevice {
	const missed = 4
	devices := make(map[string]stuckDevice)
	for _, line := range l.lines {
		device := devices[line.device]
		device.name, device.usage = line.device, line.usage
		device.lines++
		device.timed = line.timed && l.timed
		device.age = max(0, l.end-line.at)
		device.current = !device.timed || device.age <= missed*l.repeat
		devices[line.device] = device
	}
	return devices
}
