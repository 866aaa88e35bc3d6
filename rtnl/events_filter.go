package rtnl

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Offsets into a route message: struct nlmsghdr is followed by struct rtmsg.
const (
	offsetMessageType = 4
	offsetRouteTable  = unix.SizeofNlMsghdr + 4
	offsetRouteType   = unix.SizeofNlMsghdr + 7
)

// attachFilter makes the kernel drop, before they take room in the receive
// buffer, messages of routes that are not of type local in the local table: a
// BGP full table cannot overflow the socket.
//
// The kernel runs the filter on a dump's datagrams too and looks at the first
// message only, which is right because in strict mode such a dump holds nothing
// but local routes.
func attachFilter(fd int) error {
	const accept, drop = 6, 7 // how far the last instructions are from the second
	program, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetMessageType, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: loaded(unix.RTM_NEWROUTE), SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: loaded(unix.RTM_DELROUTE), SkipTrue: accept - 2},
		bpf.LoadAbsolute{Off: offsetRouteTable, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.RT_TABLE_LOCAL, SkipTrue: drop - 4},
		bpf.LoadAbsolute{Off: offsetRouteType, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.RTN_LOCAL, SkipTrue: drop - 6},
		bpf.RetConstant{Val: datagramSize},
		bpf.RetConstant{Val: 0},
	})
	if err != nil {
		return fmt.Errorf("assemble: %w", err)
	}
	filter := make([]unix.SockFilter, len(program))
	for i, instruction := range program {
		filter[i] = unix.SockFilter{Code: instruction.Op, Jt: instruction.Jt, Jf: instruction.Jf, K: instruction.K}
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}

// loaded returns what a two-byte BPF load makes of a value that was stored in
// host byte order: BPF loads are big-endian.
func loaded(value uint16) uint32 {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], value)
	return uint32(binary.BigEndian.Uint16(b[:]))
}
