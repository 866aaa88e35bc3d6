package config

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manx-dataplane/manx/internal/quantity"
	"github.com/manx-dataplane/manx/internal/strictyaml"
)

// checker turns the spec's fields into the Config's, and collects the errors.
type checker struct {
	source   map[string]string // field name -> the manifest's path or the variable that set it
	honoured map[string]bool   // the fields that were asked for; nil where nobody wants to know
	errs     []error
}

// fail reports a bad value under the name of what set it.
func (c *checker) fail(name, value, problem string) {
	c.errs = append(c.errs, strictyaml.NewFieldError(c.source[name], value, problem))
}

// use notes that the field is honoured and tells whether it was set.
func (c *checker) use(name string) (set bool) {
	if c.honoured != nil {
		c.honoured[name] = true
	}
	return c.source[name] != ""
}

// maxInterfaceName is IFNAMSIZ without the terminating zero.
const maxInterfaceName = 15

// ifbPrefix begins the names of the devices that we make ourselves.
const ifbPrefix = "bwcali"

// interfacePrefix is what the name of a workload interface may begin with: narrower
// than the kernel's rule, as in Felix.
var interfacePrefix = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,15}$`)

func (c *checker) prefixes(name, value, fallback string) []string {
	c.use(name)
	if value == "" {
		value = fallback
	}
	var prefixes []string
	for prefix := range strings.SplitSeq(value, ",") {
		prefix = strings.TrimSpace(prefix)
		switch {
		case !interfacePrefix.MatchString(prefix):
			c.fail(name, prefix, fmt.Sprintf("must be 1 to %d letters, digits, dots, dashes or underscores", maxInterfaceName))
		case strings.HasPrefix(ifbPrefix, prefix) || strings.HasPrefix(prefix, ifbPrefix):
			c.fail(name, prefix, "must not take in names that begin with "+ifbPrefix+", which are bandwidth-limiting devices")
		case !slices.Contains(prefixes, prefix):
			prefixes = append(prefixes, prefix)
		}
	}
	return prefixes
}

// patterns reads a list of interface names and /regular expressions/. A comma inside
// an expression does not end it.
func (c *checker) patterns(name, value, fallback string) []*regexp.Regexp {
	c.use(name)
	if isNone(value) {
		return nil
	}
	if value == "" {
		value = fallback
	}
	var patterns []*regexp.Regexp
	for rest, more := value, true; more; {
		var item string
		if trimmed := strings.TrimSpace(rest); strings.HasPrefix(trimmed, "/") {
			expression, after, closed := strings.Cut(trimmed[1:], "/")
			var junk string
			junk, rest, more = strings.Cut(after, ",")
			if !closed || strings.TrimSpace(junk) != "" {
				c.fail(name, trimmed, "must be closed by a slash: /regular expression/")
				continue
			}
			item = expression
		} else {
			item, rest, more = strings.Cut(rest, ",")
			item = strings.TrimSpace(item)
			if item == "" || len(item) > maxInterfaceName || strings.ContainsAny(item, "/: \t\n") {
				c.fail(name, item, fmt.Sprintf("must be an interface name of 1 to %d bytes without slash, colon or space, or a /regular expression/", maxInterfaceName))
				continue
			}
			item = "^" + regexp.QuoteMeta(item) + "$"
		}
		pattern, err := regexp.Compile(item)
		if err != nil {
			c.fail(name, item, "must be a regular expression (RE2): "+err.Error())
			continue
		}
		patterns = append(patterns, pattern)
	}
	return patterns
}

// minInterval keeps a typing error from making an interval a busy loop.
const minInterval = 100 * time.Millisecond

func (c *checker) interval(name string, value *metav1.Duration, fallback time.Duration) time.Duration {
	c.use(name)
	interval := orDefault(value, fallback)
	if interval != 0 && interval < minInterval {
		c.fail(name, interval.String(), fmt.Sprintf("must be 0 (off) or at least %v", minInterval))
	}
	return interval
}

func (c *checker) timeout(name string, value *metav1.Duration, fallback time.Duration) time.Duration {
	c.use(name)
	timeout := orDefault(value, fallback)
	if timeout < minInterval {
		c.fail(name, timeout.String(), fmt.Sprintf("must be at least %v", minInterval))
	}
	return timeout
}

// family tells the IP versions apart.
type family int

const (
	ipv4 family = 4
	ipv6 family = 6
)

func (c *checker) address(name, value string, want family) netip.Addr {
	c.use(name)
	if value == "" || isNone(value) {
		return netip.Addr{}
	}
	address, err := netip.ParseAddr(value)
	switch {
	case err != nil || address.Zone() != "" || address.Is4() != (want == ipv4) || address.Is4In6():
		c.fail(name, value, fmt.Sprintf("must be an IPv%d address", want))
	case address.IsUnspecified() || address.IsMulticast():
		c.fail(name, value, "must be an address that a packet can come from")
	default:
		return address
	}
	return netip.Addr{}
}

// protocol refuses the kernel's own protocols (linux/rtnetlink.h: unspec, redirect,
// kernel): routes that carry ours and are not wanted get removed.
func (c *checker) protocol(name string, value *int, fallback int) int {
	return c.number(name, value, fallback, 3, 255, "; 0 to 2 are the kernel's own")
}

func (c *checker) port(name string, value *int, fallback int) int {
	return c.number(name, value, fallback, 0, 65535, "")
}

func (c *checker) number(name string, value *int, fallback, low, high int, remark string) int {
	c.use(name)
	if value == nil {
		return fallback
	}
	if *value < low || *value > high {
		c.fail(name, strconv.Itoa(*value), fmt.Sprintf("must be from %d to %d%s", low, high, remark))
	}
	return *value
}

func (c *checker) flag(name string, value *bool, fallback bool) bool {
	c.use(name)
	if value == nil {
		return fallback
	}
	return *value
}

func (c *checker) enabled(name, value string, fallback bool) bool {
	c.use(name)
	switch strings.ToLower(value) {
	case "":
		return fallback
	case "enabled":
		return true
	case "disabled":
		return false
	}
	c.fail(name, value, "must be Enabled or Disabled")
	return fallback
}

// The range of a burst in bits: Calico's for its burst annotations.
const (
	minBurstBits = 1000
	maxBurstBits = 34359738360
)

func (c *checker) burst(name string, value *quantity.Int64, fallback uint64) uint64 {
	c.use(name)
	if value == nil {
		return fallback
	}
	if *value < minBurstBits || *value > maxBurstBits {
		c.fail(name, strconv.FormatInt(int64(*value), 10), fmt.Sprintf("must be from 1k to %d bits", uint64(maxBurstBits)))
		return fallback
	}
	return uint64(*value)
}

// severities are Felix's names for log levels; none is as little as can be.
var severities = map[string]logrus.Level{
	"trace":   logrus.TraceLevel,
	"debug":   logrus.DebugLevel,
	"info":    logrus.InfoLevel,
	"warning": logrus.WarnLevel,
	"error":   logrus.ErrorLevel,
	"fatal":   logrus.FatalLevel,
	"none":    logrus.PanicLevel,
}

func (c *checker) severity(name, value string) logrus.Level {
	c.use(name)
	if value == "" {
		return logrus.InfoLevel
	}
	level, ok := severities[strings.ToLower(value)]
	if !ok {
		c.fail(name, value, "must be Trace, Debug, Info, Warning, Error, Fatal or none")
	}
	return level
}

// hostname is a DNS name.
var hostname = regexp.MustCompile(`^[a-zA-Z0-9_]([a-zA-Z0-9_.-]{0,251}[a-zA-Z0-9_])?\.?$`)

func (c *checker) host(name, value, fallback string) string {
	c.use(name)
	if value == "" {
		return fallback
	}
	if isNone(value) {
		return ""
	}
	if _, err := netip.ParseAddr(value); err != nil && !hostname.MatchString(value) {
		c.fail(name, value, "must be a host name or an IP address, without brackets or port")
	}
	return value
}

// directory reads the path of a directory. The API says of this one that left empty
// it means "none", so that set but empty is not the same as unset.
func (c *checker) directory(name, value, fallback string) string {
	set := c.use(name)
	switch {
	case value == "" && !set:
		return fallback
	case value == "" || isNone(value):
		return ""
	case !filepath.IsAbs(value) || strings.ContainsRune(value, 0):
		c.fail(name, value, "must be an absolute path, or empty for none")
	}
	return filepath.Clean(value)
}
