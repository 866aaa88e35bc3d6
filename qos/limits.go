package qos

// Limit is one direction's bandwidth limit, checked and complete.
type Limit struct {
	// RateBits is the sustained rate in bits per second, 1k to 1P.
	RateBits uint64
	// BurstBits is the bucket size in bits, 1k to 34359738360. A bucket smaller
	// than one frame of the interface's MTU would pass nothing and is raised to that.
	BurstBits uint64
	// PeakRateBits is the rate at which a burst may be sent, in bits per second;
	// above RateBits, 1.01k to 1.01P. Zero means not limited.
	PeakRateBits uint64
	// MinBurstBytes is the bucket size of the peak rate in bytes, 1k to 100M. Zero means
	// what passes at the peak rate in 1 ms, and one frame of the interface's MTU at
	// least; less than a frame is raised to that. Only with PeakRateBits.
	MinBurstBytes uint32
}

// Limits holds both directions as the workload sees them: ingress is to the
// workload, egress is from it. A nil direction is not limited.
type Limits struct {
	Ingress *Limit
	Egress  *Limit
}

// Equal reports whether both ask for the same.
func (l Limits) Equal(other Limits) bool {
	return equalLimit(l.Ingress, other.Ingress) && equalLimit(l.Egress, other.Egress)
}

func equalLimit(a, b *Limit) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// Controls are explicit bandwidth controls of a workload endpoint, named as
// Calico names them. Zero means not given. They override annotations.
type Controls struct {
	IngressBandwidth int64 `json:"ingressBandwidth,omitempty"` // bits per second
	IngressBurst     int64 `json:"ingressBurst,omitempty"`     // bits
	IngressPeakrate  int64 `json:"ingressPeakrate,omitempty"`  // bits per second
	IngressMinburst  int64 `json:"ingressMinburst,omitempty"`  // bytes
	EgressBandwidth  int64 `json:"egressBandwidth,omitempty"`  // bits per second
	EgressBurst      int64 `json:"egressBurst,omitempty"`      // bits
	EgressPeakrate   int64 `json:"egressPeakrate,omitempty"`   // bits per second
	EgressMinburst   int64 `json:"egressMinburst,omitempty"`   // bytes
}
