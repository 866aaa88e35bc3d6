// Package config turns a FelixConfiguration manifest and the FELIX_ environment
// variables into one validated Config with defaults filled in.
//
// The manifest is the one that a Calico cluster holds: apiVersion
// projectcalico.org/v3, kind FelixConfiguration, and a spec with the fields of
// github.com/projectcalico/api plus a few for bandwidth limits in the same style
// (qosControls, qosKubernetesAnnotations, qosRefreshInterval, qosDefaultBurst,
// qosRemoveExternalShapers, prometheusWorkloadMetricsEnabled). Fields that are valid but of no use here load, and are
// named so that the caller can say so; fields that do not exist are errors, because
// a switch that is misspelt is a switch that was not thrown.
//
// Environment variables override the manifest, as in Felix. For each field there is
// FELIX_<FIELDNAME>, and where the API gives the field another name for this purpose
// (FELIX_NETLINKTIMEOUTSECS) that one too; what follows FELIX_ is not
// case-sensitive. Their values are plain text: numbers of seconds count as durations,
// 1, yes and true as true, and none as "explicitly empty".
//
// Every value is checked, all errors are reported together, and each names the field
// or variable, the value and what is allowed. Load reads once; Watch follows a file.
package config
