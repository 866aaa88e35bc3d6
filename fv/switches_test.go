package fv_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/manx-dataplane/manx/fv/infra"
)

var _ = onEachKind("the switches at run time", func(kind infra.Kind) {
	for _, plugin := range []infra.PluginQdisc{infra.PluginTBF, infra.PluginHTB} {
		It("turn ours off and on and touch nothing of a bandwidth plugin ("+string(plugin)+") or an eBPF monitor", func() {
			node := suite.NewNode(kind)
			foreign := node.StartPod("foreign") // shaped by the plugin
			node.RunBandwidthPlugin(foreign, plugin, 10e6)
			monitored := node.StartPod("monitored") // limited by Calico's annotations
			monitor := node.AttachMonitor(monitored)
			kubernetes := node.StartPod("kubernetes") // limited by Kubernetes' annotations
			foreign.Publish(nil)
			monitored.Publish(infra.CalicoAnnotations("20M", "20M", ""))
			kubernetes.Publish(infra.KubernetesAnnotations("30M", "30M"))
			before := node.Foreign()

			check := func(field, value string, pods map[*infra.Pod]infra.Limits) {
				GinkgoHelper()
				if field != "" {
					node.WriteConfig(infra.Spec{field: value})
				}
				limited := []*infra.Pod{}
				for pod, limits := range pods {
					limited = append(limited, pod)
					eventuallyLimited(node, pod, limits)
				}
				eventuallyIFBs(node, limited...)
				for _, pod := range []*infra.Pod{foreign, monitored, kubernetes} {
					if _, ok := pods[pod]; !ok && pod != foreign {
						eventuallyLimited(node, pod, infra.Limits{})
					}
				}
				Consistently(node.Foreign).WithTimeout(200*time.Millisecond).Should(Equal(before), "after %s: %s", field, value)
			}
			all := map[*infra.Pod]infra.Limits{monitored: both(mbit(20)), kubernetes: both(mbit(30))}
			calicoOnly := map[*infra.Pod]infra.Limits{monitored: both(mbit(20))}

			agent := node.StartAgent()
			check("", "", all)
			check("qosControls", "Disabled", nil)
			check("qosControls", "Enabled", all)
			check("qosKubernetesAnnotations", "Disabled", calicoOnly)
			check("qosControls", "Disabled", nil)
			check("qosKubernetesAnnotations", "Disabled", calicoOnly) // and QoS enabled again by default
			check("qosKubernetesAnnotations", "Enabled", all)

			seen := monitor.Packets()
			eventuallyRouted(node, monitored)
			flow := infra.StartUDP(node.NS, monitored.NS, monitored.IPv4, packetRate)
			flow.WaitForPackets(200)
			result := flow.Finish()
			Expect(result.Lost).To(BeZero(), result.String())
			Expect(monitor.Packets()).To(BeNumerically(">=", seen+200), "the monitor sees what flows")
			Expect(agent.Exited()).To(BeFalse())
		})
	}

	It("lift and set limits with UDP flowing and no egress packet lost", func() {
		node := suite.NewNode(kind)
		pod := node.StartPod("switched")
		pod.Publish(infra.KubernetesAnnotations("", "200M"))
		node.StartAgent()
		eventuallyLimited(node, pod, egress(mbit(200)))
		eventuallyRouted(node, pod)
		flow := infra.StartUDP(pod.NS, node.NS, node.IPv4, packetRate)
		for range 5 {
			for _, field := range []string{"qosControls", "qosKubernetesAnnotations"} {
				node.WriteConfig(infra.Spec{field: "Disabled"})
				Eventually(node.CheckUnshaped).WithArguments(pod).Should(Succeed())
				flow.WaitForPackets(packetRate / 50)
				node.WriteConfig(nil)
				eventuallyLimited(node, pod, egress(mbit(200)))
			}
		}
		result := flow.Finish()
		Expect(result.Lost).To(BeZero(), result.String())
	})

	It("with QoS disabled at the start: what an earlier run made goes, also in a node full of orphans", func() {
		node := suite.NewNode(kind)
		pod := node.StartPod("earlier")
		pod.Publish(infra.KubernetesAnnotations("30M", "30M"))
		agent := node.StartAgent()
		eventuallyLimited(node, pod, both(mbit(30)))
		agent.Kill()
		node.AddIFBs(infra.IFBPrefix, 50, 30e6)
		node.WriteConfig(infra.Spec{"qosControls": "Disabled"})
		node.StartAgent()
		Eventually(node.CheckUnshaped).WithArguments(pod).Should(Succeed())
		eventuallyIFBs(node)
		eventuallyRouted(node, pod)
	})
})
