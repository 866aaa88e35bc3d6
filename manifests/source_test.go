package manifests

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"pgregory.net/rapid"

	"github.com/manx-dataplane/manx/dataplane"
	"github.com/manx-dataplane/manx/internal/filewatch"
)

const bound = "5s"

// receiver is what a driver knows from the messages it was sent.
type receiver struct {
	mu        sync.Mutex
	endpoints map[string]string // workload -> interface
	messages  []string
}

func (r *receiver) send(_ context.Context, message any) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.endpoints == nil {
		r.endpoints = make(map[string]string)
	}
	switch m := message.(type) {
	case dataplane.WorkloadEndpointUpdate:
		r.endpoints[m.ID.Workload] = m.Endpoint.InterfaceName
		r.messages = append(r.messages, "update "+m.ID.Workload)
	case dataplane.WorkloadEndpointRemove:
		delete(r.endpoints, m.ID.Workload)
		r.messages = append(r.messages, "remove "+m.ID.Workload)
	case dataplane.InSync:
		r.messages = append(r.messages, "in sync")
	default:
		return fmt.Errorf("unknown message %T", message)
	}
	return nil
}

func (r *receiver) known() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.endpoints)
}

func (r *receiver) sent() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.messages)
}

// on returns a manifest of pod name on the given interface.
func on(name, interfaceName string) string {
	return header + "spec: {pod: " + name + ", interfaceName: " + interfaceName + "}\n"
}

func all(documents ...string) string { return strings.Join(documents, "---\n") }

var _ = Describe("Source", func() {
	var (
		dir  string
		hook *logtest.Hook
		log  *logrus.Logger
		r    *receiver
	)
	BeforeEach(func() {
		dir = filepath.Join(GinkgoT().TempDir(), "endpoints")
		Expect(os.Mkdir(dir, 0o700)).To(Succeed())
		log, hook = logtest.NewNullLogger()
		r = &receiver{}
	})
	put := func(name, text string) {
		GinkgoHelper()
		Expect(os.WriteFile(filepath.Join(dir, "."+name), []byte(text), 0o600)).To(Succeed())
		Expect(os.Rename(filepath.Join(dir, "."+name), filepath.Join(dir, name))).To(Succeed())
	}
	remove := func(name string) {
		GinkgoHelper()
		Expect(os.Remove(filepath.Join(dir, name))).To(Succeed())
	}
	newSource := func() *Source {
		return NewSource(Options{Dir: dir, InterfacePrefixes: []string{"cali"}, Log: log,
			Watch: filewatch.Options{Settle: time.Millisecond, Poll: time.Hour}})
	}
	// run starts the source and returns what stops it.
	run := func(s *Source, to *receiver) func() {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx, to.send) }()
		stop := sync.OnceFunc(func() {
			cancel()
			Eventually(done, bound).Should(Receive(BeNil()))
		})
		DeferCleanup(stop)
		Eventually(to.sent, bound).Should(ContainElement("in sync"))
		return stop
	}
	reasons := func(level logrus.Level) func() []string {
		return func() []string {
			var found []string
			for _, entry := range hook.AllEntries() {
				if entry.Level == level {
					found = append(found, fmt.Sprint(entry.Data["file"], " ", entry.Data["document"], ": ", entry.Data["reason"]))
				}
			}
			return found
		}
	}
	errorsLogged := reasons(logrus.ErrorLevel)

	Describe("at the start", func() {
		It("sends every endpoint of every file, and then in sync", func() {
			put("b.yml", on("b", "cali-b"))
			put("a.yaml", all(on("a1", "cali-a1"), on("a2", "cali-a2")))
			put("c.json", `{"apiVersion":"projectcalico.org/v3","kind":"WorkloadEndpoint","spec":{"pod":"c","interfaceName":"cali-c"}}`)
			put("README.md", "no manifest")
			put(".hidden.yaml", "no manifest")
			put("d.yaml.swp", "no manifest")
			run(newSource(), r)
			Expect(r.sent()).To(Equal([]string{"update default/a1", "update default/a2", "update default/b", "update default/c", "in sync"}))
			Expect(errorsLogged()).To(BeEmpty())
		})

		It("is in sync with an empty directory, and with one of bad files", func() {
			put("bad.yaml", "apiVersion: [")
			run(newSource(), r)
			Expect(r.sent()).To(Equal([]string{"in sync"}))
			Expect(errorsLogged()).To(HaveExactElements(ContainSubstring("bad.yaml 1: not valid YAML: line 1")))
		})

		It("fails if the directory is missing or is none", func() {
			s := NewSource(Options{Dir: filepath.Join(dir, "none")})
			Expect(s.Run(context.Background(), r.send)).To(MatchError(And(ContainSubstring("read endpoint manifests"), ContainSubstring("no such file"))))
			put("f.yaml", "")
			s = NewSource(Options{Dir: filepath.Join(dir, "f.yaml")})
			Expect(s.Run(context.Background(), r.send)).To(MatchError(ContainSubstring("not a directory")))
		})

		It("ends when the receiver does", func() {
			put("a.yaml", on("a", "cali-a"))
			gone := errors.New("gone")
			Expect(newSource().Run(context.Background(), func(context.Context, any) error { return gone })).To(MatchError(gone))
		})
	})

	Describe("while it runs", func() {
		It("follows files that come, change and go, however they are written", func() {
			run(newSource(), r)
			put("a.yaml", on("a", "cali-1"))
			Eventually(r.known, bound).Should(Equal(map[string]string{"default/a": "cali-1"}))
			Expect(os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(on("a", "cali-2")), 0o600)).To(Succeed())
			Eventually(r.known, bound).Should(Equal(map[string]string{"default/a": "cali-2"}))
			put("a.yaml", all(on("a", "cali-2"), on("b", "cali-b")))
			Eventually(r.known, bound).Should(HaveKey("default/b"))
			put("a.yaml", on("b", "cali-b"))
			Eventually(r.known, bound).Should(Equal(map[string]string{"default/b": "cali-b"}))
			remove("a.yaml")
			Eventually(r.known, bound).Should(BeEmpty())
		})

		It("follows the swap of a ConfigMap mount", func() {
			for _, version := range []string{"1", "2"} {
				Expect(os.Mkdir(filepath.Join(dir, "..v"+version), 0o700)).To(Succeed())
				Expect(os.WriteFile(filepath.Join(dir, "..v"+version, "a.yaml"), []byte(on("a", "cali-"+version)), 0o600)).To(Succeed())
			}
			Expect(os.Symlink("..v1", filepath.Join(dir, "..data"))).To(Succeed())
			Expect(os.Symlink("..data/a.yaml", filepath.Join(dir, "a.yaml"))).To(Succeed())
			run(newSource(), r)
			Expect(r.known()).To(Equal(map[string]string{"default/a": "cali-1"}))
			Expect(os.Symlink("..v2", filepath.Join(dir, "..tmp"))).To(Succeed())
			Expect(os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data"))).To(Succeed())
			Eventually(r.known, bound).Should(Equal(map[string]string{"default/a": "cali-2"}))
			Expect(r.sent()).NotTo(ContainElement(HavePrefix("remove")))
		})

		It("sends only what is different, and removals first", func() {
			put("a.yaml", all(on("a", "cali-a"), on("b", "cali-b")))
			run(newSource(), r)
			put("b.yaml", on("c", "cali-c"))
			Eventually(r.known, bound).Should(HaveLen(3))
			put("a.yaml", all("# new text\n", on("a", "cali-a"), on("d", "cali-b")))
			Eventually(r.known, bound).Should(HaveKey("default/d"))
			Expect(r.sent()).To(Equal([]string{"update default/a", "update default/b", "in sync", "update default/c", "remove default/b", "update default/d"}))
		})

		It("keeps everything while the directory is gone, and follows the new one", func() {
			put("a.yaml", on("a", "cali-a"))
			run(newSource(), r)
			Expect(os.Rename(dir, dir+".away")).To(Succeed())
			Eventually(errorsLogged, bound).Should(HaveExactElements(ContainSubstring("no such file or directory; the endpoints last known stay")))
			Expect(r.known()).To(HaveLen(1))
			Expect(os.Rename(dir+".away", dir)).To(Succeed())
			put("b.yaml", on("b", "cali-b"))
			Eventually(r.known, bound).Should(HaveLen(2))
			Expect(r.sent()).NotTo(ContainElement(HavePrefix("remove")))
		})
	})

	Describe("bad input", func() {
		It("leaves the last good state of a file in force, and says so once until it changes", func() {
			put("a.yaml", all(on("a", "cali-a"), on("b", "cali-b")))
			run(newSource(), r)
			for i, text := range []string{
				on("a", "cali-a") + "---\napiVersion: [", // half-written
				"",                                       // truncated
				all(on("a", "cali-a"), "kind: Pod\n"),    // another kind
				strings.Repeat("a", MaxFileBytes+1),      // too large
				strings.Repeat("---\na: b\n", MaxDocuments+1), // too many
			} {
				put("a.yaml", text)
				Eventually(errorsLogged, bound).Should(HaveLen(i + 1))
				put("other.yaml", on("o", fmt.Sprint("cali-o", i)))
				Eventually(r.known, bound).Should(HaveKeyWithValue("default/o", fmt.Sprint("cali-o", i)))
			}
			Expect(errorsLogged()).To(HaveExactElements(
				ContainSubstring("a.yaml 2: not valid YAML: line 5"),
				ContainSubstring("file is empty; to remove its endpoints, remove the file"),
				ContainSubstring(`a.yaml 2: apiVersion: "": must be projectcalico.org/v3`),
				ContainSubstring("a.yaml is too large: at most 10485760 bytes are allowed"),
				ContainSubstring("too many documents: at most 10000 are allowed"),
			))
			Expect(r.known()).To(HaveLen(3))
			Expect(r.sent()).NotTo(ContainElement(HavePrefix("remove")))

			put("a.yaml", on("a", "cali-a"))
			Eventually(r.known, bound).ShouldNot(HaveKey("default/b"))
			Eventually(func() int { return len(reasons(logrus.InfoLevel)()) }, bound).Should(Equal(5))
		})

		It("does not take a file for unchanged that changed within the same tick of the file system's clock", func() {
			path := filepath.Join(dir, "a.yaml")
			Expect(os.WriteFile(path, []byte("a"), 0o644)).To(Succeed())
			info, err := os.Stat(path)
			Expect(err).NotTo(HaveOccurred())
			Expect(sign(info, info.ModTime().Add(clockResolution/2)).unchanged(info)).To(BeFalse())
			Expect(sign(info, info.ModTime().Add(2*clockResolution)).unchanged(info)).To(BeTrue())
		})

		It("lets good documents of a file apply beside a bad one", func() {
			put("a.yaml", all(on("a", "cali-a"), on("b", "eth0"), on("c", "cali-c")))
			run(newSource(), r)
			Expect(r.known()).To(Equal(map[string]string{"default/a": "cali-a", "default/c": "cali-c"}))
			Expect(errorsLogged()).To(HaveExactElements(ContainSubstring(`a.yaml 2: spec.interfaceName: "eth0": must begin with a workload interface prefix: cali`)))
			put("a.yaml", all(on("a", "cali-a2"), on("b", "cali-b"), on("c", "lo")))
			Eventually(r.known, bound).Should(Equal(map[string]string{"default/a": "cali-a2", "default/b": "cali-b", "default/c": "cali-c"}))
		})

		It("holds on to the endpoint of a bad document only, where it is known whose it is", func() {
			put("a.yaml", all(on("a", "cali-a"), on("b", "cali-b"), on("c", "cali-c")))
			run(newSource(), r)
			put("a.yaml", all(on("a", "eth0"), on("c", "cali-c2")))
			Eventually(r.known, bound).Should(Equal(map[string]string{"default/a": "cali-a", "default/c": "cali-c2"}))
		})

		It("holds on to all of a file's endpoints where it is not", func() {
			put("a.yaml", all(on("a", "cali-a"), on("b", "cali-b")))
			put("z.yaml", on("z", "cali-z"))
			run(newSource(), r)
			put("a.yaml", all(on("c", "cali-c"), strings.ReplaceAll(on("a", "cali-a9"), "pod:", "pood:")))
			Eventually(r.known, bound).Should(Equal(map[string]string{"default/a": "cali-a", "default/b": "cali-b", "default/c": "cali-c", "default/z": "cali-z"}))
			remove("z.yaml")
			Eventually(r.known, bound).ShouldNot(HaveKey("default/z"))
			remove("a.yaml")
			Eventually(r.known, bound).Should(BeEmpty())
		})

		It("gives an endpoint that two files describe to the first, and to the second when that goes", func() {
			put("b.yaml", on("x", "cali-b"))
			run(newSource(), r)
			put("c.yaml", on("x", "cali-c"))
			Eventually(errorsLogged, bound).Should(HaveExactElements(`c.yaml 1: endpoint "k8s default/x eth0": is described in file b.yaml too, which is in force`))
			put("a.yaml", all(on("y", "cali-y"), on("x", "cali-a")))
			Eventually(r.known, bound).Should(HaveKeyWithValue("default/x", "cali-a"))
			remove("a.yaml")
			Eventually(r.known, bound).Should(Equal(map[string]string{"default/x": "cali-b"}))
			remove("b.yaml")
			Eventually(r.known, bound).Should(Equal(map[string]string{"default/x": "cali-c"}))
			Expect(r.sent()).NotTo(ContainElement("remove default/x"))
		})

		It("gives an endpoint that one file describes twice to the first document", func() {
			put("a.yaml", all(on("x", "cali-1"), on("x", "cali-2")))
			run(newSource(), r)
			Expect(r.known()).To(Equal(map[string]string{"default/x": "cali-1"}))
			Expect(errorsLogged()).To(HaveExactElements(`a.yaml 2: endpoint "k8s default/x eth0": is described by document 1 too, which is in force`))
		})

		It("does not wait for named pipes nor follow links that lead nowhere", func() {
			Expect(syscall.Mkfifo(filepath.Join(dir, "pipe.yaml"), 0o600)).To(Succeed())
			Expect(os.Symlink("nowhere", filepath.Join(dir, "link.yaml"))).To(Succeed())
			Expect(os.Mkdir(filepath.Join(dir, "dir.yaml"), 0o700)).To(Succeed())
			put("a.yaml", on("a", "cali-a"))
			run(newSource(), r)
			Expect(r.known()).To(HaveLen(1))
			Expect(errorsLogged()).To(HaveExactElements(
				ContainSubstring("dir.yaml is not a regular file"), ContainSubstring("link.yaml: no such file"), ContainSubstring("pipe.yaml is not a regular file")))
		})

		It("warns of controls that do nothing here", func() {
			put("a.yaml", pod("a", "qosControls: {ingressPacketRate: 1000}"))
			run(newSource(), r)
			Expect(reasons(logrus.WarnLevel)()).To(HaveExactElements(ContainSubstring("only bandwidth is limited here; not used: ingressPacketRate")))
			Expect(errorsLogged()).To(BeEmpty())
		})

		It("does not fill the log with one file's faults", func() {
			put("a.yaml", all(slices.Repeat([]string{on("a", "eth0")}, 1000)...))
			run(newSource(), r)
			Expect(errorsLogged()).To(HaveLen(maxProblems + 1))
			Expect(errorsLogged()).To(ContainElement(ContainSubstring("980 more documents have problems")))
		})
	})

	Describe("for a second receiver", func() {
		It("sends everything again, last good states included", func() {
			put("a.yaml", on("a", "cali-a"))
			put("b.yaml", on("b", "cali-b"))
			s := newSource()
			stop := run(s, r)
			put("a.yaml", "half-writ")
			Eventually(errorsLogged, bound).Should(HaveLen(1))
			stop()
			second := &receiver{}
			run(s, second)
			Expect(second.sent()).To(Equal([]string{"update default/a", "update default/b", "in sync"}))
			Expect(errorsLogged()).To(HaveLen(1))
		})

		It("goes by the new interface prefixes, for last good states too", func() {
			put("a.yaml", all(on("a", "cali-a"), on("t", "tap-t")))
			s := newSource()
			stop := run(s, r)
			Expect(r.known()).To(Equal(map[string]string{"default/a": "cali-a"}))
			stop()
			s.SetInterfacePrefixes([]string{"tap"})
			second := &receiver{}
			run(s, second)
			Expect(second.known()).To(Equal(map[string]string{"default/t": "tap-t"}))
		})
	})

	It("ends up with what the files say after any history of them", func() {
		rapid.Check(GinkgoT(), func(t *rapid.T) {
			root, err := os.MkdirTemp("", "manifests")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(root)
			s := NewSource(Options{Dir: root, InterfacePrefixes: []string{"cali"}})
			s.sent = make(map[dataplane.WorkloadEndpointID]*dataplane.WorkloadEndpoint)
			to := &receiver{}
			good := make(map[string]map[string]string) // file -> workload -> interface
			step := func() {
				if err := s.update(context.Background(), to.send); err != nil {
					t.Fatal(err)
				}
			}
			for i := range rapid.IntRange(1, 8).Draw(t, "steps") {
				name := rapid.SampledFrom([]string{"a.yaml", "b.yaml"}).Draw(t, "file")
				path := filepath.Join(root, name)
				switch rapid.SampledFrom([]string{"good", "good", "broken", "empty", "remove"}).Draw(t, "what") {
				case "good":
					state := make(map[string]string)
					var documents []string
					for _, workload := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"p", "q", "r"}), 1, 3, rapid.ID).Draw(t, "pods") {
						state["default/"+workload] = fmt.Sprint("cali", i)
						documents = append(documents, on(workload, fmt.Sprint("cali", i)))
					}
					good[name] = state
					err = os.WriteFile(path, []byte(all(documents...)), 0o600)
				case "broken":
					err = os.WriteFile(path, []byte("a: ["), 0o600)
				case "empty":
					err = os.WriteFile(path, nil, 0o600)
				case "remove":
					if err = os.Remove(path); os.IsNotExist(err) {
						err = nil
					}
					delete(good, name)
				}
				if err != nil {
					t.Fatal(err)
				}
				step()
				want := make(map[string]string)
				for _, name := range []string{"b.yaml", "a.yaml"} { // the first file's last, as it has precedence
					maps.Copy(want, good[name])
				}
				if got := to.known(); !maps.Equal(got, want) {
					t.Fatalf("after step %d: %v, want %v", i, got, want)
				}
			}
		})
	})
})
