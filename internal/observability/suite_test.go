package observability_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

func TestObservability(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "observability")
}

// root is the directory of the module.
const root = "../.."

// rootFile reads a file of the module.
func rootFile(path string) string {
	GinkgoHelper()
	data, err := os.ReadFile(filepath.Join(root, path))
	Expect(err).NotTo(HaveOccurred())
	return string(data)
}

// promtool runs Prometheus's tool with these arguments and standard input, and
// expects it to find nothing wrong. "make test" fetches it; see scripts/promtool.sh.
func promtool(input string, args ...string) {
	GinkgoHelper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		path, err = filepath.Abs(filepath.Join(root, "bin", "promtool"))
		Expect(err).NotTo(HaveOccurred())
		_, err = os.Stat(path)
	}
	if err != nil {
		if os.Getenv("CI") != "" {
			Fail("CI must have promtool, of Debian's package prometheus: make promtool")
		}
		Skip("NOT RUN: needs promtool, of Debian's package prometheus: make promtool")
	}
	command := exec.Command(path, args...)
	command.Stdin = strings.NewReader(input)
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	Expect(command.Run()).To(Succeed(), "promtool %s: %s", strings.Join(args, " "), &output)
}

// document is a Markdown document by its sections: the text below each heading of
// any level, up to the next.
type document map[string]string

var heading = regexp.MustCompile(`(?m)^#+ (.+)$`)

func readDocument(path string) document {
	GinkgoHelper()
	text := rootFile(path)
	d := make(document)
	at := heading.FindAllStringSubmatchIndex(text, -1)
	for n, match := range at {
		end := len(text)
		if n+1 < len(at) {
			end = at[n+1][0]
		}
		d[text[match[2]:match[3]]] = text[match[1]:end]
	}
	return d
}

var tableRow = regexp.MustCompile("(?m)^\\| `([^`]+)` \\|")

// firstCells returns what the first cells of the section's tables name.
func (d document) firstCells(section string) []string {
	GinkgoHelper()
	text, ok := d[section]
	Expect(ok).To(BeTrue(), "no section %q", section)
	var cells []string
	for _, match := range tableRow.FindAllStringSubmatch(text, -1) {
		cells = append(cells, match[1])
	}
	return cells
}

// anchors returns the fragments by which the sections can be linked to, as GitHub
// makes them of headings.
func (d document) anchors() map[string]bool {
	anchors := make(map[string]bool)
	for title := range d {
		anchor := strings.ToLower(title)
		anchor = regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(anchor, "")
		anchors[strings.ReplaceAll(anchor, " ", "-")] = true
	}
	return anchors
}
