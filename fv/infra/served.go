package infra

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
)

// podSysctls are what the agent sets for a pod's veth.
var podSysctls = map[string]string{
	"net/ipv4/conf/%s/rp_filter":      "1",
	"net/ipv4/conf/%s/proxy_arp":      "1",
	"net/ipv4/neigh/%s/proxy_delay":   "0",
	"net/ipv4/conf/%s/forwarding":     "1",
	"net/ipv6/conf/%s/accept_ra":      "0",
	"net/ipv6/conf/%s/proxy_ndp":      "1",
	"net/ipv6/conf/%s/forwarding":     "1",
	"net/ipv4/conf/%s/route_localnet": "0",
}

// CheckServed returns nil where all is as it must be for a pod that runs and is
// published: limits, routes, sysctls and the status file.
func (n *Node) CheckServed(pod *Pod, limits Limits) error {
	errs := []error{n.CheckLimits(pod, limits), n.CheckRoutes(pod), pod.checkStatusFile()}
	for format, want := range podSysctls {
		key := fmt.Sprintf(format, pod.Veth)
		got, err := n.ReadSysctl(key)
		if err == nil && strings.TrimSpace(got) != want {
			err = fmt.Errorf("%s is %s, not %s", key, strings.TrimSpace(got), want)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (p *Pod) checkStatusFile() error {
	data, err := os.ReadFile(p.StatusFile())
	if err != nil {
		return err
	}
	var got map[string]any
	if err := json.Unmarshal(data, &got); err != nil {
		return fmt.Errorf("%s: %w", p.StatusFile(), err)
	}
	want := map[string]any{
		"ifaceName": p.Veth,
		"mac":       p.MAC.String(),
		"ipv4Nets":  []any{p.IPv4.String() + "/32"},
		"ipv6Nets":  []any{p.IPv6.String() + "/128"},
	}
	if !reflect.DeepEqual(got, want) {
		return fmt.Errorf("%s holds %s, not %v", p.StatusFile(), data, want)
	}
	return nil
}

// StatusFiles returns the names of all status files.
func (n *Node) StatusFiles() ([]string, error) {
	return filepath.Glob(filepath.Join(n.StatusDir, "endpoint-status", "*"))
}

// CheckAll returns nil where the agent's IFBs, routes and status files are those
// of these pods and no others, and each is served with its limits.
func (n *Node) CheckAll(pods map[*Pod]Limits) error {
	var running, shaped []*Pod
	for pod, limits := range pods {
		running = append(running, pod)
		if limits.Egress != nil {
			shaped = append(shaped, pod)
		}
	}
	if err := errors.Join(n.CheckIFBs(shaped...), n.CheckOurRoutes(running...)); err != nil {
		return err
	}
	files, err := n.StatusFiles()
	if err == nil && len(files) != len(running) {
		err = fmt.Errorf("%d status files, want %d", len(files), len(running))
	}
	if err != nil {
		return err
	}
	for pod, limits := range pods {
		if err := n.CheckServed(pod, limits); err != nil {
			return fmt.Errorf("%s: %w", pod, err)
		}
	}
	return nil
}
