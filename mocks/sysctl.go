package mocks

import (
	"io/fs"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Sysctls is the tree below /proc/sys/net of a namespace, as far as it concerns
// interfaces: conf and neigh of both families, with a directory for each interface,
// which comes, goes and is renamed with it, and for "all" and "default". A new
// interface starts with the values of "default". What a write to "all" does to the
// others is not modelled.
type Sysctls struct{ k *Kernel }

// Sysctls returns the namespace's sysctls as an agent sees them: writing is an
// operation that OnCall can make fail.
func (k *Kernel) Sysctls() *Sysctls { return &Sysctls{k: k} }

// WriteSysctl writes a value. The path is that of the file, such as
// /proc/sys/net/ipv4/conf/cali0/proxy_arp; the first two parts may be left out.
// ENOENT: there is no such file, for one because there is no such interface.
func (s *Sysctls) WriteSysctl(file, value string) error {
	err := s.k.call(false, Call{Op: OpWriteSysctl, Name: file, Detail: value}, func() error {
		dir, iface, name, ok := splitSysctl(file)
		if !ok {
			return unix.ENOENT
		}
		values, ok := s.k.sysctlsOf(iface, true)
		if !ok {
			return unix.ENOENT
		}
		values[path.Join(dir, name)] = strings.TrimSpace(value)
		return nil
	})
	return err
}

// ReadSysctl returns a value; "0" where nothing has been written. It is neither
// counted nor made to fail.
func (s *Sysctls) ReadSysctl(file string) (string, error) {
	s.k.lock()
	defer s.k.unlock()
	dir, iface, name, ok := splitSysctl(file)
	if !ok {
		return "", &fs.PathError{Op: "open", Path: file, Err: unix.ENOENT}
	}
	values, ok := s.k.sysctlsOf(iface, false)
	if !ok {
		return "", &fs.PathError{Op: "open", Path: file, Err: unix.ENOENT}
	}
	if value, ok := values[path.Join(dir, name)]; ok {
		return value, nil
	}
	return "0", nil
}

// splitSysctl takes net/ipv4/conf/NAME/proxy_arp apart into net/ipv4/conf, NAME and
// proxy_arp.
func splitSysctl(file string) (dir, iface, name string, ok bool) {
	parts := strings.Split(strings.TrimPrefix(path.Clean(file), "/proc/sys/"), "/")
	if len(parts) != 5 || parts[0] != "net" ||
		parts[1] != "ipv4" && parts[1] != "ipv6" || parts[2] != "conf" && parts[2] != "neigh" {
		return "", "", "", false
	}
	return path.Join(parts[:3]...), parts[3], parts[4], true
}

func (k *Kernel) sysctlsOf(iface string, write bool) (map[string]string, bool) {
	if values := k.sysctls[iface]; values != nil {
		return values, true
	}
	l := k.names[iface]
	if l == nil {
		return nil, false
	}
	if l.sysctls == nil && write {
		l.sysctls = map[string]string{}
	}
	return l.sysctls, true
}

// sysctl returns a value of the link's own directory.
func (l *link) sysctl(dir, name string) string {
	return l.sysctls[path.Join(dir, name)]
}

func (l *link) ipv6Enabled() bool { return l.sysctl("net/ipv6/conf", "disable_ipv6") != "1" }
