package config_test

import (
	"fmt"

	"github.com/manx-dataplane/manx/config"
)

// A manifest, overridden by the environment.
func ExampleLoad() {
	manifest := []byte(`
apiVersion: projectcalico.org/v3
kind: FelixConfiguration
metadata: {name: default}
spec:
  qosRefreshInterval: 30s
  qosKubernetesAnnotations: Disabled
  bpfEnabled: false
`)
	c, unused, err := config.Load(manifest, []string{"FELIX_QOSREFRESHINTERVAL=60"})
	fmt.Println(c.QoSControls, c.QoSKubernetesAnnotations, c.QoSRefreshInterval, unused, err)

	_, _, err = config.Load(manifest, []string{"FELIX_DEVICEROUTEPROTOCOL=2"})
	fmt.Println(err)
	// Output:
	// true false 1m0s [bpfEnabled] <nil>
	// FELIX_DEVICEROUTEPROTOCOL: "2": must be from 3 to 255; 0 to 2 are the kernel's own
}
