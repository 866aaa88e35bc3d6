package fv_test

import (
	"fmt"
	"os"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/manx-dataplane/manx/fv/infra"
)

var _ = onEachKind("churn", func(kind infra.Kind) {
	It("of 200 pods with the agent restarted 10 times leaves no orphan, no route, no status", func() {
		const pods, restarts, alive = 200, 10, 12
		node := suite.NewNode(kind)
		agent := node.StartAgent()
		var running, all []*infra.Pod
		end := func(i int) {
			pod := running[0]
			running = running[1:]
			if i%2 == 0 {
				pod.Unpublish()
				pod.Delete()
			} else {
				pod.Delete()
				pod.Unpublish()
			}
		}
		for i := range pods {
			// A quarter re-use a name that was used before.
			name := fmt.Sprintf("churn-%d", i)
			if i%4 == 3 && i > 2*alive {
				name = fmt.Sprintf("churn-%d", i-2*alive)
			}
			pod := node.NewPod(name)
			if i%2 == 0 {
				pod.Create()
				pod.Publish(infra.KubernetesAnnotations("30M", "30M"))
			} else {
				pod.Publish(infra.KubernetesAnnotations("30M", "30M"))
				pod.Create()
			}
			running, all = append(running, pod), append(all, pod)
			if i%(pods/restarts) == 0 {
				if i%(2*pods/restarts) == 0 {
					agent.Kill()
				} else {
					agent.Terminate()
				}
			}
			if len(running) > alive {
				end(i)
			}
			if i%(pods/restarts) == 3 { // after pods came and went unseen
				agent = node.StartAgent()
			}
		}
		for _, pod := range running {
			eventuallyServed(node, pod)
		}
		eventuallyIFBs(node, running...)
		for i := range len(running) {
			end(i)
		}
		eventuallyIFBs(node)
		for _, pod := range all {
			Expect(node.CheckNoRoutes(pod)).To(Succeed())
		}
		Eventually(func() ([]string, error) {
			return filepath.Glob(filepath.Join(node.StatusDir, "endpoint-status", "*"))
		}).Should(BeEmpty())
		Expect(os.ReadDir(node.EndpointsDir)).To(BeEmpty())
	})
})
