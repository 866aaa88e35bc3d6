// Package strictyaml reads Kubernetes-style manifests, YAML or JSON, the way an
// operator wants them read: every field that is unknown, given twice or of the
// wrong type is an error of its own that names the field, the value and what is
// allowed, and all of them are reported together.
//
// It decodes from the tree of a document rather than through an intermediate JSON
// text, so that what could be read is still there when something else could not:
// a caller can tell whose document is broken.
//
// What hostile input can cost is bounded: documents are limited in size and number,
// aliases count each time they are used, and the errors of one document are cut
// off after the first few. There are no merge keys (<<) and no coercions: a string
// that looks like a number needs quotes, as it does in the Kubernetes API.
//
// Nothing here keeps state; all functions may be called from any goroutine.
package strictyaml
