package strictyaml

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxErrors is how many errors of one document are reported.
const maxErrors = 10

// FieldError says what is wrong with one field.
type FieldError struct {
	// Path leads from the document's root to the field: spec.ipNetworks[2].
	Path string
	// Value is the offending value as text; empty where the field itself is the
	// offence.
	Value string
	// Problem says what is allowed: "must be true or false".
	Problem string
	// Unknown is set when no such field exists. It may be another field misspelt.
	Unknown bool
}

// Error returns path, value and problem in one line.
func (e *FieldError) Error() string {
	if e.Value == "" {
		return e.Path + ": " + e.Problem
	}
	return fmt.Sprintf("%s: %s: %s", e.Path, e.Value, e.Problem)
}

// NewFieldError returns the error of a field with the given value, quoted and cut
// to a length that fits in a log line.
func NewFieldError(path, value, problem string) *FieldError {
	return &FieldError{Path: path, Value: Quote(value), Problem: problem}
}

// Quote quotes a value for an error, cut to a length that fits in a log line.
func Quote(value string) string {
	const limit = 80
	if len(value) > limit {
		return fmt.Sprintf("%q…", value[:limit])
	}
	return fmt.Sprintf("%q", value)
}

// Join joins the errors of one document, cut off after the first ten; nil if there
// are none.
func Join(errs []*FieldError) error {
	if len(errs) == 0 {
		return nil
	}
	var joined []error
	for i, err := range errs {
		if i == maxErrors {
			joined = append(joined, fmt.Errorf("and %d more errors", len(errs)-maxErrors))
			break
		}
		joined = append(joined, err)
	}
	return errors.Join(joined...)
}

// Decode fills the struct that target points to, by its json tags. A field that is
// absent or null keeps its value. Fields with errors keep theirs too and each gives
// one error; all other fields are filled.
func (d *Document) Decode(target any) []*FieldError {
	decoder := &decoder{left: maxNodes}
	decoder.value(d.root, "", reflect.ValueOf(target).Elem())
	return decoder.errs
}

type decoder struct {
	errs []*FieldError
	left int // how many more values may be visited
}

func (d *decoder) fail(path string, node *yaml.Node, problem string) {
	if path == "" {
		path = "document"
	}
	d.errs = append(d.errs, &FieldError{Path: path, Value: describe(node), Problem: problem})
}

// value fills v from the node. Its depth is bounded by that of v's type, which is
// why none of the types decoded may be recursive.
func (d *decoder) value(node *yaml.Node, path string, v reflect.Value) {
	d.left--
	if d.left < 0 {
		if d.left == -1 {
			d.fail("", nil, fmt.Sprintf("holds too many values, aliases counted: at most %d are allowed", maxNodes))
		}
		return
	}
	node = resolve(node)
	if isNull(node) {
		return
	}
	if v.Kind() == reflect.Pointer {
		fresh := reflect.New(v.Type().Elem())
		before := len(d.errs)
		d.value(node, path, fresh.Elem())
		if len(d.errs) == before || v.Type().Elem().Kind() == reflect.Struct {
			v.Set(fresh)
		}
		return
	}
	if unmarshaler, ok := v.Addr().Interface().(json.Unmarshaler); ok {
		d.unmarshaler(node, path, unmarshaler)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.structure(node, path, v)
	case reflect.Map:
		d.mapping(node, path, v)
	case reflect.Slice:
		d.sequence(node, path, v)
	default:
		d.scalar(node, path, v)
	}
}

func (d *decoder) structure(node *yaml.Node, path string, v reflect.Value) {
	d.entries(node, path, func(key string, value *yaml.Node, path string) {
		field, ok := fieldOf(v.Type(), key)
		if !ok {
			d.errs = append(d.errs, &FieldError{Path: path, Problem: "unknown field" + suggest(key, v.Type()), Unknown: true})
			return
		}
		d.value(value, path, v.FieldByIndex(field.Index))
	})
}

func (d *decoder) mapping(node *yaml.Node, path string, v reflect.Value) {
	filled := reflect.MakeMap(v.Type())
	d.entries(node, path, func(key string, value *yaml.Node, path string) {
		element := reflect.New(v.Type().Elem()).Elem()
		d.value(value, path, element)
		filled.SetMapIndex(reflect.ValueOf(key).Convert(v.Type().Key()), element)
	})
	v.Set(filled)
}

// entries calls fn for each entry of a mapping, once for each key.
func (d *decoder) entries(node *yaml.Node, path string, fn func(key string, value *yaml.Node, path string)) {
	if node.Kind != yaml.MappingNode {
		d.fail(path, node, "must be a mapping of fields to values")
		return
	}
	seen := make(map[string]bool, len(node.Content)/2)
	for i := 0; i+1 < len(node.Content); i += 2 {
		key := resolve(node.Content[i])
		if key.Kind != yaml.ScalarNode {
			d.fail(path, key, "keys must be strings")
			continue
		}
		entryPath := join(path, key.Value)
		if seen[key.Value] {
			d.errs = append(d.errs, &FieldError{Path: entryPath, Problem: "is given twice"})
			continue
		}
		seen[key.Value] = true
		fn(key.Value, node.Content[i+1], entryPath)
	}
}

func (d *decoder) sequence(node *yaml.Node, path string, v reflect.Value) {
	if node.Kind != yaml.SequenceNode {
		d.fail(path, node, "must be a list")
		return
	}
	filled := reflect.MakeSlice(v.Type(), 0, min(len(node.Content), maxNodes))
	for i, entry := range node.Content {
		if d.left <= 0 {
			// One more, to get the error.
			d.value(entry, path, reflect.New(v.Type().Elem()).Elem())
			break
		}
		element := reflect.New(v.Type().Elem()).Elem()
		d.value(entry, fmt.Sprintf("%s[%d]", path, i), element)
		filled = reflect.Append(filled, element)
	}
	v.Set(filled)
}

func (d *decoder) scalar(node *yaml.Node, path string, v reflect.Value) {
	tag := ""
	if node.Kind == yaml.ScalarNode {
		tag = node.ShortTag()
	}
	switch v.Kind() {
	case reflect.String:
		switch tag {
		case "!!str", "!!timestamp":
			v.SetString(node.Value)
		case "!!int", "!!float", "!!bool":
			d.fail(path, node, "must be a string; put it in quotes")
		default:
			d.fail(path, node, "must be a string")
		}
	case reflect.Bool:
		var value bool
		if tag != "!!bool" || node.Decode(&value) != nil {
			d.fail(path, node, "must be true or false")
			return
		}
		v.SetBool(value)
	case reflect.Int, reflect.Int64:
		var value int64
		if tag != "!!int" || node.Decode(&value) != nil || v.OverflowInt(value) {
			d.fail(path, node, "must be a whole number")
			return
		}
		v.SetInt(value)
	case reflect.Uint16, reflect.Uint32, reflect.Uint8:
		var value uint64
		if tag != "!!int" || node.Decode(&value) != nil || v.OverflowUint(value) {
			d.fail(path, node, fmt.Sprintf("must be a whole number from 0 to %d", uint64(1)<<v.Type().Bits()-1))
			return
		}
		v.SetUint(value)
	default:
		d.fail(path, node, "is of a type that cannot be read: "+v.Type().String())
	}
}

// unmarshaler hands the node to a type that has a JSON form of its own.
func (d *decoder) unmarshaler(node *yaml.Node, path string, target json.Unmarshaler) {
	duration, isDuration := target.(*metav1.Duration)
	if isDuration && node.Value == "0" {
		duration.Duration = 0 // needs no unit, and so no quotes
		return
	}
	encoded, err := toJSON(node)
	if err == nil {
		err = target.UnmarshalJSON(encoded)
	}
	if err == nil {
		return
	}
	if isDuration {
		d.fail(path, node, "must be a duration with a unit, such as 90s or 1m30s, or 0")
		return
	}
	d.fail(path, node, err.Error())
}

// toJSON encodes the node as JSON. Numbers stay as they were written wherever JSON
// has that form too, so that no digit of a quantity is lost.
func toJSON(node *yaml.Node) ([]byte, error) {
	if node.Kind == yaml.ScalarNode {
		switch node.ShortTag() {
		case "!!int", "!!float":
			if json.Valid([]byte(node.Value)) {
				return []byte(node.Value), nil
			}
		case "!!str", "!!timestamp":
			return json.Marshal(node.Value)
		}
	}
	var value any
	if err := node.Decode(&value); err != nil {
		return nil, err
	}
	return json.Marshal(value)
}

// FieldsOf returns the fields that a struct type has in JSON, by their JSON names.
func FieldsOf(t reflect.Type) map[string]reflect.StructField {
	return maps.Collect(fieldsOf(t))
}

// fieldsOf yields the fields that a struct type has in JSON with their JSON names, those
// of inline structs included. Their Index leads to them from t.
func fieldsOf(t reflect.Type) iter.Seq2[string, reflect.StructField] {
	return func(yield func(string, reflect.StructField) bool) {
		for i := range t.NumField() {
			field := t.Field(i)
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name != "" && field.IsExported() && !yield(name, field) {
				return
			}
			if name != "" || !field.Anonymous {
				continue
			}
			for name, inner := range fieldsOf(field.Type) {
				inner.Index = append([]int{i}, inner.Index...)
				if !yield(name, inner) {
					return
				}
			}
		}
	}
}

// fieldOf returns the field that has the name in JSON.
func fieldOf(t reflect.Type, name string) (reflect.StructField, bool) {
	for have, field := range fieldsOf(t) {
		if have == name {
			return field, true
		}
	}
	return reflect.StructField{}, false
}

// suggest names the known field that differs from the key only in its case.
func suggest(key string, t reflect.Type) string {
	for name := range fieldsOf(t) {
		if strings.EqualFold(name, key) {
			return "; did you mean " + name + "?"
		}
	}
	return ""
}

// describe shows a node's value in an error.
func describe(node *yaml.Node) string {
	switch {
	case node == nil:
		return ""
	case node.Kind == yaml.MappingNode:
		return "a mapping"
	case node.Kind == yaml.SequenceNode:
		return "a list"
	case node.ShortTag() == "!!str":
		return Quote(node.Value)
	default:
		return strings.Trim(Quote(node.Value), `"`)
	}
}

// join appends a key to a path; keys that would be misread in one are quoted.
func join(path, key string) string {
	if strings.ContainsAny(key, ".[]\" \n") || len(key) > 80 {
		return path + "[" + Quote(key) + "]"
	}
	if path == "" {
		return key
	}
	return path + "." + key
}
