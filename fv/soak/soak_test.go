package soak_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/manx-dataplane/manx/fv/infra"
)

const (
	defaultLives = 150
	// killEvery is after how many lives the agent is killed.
	killEvery = 50
	// chapter is after how many lives everything must be gone.
	chapter = 1000
	// convergence is "within seconds" on a busy machine.
	convergence = 10 * time.Second
	// samples of the footprint are taken in the second part, after some lives of warming
	// up.
	samples = 40
	warmUp  = 50
)

var _ = Describe("Soak", func() {
	var node *infra.Node
	BeforeEach(func() {
		node = suite.NewNode(infra.PlainNamespace)
		spec := infra.MetricsOn()
		spec["logSeverityScreen"] = "Error"
		node.WriteConfig(spec)
	})
	expectNothingLeft := func() {
		GinkgoHelper()
		Eventually(node.CheckAll).WithArguments(map[*infra.Pod]infra.Limits{}).WithTimeout(convergence).Should(Succeed())
	}

	It("leaves no orphan, no route and no status file, with the agent killed every 50 lives", func() {
		agent := node.StartAgent()
		kills := 0
		l := &lives{node: node}
		start := time.Now()
		total := chosenLives()
		for lived := 0; lived < total; lived += chapter {
			l.run(min(chapter, total-lived), killEvery, func() {
				agent.Kill()
				time.Sleep(200 * time.Millisecond) // in which pods come and go unseen
				agent = node.StartAgent()
				kills++
			})
			expectNothingLeft()
			GinkgoWriter.Printf("%d lives after %s\n", l.started.Load(), time.Since(start).Round(time.Second))
		}
		AddReportEntry("result", fmt.Sprintf("%d lives in %s, %d kills; %d times a pod was waited for, at most %s",
			l.started.Load(), time.Since(start).Round(time.Second), kills, l.served, l.worst.Round(time.Millisecond)))
	})

	It("does not make a long-lived agent grow", func() {
		agent := node.StartAgent()
		l := &lives{node: node}
		total := max(chosenLives()/4, 100)
		prints := make([]infra.Footprint, 0, samples)
		l.run(warmUp, warmUp, func() {})
		l.run(total, max(total/samples, 1), func() {
			var print infra.Footprint
			Eventually(func() (err error) {
				print, err = agent.Footprint()
				return err
			}).WithTimeout(convergence).Should(Succeed())
			prints = append(prints, print)
		})
		expectNothingLeft()
		quarter := len(prints) / 4
		first, last := medians(prints[:quarter]), medians(prints[len(prints)-quarter:])
		AddReportEntry("result", fmt.Sprintf("%d lives; medians of the first quarter %+v, of the last %+v", total, first, last))
		AddReportEntry("all samples", lines(prints))
		Expect(last.FileDescriptors).To(BeNumerically("<=", first.FileDescriptors+2), "file descriptors")
		Expect(last.Goroutines).To(BeNumerically("<=", first.Goroutines+4), "goroutines")
		Expect(last.Threads).To(BeNumerically("<=", first.Threads+3), "threads")
		Expect(last.Memory).To(BeNumerically("<=", first.Memory*115/100+4<<10), "resident memory in KiB")
	})
})

func chosenLives() int {
	GinkgoHelper()
	text := os.Getenv("MANX_SOAK_LIVES")
	if text == "" {
		return defaultLives
	}
	count, err := strconv.Atoi(text)
	Expect(err).NotTo(HaveOccurred(), "MANX_SOAK_LIVES")
	return count
}

// medians returns the median of each number.
func medians(prints []infra.Footprint) infra.Footprint {
	median := func(of func(f infra.Footprint) int) int {
		var numbers []int
		for _, print := range prints {
			numbers = append(numbers, of(print))
		}
		slices.Sort(numbers)
		return numbers[len(numbers)/2]
	}
	return infra.Footprint{
		Memory:          median(func(f infra.Footprint) int { return f.Memory }),
		FileDescriptors: median(func(f infra.Footprint) int { return f.FileDescriptors }),
		Threads:         median(func(f infra.Footprint) int { return f.Threads }),
		Goroutines:      median(func(f infra.Footprint) int { return f.Goroutines }),
	}
}

func lines(prints []infra.Footprint) string {
	var texts []string
	for _, print := range prints {
		texts = append(texts, fmt.Sprintf("%+v", print))
	}
	return strings.Join(texts, "\n")
}
