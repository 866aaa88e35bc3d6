package config

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/manx-dataplane/manx/internal/filewatch"
)

var _ = Describe("Watcher", func() {
	const bound = "5s"
	var (
		path    string
		log     *logrus.Logger
		hook    *logtest.Hook
		configs chan *Config
	)
	BeforeEach(func() {
		path = filepath.Join(GinkgoT().TempDir(), "felix.yaml")
		log, hook = logtest.NewNullLogger()
		configs = make(chan *Config, 10)
	})
	write := func(data []byte) {
		GinkgoHelper()
		Expect(os.WriteFile(path+".new", data, 0o600)).To(Succeed())
		Expect(os.Rename(path+".new", path)).To(Succeed())
	}
	newWatcher := func() *Watcher {
		return NewWatcher(WatcherOptions{Path: path, Log: log, Watch: filewatch.Options{Settle: time.Millisecond, Poll: time.Hour}})
	}
	run := func(w *Watcher) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx, func(c *Config) { configs <- c }) }()
		DeferCleanup(func() {
			cancel()
			Eventually(done, bound).Should(Receive(BeNil()))
		})
	}
	messages := func(level logrus.Level) func() []string {
		return func() []string {
			var found []string
			for _, entry := range hook.AllEntries() {
				if entry.Level == level {
					reason, _ := entry.Data["reason"].(string)
					fields, _ := entry.Data["fields"].(string)
					found = append(found, strings.TrimSpace(reason+fields))
				}
			}
			return found
		}
	}

	It("calls back with each valid change, the one between Load and Run included", func() {
		write(manifestOf("healthPort: 1"))
		w := newWatcher()
		Expect(w.Load()).To(HaveField("HealthPort", 1))
		write(manifestOf("healthPort: 2"))
		run(w)
		Eventually(configs, bound).Should(Receive(HaveField("HealthPort", 2)))
		write(manifestOf("healthPort: 3"))
		Eventually(configs, bound).Should(Receive(HaveField("HealthPort", 3)))
		Expect(messages(logrus.ErrorLevel)()).To(BeEmpty())
	})

	It("keeps the last good Config while the file is invalid, half-written, empty or gone, and says so once", func() {
		write(manifestOf("healthPort: 1"))
		w := newWatcher()
		Expect(w.Load()).NotTo(BeNil())
		run(w)
		for i, bad := range [][]byte{manifestOf("healthPort: 70000"), []byte(header + "spec: ["), {}, nil} {
			if bad == nil {
				Expect(os.Remove(path)).To(Succeed())
			} else {
				write(bad)
			}
			Eventually(messages(logrus.ErrorLevel), bound).Should(HaveLen(i + 1))
		}
		Expect(messages(logrus.ErrorLevel)()).To(HaveExactElements(
			ContainSubstring(`spec.healthPort: "70000": must be from 0 to 65535`),
			ContainSubstring("not valid YAML"),
			ContainSubstring("is empty"),
			ContainSubstring("no such file"),
		))
		Expect(configs).To(BeEmpty())
		write(manifestOf("healthPort: 2"))
		Eventually(configs, bound).Should(Receive(HaveField("HealthPort", 2)))
	})

	It("does not call back where nothing changed but the text", func() {
		write(manifestOf("healthPort: 1"))
		w := newWatcher()
		Expect(w.Load()).NotTo(BeNil())
		run(w)
		write(append([]byte("# a comment\n"), manifestOf("healthPort: 1", "bpfEnabled: true")...))
		Eventually(messages(logrus.InfoLevel), bound).Should(Equal([]string{"bpfEnabled"}))
		Expect(configs).To(BeEmpty())
	})

	It("lists unused fields in one line, once", func() {
		write(manifestOf("vxlanVNI: 1", "bpfEnabled: true"))
		w := newWatcher()
		Expect(w.Load()).NotTo(BeNil())
		run(w)
		write(manifestOf("vxlanVNI: 1", "bpfEnabled: true", "healthPort: 5"))
		Eventually(configs, bound).Should(Receive())
		Expect(messages(logrus.InfoLevel)()).To(Equal([]string{"bpfEnabled, vxlanVNI"}))
	})

	It("needs the file at first, and none if there is no path", func() {
		_, err := newWatcher().Load()
		Expect(err).To(MatchError(And(ContainSubstring("read the configuration"), ContainSubstring("no such file"))))

		w := NewWatcher(WatcherOptions{Environ: []string{"FELIX_HEALTHPORT=9"}})
		Expect(w.Load()).To(HaveField("HealthPort", 9))
		run(w)
		_, err = NewWatcher(WatcherOptions{Environ: []string{"FELIX_HEALTHPORT=x"}}).Load()
		Expect(err).To(MatchError(HavePrefix(`environment: FELIX_HEALTHPORT: "x"`)))
	})
})
