package quantity

import (
	"math"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"
)

func TestQuantitiesOfWholeNumbersAreRead(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1": 1, "-5": -5, "30M": 30_000_000, "4Gi": 4 << 30, "1.5k": 1500, "1e9": 1_000_000_000,
		"1E3": 1000, "1P": 1e15, "1000m": 1, "0.5k": 500, "9223372036854775807": math.MaxInt64,
	} {
		NewWithT(t).Expect(Parse(text)).To(Equal(want), text)
	}
}

func TestWhatIsNoWholeNumberIsRefused(t *testing.T) {
	for _, text := range []string{"", "x", "1x", "0.5", "1m", "1 M", "1e", "--1", "10E", "9223372036854775808", "1e99", "1e-9", "Mi", "NaN", "0x10"} {
		_, err := Parse(text)
		NewWithT(t).Expect(err).To(HaveOccurred(), text)
	}
}

func TestNoTextTakesLong(t *testing.T) {
	for _, text := range []string{"1e-2147483647", "1e999999999999999999", "1E-99", "1e99", "0.0000000000000000000000000000000000000001E99"} {
		start := time.Now()
		_, err := Parse(text)
		g := NewWithT(t)
		g.Expect(err).To(HaveOccurred(), text)
		g.Expect(time.Since(start)).To(BeNumerically("<", time.Second), text)
	}
}

func TestPrintedNumbersAndQuantitiesComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.Int64().Draw(t, "number")
		format := rapid.SampledFrom([]resource.Format{resource.DecimalSI, resource.BinarySI, resource.DecimalExponent}).Draw(t, "format")
		for _, text := range []string{strconv.FormatInt(want, 10), resource.NewQuantity(want, format).String()} {
			got, err := Parse(text)
			if err != nil || got != want {
				t.Fatalf("%q gives %d, %v; want %d", text, got, err, want)
			}
			var decoded Int64
			if err := decoded.UnmarshalJSON([]byte(strconv.Quote(text))); err != nil || int64(decoded) != want {
				t.Fatalf("%q decodes to %d, %v; want %d", text, decoded, err, want)
			}
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"10M", "4Gi", "1e9", "1e-2147483647", "-0.5", "1.5k", "9223372036854775808"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		value, err := Parse(text)
		if err != nil {
			return
		}
		parsed, err := resource.ParseQuantity(text)
		if err != nil || parsed.CmpInt64(value) != 0 {
			t.Errorf("%q gives %d; Kubernetes has %v, %v", text, value, parsed, err)
		}
	})
}
