package sweep_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/internal/nodetest"
	"github.com/manx-dataplane/manx/internal/sweep"
	"github.com/manx-dataplane/manx/rtnl"
)

// standInGrace is the grace of the sweep under test, far below the default so that
// many sweeps meet each round.
const standInGrace = 100 * time.Millisecond

// standIn is an agent that leaks: it makes devices, or takes those over that have
// the right name, wires them, and forgets most of them when their veth goes.
type standIn struct {
	kernel *rtnl.Handle
	names  []string // of its pods' veths
	random *rand.Rand

	rounds, adopted, early, leaked, void int
}

// errFalseDelete is what the sweep must never make happen.
var errFalseDelete = errors.New("FALSE DELETE")

// round is one pod's life.
func (s *standIn) round() error {
	s.rounds++
	veth := s.names[s.random.IntN(len(s.names))]
	name := nodetest.IFBName(veth)
	index := 0
	if s.random.IntN(5) == 0 {
		made := time.Now()
		var err error
		if index, err = s.make(name); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
		if err == nil {
			s.early++
			s.pause(5 * time.Millisecond)
		}
		if err := s.addVeth(veth); err != nil {
			return err
		}
		if index != 0 && time.Since(made) > standInGrace/2 {
			// This machine is too busy: the promise of the grace was not kept, and whatever
			// becomes of this device is no fault of the sweep's.
			s.void++
			return s.end(veth, 0)
		}
	} else if err := s.addVeth(veth); err != nil {
		return err
	}
	s.pause(3 * time.Millisecond)
	if index == 0 {
		var err error
		if index, err = s.findOrMake(name); err != nil {
			return err
		}
	}
	s.pause(2 * time.Millisecond)
	if err := s.wire(veth, index); err != nil {
		return fmt.Errorf("%w: wire %s to %s (ifindex %d): %w", errFalseDelete, veth, name, index, err)
	}
	for range 3 {
		s.pause(5 * time.Millisecond)
		if _, err := s.kernel.LinkByIndex(index); err != nil {
			return fmt.Errorf("%w: %s (ifindex %d) of %s: %w", errFalseDelete, name, index, veth, err)
		}
	}
	return s.end(veth, index)
}

// end is the pod's end: most times the agent is down and leaks.
func (s *standIn) end(veth string, index int) error {
	link, err := s.kernel.LinkByName(veth)
	if err != nil {
		return err
	}
	if err := s.kernel.LinkDel(link); err != nil {
		return err
	}
	if index == 0 || s.random.IntN(4) > 0 {
		s.leaked++
		return nil
	}
	err = s.kernel.LinkDel(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Index: index}})
	if rtnl.IsAbsent(err) { // swept meanwhile, rightly
		return nil
	}
	return err
}

func (s *standIn) addVeth(name string) error {
	err := s.kernel.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, Flags: unix.IFF_UP}, PeerName: nodetest.Peer(name)})
	if err != nil {
		return fmt.Errorf("add veth: %w", err)
	}
	return nil
}

func (s *standIn) make(name string) (int, error) {
	link := &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: name}}
	if err := s.kernel.LinkAdd(link); err != nil {
		return 0, err
	}
	return link.Index, nil
}

// findOrMake takes a leftover over, as agents do. Once it has found a device by its
// name for an existing veth, that device must stay.
func (s *standIn) findOrMake(name string) (int, error) {
	for {
		link, err := s.kernel.LinkByName(name)
		if err == nil {
			s.adopted++
			return link.Attrs().Index, nil
		}
		index, err := s.make(name)
		if !errors.Is(err, unix.EEXIST) { // given its name back meanwhile
			return index, err
		}
	}
}

func (s *standIn) wire(veth string, ifb int) error {
	host, err := s.kernel.LinkByName(veth)
	if err != nil {
		return err
	}
	if err := s.kernel.LinkSetUp(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Index: ifb}}); err != nil {
		return err
	}
	err = s.kernel.QdiscReplace(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: ifb, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)},
		Rate:       30e6 / 8, Limit: 1 << 20, Buffer: 1 << 20,
	})
	if err != nil {
		return err
	}
	index := host.Attrs().Index
	err = s.kernel.QdiscAdd(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: index, Parent: netlink.HANDLE_INGRESS, Handle: netlink.MakeHandle(0xffff, 0),
	}})
	if err != nil {
		return err
	}
	return s.kernel.FilterAdd(nodetest.RedirectFilter(index, netlink.MakeHandle(0xffff, 0), ifb))
}

func (s *standIn) pause(most time.Duration) {
	time.Sleep(time.Duration(s.random.Int64N(int64(most)))) // the agent's own pace, not synchronisation
}

// roundsVariable makes the campaign longer; scripts/soak.sh sets it.
const roundsVariable = "MANX_SWEEP_ROUNDS"

var _ = Describe("Beside a stand-in for an agent that leaks", func() {
	It("never deletes a device that is in use or about to be", func() {
		node := nodetest.New()
		rounds := 200
		if text := os.Getenv(roundsVariable); text != "" {
			var err error
			rounds, err = strconv.Atoi(text)
			Expect(err).NotTo(HaveOccurred())
		}
		stop := startSweeper(node)

		const agents, podsEach = 4, 3
		var left atomic.Int64
		left.Store(int64(rounds))
		seed := GinkgoRandomSeed()
		standIns := make([]*standIn, agents)
		errs := make([]error, agents)
		var group sync.WaitGroup
		for a := range agents {
			kernel, err := rtnl.Open(rtnl.Options{Namespace: node.NS})
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(kernel.Close)
			s := &standIn{kernel: kernel, random: rand.New(rand.NewPCG(uint64(seed), uint64(a)))}
			for p := range podsEach {
				s.names = append(s.names, fmt.Sprintf("cali%010x", a*podsEach+p))
			}
			standIns[a] = s
			group.Go(func() {
				for left.Add(-1) >= 0 && errs[a] == nil {
					errs[a] = s.round()
				}
			})
		}
		group.Wait()
		Expect(errors.Join(errs...)).To(Succeed())

		Eventually(node.Links).WithTimeout(10 * time.Second).Should(HaveLen(1)) // loopback: no leak is left either
		swept := stop()
		total := standIn{}
		for _, s := range standIns {
			total.rounds += s.rounds
			total.adopted += s.adopted
			total.early += s.early
			total.leaked += s.leaked
			total.void += s.void
		}
		AddReportEntry("campaign", fmt.Sprintf("%d rounds, %d devices made before their veth, %d leftovers adopted, %d leaked, %d void; "+
			"sweep: %d rounds with orphans, %d deleted, %d spared after having been set aside, %d left as a new device had taken the name, 0 false deletes",
			total.rounds, total.early, total.adopted, total.leaked, total.void, swept.rounds, swept.deleted, swept.spared, swept.overtaken))
		Expect(total.rounds).To(Equal(rounds))
		Expect(total.adopted).To(BeNumerically(">", 0))
		Expect(swept.deleted).To(BeNumerically(">", rounds/50))
	})
})

type swept struct{ rounds, deleted, spared, overtaken int }

// startSweeper runs the binary until the returned function is called, which
// returns what it did.
func startSweeper(node *nodetest.Node) (stop func() swept) {
	GinkgoHelper()
	cmd := exec.Command(nodetest.Binary(), "sweep", "--grace", standInGrace.String(), "--interval", "1ms", "-o", "json")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	Expect(node.NS.Do(cmd.Start)).To(Succeed())
	end := sync.OnceValue(func() error {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		return cmd.Wait()
	})
	DeferCleanup(func() { _ = end() })
	return func() swept {
		GinkgoHelper()
		Expect(end()).To(Succeed(), "%s", &stderr)
		Expect(stderr.String()).To(BeEmpty())
		var sum swept
		decoder := json.NewDecoder(&stdout)
		for {
			var result sweep.Result
			err := decoder.Decode(&result)
			if errors.Is(err, io.EOF) {
				return sum
			}
			Expect(err).NotTo(HaveOccurred())
			sum.rounds++
			sum.deleted += result.Count(sweep.Deleted)
			sum.spared += result.Count(sweep.Spared)
			sum.overtaken += result.Count(sweep.Left)
		}
	}
}
