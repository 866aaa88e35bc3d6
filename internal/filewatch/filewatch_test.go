package filewatch

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
)

func TestFilewatch(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "File watch")
	goleak.VerifyNone(t, goleak.IgnoreAnyFunction("github.com/onsi/ginkgo/v2/internal/interrupt_handler.(*InterruptHandler).registerForInterrupts.func2"))
}

// The poll is out of the way unless a test asks for it, so that what is seen is seen
// through inotify.
var quick = Options{Settle: time.Millisecond, Poll: time.Hour}

const bound = "5s"

func write(path, text string) {
	GinkgoHelper()
	Expect(os.WriteFile(path, []byte(text), 0o600)).To(Succeed())
}

var _ = Describe("Watch", func() {
	var (
		dir string
		ctx context.Context
	)
	BeforeEach(func() {
		dir = GinkgoT().TempDir()
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(context.Background())
		DeferCleanup(cancel)
	})
	watch := func(path string) <-chan struct{} {
		GinkgoHelper()
		signals, err := Watch(ctx, path, quick)
		Expect(err).NotTo(HaveOccurred())
		return signals
	}
	// follow reads the path after each signal about what is watched, as users of the
	// package do.
	follow := func(watched, path string) func() string {
		GinkgoHelper()
		signals := watch(watched)
		last := ""
		read := func() {
			data, err := os.ReadFile(path)
			if last = string(data); err != nil {
				last = "absent"
			}
		}
		read()
		return func() string {
			select {
			case <-signals:
				read()
			default:
			}
			return last
		}
	}

	It("sees a file written in place, replaced, removed and created", func() {
		path := filepath.Join(dir, "f")
		seen := follow(path, path)
		write(path, "1")
		Eventually(seen, bound).Should(Equal("1"))
		write(path, "2")
		Eventually(seen, bound).Should(Equal("2"))
		write(path+".new", "3")
		Expect(os.Rename(path+".new", path)).To(Succeed())
		Eventually(seen, bound).Should(Equal("3"))
		Expect(os.Remove(path)).To(Succeed())
		Eventually(seen, bound).Should(Equal("absent"))
		write(path, "4")
		Eventually(seen, bound).Should(Equal("4"))
	})

	It("follows the ..data swap of a ConfigMap mount", func() {
		for _, version := range []string{"1", "2", "3"} {
			Expect(os.Mkdir(filepath.Join(dir, "..v"+version), 0o700)).To(Succeed())
			write(filepath.Join(dir, "..v"+version, "f"), version)
		}
		data, path := filepath.Join(dir, "..data"), filepath.Join(dir, "f")
		Expect(os.Symlink("..v1", data)).To(Succeed())
		Expect(os.Symlink(filepath.Join("..data", "f"), path)).To(Succeed())
		seen := follow(path, path)
		Expect(seen()).To(Equal("1"))
		for _, version := range []string{"2", "3"} {
			Expect(os.Symlink("..v"+version, data+"_tmp")).To(Succeed())
			Expect(os.Rename(data+"_tmp", data)).To(Succeed())
			Eventually(seen, bound).Should(Equal(version))
		}
		write(filepath.Join(dir, "..v3", "f"), "in place")
		Eventually(seen, bound).Should(Equal("in place"))
	})

	It("follows a directory through a symbolic link that is swapped", func() {
		link := filepath.Join(dir, "link")
		for _, name := range []string{"a", "b"} {
			Expect(os.Mkdir(filepath.Join(dir, name), 0o700)).To(Succeed())
		}
		Expect(os.Symlink("a", link)).To(Succeed())
		signals := watch(link)
		Expect(os.Symlink("b", link+"2")).To(Succeed())
		Expect(os.Rename(link+"2", link)).To(Succeed())
		Eventually(signals, bound).Should(Receive())
		for quiet := false; !quiet; { // on a busy machine the two steps are signalled one by one
			select {
			case <-signals:
			case <-time.After(50 * time.Millisecond):
				quiet = true
			}
		}
		write(filepath.Join(dir, "b", "x"), "")
		Eventually(signals, bound).Should(Receive())
	})

	It("sees entries of a directory that is removed and created again, and again", func() {
		sub := filepath.Join(dir, "sub")
		path := filepath.Join(sub, "f")
		seen := follow(sub, path)
		for round := range 20 {
			Expect(os.MkdirAll(sub, 0o700)).To(Succeed())
			write(path, strconv.Itoa(round))
			Eventually(seen, bound).Should(Equal(strconv.Itoa(round)))
			Expect(os.RemoveAll(sub)).To(Succeed())
			Eventually(seen, bound).Should(Equal("absent"))
		}
	})

	It("watches a path that lies several missing directories deep", func() {
		path := filepath.Join(dir, "a", "b", "c", "f")
		seen := follow(path, path)
		Expect(seen()).To(Equal("absent"))
		Expect(os.MkdirAll(filepath.Dir(path), 0o700)).To(Succeed())
		write(path, "deep")
		Eventually(seen, bound).Should(Equal("deep"))
	})

	It("survives symbolic links in a circle", func() {
		path := filepath.Join(dir, "f")
		Expect(os.Symlink("g", path)).To(Succeed())
		Expect(os.Symlink("f", filepath.Join(dir, "g"))).To(Succeed())
		seen := follow(path, path)
		Expect(seen()).To(Equal("absent"))
		Expect(os.Remove(path)).To(Succeed())
		write(path, "straight")
		Eventually(seen, bound).Should(Equal("straight"))
	})

	It("signals once for many changes, and never misses the last", func() {
		path := filepath.Join(dir, "f")
		signals, err := Watch(ctx, path, Options{Settle: 20 * time.Millisecond, Poll: time.Hour})
		Expect(err).NotTo(HaveOccurred())
		reads, last := 0, ""
		for i := range 500 {
			write(path, strconv.Itoa(i))
			select {
			case <-signals:
				reads++
			default:
			}
		}
		Eventually(func() string {
			select {
			case <-signals:
				reads++
				data, _ := os.ReadFile(path)
				last = string(data)
			default:
			}
			return last
		}, bound).Should(Equal("499"))
		Expect(reads).To(BeNumerically("<", 250))
	})

	It("ends up with the last state after any sequence of changes", func() {
		sub := filepath.Join(dir, "sub")
		path := filepath.Join(sub, "f")
		other := filepath.Join(dir, "other")
		seen := follow(path, path)
		for i := range 300 {
			text := strconv.Itoa(i)
			switch rand.IntN(6) {
			case 0:
				_ = os.RemoveAll(sub)
			case 1:
				_ = os.RemoveAll(other)
				_ = os.Rename(sub, other)
			case 2:
				_ = os.RemoveAll(sub)
				_ = os.MkdirAll(other, 0o700)
				_ = os.Symlink("other", sub)
			case 3:
				_ = os.MkdirAll(sub, 0o700)
				_ = os.WriteFile(path+".new", []byte(text), 0o600)
				_ = os.Rename(path+".new", path)
			case 4:
				_ = os.MkdirAll(sub, 0o700)
				_ = os.WriteFile(path, []byte(text), 0o600)
			case 5:
				_ = os.Remove(path)
			}
			if i%10 != 0 {
				continue
			}
			want := "absent"
			if data, err := os.ReadFile(path); err == nil {
				want = string(data)
			}
			Eventually(seen, bound).Should(Equal(want), "after change %d", i)
		}
	})

	It("looks from time to time without being told", func() {
		signals, err := Watch(ctx, dir, Options{Poll: time.Millisecond})
		Expect(err).NotTo(HaveOccurred())
		for range 3 {
			Eventually(signals, bound).Should(Receive())
		}
	})
})

var _ = Describe("ReadFile", func() {
	It("reads just what the limit allows", func() {
		path := filepath.Join(GinkgoT().TempDir(), "f")
		write(path, "12345")
		data, info, err := ReadFile(path, 5)
		Expect(err).NotTo(HaveOccurred())
		Expect(string(data)).To(Equal("12345"))
		Expect(info.Size()).To(Equal(int64(5)))
		_, _, err = ReadFile(path, 4)
		Expect(err).To(MatchError(ContainSubstring("at most 4 bytes are allowed")))
	})

	It("does not wait for a named pipe's writer, nor read devices and directories", func() {
		pipe := filepath.Join(GinkgoT().TempDir(), "pipe")
		Expect(syscall.Mkfifo(pipe, 0o600)).To(Succeed())
		for _, path := range []string{pipe, "/dev/zero", GinkgoT().TempDir()} {
			_, _, err := ReadFile(path, 10)
			Expect(err).To(MatchError(ContainSubstring("not a regular file")), path)
		}
	})
})
