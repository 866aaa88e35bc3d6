package endpointmgr_test

import (
	"github.com/manx-dataplane/manx/endpointmgr"
	"github.com/manx-dataplane/manx/mocks"
	"github.com/manx-dataplane/manx/qos"
	"github.com/manx-dataplane/manx/routetable"
)

// What the manager is made for satisfies what it asks for.
var (
	_ endpointmgr.RouteTable    = (*routetable.RouteTable)(nil)
	_ endpointmgr.PendingTeller = (*routetable.RouteTable)(nil)
	_ endpointmgr.QoS           = (*qos.Syncer)(nil)
	_ endpointmgr.PendingTeller = (*qos.Syncer)(nil)
	_ endpointmgr.Sysctls       = (*mocks.Sysctls)(nil)
	_ endpointmgr.Sysctls       = endpointmgr.ProcSys{}
)
