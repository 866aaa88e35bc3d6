package endpointmgr

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sirupsen/logrus"

	"github.com/manx-dataplane/manx/ifacemonitor"
)

// Sysctls writes kernel parameters.
type Sysctls interface {
	// WriteSysctl writes a value to a parameter that is named by its path below
	// /proc/sys, such as "net/ipv4/conf/cali0027f0645a2/forwarding". The error is
	// fs.ErrNotExist where there is no such parameter, which for one of an interface
	// means that there is no such interface.
	WriteSysctl(path, value string) error
}

// ProcSys is the kernel's own Sysctls. Which network namespace net/... belongs to is
// decided by the thread that opens the file.
type ProcSys struct {
	// Root is where the parameters are: /proc/sys.
	Root string
}

// WriteSysctl writes a parameter. It never creates a file.
func (p ProcSys) WriteSysctl(path, value string) error {
	if !filepath.IsLocal(path) {
		return fmt.Errorf("write sysctl %q: must be a path below %s", path, p.Root)
	}
	f, err := os.OpenFile(filepath.Join(p.Root, path), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("write sysctl: %w", err)
	}
	_, err = f.WriteString(value)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write sysctl: %w", err)
	}
	return nil
}

type sysctl struct {
	format string // of the path, with the interface's name to be filled in
	value  string
}

// sysctlsV4 make the host the workload's router; what protects the host comes first.
// Felix also sets route_localnet, for NAT to the host's loopback addresses. We do no
// NAT and have no packet filter to keep workloads from those addresses (see
// CVE-2020-8558), so it stays off.
func sysctlsV4(looseRPF bool) []sysctl {
	return []sysctl{
		// Packets must come from where the route to their source leads: strict (1). A
		// workload that may use sources that are not its own gets loose (2), which still
		// wants a route to the source to exist. Off (0) would have no effect on nodes where
		// net.ipv4.conf.all.rp_filter is 1: the kernel takes the higher of the two
		// (Documentation/networking/ip-sysctl.rst).
		{"net/ipv4/conf/%s/rp_filter", map[bool]string{false: "1", true: "2"}[looseRPF]},
		// Answer ARP for every address, the link-local gateway's above all, ...
		{"net/ipv4/conf/%s/proxy_arp", "1"},
		// ... and do it at once: the default is a random delay of up to 0.8 s.
		{"net/ipv4/neigh/%s/proxy_delay", "0"},
		{"net/ipv4/conf/%s/forwarding", "1"},
	}
}

// sysctlsV6 are the same for IPv6. There is no rp_filter in IPv6.
var sysctlsV6 = [...]sysctl{
	// A workload must not make itself the host's router (CVE-2020-13597).
	{"net/ipv6/conf/%s/accept_ra", "0"},
	{"net/ipv6/conf/%s/proxy_ndp", "1"},
	{"net/ipv6/conf/%s/forwarding", "1"},
}

// configure writes the sysctls of an interface that is up and has an active
// endpoint, once in each life, whenever it comes up, and at each resync. It returns
// whether that is done or nothing to do.
func (m *Manager) configure(i *iface) (done bool, err error) {
	winner := i.winner()
	if winner == nil || !winner.active() || i.state != ifacemonitor.StateUp {
		return true, nil
	}
	if i.configured && i.looseRPF == winner.want.looseRPF {
		return true, nil
	}
	i.configured, i.looseRPF = false, winner.want.looseRPF
	v4 := sysctlsV4(i.looseRPF)
	err = m.writeSysctls(i.name, v4)
	if err == nil && m.cfg.IPv6Support {
		err = m.writeSysctls(i.name, sysctlsV6[:])
		if errors.Is(err, fs.ErrNotExist) && m.writeSysctls(i.name, v4[:1]) == nil {
			// The interface is there: it is IPv6 that is not.
			m.logNoIPv6(i, err)
			err = nil
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		m.log.WithError(err).WithFields(logrus.Fields{"iface": i.name, "ifindex": i.index}).
			Debug("Interface went away while it was being configured; waiting for it to come back")
		return false, nil
	}
	i.configured = err == nil
	return i.configured, err
}

// writeSysctls writes all that it can. Of several errors it prefers fs.ErrNotExist,
// since in an interface that is going away anything can fail.
func (m *Manager) writeSysctls(name string, sysctls []sysctl) error {
	var errs []error
	for _, s := range sysctls {
		err := m.cfg.Sysctls.WriteSysctl(fmt.Sprintf(s.format, name), s.value)
		if errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("configure interface %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func (m *Manager) logNoIPv6(i *iface, err error) {
	log := m.log.WithError(err).WithField("iface", i.name)
	if m.noIPv6 {
		log.Debug("Interface has no IPv6 sysctls")
		return
	}
	m.noIPv6 = true
	log.Warn("Interface has no IPv6 sysctls, so they are not written: IPv6 is off in this kernel, " +
		"or its MTU is below 1280; not said again for other interfaces")
}
