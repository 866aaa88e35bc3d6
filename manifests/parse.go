package manifests

import (
	"fmt"
	"net"
	"reflect"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manx-dataplane/manx/dataplane"
	"github.com/manx-dataplane/manx/internal/quantity"
	"github.com/manx-dataplane/manx/internal/strictyaml"
	"github.com/manx-dataplane/manx/qos"
)

// MaxDocuments is how many documents a file may hold.
const MaxDocuments = 10_000

const (
	apiVersion = "projectcalico.org/v3"
	kind       = "WorkloadEndpoint"
)

// workloadEndpoint is a WorkloadEndpoint as it stands in a file.
type workloadEndpoint struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta    `json:"metadata"`
	Spec            workloadEndpointSpec `json:"spec"`
}

type workloadEndpointSpec struct {
	Orchestrator               string       `json:"orchestrator"`
	Workload                   string       `json:"workload"`
	Pod                        string       `json:"pod"`
	Endpoint                   string       `json:"endpoint"`
	InterfaceName              string       `json:"interfaceName"`
	State                      string       `json:"state"` // ours, as in Felix's protocol
	MAC                        string       `json:"mac"`
	IPNetworks                 []string     `json:"ipNetworks"`
	IPNATs                     []ipNAT      `json:"ipNATs"`
	AllowSpoofedSourcePrefixes []string     `json:"allowSpoofedSourcePrefixes"`
	QoSControls                *qosControls `json:"qosControls"`

	notUsed
}

// notUsed holds the fields that a WorkloadEndpoint has in Calico and that mean
// nothing here, the node's name among them: the directory is one node's.
type notUsed struct {
	Node               ignored `json:"node"`
	ContainerID        ignored `json:"containerID"`
	ServiceAccountName ignored `json:"serviceAccountName"`
	IPv4Gateway        ignored `json:"ipv4Gateway"`
	IPv6Gateway        ignored `json:"ipv6Gateway"`
	Profiles           ignored `json:"profiles"`
	Ports              ignored `json:"ports"`
}

type ipNAT struct {
	InternalIP string `json:"internalIP"`
	ExternalIP string `json:"externalIP"`
}

// qosControls are Calico's, with the values as quantities. Their ranges are for
// package qos to check.
type qosControls struct {
	IngressBandwidth quantity.Int64 `json:"ingressBandwidth"`
	IngressBurst     quantity.Int64 `json:"ingressBurst"`
	IngressPeakrate  quantity.Int64 `json:"ingressPeakrate"`
	IngressMinburst  quantity.Int64 `json:"ingressMinburst"`
	EgressBandwidth  quantity.Int64 `json:"egressBandwidth"`
	EgressBurst      quantity.Int64 `json:"egressBurst"`
	EgressPeakrate   quantity.Int64 `json:"egressPeakrate"`
	EgressMinburst   quantity.Int64 `json:"egressMinburst"`

	controlsNotUsed
}

// controlsNotUsed holds the controls of Calico's that do not limit bandwidth.
type controlsNotUsed struct {
	IngressPacketRate     ignored `json:"ingressPacketRate"`
	IngressPacketBurst    ignored `json:"ingressPacketBurst"`
	IngressMaxConnections ignored `json:"ingressMaxConnections"`
	EgressPacketRate      ignored `json:"egressPacketRate"`
	EgressPacketBurst     ignored `json:"egressPacketBurst"`
	EgressMaxConnections  ignored `json:"egressMaxConnections"`
	DSCP                  ignored `json:"dscp"`
}

// ignored takes any value.
type ignored struct{}

// UnmarshalJSON does nothing.
func (*ignored) UnmarshalJSON([]byte) error { return nil }

// document is what became of one document.
type document struct {
	number int // in its file, from 1
	line   int // where it starts in its file, from 1

	id       dataplane.WorkloadEndpointID
	known    bool                        // id is surely the endpoint's that the document is about
	endpoint *dataplane.WorkloadEndpoint // nil where err is not
	err      error
	unused   []string // controls that are set but not used
}

// parse reads the documents of a file. The error is about the file as a whole, and
// there are no documents then.
func parse(data []byte, interfacePrefixes []string) ([]document, error) {
	chunks, err := strictyaml.Split(data, MaxDocuments)
	if err != nil {
		return nil, err
	}
	documents := make([]document, 0, len(chunks))
	for _, chunk := range chunks {
		documents = append(documents, parseDocument(chunk, interfacePrefixes))
	}
	return documents, nil
}

func parseDocument(chunk strictyaml.Chunk, interfacePrefixes []string) document {
	d := document{number: chunk.Number, line: chunk.Line}
	tree, err := strictyaml.Parse(chunk)
	if err != nil {
		d.err = err
		return d
	}
	var header struct {
		metav1.TypeMeta `json:",inline"`
	}
	tree.Decode(&header) // of another kind's other fields nothing is known
	if err := checkType(header.TypeMeta); err != nil {
		d.err = err
		return d
	}
	var read workloadEndpoint
	errs := tree.Decode(&read)
	c := &checker{errs: errs, prefixes: interfacePrefixes}
	d.id = c.identity(&read)
	d.known = !slices.ContainsFunc(c.errs, obscuresIdentity)
	endpoint := c.endpoint(&read)
	if d.err = strictyaml.Join(c.errs); d.err != nil {
		return d
	}
	d.endpoint = endpoint
	d.unused = unusedControls(tree.Keys("spec", "qosControls"))
	return d
}

func checkType(meta metav1.TypeMeta) error {
	if meta.APIVersion != apiVersion {
		return strictyaml.NewFieldError("apiVersion", meta.APIVersion, "must be "+apiVersion)
	}
	if meta.Kind != kind {
		return strictyaml.NewFieldError("kind", meta.Kind, "must be "+kind)
	}
	return nil
}

// identityPaths are the fields without which nobody can tell whose a document is.
var identityPaths = []string{
	"document", "metadata", "metadata.namespace",
	"spec", "spec.orchestrator", "spec.workload", "spec.pod", "spec.endpoint",
}

// obscuresIdentity tells whether a document with this error may be about another
// endpoint than it seems to be. An unknown field may be one of the identity's,
// misspelt.
func obscuresIdentity(err *strictyaml.FieldError) bool {
	if err.Unknown {
		parent := err.Path[:max(0, strings.LastIndexByte(err.Path, '.'))]
		return parent == "" || slices.Contains(identityPaths, parent)
	}
	return slices.Contains(identityPaths, err.Path)
}

// unusedControls returns those of the keys that qosControls accepts but does not use.
func unusedControls(keys []string) []string {
	fields := strictyaml.FieldsOf(reflect.TypeFor[controlsNotUsed]())
	return slices.DeleteFunc(keys, func(key string) bool {
		_, found := fields[key]
		return !found
	})
}

// checker turns what was read into what is sent, and collects the errors.
type checker struct {
	errs     []*strictyaml.FieldError
	prefixes []string
}

func (c *checker) fail(path, value, problem string) {
	c.errs = append(c.errs, strictyaml.NewFieldError(path, value, problem))
}

// Names of orchestrators, namespaces, pods, workloads and endpoints become parts of
// file names and log lines.
var name = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,253}$`)

const nameRule = "must be 1 to 253 letters, digits, dots, dashes or underscores, and not . or .."

func isName(text string) bool {
	return name.MatchString(text) && text != "." && text != ".."
}

// identity returns whose the document is: as in Felix, the workload of orchestrator
// k8s is the pod with its namespace.
func (c *checker) identity(read *workloadEndpoint) dataplane.WorkloadEndpointID {
	id := dataplane.WorkloadEndpointID{
		Orchestrator: c.name("spec.orchestrator", orDefault(read.Spec.Orchestrator, "k8s")),
		Endpoint:     c.name("spec.endpoint", orDefault(read.Spec.Endpoint, "eth0")),
	}
	namespace := c.name("metadata.namespace", orDefault(read.Metadata.Namespace, "default"))
	switch pod, workload := read.Spec.Pod, read.Spec.Workload; {
	case pod != "" && workload != "":
		c.fail("spec.workload", workload, "must not be given beside spec.pod")
	case pod != "" && id.Orchestrator != "k8s":
		c.fail("spec.pod", pod, "is for orchestrator k8s; others have spec.workload")
	case pod != "":
		id.Workload = namespace + "/" + c.name("spec.pod", pod)
	case workload != "":
		// One slash, as between namespace and name, is usual.
		first, second, found := strings.Cut(workload, "/")
		if !isName(first) || found && !isName(second) {
			c.fail("spec.workload", workload, nameRule+"; or two such names with a slash between them")
		}
		id.Workload = workload
	default:
		c.fail("spec.pod", "", "must be given, or spec.workload")
	}
	return id
}

func (c *checker) name(path, value string) string {
	if !isName(value) {
		c.fail(path, value, nameRule)
	}
	return value
}

func orDefault(value, fallback string) string {
	if value == "" {
		return fallback
	}
	return value
}

func (c *checker) endpoint(read *workloadEndpoint) *dataplane.WorkloadEndpoint {
	endpoint := &dataplane.WorkloadEndpoint{
		State:                      c.state(read.Spec.State),
		InterfaceName:              c.interfaceName(read.Spec.InterfaceName),
		MAC:                        c.mac(read.Spec.MAC),
		AllowSpoofedSourcePrefixes: c.prefixList("spec.allowSpoofedSourcePrefixes", read.Spec.AllowSpoofedSourcePrefixes),
		Annotations:                read.Metadata.Annotations,
		QoSControls:                read.Spec.QoSControls.controls(),
	}
	for _, prefix := range c.networks(read.Spec.IPNetworks) {
		if prefix.Addr().Is4() {
			endpoint.IPv4Nets = append(endpoint.IPv4Nets, prefix)
		} else {
			endpoint.IPv6Nets = append(endpoint.IPv6Nets, prefix)
		}
	}
	for _, nat := range c.nats(read.Spec.IPNATs, slices.Concat(endpoint.IPv4Nets, endpoint.IPv6Nets)) {
		if nat.ExternalIP.Is4() {
			endpoint.IPv4NAT = append(endpoint.IPv4NAT, nat)
		} else {
			endpoint.IPv6NAT = append(endpoint.IPv6NAT, nat)
		}
	}
	return endpoint
}

func (c *checker) state(value string) dataplane.EndpointState {
	switch state := dataplane.EndpointState(value); state {
	case "":
		return dataplane.EndpointActive
	case dataplane.EndpointActive, dataplane.EndpointInactive:
		return state
	}
	c.fail("spec.state", value, fmt.Sprintf("must be %s or %s", dataplane.EndpointActive, dataplane.EndpointInactive))
	return ""
}

// interfaceName checks a name by the kernel's rule (dev_valid_name), without what is
// not printable, and by the prefixes that set workload interfaces apart from the
// node's own.
func (c *checker) interfaceName(value string) string {
	const longest = 15 // IFNAMSIZ without the terminating zero
	switch {
	case value == "" || len(value) > longest || value == "." || value == ".." ||
		strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' || r == '/' || r == ':' }):
		c.fail("spec.interfaceName", value, fmt.Sprintf("must be 1 to %d printable ASCII characters without slash, colon or space", longest))
	case !hasPrefix(value, c.prefixes):
		c.fail("spec.interfaceName", value, "must begin with a workload interface prefix: "+strings.Join(c.prefixes, ", "))
	}
	return value
}

func hasPrefix(interfaceName string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(interfaceName, prefix) })
}

func (c *checker) mac(value string) net.HardwareAddr {
	if value == "" {
		return nil
	}
	mac, err := net.ParseMAC(value)
	// The lowest bit of the first byte makes an address a group's.
	if err != nil || len(mac) != 6 || mac[0]&1 != 0 || mac.String() == "00:00:00:00:00:00" {
		c.fail("spec.mac", value, "must be a unicast MAC address of six bytes, such as 0a:58:0a:00:00:05")
		return nil
	}
	return mac
}

// controls returns what package qos knows of them; nil if none of that is given.
func (q *qosControls) controls() *qos.Controls {
	if q == nil {
		return nil
	}
	controls := qos.Controls{
		IngressBandwidth: int64(q.IngressBandwidth),
		IngressBurst:     int64(q.IngressBurst),
		IngressPeakrate:  int64(q.IngressPeakrate),
		IngressMinburst:  int64(q.IngressMinburst),
		EgressBandwidth:  int64(q.EgressBandwidth),
		EgressBurst:      int64(q.EgressBurst),
		EgressPeakrate:   int64(q.EgressPeakrate),
		EgressMinburst:   int64(q.EgressMinburst),
	}
	if controls == (qos.Controls{}) {
		return nil
	}
	return &controls
}
