package config

import (
	"fmt"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manx-dataplane/manx/internal/quantity"
	"github.com/manx-dataplane/manx/internal/strictyaml"
)

// The API groups that serve FelixConfiguration: Calico's API server and calicoctl
// use the first, its custom resources the second.
const (
	apiVersion    = "projectcalico.org/v3"
	crdAPIVersion = "crd.projectcalico.org/v1"
	kind          = "FelixConfiguration"
)

// manifest is a FelixConfiguration as it stands in a file.
type manifest struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            spec              `json:"spec"`
}

// spec is the API's FelixConfigurationSpec with our additions. It is also what an
// environment variable sets a field of.
type spec struct {
	v3.FelixConfigurationSpec `json:",inline"`

	QoSControls              string           `json:"qosControls,omitempty"`
	QoSKubernetesAnnotations string           `json:"qosKubernetesAnnotations,omitempty"`
	QoSRefreshInterval       *metav1.Duration `json:"qosRefreshInterval,omitempty" configv1timescale:"seconds"`
	QoSDefaultBurst          *quantity.Int64  `json:"qosDefaultBurst,omitempty"`
	QoSRemoveExternalShapers string           `json:"qosRemoveExternalShapers,omitempty"`

	PrometheusWorkloadMetricsEnabled *bool `json:"prometheusWorkloadMetricsEnabled,omitempty"`
}

// parseManifest reads the manifest and returns its spec and the names of the spec's
// fields that it sets, in its order. An empty manifest sets none.
func parseManifest(data []byte) (*spec, []string, error) {
	chunks, err := strictyaml.Split(data, 1)
	if err != nil {
		return nil, nil, fmt.Errorf("%w; a configuration is one document", err)
	}
	if len(chunks) == 0 {
		return &spec{}, nil, nil
	}
	document, err := strictyaml.Parse(chunks[0])
	if err != nil {
		return nil, nil, err
	}
	// Whatever else it is, its fields' errors would only mislead.
	var header struct {
		metav1.TypeMeta `json:",inline"`
	}
	document.Decode(&header)
	if err := checkType(header.TypeMeta); err != nil {
		return nil, nil, err
	}
	var read manifest
	if errs := document.Decode(&read); len(errs) > 0 {
		return nil, nil, strictyaml.Join(errs)
	}
	return &read.Spec, document.Keys("spec"), nil
}

func checkType(meta metav1.TypeMeta) error {
	if meta.APIVersion != apiVersion && meta.APIVersion != crdAPIVersion {
		return strictyaml.NewFieldError("apiVersion", meta.APIVersion, "must be "+apiVersion+" or "+crdAPIVersion)
	}
	if meta.Kind != kind {
		return strictyaml.NewFieldError("kind", meta.Kind, "must be "+kind)
	}
	return nil
}

// isNone tells whether a text stands for "explicitly empty", as in Felix.
func isNone(text string) bool {
	return strings.EqualFold(text, "none")
}
