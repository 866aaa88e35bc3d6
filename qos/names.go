package qos

import (
	"crypto/sha512"
	"encoding/hex"
	"strings"
)

// IFBPrefix starts the name of every IFB device that is ours.
const IFBPrefix = "bwcali"

// pluginIFBPrefix starts the names of the IFB devices of the CNI bandwidth
// plugin.
const pluginIFBPrefix = "bwp"

// IFBName returns the name of the IFB device that shapes the egress of the
// workload behind the host-side veth of that name. Felix uses the same name, so
// its devices are taken over.
func IFBName(veth string) string {
	sum := sha512.Sum512([]byte(veth))
	const digits = 9 // with the prefix: IFNAMSIZ-1
	return IFBPrefix + hex.EncodeToString(sum[:5])[:digits]
}

func isIFBName(name string) bool { return strings.HasPrefix(name, IFBPrefix) }

func isPluginIFBName(name string) bool { return strings.HasPrefix(name, pluginIFBPrefix) }
