package demo

import (
	"slices"
	"testing"
)

func TestTheCallersEnvironmentDoesNotConfigureTheAgent(t *testing.T) {
	got := withoutFelix([]string{"PATH=/bin", "FELIX_QOSCONTROLS=Disabled", "felix_endpointstatuspathprefix=/var/run/calico", "FELIXIR=1"})
	if want := []string{"PATH=/bin", "FELIXIR=1"}; !slices.Equal(got, want) {
		t.Errorf("environment %q, want %q", got, want)
	}
}
