package strictyaml

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/manx-dataplane/manx/internal/quantity"
)

func TestStrictYAML(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "Strict YAML")
}

type sample struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Text            string            `json:"text"`
	Flag            *bool             `json:"flag"`
	Number          *int              `json:"number"`
	Small           uint16            `json:"small"`
	List            []string          `json:"list"`
	Every           *metav1.Duration  `json:"every"`
	Size            *quantity.Int64   `json:"size"`
	Inner           *sampleInner      `json:"inner"`
}

type sampleInner struct {
	Text string `json:"text"`
}

func decode(text string) (sample, string) {
	GinkgoHelper()
	chunks, err := Split([]byte(text), 10)
	Expect(err).NotTo(HaveOccurred())
	Expect(chunks).To(HaveLen(1))
	document, err := Parse(chunks[0])
	Expect(err).NotTo(HaveOccurred())
	var read sample
	if err := Join(document.Decode(&read)); err != nil {
		return read, err.Error()
	}
	return read, ""
}

var _ = Describe("Split", func() {
	DescribeTable("cuts at markers in the first column only",
		func(stream string, want ...string) {
			chunks, err := Split([]byte(stream), 10)
			Expect(err).NotTo(HaveOccurred())
			var got []string
			for i, chunk := range chunks {
				Expect(chunk.Number).To(Equal(i + 1))
				got = append(got, string(chunk.Text))
			}
			Expect(got).To(HaveExactElements(want))
		},
		Entry("nothing", ""),
		Entry("comments only", "# a\n---\n# b\n---\n\n"),
		Entry("one", "a: 1\n", "a: 1\n"),
		Entry("no line end", "a: 1", "a: 1"),
		Entry("two", "a: 1\n---\nb: 2\n", "a: 1\n", "---\nb: 2\n"),
		Entry("leading marker", "---\na: 1\n", "---\na: 1\n"),
		Entry("CR LF", "a: 1\r\n---\r\nb: 2\r\n", "a: 1\r\n", "---\r\nb: 2\r\n"),
		Entry("content on the marker's line", "--- {a: 1}\n--- # note\nb: 2", "--- {a: 1}\n", "--- # note\nb: 2"),
		Entry("end marker", "a: 1\n...\nb: 2\n", "a: 1\n", "b: 2\n"),
		Entry("indented dashes", "a: |\n  ---\nb: 2\n", "a: |\n  ---\nb: 2\n"),
		Entry("longer dashes", "----\n", "----\n"),
	)

	It("refuses more documents than the limit, and takes just as many", func() {
		_, err := Split([]byte(strings.Repeat("---\na: 1\n", 10)), 10)
		Expect(err).NotTo(HaveOccurred())
		_, err = Split([]byte(strings.Repeat("---\na: 1\n", 11)), 10)
		Expect(err).To(MatchError(ErrTooManyDocuments))
	})

	It("loses no byte of content, whatever the stream is", func() {
		rapid.Check(GinkgoT(), func(t *rapid.T) {
			lines := rapid.SliceOf(rapid.SampledFrom([]string{"---\n", "...\n", "a: 1\n", "\n", "# c\n", "--- x\n", " ---\n", "---"})).Draw(t, "lines")
			stream := strings.Join(lines, "")
			chunks, err := Split([]byte(stream), len(lines)+1)
			if err != nil {
				t.Fatal(err)
			}
			count := 0
			for _, chunk := range chunks {
				count += strings.Count(string(chunk.Text), "a: 1")
				if before := strings.Count(stream[:strings.Index(stream, string(chunk.Text))], "\n"); before > chunk.Line-1 {
					t.Fatalf("document %d starts after line %d, not at %d", chunk.Number, before, chunk.Line)
				}
			}
			if want := strings.Count(stream, "a: 1"); count != want {
				t.Fatalf("%d of %d entries left", count, want)
			}
		})
	})
})

var _ = Describe("Parse", func() {
	It("names the line of a syntax error in the file", func() {
		_, err := Parse(Chunk{Number: 3, Line: 41, Text: []byte("a: 1\nb: [1\n")})
		Expect(err).To(MatchError(MatchRegexp(`not valid YAML: line 4[12]: `)))
	})

	It("refuses what is too large, and what is not text", func() {
		_, err := Parse(Chunk{Line: 1, Text: make([]byte, MaxDocumentBytes+1)})
		Expect(err).To(MatchError(ContainSubstring("at most 1048576 are allowed")))
		_, err = Parse(Chunk{Line: 1, Text: []byte("a: \xff\xfe")})
		Expect(err).To(MatchError(ContainSubstring("not valid YAML")))
	})

	It("is bounded in time for the densest and the deepest documents", func() {
		for _, text := range []string{
			strings.Repeat("[", MaxDocumentBytes),
			strings.Repeat("{a: ", MaxDocumentBytes/4),
			strings.Repeat("- ", MaxDocumentBytes/2),
			"[" + strings.Repeat(",", MaxDocumentBytes-2) + "]",
			"a: [" + strings.Repeat("a,", MaxDocumentBytes/2-10) + "]",
			strings.Repeat("#\n", MaxDocumentBytes/2-1) + "a",
			strings.Repeat("a", MaxDocumentBytes-1) + ":",
			strings.Repeat("? ", MaxDocumentBytes/2),
			strings.Repeat("!a ", MaxDocumentBytes/3),
		} {
			start := processorTime()
			document, err := Parse(Chunk{Number: 1, Line: 1, Text: []byte(text)})
			if err == nil {
				document.Decode(new(sample))
			}
			// A few tenths of a second, or as many seconds with the race detector.
			Expect(processorTime()-start).To(BeNumerically("<", 10*time.Second), "%.20q", text)
		}
	})
})

// processorTime is what this process has used so far, however busy the machine is.
func processorTime() time.Duration {
	GinkgoHelper()
	var usage syscall.Rusage
	Expect(syscall.Getrusage(syscall.RUSAGE_SELF, &usage)).To(Succeed())
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

var _ = Describe("Decode", func() {
	It("fills all kinds of fields", func() {
		got, problem := decode(`
apiVersion: v1
metadata: {name: x, annotations: {a/b: "1"}, creationTimestamp: "2026-01-02T03:04:05Z", managedFields: [{manager: m, fieldsV1: {"f:spec": {}}}]}
text: "yes"
flag: false
number: 0x10
small: 65535
list: [a, "1", 2026-01-02]
every: 1m30s
size: 4Gi
inner: {text: t}
`)
		Expect(problem).To(BeEmpty())
		Expect(got.APIVersion).To(Equal("v1"))
		Expect(got.Metadata.Annotations).To(HaveKeyWithValue("a/b", "1"))
		Expect(got.Metadata.CreationTimestamp.Year()).To(Equal(2026))
		Expect(got.Text).To(Equal("yes"))
		Expect(*got.Flag).To(BeFalse())
		Expect(*got.Number).To(Equal(16))
		Expect(got.Small).To(Equal(uint16(65535)))
		Expect(got.List).To(Equal([]string{"a", "1", "2026-01-02"}))
		Expect(got.Every.Duration.String()).To(Equal("1m30s"))
		Expect(int64(*got.Size)).To(Equal(int64(4 << 30)))
		Expect(got.Inner.Text).To(Equal("t"))
	})

	It("reads JSON as well", func() {
		got, problem := decode(`{"text":"a\tb\u00e4","number":5,"list":["x"],"size":1000,"every":"90s"}`)
		Expect(problem).To(BeEmpty())
		Expect(got.Text).To(Equal("a\tbä"))
		Expect(int64(*got.Size)).To(Equal(int64(1000)))
	})

	It("leaves null and absent fields as they were", func() {
		got, problem := decode("text:\nflag: null\nlist: ~\ninner: null\n")
		Expect(problem).To(BeEmpty())
		Expect(got).To(Equal(sample{}))
	})

	It("takes a zero duration without a unit", func() {
		got, problem := decode("every: 0")
		Expect(problem).To(BeEmpty())
		Expect(got.Every.Duration).To(BeZero())
	})

	DescribeTable("says which field is wrong, its value and what is allowed",
		func(text, want string) {
			_, problem := decode(text)
			Expect(problem).To(ContainSubstring(want))
		},
		Entry("unknown", "txet: a", "txet: unknown field"),
		Entry("unknown inside", "inner: {x: 1}", "inner.x: unknown field"),
		Entry("wrong case", "Text: a", "Text: unknown field; did you mean text?"),
		Entry("Go's name for an embedded struct", "TypeMeta: {kind: a}", "TypeMeta: unknown field"),
		Entry("merge key", "a: &a {text: b}\n<<: *a", "<<: unknown field"),
		Entry("twice", "text: a\ntext: b", "text: is given twice"),
		Entry("twice in a map", "metadata: {annotations: {a.b: x, a.b: y}}", `metadata.annotations["a.b"]: is given twice`),
		Entry("number for string", "text: 010", "text: 010: must be a string; put it in quotes"),
		Entry("number in a map of strings", "metadata: {annotations: {k: 1000}}", "metadata.annotations.k: 1000: must be a string; put it in quotes"),
		Entry("list for string", "text: [a]", "text: a list: must be a string"),
		Entry("string for list", "list: a", `list: "a": must be a list`),
		Entry("map in a list", "list: [{}, a]", "list[0]: a mapping: must be a string"),
		Entry("string for mapping", "inner: a", `inner: "a": must be a mapping`),
		Entry("string for bool", "flag: maybe", `flag: "maybe": must be true or false`),
		Entry("quoted bool", `flag: "true"`, `flag: "true": must be true or false`),
		Entry("fraction for int", "number: 1.5", "number: 1.5: must be a whole number"),
		Entry("too large an int", "number: 9223372036854775808", "number: 9223372036854775808: must be a whole number"),
		Entry("out of range", "small: 65536", "small: 65536: must be a whole number from 0 to 65535"),
		Entry("negative", "small: -1", "small: -1: must be a whole number from 0 to 65535"),
		Entry("duration without unit", "every: 90", "every: 90: must be a duration with a unit"),
		Entry("bad duration", "every: soon", `every: "soon": must be a duration with a unit`),
		Entry("bad quantity", "size: 4Q", `size: "4Q": must be a number or a quantity`),
		Entry("complex key", "? [a]\n: b", "document: a list: keys must be strings"),
		Entry("not an object", "- a", "document: a list: must be a mapping"),
		Entry("a scalar", "hello", `document: "hello": must be a mapping`),
	)

	It("reports all errors, and fills the fields that have none", func() {
		got, problem := decode("text: good\nflag: x\nnumber: y\nlist: [1, b]\n")
		Expect(problem).To(And(ContainSubstring("flag: "), ContainSubstring("number: "), ContainSubstring("list[0]: ")))
		Expect(got.Text).To(Equal("good"))
		Expect(got.Flag).To(BeNil())
	})

	It("cuts off a flood of errors and long values", func() {
		var text strings.Builder
		for i := range 1000 {
			fmt.Fprintf(&text, "field%d: 1\n", i)
		}
		_, problem := decode(text.String())
		Expect(strings.Count(problem, "\n")).To(Equal(10))
		Expect(problem).To(ContainSubstring("and 990 more errors"))

		_, problem = decode("flag: " + strings.Repeat("x", 10_000))
		Expect(len(problem)).To(BeNumerically("<", 200))
	})

	It("bounds what aliases can blow up", func() {
		var bomb strings.Builder
		bomb.WriteString("metadata: &a0 {annotations: {a: b, c: d}}\nlist: &b0 [a, a, a, a, a, a, a, a, a, a]\n")
		for i := 1; i <= 9; i++ {
			fmt.Fprintf(&bomb, "x%d: &b%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*b%d, ", i-1), 10), ", "))
		}
		start := time.Now()
		_, problem := decode(bomb.String())
		Expect(problem).To(ContainSubstring("x1: unknown field"))
		Expect(time.Since(start)).To(BeNumerically("<", time.Second))

		items := "[" + strings.Repeat("*m, ", 20_000) + "*m]"
		type deep struct {
			M    map[string]string   `json:"m"`
			List []map[string]string `json:"list"`
		}
		document, err := Parse(Chunk{Number: 1, Line: 1, Text: []byte("m: &m {a: b, c: d, e: f, g: h, i: j}\nlist: " + items)})
		Expect(err).NotTo(HaveOccurred())
		err = Join(document.Decode(new(deep)))
		Expect(err).To(MatchError(ContainSubstring("document: holds too many values, aliases counted: at most 100000 are allowed")))
		Expect(time.Since(start)).To(BeNumerically("<", 5*time.Second))
	})

	It("survives an alias that contains itself", func() {
		chunks, err := Split([]byte("inner: &a {text: *a}\nmetadata: &b {annotations: *b, managedFields: [{fieldsV1: *b}]}"), 1)
		Expect(err).NotTo(HaveOccurred())
		document, err := Parse(chunks[0])
		Expect(err).NotTo(HaveOccurred())
		Expect(document.Decode(new(sample))).NotTo(BeEmpty())
	})
})

var _ = Describe("Keys", func() {
	It("gives the keys that are set, through aliases too", func() {
		document, err := Parse(Chunk{Line: 1, Text: []byte("a: &a {x: 1, y: null, z: 2}\nspec: *a\n")})
		Expect(err).NotTo(HaveOccurred())
		Expect(document.Keys("spec")).To(Equal([]string{"x", "z"}))
		Expect(document.Keys("spec", "x")).To(BeEmpty())
		Expect(document.Keys("none", "x")).To(BeEmpty())
	})
})
