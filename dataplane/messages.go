package dataplane

import (
	"cmp"
	"net"
	"net/netip"
	"strings"

	"github.com/manx-dataplane/manx/config"
	"github.com/manx-dataplane/manx/ifacemonitor"
	"github.com/manx-dataplane/manx/qos"
)

// WorkloadEndpointID names a workload endpoint on this node, with the parts that
// Felix's WorkloadEndpointID has.
type WorkloadEndpointID struct {
	Orchestrator string // such as "k8s"
	Workload     string // such as "default/nginx"
	Endpoint     string // such as "eth0"
}

// String returns the parts separated by spaces.
func (id WorkloadEndpointID) String() string {
	return id.Orchestrator + " " + id.Workload + " " + id.Endpoint
}

// Compare orders IDs by Orchestrator, then Workload, then Endpoint. Where two
// endpoints claim one interface, the lower ID wins.
func (id WorkloadEndpointID) Compare(other WorkloadEndpointID) int {
	return cmp.Or(
		strings.Compare(id.Orchestrator, other.Orchestrator),
		strings.Compare(id.Workload, other.Workload),
		strings.Compare(id.Endpoint, other.Endpoint),
	)
}

// EndpointState is the administrative state of a workload endpoint.
type EndpointState string

// The administrative states.
const (
	EndpointActive   EndpointState = "active"
	EndpointInactive EndpointState = "inactive"
)

// NAT is a floating address: traffic to ExternalIP reaches InternalIP.
type NAT struct {
	ExternalIP netip.Addr
	InternalIP netip.Addr
}

// WorkloadEndpoint is the desired state of one workload endpoint. It is a value:
// nobody may change it or what it refers to after it was sent.
type WorkloadEndpoint struct {
	// State is EndpointActive or EndpointInactive (admin down: no routes, no limits,
	// status down).
	State EndpointState
	// InterfaceName is the host-side veth's.
	InterfaceName string
	// MAC is the workload's own, for static ARP; nil where not known.
	MAC net.HardwareAddr
	// IPv4Nets and IPv6Nets are the workload's addresses; usually /32 and /128.
	IPv4Nets []netip.Prefix
	IPv6Nets []netip.Prefix
	// IPv4NAT and IPv6NAT are floating addresses.
	IPv4NAT []NAT
	IPv6NAT []NAT
	// AllowSpoofedSourcePrefixes are source prefixes the workload may send from
	// besides its own addresses.
	AllowSpoofedSourcePrefixes []netip.Prefix
	// Annotations are the pod's; bandwidth annotations among them are honoured.
	Annotations map[string]string
	// QoSControls override the annotations; nil where there are none.
	QoSControls *qos.Controls
}

// WorkloadEndpointUpdate says that an endpoint exists and looks like this.
type WorkloadEndpointUpdate struct {
	ID       WorkloadEndpointID
	Endpoint *WorkloadEndpoint
}

// WorkloadEndpointRemove says that an endpoint no longer exists.
type WorkloadEndpointRemove struct {
	ID WorkloadEndpointID
}

// InSync says that everything that the datastore held at the start was sent.
type InSync struct{}

// IfacesInSync is the interface monitor's in-sync callback as a message: every
// interface that existed at the start has been reported.
type IfacesInSync struct{}

// IfaceEventsLost is the interface monitor's lost callback as a message: what the
// kernel removed along with an interface may have gone unnoticed, and is read anew.
type IfaceEventsLost struct{}

// IfaceStateUpdate is the interface monitor's state callback as a message.
type IfaceStateUpdate struct {
	Name  string
	State ifacemonitor.State
	Index int
}

// IfaceAddrsUpdate is the interface monitor's address callback as a message. Nil
// Addrs: the interface is not present.
type IfaceAddrsUpdate struct {
	Name  string
	Addrs []netip.Addr
}

// IfaceMTUUpdate is the interface monitor's MTU callback as a message.
type IfaceMTUUpdate struct {
	Name  string
	Index int
	MTU   int // bytes
}

// ConfigUpdate says that the configuration changed, in fields that take effect
// on a running driver.
type ConfigUpdate struct {
	Config *config.Config
}
