// Package qos makes the kernel shape workload traffic as desired, and leaves
// nothing behind.
//
// Ingress (to the workload) is a TBF as the root qdisc of the host-side veth.
// Egress (from it) is a TBF on an IFB device, to which a u32 match-all filter
// with a mirred redirect on the veth's ingress or clsact qdisc sends what the
// workload sends:
//
//	pod ── veth ─ ingress qdisc ─ u32 ─ mirred redirect ─▶ IFB "bwcali…" ─ TBF ─▶ host
//	pod ◀─ veth ─ TBF ◀── host
//
// Packets that have to wait for tokens do so in a bfifo below the TBF, for 25 ms at
// most, or as long as one GSO packet takes.
//
// [Syncer] holds the desired [Limits] of each interface that an endpoint claims
// and makes the kernel agree in [Syncer.Apply]. What exists is read in bulk
// ([Observe]), then kept up to date by the Syncer's own writes and by interface
// events. Devices are deleted by a [Reaper], off the caller's goroutine. When a
// device is deleted is decided in one place: sweep.go.
//
// # Whose is it?
//
// Ownership is read from the kernel, so that it survives a restart. Ours are
//
//   - devices of kind ifb whose name starts with [IFBPrefix];
//   - filters that redirect to such a device, and filters that carry our mark, the
//     class ID ca11:1, which tells them when their device is gone;
//   - TBFs with handle major ca11, and what is below them;
//   - an ingress qdisc, never a clsact qdisc, which our filter was the last to
//     leave, or which is empty while its interface's IFB exists: the IFB is made
//     before the ingress qdisc and deleted after it, and so is its witness. A Syncer
//     that found an ingress qdisc of someone else's remembers and leaves it.
//
// All else is other programs' and is left as it is, with one exception: where we
// have an ingress limit to set, a root TBF of any handle is changed in place,
// which loses no packet, and any other root qdisc is replaced. A TBF that was
// changed in place keeps its handle and its queue, whose length its limit is then.
// When our limit goes it gets its former parameters back, or is removed where
// Config.RemoveExternal says that we alone shape. (The kernel gives the limit, with
// any change of it, to a fifo that somebody has put below the TBF.)
//
// Where the CNI bandwidth plugin redirects a veth's traffic to its own IFB
// ("bwp…") and we have an egress limit to set, our filter goes in front of the
// plugin's, into the same priority's hash table; the plugin's filter stays and
// has effect again once ours is gone. Otherwise our filter comes after all
// others', at priority ca11 (51729), so that a monitor's filters still see the
// packets. A filter that ends classification (TC_ACT_OK) before ours hides
// packets from the limit; there is no way to have both.
package qos
