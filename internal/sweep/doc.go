// Package sweep finds and deletes IFB devices that no workload uses, without
// knowing which workloads there should be: the logic of "manx sweep", made to run
// beside an agent that leaks.
//
// An orphan is an IFB device of the right prefix that
//
//   - no redirect filter on any existing interface targets, and
//   - whose name is not the name of any existing interface's IFB,
//
// in two looks some time apart, by the same ifindex.
//
// # Why it never deletes a device that the other agent is about to use
//
// Such an agent works for an interface that exists: it looks the device up by its
// name, or makes it, and then redirects to it. So long as the interface exists the
// device's name protects it. What is left is an interface that appears between the
// last look and the deletion, under a name that had a leftover: the agent may have
// found the leftover, and adopt it, while it is being deleted.
//
// Therefore a device is first set aside: renamed, so that nobody can find it any
// more. Then comes one more look. If the agent had found the device before, the
// interface that it works for exists, and this look sees it: the device gets its
// name back. If not, it cannot find it any more, and makes a new one. The name of a
// device that is set aside starts with the same prefix and belongs to no interface,
// so that a sweep that is killed in between leaves nothing that the next one, or
// package qos, would not delete.
package sweep
