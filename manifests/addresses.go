package manifests

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/manx-dataplane/manx/dataplane"
)

// maxAddresses is how many entries each list of addresses of an endpoint may have.
const maxAddresses = 1000

// The widest prefixes that may be routed to a workload. Anything wider is closer to a
// default route than to a workload's address.
const (
	widestIPv4 = 8
	widestIPv6 = 32
)

// noWorkloads are the addresses that no workload can have (RFC 6890 and the kernel's
// own treatment): "this network", loopback, link-local, multicast and broadcast.
var noWorkloads = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("224.0.0.0/4"),
	netip.MustParsePrefix("255.255.255.255/32"),
	netip.MustParsePrefix("::/128"),
	netip.MustParsePrefix("::1/128"),
	netip.MustParsePrefix("::ffff:0:0/96"),
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("ff00::/8"),
}

// networks reads the prefixes that are routed to a workload.
func (c *checker) networks(values []string) []netip.Prefix {
	const path = "spec.ipNetworks"
	var networks []netip.Prefix
	for i, value := range bounded(c, path, values) {
		prefix, err := parsePrefix(value)
		if err == nil {
			err = checkWorkloadPrefix(prefix)
		}
		if err != nil {
			c.fail(fmt.Sprintf("%s[%d]", path, i), value, err.Error())
			continue
		}
		if !slices.Contains(networks, prefix) {
			networks = append(networks, prefix)
		}
	}
	return networks
}

// prefixList reads prefixes that are not routed: any will do.
func (c *checker) prefixList(path string, values []string) []netip.Prefix {
	var prefixes []netip.Prefix
	for i, value := range bounded(c, path, values) {
		prefix, err := parsePrefix(value)
		if err != nil {
			c.fail(fmt.Sprintf("%s[%d]", path, i), value, err.Error())
			continue
		}
		prefixes = append(prefixes, prefix)
	}
	return prefixes
}

// nats reads floating addresses. As in Calico, what is behind one is an address of
// the workload itself.
func (c *checker) nats(values []ipNAT, networks []netip.Prefix) []dataplane.NAT {
	const path = "spec.ipNATs"
	var nats []dataplane.NAT
	for i, value := range bounded(c, path, values) {
		before := len(c.errs)
		internal := c.floating(fmt.Sprintf("%s[%d].internalIP", path, i), value.InternalIP)
		external := c.floating(fmt.Sprintf("%s[%d].externalIP", path, i), value.ExternalIP)
		if len(c.errs) > before {
			continue
		}
		if internal.Is4() != external.Is4() {
			c.fail(fmt.Sprintf("%s[%d].externalIP", path, i), value.ExternalIP, "must be of the same IP version as internalIP")
			continue
		}
		if !slices.ContainsFunc(networks, func(network netip.Prefix) bool { return network.Contains(internal) }) {
			c.fail(fmt.Sprintf("%s[%d].internalIP", path, i), value.InternalIP, "must be in one of spec.ipNetworks")
			continue
		}
		nats = append(nats, dataplane.NAT{ExternalIP: external, InternalIP: internal})
	}
	return nats
}

func (c *checker) floating(path, value string) netip.Addr {
	address, err := netip.ParseAddr(value)
	if err != nil || address.Zone() != "" {
		c.fail(path, value, "must be an IP address")
		return netip.Addr{}
	}
	if err := checkWorkloadPrefix(netip.PrefixFrom(address, address.BitLen())); err != nil {
		c.fail(path, value, err.Error())
	}
	return address
}

// bounded returns the values, or none where there are too many.
func bounded[T any](c *checker, path string, values []T) []T {
	if len(values) > maxAddresses {
		c.fail(path, fmt.Sprintf("%d entries", len(values)), fmt.Sprintf("must have at most %d", maxAddresses))
		return nil
	}
	return values
}

// parsePrefix reads a prefix without host bits, or an address, which stands for the
// prefix that holds only it. The error says what is allowed.
func parsePrefix(value string) (netip.Prefix, error) {
	if address, err := netip.ParseAddr(value); err == nil && address.Zone() == "" {
		return netip.PrefixFrom(address, address.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(value)
	if err != nil {
		return netip.Prefix{}, errors.New("must be an IP address or a prefix such as 10.0.0.5/32")
	}
	if prefix != prefix.Masked() {
		return netip.Prefix{}, fmt.Errorf("must have no bits set beyond the prefix length: %v", prefix.Masked())
	}
	return prefix, nil
}

// checkWorkloadPrefix tells whether traffic for the prefix may be routed to a
// workload. The error says what is allowed.
func checkWorkloadPrefix(prefix netip.Prefix) error {
	widest := widestIPv6
	if prefix.Addr().Is4() {
		widest = widestIPv4
	}
	if prefix.Bits() < widest {
		return fmt.Errorf("must not be wider than /%d", widest)
	}
	for _, special := range noWorkloads {
		if prefix.Overlaps(special) {
			return fmt.Errorf("must not be in %v, which no workload can have", special)
		}
	}
	return nil
}
