// Package quantity reads Kubernetes quantities (10M, 4Gi, 1e9) that stand for whole
// numbers, from sources that are not trusted.
//
// It exists because the Kubernetes package for them, resource, computes with as many digits as an exponent
// asks for: the twelve bytes 1e-2147483647 keep it busy for minutes and in memory
// for gigabytes.
package quantity

import (
	"encoding/json"
	"errors"
	"math/big"
	"regexp"
	"strings"
)

// form is what a quantity looks like: a number, and an exponent or a suffix. No whole
// number in the range of int64 needs more digits or a larger exponent.
var form = regexp.MustCompile(`^([+-]?[0-9.]{1,40}(?:[eE][+-]?[0-9]{1,2})?)([numkMGTPE]|[KMGTPE]i)?$`)

var (
	errForm  = errors.New("must be a number or a quantity such as 10M, 4Gi or 1e9")
	errWhole = errors.New("must be a whole number from -2^63 to 2^63-1")
)

// Parse returns the whole number that the quantity stands for. A fraction that is
// left over (0.5, 1m) and a number that does not fit are errors, which say what is
// allowed.
func Parse(text string) (int64, error) {
	match := form.FindStringSubmatch(text)
	if match == nil {
		return 0, errForm
	}
	value, ok := new(big.Rat).SetString(match[1])
	hasExponent := strings.ContainsAny(match[1], "eE")
	if !ok || hasExponent && match[2] != "" {
		return 0, errForm
	}
	value.Mul(value, multiplier(match[2]))
	if !value.IsInt() || !value.Num().IsInt64() {
		return 0, errWhole
	}
	return value.Num().Int64(), nil
}

// multiplier returns what a suffix multiplies by.
func multiplier(suffix string) *big.Rat {
	base, power := int64(1000), 0
	switch prefix, binary := strings.CutSuffix(suffix, "i"); {
	case suffix == "":
	case binary:
		base, power = 1024, 1+strings.Index("KMGTPE", prefix)
	case strings.Contains("kMGTPE", suffix):
		power = 1 + strings.Index("kMGTPE", suffix)
	default:
		power = 1 + strings.Index("mun", suffix)
		return new(big.Rat).Inv(integerPower(base, power))
	}
	return integerPower(base, power)
}

func integerPower(base int64, power int) *big.Rat {
	return new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(base), big.NewInt(int64(power)), nil))
}

// Int64 is a whole number that is written as a number or as a quantity.
type Int64 int64

// UnmarshalJSON reads a JSON number, or a JSON string that holds a quantity.
func (i *Int64) UnmarshalJSON(encoded []byte) error {
	text := string(encoded)
	if len(encoded) > 0 && encoded[0] == '"' {
		if err := json.Unmarshal(encoded, &text); err != nil {
			return errForm
		}
	}
	value, err := Parse(text)
	if err != nil {
		return err
	}
	*i = Int64(value)
	return nil
}
