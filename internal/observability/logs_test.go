package observability_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// logged is what the source logs at info or above.
type logged struct {
	messages map[string]string // to their level
	fields   map[string]bool
}

// levels are the methods of a logger that an operator sees the messages of.
var levels = map[string]string{"Info": "info", "Warn": "warning", "Error": "error", "Fatal": "fatal"}

// unlevelled are methods of a logger that this project does not use: their messages
// cannot be looked up, or their level is not said.
var unlevelled = []string{"Infof", "Infoln", "Warnf", "Warnln", "Warning", "Warningf", "Warningln", "Errorln", "Fatalf", "Fatalln", "Print", "Println"}

// notAgent are directories whose code does not log on behalf of an agent or command.
var notAgent = []string{"examples", "fv", "internal/demo", "internal/nodetest", "internal/simulation", "mocks", "tools"}

// readSource reads what the module's source logs.
func readSource() logged {
	GinkgoHelper()
	found := logged{messages: map[string]string{}, fields: map[string]bool{}}
	files := token.NewFileSet()
	Expect(fs.WalkDir(os.DirFS(root), ".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (slices.Contains(notAgent, path) || path != "." && strings.HasPrefix(entry.Name(), ".")):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(files, filepath.Join(root, path), nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(node ast.Node) bool {
			if err == nil {
				err = found.take(node)
				if err != nil {
					err = fmt.Errorf("%s: %w", files.Position(node.Pos()), err)
				}
			}
			return err == nil
		})
		return err
	})).To(Succeed())
	return found
}

// take notes a call of a logger, and the fields of logrus.Fields.
func (l logged) take(node ast.Node) error {
	switch node := node.(type) {
	case *ast.CompositeLit:
		if kind, ok := node.Type.(*ast.SelectorExpr); ok && kind.Sel.Name == "Fields" {
			for _, element := range node.Elts {
				key, ok := text(element.(*ast.KeyValueExpr).Key)
				if !ok {
					return fmt.Errorf("a field's name must be a literal")
				}
				l.fields[key] = true
			}
		}
	case *ast.CallExpr:
		method, ok := node.Fun.(*ast.SelectorExpr)
		if !ok || len(node.Args) == 0 {
			return nil
		}
		if slices.Contains(unlevelled, method.Sel.Name) && !isPackage(method.X, "fmt") {
			return fmt.Errorf("log with Debug, Info, Warn or Error, not %s", method.Sel.Name)
		}
		first, literal := text(node.Args[0])
		level, logs := levels[method.Sel.Name]
		switch {
		case method.Sel.Name == "WithField" && literal:
			l.fields[first] = true
		case method.Sel.Name == "WithError":
			l.fields["error"] = true
		case logs && !literal:
			return fmt.Errorf("what is logged must be a literal; put what varies into fields")
		case logs:
			l.messages[first] = level
		}
	}
	return nil
}

func isPackage(expr ast.Expr, name string) bool {
	ident, ok := expr.(*ast.Ident)
	return ok && ident.Name == name
}

// text returns the value of a string literal, or of several that are added up.
func text(expr ast.Expr) (string, bool) {
	switch expr := expr.(type) {
	case *ast.BasicLit:
		value, err := strconv.Unquote(expr.Value)
		return value, err == nil && expr.Kind == token.STRING
	case *ast.BinaryExpr:
		left, ok := text(expr.X)
		right, alsoOK := text(expr.Y)
		return left + right, ok && alsoOK && expr.Op == token.ADD
	}
	return "", false
}

var _ = Describe("What is logged at info or above", func() {
	It("is explained in docs/operations.md, line by line, under its level, and nothing else is", func() {
		source := readSource()
		operations := readDocument("docs/operations.md")
		explained := make(map[string]string)
		for section, level := range map[string]string{"Info": "info", "Warning": "warning", "Error": "error"} {
			for _, message := range operations.firstCells(section) {
				Expect(explained).NotTo(HaveKey(message), "explained twice")
				explained[message] = level
			}
		}
		wanted := source.messages
		for message, level := range explained {
			Expect(wanted).To(HaveKeyWithValue(message, level), "explained, but logged at another level or not at all")
			delete(wanted, message)
		}
		Expect(wanted).To(BeEmpty(), "logged, but not explained")
	})

	It("has its fields explained too", func() {
		Expect(readDocument("docs/operations.md").firstCells("Fields of log lines")).
			To(ConsistOf(slices.Collect(maps.Keys(readSource().fields))))
	})
})
