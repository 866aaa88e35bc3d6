package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// MaxDocumentBytes is the size above which a document is refused: etcd's limit for
// one request is 1.5 MiB, so that no object in a cluster is larger. The parser
// needs some hundred bytes for each byte of the densest input.
const MaxDocumentBytes = 1 << 20

// maxNodes is how many values one document may hold, where one that is reached
// through aliases counts as often as it is reached.
const maxNodes = 100_000

// ErrTooManyDocuments is returned by Split.
var ErrTooManyDocuments = errors.New("too many documents")

// Chunk is the text of one document in a stream.
type Chunk struct {
	// Number counts the documents of the stream from 1, empty ones included.
	Number int
	// Line is the number, from 1, of the chunk's first line in the stream.
	Line int
	Text []byte
}

// Split cuts a stream at its document markers (--- and ... at the start of a line)
// and returns the documents that are not empty; none for an empty stream. Cutting
// before parsing keeps a syntax error from hiding the documents after it. It returns
// ErrTooManyDocuments when there are more than limit.
func Split(stream []byte, limit int) ([]Chunk, error) {
	var chunks []Chunk
	current := Chunk{Number: 1, Line: 1}
	start, line := 0, 0
	flush := func(end int) bool {
		current.Text = stream[start:end]
		if isBlank(current.Text) {
			return true
		}
		chunks = append(chunks, current)
		current.Number++
		return len(chunks) <= limit
	}
	for offset := 0; offset < len(stream); {
		line++
		next := len(stream)
		if i := bytes.IndexByte(stream[offset:], '\n'); i >= 0 {
			next = offset + i + 1
		}
		if isMarker(stream[offset:next], "---") {
			if !flush(offset) {
				return nil, fmt.Errorf("%w: at most %d are allowed", ErrTooManyDocuments, limit)
			}
			start, current.Line = offset, line
		} else if isMarker(stream[offset:next], "...") {
			if !flush(offset) {
				return nil, fmt.Errorf("%w: at most %d are allowed", ErrTooManyDocuments, limit)
			}
			start, current.Line = next, line+1
		}
		offset = next
	}
	if !flush(len(stream)) {
		return nil, fmt.Errorf("%w: at most %d are allowed", ErrTooManyDocuments, limit)
	}
	return chunks, nil
}

// isMarker tells whether a line begins with the marker as YAML defines it: in the
// first column and followed by a blank or the line's end.
func isMarker(line []byte, marker string) bool {
	rest, found := bytes.CutPrefix(line, []byte(marker))
	return found && (len(rest) == 0 || bytes.IndexByte([]byte(" \t\r\n"), rest[0]) >= 0)
}

// isBlank tells whether a chunk holds nothing but a marker, comments and blanks.
func isBlank(text []byte) bool {
	if isMarker(text, "---") {
		text = text[len("---"):]
	}
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' {
			return false
		}
	}
	return true
}

// Document is the tree of one document.
type Document struct {
	root *yaml.Node
}

// syntaxLine is how the parser names the line of a syntax error.
var syntaxLine = regexp.MustCompile(`^yaml: line (\d+): `)

// Parse reads the chunk into a tree. The error of a chunk that is not YAML names
// the line in the stream that the chunk came from.
func Parse(chunk Chunk) (*Document, error) {
	if len(chunk.Text) > MaxDocumentBytes {
		return nil, fmt.Errorf("document of %d bytes is too large: at most %d are allowed", len(chunk.Text), MaxDocumentBytes)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(chunk.Text))
	var node yaml.Node
	if err := decoder.Decode(&node); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("document is empty")
		}
		return nil, syntaxError(err, chunk.Line)
	}
	var second yaml.Node
	if err := decoder.Decode(&second); err == nil {
		return nil, errors.New("document is followed by another one without a --- line between them")
	} else if !errors.Is(err, io.EOF) {
		return nil, syntaxError(err, chunk.Line)
	}
	if node.Kind != yaml.DocumentNode || len(node.Content) != 1 {
		return nil, errors.New("document holds no value")
	}
	return &Document{root: node.Content[0]}, nil
}

// syntaxError moves the line in the parser's error from the chunk to the stream.
func syntaxError(err error, firstLine int) error {
	text := err.Error()
	match := syntaxLine.FindStringSubmatch(text)
	if match == nil {
		return fmt.Errorf("not valid YAML (document starts at line %d): %w", firstLine, err)
	}
	line, convErr := strconv.Atoi(match[1])
	if convErr != nil {
		return fmt.Errorf("not valid YAML (document starts at line %d): %w", firstLine, err)
	}
	return fmt.Errorf("not valid YAML: line %d: %s", firstLine+line-1, text[len(match[0]):])
}

// Keys returns the keys of the mapping at the end of the path, in the document's
// order, without those whose value is null; none if there is no mapping there.
func (d *Document) Keys(path ...string) []string {
	node := resolve(d.root)
	for _, name := range path {
		node = resolve(child(node, name))
	}
	if node == nil || node.Kind != yaml.MappingNode {
		return nil
	}
	var keys []string
	for i := 0; i+1 < len(node.Content); i += 2 {
		if key := node.Content[i]; key.Kind == yaml.ScalarNode && !isNull(node.Content[i+1]) {
			keys = append(keys, key.Value)
		}
	}
	return keys
}

// child returns the value of a key in a mapping; nil if there is none.
func child(node *yaml.Node, name string) *yaml.Node {
	if node == nil || node.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Kind == yaml.ScalarNode && node.Content[i].Value == name {
			return node.Content[i+1]
		}
	}
	return nil
}

// resolve follows an alias to what it stands for.
func resolve(node *yaml.Node) *yaml.Node {
	if node != nil && node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

func isNull(node *yaml.Node) bool {
	node = resolve(node)
	return node != nil && node.Kind == yaml.ScalarNode && node.ShortTag() == "!!null"
}
