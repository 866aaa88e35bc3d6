// Package fv is manx's functional verification: the real binary, in containers and
// in plain network namespaces, on the real kernel, judged from outside.
//
// It holds tests only. They drive the binary as a CNI plugin, a datastore and an
// operator do, by veths, manifests and signals, and look at what the kernel says
// and what arrives at the other end. The harness is package infra; crashmanx is the
// same agent, except that it SIGKILLs itself before a chosen kernel write.
package fv
