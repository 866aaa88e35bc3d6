package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// Commands in documents: lines of indented blocks, and code spans.
var (
	codeLine = regexp.MustCompile(`(?m)^ {4,}(.*\bmanx .*)$`)
	codeSpan = regexp.MustCompile("`(manx [^`]+)`")
	operator = regexp.MustCompile(`\|\|?|&&|;|#| >|<`)
)

// commandsIn returns the calls of manx in a document. Those that show a syntax, with
// brackets or an ellipsis, are left out.
func commandsIn(text string) (commands [][]string) {
	var lines []string
	for _, pattern := range []*regexp.Regexp{codeLine, codeSpan} {
		for _, match := range pattern.FindAllStringSubmatch(text, -1) {
			lines = append(lines, match[1])
		}
	}
	for _, line := range lines {
		if strings.ContainsAny(line, "[…") {
			continue
		}
		for _, part := range operator.Split(line, -1) {
			words := strings.Fields(strings.TrimPrefix(strings.TrimSpace(part), "$ "))
			if len(words) > 1 && (words[0] == "manx" || words[0] == "bin/manx") {
				commands = append(commands, words[1:])
			}
		}
	}
	return commands
}

func TestCommandsInDocumentsAreOnesThatThereAre(t *testing.T) {
	g := NewWithT(t)
	documents, err := filepath.Glob("../../docs/*.md")
	g.Expect(err).NotTo(HaveOccurred())
	total := 0
	for _, path := range append(documents, "../../README.md") {
		data, err := os.ReadFile(path)
		g.Expect(err).NotTo(HaveOccurred())
		for _, words := range commandsIn(string(data)) {
			said := path + ": manx " + strings.Join(words, " ")
			tree := root()
			tree.InitDefaultCompletionCmd()
			cmd, rest, err := tree.Find(words)
			g.Expect(err).NotTo(HaveOccurred(), said)
			err = cmd.ParseFlags(rest)
			if err != nil && strings.HasPrefix(err.Error(), "flag needs an argument") {
				continue // names a flag, and is no call
			}
			g.Expect(err).NotTo(HaveOccurred(), said)
			g.Expect(cmd.ValidateArgs(cmd.Flags().Args())).To(Succeed(), said)
			total++
		}
	}
	g.Expect(total).To(BeNumerically(">", 20))
}
