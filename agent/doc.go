// Package agent wires the library's packages into a node agent: configuration
// and manifests in, kernel state and status files out. It is what "manx run"
// runs.
//
// It holds no dataplane logic. A driver of one's own does not need this package,
// but may read pipeline.go to see what is plugged into what.
package agent
