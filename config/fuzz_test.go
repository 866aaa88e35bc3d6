package config

import (
	"strings"
	"testing"
)

func FuzzParseConfig(f *testing.F) {
	for _, seed := range []string{
		"", header, header + "spec: {qosControls: Disabled}", header + "spec: {qosDefaultBurst: 1e-2147483647}",
		header + "spec: {interfaceExclude: \"/^a/,b\", netlinkTimeout: 10s, healthPort: 0}",
		`{"apiVersion":"projectcalico.org/v3","kind":"FelixConfiguration","spec":{"kubeNodePortRanges":["1:2",3]}}`,
		"a: &a [*a]", "---\n...\n---", "%YAML 1.2\n---\n" + header, header + "spec: &s {x: *s}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		loaded, _, err := Load(data, nil)
		checkInvariants(t, loaded, err)
		if err != nil && len(err.Error()) > 10_000 {
			t.Fatalf("error of %d bytes", len(err.Error()))
		}
	})
}

func FuzzEnvironment(f *testing.F) {
	for _, seed := range []string{
		"FELIX_INTERFACEPREFIX=cali\x00FELIX_QOSCONTROLS=Disabled", "FELIX_NETLINKTIMEOUTSECS=1e9", "felix_=x", "FELIX_QOSDEFAULTBURST=1e-9999",
		"FELIX_INTERFACEEXCLUDE=/(/,x", "=", "FELIX_HEALTHPORT=0x10", "FELIX_BPFLOGFILTERS=x", "FELIX_LOGSEVERITYSCREEN=none",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, environment string) {
		loaded, _, err := Load(nil, strings.Split(environment, "\x00"))
		checkInvariants(t, loaded, err)
	})
}
