package mocks

import (
	"io/fs"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Sysctls is the tree below /proc/sys/net of a namespace, as far as it concerns
// interfaces: conf and neigh of both families, with a directory for each interface,
// which comes, goes and is renamed with it, and for "all" and "default". A new
// interface starts with the values of "default". Values are kept and not interpreted,
// but for IPv6's disable_ipv6 and addr_gen_mode, which are looked at when an interface
// comes up; nor does a write to "all" change the others.
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
	if len(parts) != 5 {
		return "", "", "", false
	}
	dir, iface, name = path.Join(parts[:3]...), parts[3], parts[4]
	known := slices.Contains(strings.Fields(sysctlNames(dir)), name)
	return dir, iface, name, known && (iface != "all" || parts[2] == "conf")
}

// sysctlNames lists the files of an interface's directory, as of Linux 6.18.
func sysctlNames(dir string) string {
	switch dir {
	case "net/ipv4/conf":
		return ipv4Sysctls
	case "net/ipv6/conf":
		return ipv6Sysctls
	case "net/ipv4/neigh", "net/ipv6/neigh":
		return neighSysctls
	}
	return ""
}

const ipv4Sysctls = `
	accept_local accept_redirects accept_source_route arp_accept arp_announce
	arp_evict_nocarrier arp_filter arp_ignore arp_notify bc_forwarding bootp_relay
	disable_policy disable_xfrm drop_gratuitous_arp drop_unicast_in_l2_multicast
	force_igmp_version forwarding igmpv2_unsolicited_report_interval
	igmpv3_unsolicited_report_interval ignore_routes_with_linkdown log_martians
	mc_forwarding medium_id promote_secondaries proxy_arp proxy_arp_pvlan route_localnet
	rp_filter secure_redirects send_redirects shared_media src_valid_mark tag`

const ipv6Sysctls = `
	accept_dad accept_ra accept_ra_defrtr accept_ra_from_local accept_ra_min_hop_limit
	accept_ra_min_lft accept_ra_mtu accept_ra_pinfo accept_ra_rt_info_max_plen
	accept_ra_rt_info_min_plen accept_ra_rtr_pref accept_redirects accept_source_route
	accept_untracked_na addr_gen_mode autoconf dad_transmits disable_ipv6 disable_policy
	drop_unicast_in_l2_multicast drop_unsolicited_na enhanced_dad force_forwarding
	force_mld_version force_tllao forwarding hop_limit ignore_routes_with_linkdown
	ioam6_enabled ioam6_id ioam6_id_wide keep_addr_on_down max_addresses max_desync_factor
	mc_forwarding mldv1_unsolicited_report_interval mldv2_unsolicited_report_interval mtu
	ndisc_evict_nocarrier ndisc_notify ndisc_tclass optimistic_dad proxy_ndp
	ra_defrtr_metric ra_honor_pio_life ra_honor_pio_pflag regen_max_retry regen_min_advance
	router_probe_interval router_solicitation_delay router_solicitation_interval
	router_solicitation_max_interval router_solicitations rpl_seg_enabled seg6_enabled
	seg6_require_hmac stable_secret suppress_frag_ndisc temp_prefered_lft temp_valid_lft
	use_oif_addrs_only use_optimistic use_tempaddr`

const neighSysctls = `
	anycast_delay app_solicit base_reachable_time base_reachable_time_ms
	delay_first_probe_time gc_stale_time interval_probe_time_ms locktime mcast_resolicit
	mcast_solicit proxy_delay proxy_qlen retrans_time retrans_time_ms ucast_solicit
	unres_qlen unres_qlen_bytes`

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
