package fv_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/manx-dataplane/manx/fv/infra"
)

// The production case of the route that never came back: a StatefulSet's pod
// re-created under the same veth name on a node so overloaded that its agent
// learns everything late.
var _ = onEachKind("case B: stale interface state", func(kind infra.Kind) {
	var node *infra.Node
	var pod *infra.Pod
	var agent *infra.Agent
	annotations := infra.KubernetesAnnotations("30M", "30M")

	BeforeEach(func() {
		node = suite.NewNode(kind)
		agent = node.StartAgent()
		pod = node.NewPod("stateful-0")
		pod.Veth = "calidce2a7f6bc3"
		pod.Create()
		pod.Publish(annotations)
		eventuallyServed(node, pod)
	})

	It("a veth re-created under its name is routed through the new index, every time and for good", func() {
		for i := range 40 {
			late := i%2 == 1
			if late {
				Expect(agent.Signal(unix.SIGSTOP)).To(Succeed())
			}
			old := pod.Index
			pod.Delete()
			pod.Create()
			Expect(pod.Index).NotTo(Equal(old))
			if late {
				Expect(agent.Signal(unix.SIGCONT)).To(Succeed())
			}
			if i%4 == 3 { // else several re-creations pile up
				eventuallyServed(node, pod)
			}
		}
		eventuallyServed(node, pod)
		Consistently(served).WithArguments(node, pod).WithTimeout(time.Second).Should(Succeed())
		eventuallyIFBs(node, pod)
	})

	It("so is one whose flaps come between", func() {
		for range 10 {
			Expect(agent.Signal(unix.SIGSTOP)).To(Succeed())
			pod.SetDown()
			pod.Delete()
			pod.Create()
			pod.SetDown()
			Expect(node.RT.LinkSetUp(node.Link(pod.Veth))).To(Succeed())
			Expect(agent.Signal(unix.SIGCONT)).To(Succeed())
		}
		eventuallyServed(node, pod)
		Consistently(served).WithArguments(node, pod).WithTimeout(time.Second).Should(Succeed())
	})

	It("an old interface that goes after the new one has its name changes nothing", func() {
		for i := range 10 {
			successor := *pod
			successor.Veth = fmt.Sprintf("calitmp%d", i)
			successor.Create()
			old := pod.Index
			Expect(node.RT.LinkSetName(node.Link(pod.Veth), fmt.Sprintf("caliold%d", i))).To(Succeed())
			Expect(node.RT.LinkSetDown(node.Link(successor.Veth))).To(Succeed())
			Expect(node.RT.LinkSetName(node.Link(successor.Veth), pod.Veth)).To(Succeed())
			Expect(node.RT.LinkSetUp(node.Link(pod.Veth))).To(Succeed())
			time.Sleep(105 * time.Millisecond) // the production log's own interval
			stale := *pod
			stale.Veth, stale.Index = fmt.Sprintf("caliold%d", i), old
			stale.SetDown()
			stale.Delete()
			pod.Index, pod.NS = successor.Index, successor.NS
			eventuallyServed(node, pod)
		}
		Consistently(served).WithArguments(node, pod).WithTimeout(time.Second).Should(Succeed())
		eventuallyIFBs(node, pod)
	})

	// The endpoint update tells of another address, as after a real re-creation.
	moved := func() {
		next := node.NewPod("unused")
		pod.IPv4, pod.IPv6 = next.IPv4, next.IPv6
	}
	DescribeTable("the endpoint update may come at any time",
		func(order func()) {
			for range 5 {
				before := *pod
				order()
				eventuallyServed(node, pod)
				Expect(node.CheckNoRoutes(&before)).To(Succeed(), "routes to the old addresses")
			}
			Consistently(served).WithArguments(node, pod).WithTimeout(500 * time.Millisecond).Should(Succeed())
		},
		Entry("before the old interface goes", func() { moved(); pod.Publish(annotations); pod.Delete(); pod.Create() }),
		Entry("between the two interfaces", func() { pod.Delete(); moved(); pod.Publish(annotations); pod.Create() }),
		Entry("right after the new interface", func() { pod.Delete(); moved(); pod.Create(); pod.Publish(annotations) }),
		Entry("long after the new interface", func() {
			pod.Delete()
			moved()
			pod.Create()
			time.Sleep(300 * time.Millisecond) // until the agent has long dealt with the interface
			pod.Publish(annotations)
		}),
		Entry("removed and created again between", func() {
			pod.Unpublish()
			pod.Delete()
			moved()
			pod.Create()
			pod.Publish(annotations)
		}),
		Entry("removed late, after the new interface is there", func() {
			pod.Delete()
			moved()
			pod.Create()
			pod.Unpublish()
			time.Sleep(300 * time.Millisecond) // so that the two are told apart
			pod.Publish(annotations)
		}),
	)
})

// served returns nil where everything that a pod's interface should have is there:
// routes through its present index, limits both ways at 30 Mbit/s, sysctls and a
// status file that says what it should.
func served(node *infra.Node, pod *infra.Pod) error {
	if err := node.CheckRoutes(pod); err != nil {
		return err
	}
	if err := node.CheckLimits(pod, both(mbit(30))); err != nil {
		return err
	}
	value, err := node.ReadSysctl("net/ipv4/conf/" + pod.Veth + "/proxy_arp")
	if err != nil {
		return err
	}
	if strings.TrimSpace(value) != "1" {
		return fmt.Errorf("proxy_arp of %s is %q", pod.Veth, value)
	}
	return checkStatus(pod)
}

func eventuallyServed(node *infra.Node, pod *infra.Pod) {
	GinkgoHelper()
	Eventually(served).WithArguments(node, pod).Should(Succeed())
}

// checkStatus returns nil where the pod's status file says that it is up.
func checkStatus(pod *infra.Pod) error {
	data, err := os.ReadFile(pod.StatusFile())
	if err != nil {
		return err
	}
	var status struct {
		IfaceName string   `json:"ifaceName"`
		MAC       string   `json:"mac"`
		IPv4Nets  []string `json:"ipv4Nets"`
		IPv6Nets  []string `json:"ipv6Nets"`
	}
	if err := json.Unmarshal(data, &status); err != nil {
		return fmt.Errorf("status file %q: %w", data, err)
	}
	got := fmt.Sprint(status.IfaceName, status.MAC, status.IPv4Nets, status.IPv6Nets)
	want := fmt.Sprint(pod.Veth, pod.MAC.String(), []string{pod.IPv4.String() + "/32"}, []string{pod.IPv6.String() + "/128"})
	if got != want {
		return fmt.Errorf("status is %s, not %s", got, want)
	}
	return nil
}
