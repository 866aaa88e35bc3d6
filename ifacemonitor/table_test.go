package ifacemonitor

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/manx-dataplane/manx/rtnl"
)

// scene is a table with a log of what it reports.
type scene struct {
	*table
	now   time.Time
	log   []string
	state map[string]string // by name: the last state report
	addr  map[string]string // by name: the last address report
}

func newScene() *scene {
	s := &scene{now: time.Unix(1e9, 0), state: map[string]string{}, addr: map[string]string{}}
	s.table = newTable(reports{
		state: func(name string, state State, index int) {
			text := string(state)
			if state == StateNotPresent {
				text = "absent"
			}
			s.state[name] = fmt.Sprintf("%s %d", text, index)
			s.log = append(s.log, name+" "+s.state[name])
		},
		mtu: func(name string, _, mtu int) { s.log = append(s.log, fmt.Sprintf("%s mtu %d", name, mtu)) },
		addrs: func(name string, addrs []netip.Addr) {
			s.addr[name] = fmt.Sprint(addrs)
			if addrs == nil {
				s.addr[name] = "nil"
			}
			s.log = append(s.log, name+" "+s.addr[name])
		},
	}, func(string) bool { return false }, 100*time.Millisecond)
	return s
}

// says feeds messages, written "+83 eth0 up", "-83 eth0", "+83 10.0.0.1",
// "-83 10.0.0.1", with a leading "dump:" for a dump's entry, and "dump links",
// "dump ipv4", "done" and "interrupted"; then it flushes.
func (s *scene) says(lines ...string) {
	for _, line := range lines {
		switch line {
		case "dump links":
			s.beginDump(rtnl.DumpLinks)
		case "dump ipv4":
			s.beginDump(rtnl.DumpLocalIPv4)
		case "done":
			s.endDump(true, s.now)
		case "interrupted":
			s.endDump(false, s.now)
		default:
			if entry, ok := strings.CutPrefix(line, "dump:"); ok {
				s.entry(parse(entry), s.now)
			} else {
				s.event(parse(line), s.now)
			}
		}
	}
	s.flush(s.now)
}

func parse(line string) rtnl.Message {
	fields := strings.Fields(line)
	var msg rtnl.Message
	if _, err := fmt.Sscanf(fields[0][1:], "%d", &msg.Index); err != nil {
		panic(errors.New("not an index: " + line))
	}
	isNew := fields[0][0] == '+'
	if addr, err := netip.ParseAddr(fields[1]); err == nil {
		msg.Addr, msg.Type = addr, rtnl.MessageDelAddr
		if isNew {
			msg.Type = rtnl.MessageNewAddr
		}
		return msg
	}
	msg.Name, msg.Type = fields[1], rtnl.MessageDelLink
	if isNew {
		msg.Type = rtnl.MessageNewLink
	}
	if len(fields) > 2 && fields[2] == "up" {
		msg.Flags = unix.IFF_RUNNING
	}
	return msg
}

// expect compares and empties the log.
func (s *scene) expect(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(s.log, want) {
		t.Errorf("reported %q, want %q", s.log, want)
	}
	s.log = nil
}

func (s *scene) expectConflict(t *testing.T, want bool) {
	t.Helper()
	if s.conflict != want {
		t.Errorf("conflict %v, want %v", s.conflict, want)
	}
	s.conflict = false
}

func TestANewerIndexTakesTheNameAndTheOlderIsReportedAbsentFirst(t *testing.T) {
	s := newScene()
	s.says("+83 cali0 up")
	s.expect(t, "cali0 up 83", "cali0 []")
	s.expectConflict(t, false)
	s.says("+204 cali0")
	s.expect(t, "cali0 absent 83", "cali0 nil", "cali0 down 204", "cali0 []")
	s.expectConflict(t, true)
}

func TestAStaleIndexChangesNothing(t *testing.T) {
	for rule, history := range map[string][]string{
		"it lost the name to a newer index":    {"+83 cali0 up", "+204 cali0 up"},
		"it was deleted":                       {"+83 cali0 up", "-83 cali0", "+204 cali0 up"},
		"it was deleted before it was known":   {"-83 cali0", "+204 cali0 up"},
		"it was renamed":                       {"+83 cali0 up", "+83 eth0 up", "+204 cali0 up"},
		"it was never heard of, but is older":  {"+204 cali0 up"},
		"it is newer, but was deleted (reuse)": {"+83 cali0 up", "-83 cali0", "+7 cali0 up"},
		"it lost the name by a dump":           {"+83 cali0 up", "dump links", "dump:+7 cali0 up", "done"},
	} {
		t.Run(rule, func(t *testing.T) {
			s := newScene()
			s.says(history...)
			s.log, s.conflict = nil, false
			s.says("+83 cali0", "+83 10.0.0.1", "+83 cali0 up")
			if rule == "it was renamed" {
				s.expect(t, "eth0 [10.0.0.1]") // the address of 83 is one of its new name
			}
			s.expect(t)
			s.expectConflict(t, true)
			s.says("-83 10.0.0.1", "-83 cali0")
			if rule == "it was renamed" {
				s.expect(t, "eth0 absent 83", "eth0 nil")
			}
			s.expect(t)
			s.expectConflict(t, false)
		})
	}
}

func TestAnIndexThatIsUsedAgainIsNotStaleOnceNobodyOwnsTheName(t *testing.T) {
	s := newScene()
	s.says("+83 cali0", "-83 cali0", "+204 cali0", "-204 cali0")
	s.log = nil
	s.says("+83 cali0 up")
	s.expect(t, "cali0 up 83", "cali0 []")
	s.expectConflict(t, false)
}

func TestAnEventBeatsADumpEntry(t *testing.T) {
	s := newScene()
	s.says("+3 eth0", "dump links", "+3 eth0 up", "dump:+3 eth0", "done")
	s.expect(t, "eth0 down 3", "eth0 []", "eth0 up 3")
	s.says("dump links", "-3 eth0", "dump:+3 eth0 up", "done")
	s.expect(t, "eth0 absent 3", "eth0 nil")
	s.says("dump links", "-3 eth0", "+4 eth0", "dump:+3 eth0 up", "done")
	s.expect(t, "eth0 down 4", "eth0 []")
	s.says("+4 10.0.0.1", "dump ipv4", "+4 10.0.0.2", "-4 10.0.0.3", "dump:+4 10.0.0.3", "done")
	s.expect(t, "eth0 [10.0.0.1 10.0.0.2]")
	s.now = s.now.Add(time.Second)
	s.says()
	s.says("dump ipv4", "-4 eth0", "+4 eth0", "dump:+4 10.0.0.2", "done")
	s.expect(t, "eth0 [10.0.0.2]", "eth0 absent 4", "eth0 nil", "eth0 down 4", "eth0 []")
}

func TestWhatNeitherADumpNorAnEventConfirmedIsGone(t *testing.T) {
	s := newScene()
	s.says("+3 a", "+4 b", "+5 c")
	s.log = nil
	s.says("dump links", "dump:+3 a", "+4 b", "interrupted")
	s.expect(t)
	s.says("dump links", "dump:+3 a", "+4 b", "done")
	s.expect(t, "c absent 5", "c nil")
}

func TestAnOwnerKnownFromBeforeLosesItsNameToADumpEntryWhateverTheIndexes(t *testing.T) {
	s := newScene()
	s.says("+3 a", "+4 b")
	s.log = nil
	s.says("dump links", "dump:+3 b", "dump:+4 c", "done")
	s.expect(t, "b absent 4", "b nil", "a absent 3", "a nil", "b down 3", "b []", "c down 4", "c []")
	s.expectConflict(t, false)
}

func TestTwoClaimsOfADumpsTimeAskForAnotherDump(t *testing.T) {
	s := newScene()
	s.says("dump links", "dump:+3 a", "dump:+4 a", "done")
	s.expect(t, "a down 3", "a []", "a absent 3", "a nil", "a down 4", "a []")
	s.expectConflict(t, true)
	s.says("dump links", "+9 a", "dump:+4 a", "done")
	s.expect(t, "a absent 4", "a nil", "a down 9", "a []")
	s.expectConflict(t, true)
}

func TestAnEntryThatClaimsANameOfAnEventsTimeAsksForAnotherDumpAndItsLinkLivesOn(t *testing.T) {
	s := newScene()
	s.says("+9 a", "+4 c", "+4 10.0.0.4")
	s.log = nil
	s.says("dump links", "+9 a", "dump:+4 a", "done")
	s.expect(t)
	s.expectConflict(t, true)
	s.says("+4 b")
	s.expect(t, "c absent 4", "c nil", "b down 4", "b [10.0.0.4]")
}

func TestAddressesMayComeBeforeTheLink(t *testing.T) {
	s := newScene()
	s.says("+3 fd00::1", "+3 ::ffff:10.0.0.1", "+3 10.0.0.2", "-3 10.0.0.2")
	s.expect(t)
	s.says("+3 eth0")
	s.expect(t, "eth0 down 3", "eth0 [10.0.0.1 fd00::1]")
}

func TestAnAddressThatComesBackWithinTheDelayWasNeverAway(t *testing.T) {
	s := newScene()
	s.says("+3 eth0", "+3 10.0.0.1")
	s.log = nil
	s.says("-3 10.0.0.1")
	at, ok := s.nextRemoval()
	if !ok || !at.Equal(s.now.Add(100*time.Millisecond)) {
		t.Fatalf("removal at %v, %v", at, ok)
	}
	s.now = s.now.Add(99 * time.Millisecond)
	s.says("+3 10.0.0.1")
	if _, ok := s.nextRemoval(); ok {
		t.Error("the removal is still planned")
	}
	s.now = s.now.Add(time.Second)
	s.says()
	s.expect(t)
	s.says("-3 10.0.0.1")
	s.expect(t)
	s.now = s.now.Add(100 * time.Millisecond)
	s.says()
	s.expect(t, "eth0 []")
}

func TestAddressesFollowTheLinkThroughARename(t *testing.T) {
	s := newScene()
	s.says("+3 a", "+3 10.0.0.1")
	s.log = nil
	s.says("+3 b")
	s.expect(t, "a absent 3", "a nil", "b down 3", "b [10.0.0.1]")
}

func TestAMessageThatDoesNotTellTheMTULeavesIt(t *testing.T) {
	s := newScene()
	with := parse("+3 eth0")
	with.MTU = 1400
	s.event(with, s.now)
	s.says("+3 eth0 up")
	s.expect(t, "eth0 down 3", "eth0 mtu 1400", "eth0 []", "eth0 up 3")
}

func TestNonsenseIsIgnored(t *testing.T) {
	s := newScene()
	for _, msg := range []rtnl.Message{
		{Type: rtnl.MessageNewLink, Index: 0, Name: "a"}, {Type: rtnl.MessageNewLink, Index: -1, Name: "a"},
		{Type: rtnl.MessageNewLink, Index: 1}, {Type: rtnl.MessageDelLink, Name: "a"},
		{Type: rtnl.MessageNewAddr, Index: 1}, {Type: rtnl.MessageDelAddr}, {Type: 99, Index: 1, Name: "a"},
	} {
		s.event(msg, s.now)
		for _, what := range []rtnl.Dump{rtnl.DumpLinks, rtnl.DumpLocalIPv4} {
			s.beginDump(what)
			s.entry(msg, s.now)
			s.endDump(true, s.now)
		}
	}
	s.says()
	s.expect(t)
	if len(s.links) != 0 || len(s.names) != 0 || len(s.addrs.all) != 0 {
		t.Errorf("something was kept: %v %v %v", s.links, s.names, s.addrs.all)
	}
}

func TestFormerOwnersAreForgottenInTheEndThoughNoDumpIsEverMade(t *testing.T) {
	s := newScene()
	for i := range 1000 {
		s.says(fmt.Sprintf("+%d same", i+1), fmt.Sprintf("-%d same", i+1))
		s.says(fmt.Sprintf("+%d n%d", i+1, i), fmt.Sprintf("-%d n%d", i+1, i))
	}
	if n := len(s.names["same"].former); n > formerOwnersPerName {
		t.Errorf("%d former owners of one name", n)
	}
	s.now = s.now.Add(formerOwnerMemory + time.Second)
	s.says("+1 kept", "+2 last", "-2 last")
	if got := slices.Sorted(maps.Keys(s.names)); !slices.Equal(got, []string{"kept", "last"}) {
		t.Errorf("%d names remembered", len(got))
	}
}

// Rule 2 over random messages that no kernel need ever have sent, dumps in
// progress included: whatever a message for index i says, nothing that is
// reported about a name that a newer index owns changes by it.
func TestRule2AMessageForAnOlderIndexNeverChangesANameThatANewerOwns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newScene()
		lines := rapid.Custom(func(t *rapid.T) string {
			sign := rapid.SampledFrom([]string{"+", "-"}).Draw(t, "sign")
			what := rapid.SampledFrom([]string{"a", "a up", "b", "b up", "10.0.0.1", "10.0.0.2"}).Draw(t, "what")
			return fmt.Sprintf("%s%d %s", sign, rapid.IntRange(1, 5).Draw(t, "index"), what)
		})
		t.Repeat(map[string]func(*rapid.T){
			"event": func(t *rapid.T) {
				line := lines.Draw(t, "message")
				s.says()
				states, addrs, owners := maps.Clone(s.state), maps.Clone(s.addr), map[string]int{}
				for name := range s.names {
					owners[name] = s.owner(name)
				}
				s.says(line)
				for name, owner := range owners {
					if owner > parse(line).Index && (s.state[name] != states[name] || s.addr[name] != addrs[name]) {
						t.Fatalf("%q changed %s, which %d owns, from %s %s to %s %s",
							line, name, owner, states[name], addrs[name], s.state[name], s.addr[name])
					}
				}
			},
			"dump": func(t *rapid.T) {
				if s.dump == nil {
					s.says(rapid.SampledFrom([]string{"dump links", "dump ipv4"}).Draw(t, "dump"))
				}
			},
			"entry": func(t *rapid.T) {
				if line := lines.Draw(t, "entry"); s.dump != nil && line[0] == '+' {
					s.says("dump:" + line)
				}
			},
			"end": func(t *rapid.T) {
				if s.dump != nil {
					s.says(rapid.SampledFrom([]string{"done", "interrupted"}).Draw(t, "end"))
				}
			},
			"time": func(*rapid.T) { s.now = s.now.Add(60 * time.Millisecond) },
		})
	})
}
