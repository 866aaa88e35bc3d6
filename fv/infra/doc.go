// Package infra is the harness of manx's functional verification: nodes, pods,
// agents, readers of kernel state, traffic and bystanders, on a real kernel.
//
// A [Node] is a network namespace in which the real, static binary runs. There
// are two kinds: a container around the binary (image FROM scratch, a pause
// process that holds the namespace, each agent a container that joins it), and a
// plain namespace in which the same binary is a child process. Tests see no
// difference. A [Pod] is a namespace of its own, joined to its node by a veth.
//
// Functions fail the running Ginkgo spec instead of returning errors, and register
// what they make for clean-up at its end. What a killed test process leaves behind
// is swept by the next [NewSuite].
//
// Everything here judges from outside, by what the kernel says and what arrives,
// and shares no code with the packages that it judges, apart from rtnl's
// transport.
package infra
