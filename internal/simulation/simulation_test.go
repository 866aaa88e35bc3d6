package simulation

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

var (
	seedFlag   = flag.Uint64("simulation.seed", 0, "run this scenario only, and show all that happens in it")
	keepFlag   = flag.String("simulation.keep", "", "of that scenario, keep these steps only: their numbers, with commas between")
	firstFlag  = flag.Uint64("simulation.first", 1, "seed of the first scenario")
	countFlag  = flag.Int("simulation.count", 2500, "how many scenarios to run")
	budgetFlag = flag.Duration("simulation.budget", 18*time.Second, "how long to go on with new scenarios; 0 means to the end")
)

// maxFailures is how many scenarios may fail before there is enough to look into.
const maxFailures = 5

func TestMain(m *testing.M) {
	// Between two kernel calls goroutines run in an order that is nobody's choice; on one
	// processor it is at least nearly always the same.
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(400) // scenarios are short-lived garbage
	goleak.VerifyTestMain(m)
}

// TestScenarios is the campaign: every invariant holds in every scenario, and in the end
// the kernel is what the model says.
func TestScenarios(t *testing.T) {
	if *seedFlag != 0 {
		replay(t)
		return
	}
	start, ran, steps, failed := time.Now(), 0, 0, 0
	for seed := *firstFlag; ran < *countFlag && failed < maxFailures; seed++ {
		if *budgetFlag > 0 && time.Since(start) > *budgetFlag {
			break
		}
		s := generate(seed)
		ran++
		steps += len(s.steps)
		if problems := s.run(t, nil); len(problems) > 0 {
			failed++
			fail(t, s, problems)
		}
		if ran%10_000 == 0 {
			fmt.Fprintf(os.Stderr, "%d scenarios in %s\n", ran, time.Since(start).Round(time.Second))
		}
	}
	t.Logf("%d scenarios of %d steps in %s", ran, steps, time.Since(start).Round(time.Millisecond))
}

// replay runs one scenario and shows it.
func replay(t *testing.T) {
	s := generate(*seedFlag)
	if *keepFlag != "" {
		var numbers []int
		for text := range strings.SplitSeq(*keepFlag, ",") {
			number, err := strconv.Atoi(text)
			if err != nil {
				t.Fatal(err)
			}
			numbers = append(numbers, number)
		}
		s = s.keep(numbers)
	}
	var trace strings.Builder
	problems := s.run(t, &trace)
	t.Logf("options %+v\n%s", s.options, trace.String())
	for _, problem := range problems {
		t.Error(problem)
	}
}

// fail reports a scenario that failed, by its smallest part that does.
func fail(t *testing.T, s scenario, problems []string) {
	small, smallProblems := shrink(t, s, problems)
	var text strings.Builder
	fmt.Fprintf(&text, "scenario %d fails:\n  %s\n", s.options.seed, strings.Join(smallProblems, "\n  "))
	fmt.Fprintf(&text, "with these of its %d steps:\n", len(s.steps))
	for _, st := range small.steps {
		fmt.Fprintf(&text, "  %s\n", st)
	}
	fmt.Fprintf(&text, "options: %+v\n", small.options)
	numbers := strings.Trim(strings.ReplaceAll(fmt.Sprint(small.numbers()), " ", ","), "[]")
	fmt.Fprintf(&text, "replay:\n  go test ./internal/simulation -run TestScenarios -v -simulation.seed=%d -simulation.keep=%s", s.options.seed, numbers)
	t.Error(text.String())
}

// shrink drops steps for as long as what is left fails: halves first, single steps last.
func shrink(t *testing.T, s scenario, problems []string) (scenario, []string) {
	for size := len(s.steps); size > 0; {
		dropped := false
		for start := 0; start < len(s.steps); {
			numbers := s.numbers()
			candidate := s.keep(append(numbers[:start:start], numbers[min(start+size, len(numbers)):]...))
			if found := candidate.run(t, nil); len(found) > 0 {
				s, problems, dropped = candidate, found, true
			} else {
				start += size
			}
		}
		if size == 1 && !dropped {
			break
		}
		size = max(1, size/2)
	}
	return s, problems
}
