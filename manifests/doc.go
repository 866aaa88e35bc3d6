// Package manifests is the datastore of the reference agent: a directory of
// calicoctl-style WorkloadEndpoint manifests, read, checked, watched and turned into
// the messages of package dataplane.
//
// Files end in .yaml, .yml or .json, hold one or more documents each, and are taken in
// the order of their names; names that begin with a dot are left alone (editors and
// ConfigMap mounts keep their own things there). The endpoint that a document describes
// is known by orchestrator, workload and endpoint: for a pod, k8s, <namespace>/<pod>
// and eth0.
//
// # Bad input never takes good state away
//
//   - The good documents of a file apply, whatever is wrong with others.
//   - A bad document that still says whose it is leaves that endpoint as the file last
//     had it right.
//   - While a file holds a document that does not say whose it is (a syntax error, an
//     unknown kind, a field of the identity that is misspelt), or cannot be read, or is
//     empty (it is about to be written), nothing that it held goes away.
//   - An endpoint goes when its document is gone from a file that is readable, or when
//     the file is gone. If the directory is gone or unreadable, everything stays.
//   - If several documents describe one endpoint, the first file in order of names has
//     it, and in one file the first document; when that goes the next takes over.
//
// Every such fault is logged once, when it appears, with file, document, field, value
// and what is allowed, and once when it is gone.
//
// # What a manifest can make the agent do is bounded
//
// Interface names must carry a workload prefix. Addresses that no workload can have
// (loopback, link-local, multicast, unspecified) and prefixes as wide as a default route
// are refused, names cannot lead out of a directory, and size and number of files'
// contents are limited (MaxFileBytes, MaxDocuments, MaxEndpoints).
package manifests
