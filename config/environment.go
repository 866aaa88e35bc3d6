package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manx-dataplane/manx/internal/strictyaml"
)

// environmentPrefix begins the name of every variable that belongs to Felix.
const environmentPrefix = "FELIX_"

// override is one environment variable that is set.
type override struct {
	variable string // as it stands in the environment
	field    string // the JSON name of the field it sets; empty if there is none
	value    string
}

// readEnvironment returns the variables of the environment (in os.Environ's form)
// that belong to Felix and are not empty, in the order of their names, later ones of
// the same name last.
func readEnvironment(environ []string) []override {
	names := environmentNames()
	var overrides []override
	for _, entry := range environ {
		variable, value, found := strings.Cut(entry, "=")
		if !found || value == "" || len(variable) < len(environmentPrefix) ||
			!strings.EqualFold(variable[:len(environmentPrefix)], environmentPrefix) {
			continue
		}
		field := names[strings.ToLower(variable[len(environmentPrefix):])]
		overrides = append(overrides, override{variable: variable, field: field, value: value})
	}
	slices.SortStableFunc(overrides, func(a, b override) int {
		return strings.Compare(a.variable, b.variable)
	})
	return overrides
}

// environmentNames returns, for each name that may follow FELIX_, in lower case, the
// JSON name of the field: the field's own name and the one that Felix uses where the
// API gives it (confignamev1).
func environmentNames() map[string]string {
	names := make(map[string]string)
	for name, field := range strictyaml.FieldsOf(reflect.TypeFor[spec]()) {
		names[strings.ToLower(name)] = name
		names[strings.ToLower(field.Name)] = name
		if felix := field.Tag.Get("confignamev1"); felix != "" {
			names[strings.ToLower(felix)] = name
		}
	}
	return names
}

// set sets the field of the spec to the variable's value.
func (o override) set(s *spec) error {
	field := strictyaml.FieldsOf(reflect.TypeFor[spec]())[o.field]
	target := reflect.ValueOf(s).Elem().FieldByIndex(field.Index)
	if err := setText(target, o.value, field.Tag.Get("configv1timescale")); err != nil {
		return strictyaml.NewFieldError(o.variable, o.value, err.Error())
	}
	return nil
}

// setText sets a field from plain text. The error says what is allowed.
func setText(target reflect.Value, text, timescale string) error {
	if target.Kind() == reflect.Pointer {
		fresh := reflect.New(target.Type().Elem())
		if err := setText(fresh.Elem(), text, timescale); err != nil {
			return err
		}
		target.Set(fresh)
		return nil
	}
	switch value := target.Addr().Interface().(type) {
	case *metav1.Duration:
		duration, err := parseDuration(text, timescale)
		value.Duration = duration
		return err
	case json.Unmarshaler:
		encoded, err := json.Marshal(text)
		if err != nil {
			return err
		}
		return value.UnmarshalJSON(encoded)
	}
	switch target.Kind() {
	case reflect.String:
		target.SetString(text)
	case reflect.Bool:
		value, err := parseBool(text)
		target.SetBool(value)
		return err
	case reflect.Int:
		value, err := strconv.Atoi(text)
		if err != nil {
			return errors.New("must be a whole number")
		}
		target.SetInt(int64(value))
	default:
		return fmt.Errorf("%s cannot be set by an environment variable", target.Type())
	}
	return nil
}

// parseBool reads a truth value in the spellings that Felix knows.
func parseBool(text string) (bool, error) {
	switch strings.ToLower(text) {
	case "true", "1", "yes", "y", "t":
		return true, nil
	case "false", "0", "no", "n", "f":
		return false, nil
	}
	return false, errors.New("must be true or false")
}

// parseDuration reads a plain number of the timescale's unit, as Felix has it, or a
// duration with a unit, as the manifest has it.
func parseDuration(text, timescale string) (time.Duration, error) {
	unit := time.Second
	if timescale == "milliseconds" {
		unit = time.Millisecond
	}
	if number, err := strconv.ParseFloat(text, 64); err == nil {
		scaled := number * float64(unit)
		if math.IsNaN(scaled) || math.Abs(scaled) >= math.MaxInt64 {
			return 0, errors.New("is out of range")
		}
		return time.Duration(scaled), nil
	}
	duration, err := time.ParseDuration(text)
	if err != nil {
		return 0, errors.New("must be a number of seconds or a duration with a unit, such as 90s")
	}
	return duration, nil
}
