package routetable

import (
	"net/netip"
	"slices"
)

// owner is who wants a route: SetRoutes replaces all routes of one owner.
type owner struct {
	class RouteClass
	iface string
}

// candidate is one owner's target for a key.
type candidate struct {
	owner  owner
	target Target
}

// tosPriority is the part of a key that is not the destination.
type tosPriority struct {
	tos      uint8
	priority uint32
}

// desired holds the wanted routes.
type desired struct {
	family     family
	candidates map[routeKey][]candidate
	// owners holds the keys of each owner, by interface first.
	owners map[string]map[RouteClass]map[routeKey]struct{}
	// multiPath counts the multi-path candidates of a key: what becomes of those
	// depends on several interfaces.
	multiPath map[routeKey]int
	// variants counts the keys by what is not their destination. There are few, so
	// that looking for every route to a destination is cheap.
	variants map[tosPriority]int
	// changed is told of every key whose candidates are others now.
	changed func(routeKey)
}

func newDesired(family family, changed func(routeKey)) *desired {
	return &desired{
		family:     family,
		candidates: map[routeKey][]candidate{},
		owners:     map[string]map[RouteClass]map[routeKey]struct{}{},
		multiPath:  map[routeKey]int{},
		variants:   map[tosPriority]int{},
		changed:    changed,
	}
}

// replace makes targets the owner's only ones.
func (d *desired) replace(o owner, targets []Target) {
	keep := make(map[routeKey]struct{}, len(targets))
	for _, target := range targets {
		keep[d.update(o, target)] = struct{}{}
	}
	for key := range d.owners[o.iface][o.class] {
		if _, ok := keep[key]; !ok {
			d.remove(o, key)
		}
	}
}

// update sets one target and returns its key.
func (d *desired) update(o owner, target Target) routeKey {
	target.CIDR = target.CIDR.Masked()
	target.MultiPath = slices.Clone(target.MultiPath)
	target.DestMAC = slices.Clone(target.DestMAC)
	key := d.family.keyOf(&target)
	list := d.candidates[key]
	i := slices.IndexFunc(list, func(c candidate) bool { return c.owner == o })
	if i >= 0 {
		if sameTarget(&list[i].target, &target) {
			return key
		}
		d.countMultiPath(key, &list[i].target, -1)
		list[i].target = target
	} else {
		d.candidates[key] = append(list, candidate{o, target})
		d.variants[key.variant()]++
		d.addOwned(o, key)
	}
	d.countMultiPath(key, &target, 1)
	d.changed(key)
	return key
}

// removeCIDR removes every target of the owner to the destination.
func (d *desired) removeCIDR(o owner, cidr netip.Prefix) {
	for variant := range d.variants {
		d.remove(o, routeKey{cidr: cidr.Masked(), tos: variant.tos, priority: variant.priority})
	}
}

func (d *desired) remove(o owner, key routeKey) {
	list := d.candidates[key]
	i := slices.IndexFunc(list, func(c candidate) bool { return c.owner == o })
	if i < 0 {
		return
	}
	d.countMultiPath(key, &list[i].target, -1)
	if list = slices.Delete(list, i, i+1); len(list) == 0 {
		delete(d.candidates, key)
	} else {
		d.candidates[key] = list
	}
	decrement(d.variants, key.variant())
	d.removeOwned(o, key)
	d.changed(key)
}

func (d *desired) addOwned(o owner, key routeKey) {
	classes := d.owners[o.iface]
	if classes == nil {
		classes = map[RouteClass]map[routeKey]struct{}{}
		d.owners[o.iface] = classes
	}
	if classes[o.class] == nil {
		classes[o.class] = map[routeKey]struct{}{}
	}
	classes[o.class][key] = struct{}{}
}

func (d *desired) removeOwned(o owner, key routeKey) {
	classes := d.owners[o.iface]
	delete(classes[o.class], key)
	if len(classes[o.class]) == 0 {
		delete(classes, o.class)
	}
	if len(classes) == 0 {
		delete(d.owners, o.iface)
	}
}

func (d *desired) countMultiPath(key routeKey, target *Target, n int) {
	switch {
	case len(target.MultiPath) == 0:
	case n > 0:
		d.multiPath[key]++
	default:
		decrement(d.multiPath, key)
	}
}

func decrement[K comparable](counts map[K]int, key K) {
	if counts[key]--; counts[key] <= 0 {
		delete(counts, key)
	}
}

// ifaceChanged reports as changed what depends on an interface.
func (d *desired) ifaceChanged(name string) {
	for _, keys := range d.owners[name] {
		for key := range keys {
			d.changed(key)
		}
	}
	for key := range d.multiPath {
		d.changed(key)
	}
}

// has reports whether anyone wants a route with that key.
func (d *desired) has(key routeKey) bool { return len(d.candidates[key]) > 0 }

// claimed reports whether anyone wants a route on that interface.
func (d *desired) claimed(name string) bool { return len(d.owners[name]) > 0 }

// winner returns the key's candidate that should be in the kernel, and the index
// of its interface (zero where it needs none or several): the best class, then
// the newest interface.
func (d *desired) winner(key routeKey, ifaces *interfaces) (best *Target, index int) {
	var bestClass RouteClass
	list := d.candidates[key]
	for i := range list {
		c := &list[i]
		candidateIndex, usable := c.usable(ifaces)
		if !usable {
			continue
		}
		if best == nil || c.owner.class < bestClass || c.owner.class == bestClass && candidateIndex > index {
			best, bestClass, index = &c.target, c.owner.class, candidateIndex
		}
	}
	return best, index
}

// usable reports whether the interface that the candidate needs is up, and its
// index.
func (c *candidate) usable(ifaces *interfaces) (index int, ok bool) {
	switch {
	case len(c.target.MultiPath) > 0:
		return 0, slices.ContainsFunc(c.target.MultiPath, func(hop NextHop) bool {
			_, up := ifaces.upIndex(hop.IfaceName)
			return up
		})
	case c.owner.iface == InterfaceNone:
		return 0, true
	}
	return ifaces.upIndex(c.owner.iface)
}

func sameTarget(a, b *Target) bool {
	return a.Type == b.Type && a.CIDR == b.CIDR && a.TOS == b.TOS && a.GW == b.GW && a.Src == b.Src &&
		slices.Equal(a.DestMAC, b.DestMAC) && a.Protocol == b.Protocol && a.Priority == b.Priority &&
		a.MTU == b.MTU && slices.Equal(a.MultiPath, b.MultiPath)
}
