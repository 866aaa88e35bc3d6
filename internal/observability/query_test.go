package observability_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"
)

const (
	alertsFile     = "deploy/prometheus/alerts.yaml"
	alertsTestFile = "deploy/prometheus/alerts_test.yaml"
	dashboardFile  = "deploy/grafana/dashboard.json"
)

// The linter and parser are promtool's; what it cannot know is which series an agent
// exposes and with which labels. That takes no more of PromQL than these.
var (
	stringLiteral = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
	identifier    = regexp.MustCompile(`\b(?:manx|process|go)_[a-z_]+\b`)
	selector      = regexp.MustCompile(`\b(manx_[a-z_]+)\{([^}]*)\}`)
	matcher       = regexp.MustCompile(`([a-z_]+) *(?:=~|!~|!=|=)`)
	grouping      = regexp.MustCompile(`\b(?:by|without|on|ignoring) *\(([^)]*)\)`)
)

// scrapeLabels are those that Prometheus adds to every series.
var scrapeLabels = []string{"instance", "job"}

// checkQuery expects a query to be about series that a run exposes, and to name only
// labels that they have.
func checkQuery(query string) {
	GinkgoHelper()
	families := exposed()
	bare := stringLiteral.ReplaceAllString(query, "")
	labels := slices.Clone(scrapeLabels)
	names := identifier.FindAllString(bare, -1)
	Expect(names).NotTo(BeEmpty(), "query about nothing: %s", query)
	for _, series := range names {
		if !strings.HasPrefix(series, "manx_") {
			Expect(exposition()).To(ContainSubstring("# TYPE "+series+" "), query)
			continue
		}
		name := familyOf(series, families)
		Expect(name).NotTo(BeEmpty(), "no run exposes %s: %s", series, query)
		labels = append(labels, seriesLabels(series, families[name])...)
	}
	for _, match := range selector.FindAllStringSubmatch(bare, -1) {
		own := append(seriesLabels(match[1], families[familyOf(match[1], families)]), scrapeLabels...)
		for _, label := range matcher.FindAllStringSubmatch(match[2], -1) {
			Expect(own).To(ContainElement(label[1]), "%s has no such label: %s", match[1], query)
		}
	}
	for _, match := range grouping.FindAllStringSubmatch(bare, -1) {
		for label := range strings.SplitSeq(match[1], ",") {
			Expect(labels).To(ContainElement(strings.TrimSpace(label)), "no such label in: %s", query)
		}
	}
}

func seriesLabels(series string, f family) []string {
	if strings.HasSuffix(series, "_bucket") {
		return append(slices.Clone(f.labels), "le")
	}
	return slices.Clone(f.labels)
}

// alert is one alerting rule.
type alert struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Annotations map[string]string `json:"annotations"`
}

func readAlerts() map[string]alert {
	GinkgoHelper()
	var rules struct {
		Groups []struct {
			Rules []alert `json:"rules"`
		} `json:"groups"`
	}
	Expect(yaml.Unmarshal([]byte(rootFile(alertsFile)), &rules)).To(Succeed())
	alerts := make(map[string]alert)
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			alerts[rule.Alert] = rule
		}
	}
	Expect(alerts).NotTo(BeEmpty())
	return alerts
}

var _ = Describe("Alerts", func() {
	It("pass promtool's linter and do what the recorded cases want of them", func() {
		promtool("", "check", "rules", filepath.Join(root, alertsFile))
		promtool("", "test", "rules", filepath.Join(root, alertsTestFile))
	})

	It("each fire in one recorded case at least, and in another, or at another time, do not", func() {
		var tests struct {
			Tests []struct {
				Alerts []struct {
					Name     string `json:"alertname"`
					Expected []any  `json:"exp_alerts"`
				} `json:"alert_rule_test"`
			} `json:"tests"`
		}
		Expect(yaml.Unmarshal([]byte(rootFile(alertsTestFile)), &tests)).To(Succeed())
		fires := make(map[string]bool)
		for _, test := range tests.Tests {
			for _, alert := range test.Alerts {
				fires[alert.Name] = fires[alert.Name] || len(alert.Expected) > 0
			}
		}
		for name := range readAlerts() {
			Expect(fires).To(HaveKeyWithValue(name, true))
		}
		Expect(fires).To(HaveLen(len(readAlerts())))
	})

	It("ask for series that a run exposes, wait, and say what to do", func() {
		anchors := readDocument("docs/operations.md").anchors()
		for name, alert := range readAlerts() {
			checkQuery(alert.Expr)
			Expect(alert.For).NotTo(BeEmpty(), name)
			document, anchor, _ := strings.Cut(alert.Annotations["runbook"], "#")
			Expect(document).To(Equal("docs/operations.md"), name)
			Expect(anchors).To(HaveKey(anchor), name)
			Expect(alert.Annotations).To(And(HaveKey("summary"), HaveKey("description")), name)
		}
	})

	It("are listed in docs/operations.md", func() {
		Expect(readDocument("docs/operations.md").firstCells("Alerts")).
			To(ConsistOf(slices.Collect(maps.Keys(readAlerts()))))
	})
})

// queries returns every query of the dashboard, by the path to it.
func queries(at string, node any) map[string]string {
	found := make(map[string]string)
	switch node := node.(type) {
	case map[string]any:
		for key, value := range node {
			if query, ok := value.(string); ok && key == "expr" {
				found[at] = query
			}
			maps.Copy(found, queries(at+"."+key, value))
		}
	case []any:
		for n, value := range node {
			maps.Copy(found, queries(fmt.Sprintf("%s[%d]", at, n), value))
		}
	}
	return found
}

var _ = Describe("The dashboard", func() {
	read := func() (dashboard map[string]any) {
		GinkgoHelper()
		Expect(json.Unmarshal([]byte(rootFile(dashboardFile)), &dashboard)).To(Succeed())
		return dashboard
	}

	It("asks only for series that a run exposes, by labels that they have", func() {
		all := queries("", read())
		Expect(len(all)).To(BeNumerically(">", 20))
		for _, query := range all {
			checkQuery(query)
		}
		variable := regexp.MustCompile(`label_values\((\w+), (\w+)\)`).FindStringSubmatch(rootFile(dashboardFile))
		Expect(variable).NotTo(BeNil())
		Expect(exposed()).To(HaveKey(variable[1]))
		Expect(scrapeLabels).To(ContainElement(variable[2]))
	})

	It("shows every metric there is", func() {
		text := rootFile(dashboardFile)
		for name := range exposed() {
			Expect(text).To(ContainSubstring(name))
		}
	})

	It("has queries that Prometheus can parse, and panels that do not overlap", func() {
		var rules strings.Builder
		rules.WriteString("groups:\n- name: dashboard\n  rules:\n")
		n := 0
		for _, query := range queries("", read()) {
			query = strings.ReplaceAll(query, "$__rate_interval", "5m")
			quoted, err := json.Marshal(query)
			Expect(err).NotTo(HaveOccurred())
			fmt.Fprintf(&rules, "  - record: dashboard:query:%d\n    expr: %s\n", n, quoted)
			n++
		}
		file := filepath.Join(GinkgoT().TempDir(), "dashboard.yaml")
		Expect(os.WriteFile(file, []byte(rules.String()), 0o644)).To(Succeed())
		promtool("", "check", "rules", file)

		taken := make(map[[2]float64]any)
		ids := make(map[any]bool)
		for _, panel := range read()["panels"].([]any) {
			panel := panel.(map[string]any)
			Expect(ids).NotTo(HaveKey(panel["id"]))
			ids[panel["id"]] = true
			at := panel["gridPos"].(map[string]any)
			number := func(key string) float64 { return at[key].(float64) }
			for x := number("x"); x < number("x")+number("w"); x++ {
				Expect(x).To(BeNumerically("<", 24), "%v", panel["title"])
				for y := number("y"); y < number("y")+number("h"); y++ {
					Expect(taken).NotTo(HaveKey([2]float64{x, y}), "%v", panel["title"])
					taken[[2]float64{x, y}] = panel["title"]
				}
			}
		}
	})
})
