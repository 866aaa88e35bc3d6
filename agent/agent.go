package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/manx-dataplane/manx/config"
	"github.com/manx-dataplane/manx/dataplane"
	"github.com/manx-dataplane/manx/endpointmgr/statusfile"
	"github.com/manx-dataplane/manx/manifests"
	"github.com/manx-dataplane/manx/rtnl"
)

// Options are what Run needs. EndpointsDir, Kernel and Log are required.
type Options struct {
	// ConfigFile is a FelixConfiguration manifest; empty means defaults.
	ConfigFile string
	// EndpointsDir is a directory of WorkloadEndpoint manifests.
	EndpointsDir string
	// Environ is the environment, as os.Environ gives it, whose FELIX_ variables
	// override the manifest.
	Environ []string
	// Kernel is the network namespace to work in.
	Kernel Kernel
	// Log is the logger. The agent sets its level as logSeverityScreen says.
	Log *logrus.Logger
}

// stopTimeout is how long Run waits, once ctx is done, for kernel requests that are
// under way.
const stopTimeout = time.Second

// Run runs the agent until ctx is done, and then returns nil, leaving the kernel's
// state in place. If a kernel request does not return within a second it is left
// behind, with the goroutine that waits for it: the process is meant to end then.
//
// It returns an error where it cannot begin: a configuration that is invalid, a
// directory that is missing, ErrAlreadyRunning. What the kernel refuses, or an address
// for health or metrics that is taken, is not among those: it is logged and tried
// again.
func Run(ctx context.Context, options Options) error {
	info, err := os.Stat(options.EndpointsDir)
	if err == nil && !info.IsDir() {
		err = errors.New("not a directory")
	}
	if err != nil {
		return fmt.Errorf("endpoints directory %q: %w", options.EndpointsDir, err)
	}
	watcher := config.NewWatcher(config.WatcherOptions{
		Path:    options.ConfigFile,
		Environ: options.Environ,
		Log:     options.Log,
	})
	current, err := watcher.Load()
	if err != nil {
		return err
	}
	lock, err := options.Kernel.Lock()
	if err != nil {
		return err
	}
	stopped := make(chan error, 1)
	go func() {
		err := runLocked(ctx, options, watcher, current)
		stopped <- errors.Join(err, lock.Close())
	}()
	select {
	case err := <-stopped:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-stopped:
		return err
	case <-time.After(stopTimeout):
		options.Log.Warn("Stopped in the middle of a kernel request that does not return; the next start takes over")
		return nil
	}
}

// runLocked runs pipelines and follows the configuration until ctx is done.
func runLocked(ctx context.Context, options Options, watcher *config.Watcher, current *config.Config) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	configs := make(chan *config.Config)
	watching := make(chan error, 1)
	go func() {
		watching <- watcher.Run(ctx, func(c *config.Config) {
			select {
			case configs <- c:
			case <-ctx.Done():
			}
		})
	}()
	err := runPipelines(ctx, options, current, configs)
	cancel()
	return errors.Join(err, <-watching)
}

// runPipelines runs a pipeline for the current configuration, and a new one
// whenever the configuration changes in a field that a running one cannot take over.
func runPipelines(ctx context.Context, options Options, current *config.Config, configs <-chan *config.Config) error {
	conntrack, err := options.Kernel.Conntrack(rtnl.Options{Timeout: current.NetlinkTimeout})
	if err != nil {
		return fmt.Errorf("open conntrack: %w", err)
	}
	defer conntrack.Close()
	source := manifests.NewSource(manifests.Options{Dir: options.EndpointsDir, Log: options.Log})
	for {
		options.Log.SetLevel(current.LogSeverityScreen)
		p, err := newPipeline(options, source, conntrack, current)
		if err != nil {
			return err
		}
		next, err := p.runUntilChanged(ctx, options.Log, configs)
		if err != nil || ctx.Err() != nil {
			return err
		}
		if next.EndpointStatusPathPrefix != current.EndpointStatusPathPrefix {
			// From now on nobody would keep them true.
			if err := statusfile.NewWriter(current.EndpointStatusPathPrefix).OnAllReported(); err != nil {
				options.Log.WithError(err).Warn("Could not remove endpoint status files that are written no longer")
			}
		}
		options.Log.Info("Configuration changed; starting anew with kernel state in place")
		current = next
	}
}

// runUntilChanged runs the pipeline until ctx is done or a configuration arrives
// that needs another pipeline, which it returns.
func (p *pipeline) runUntilChanged(ctx context.Context, log *logrus.Logger, configs <-chan *config.Config) (*config.Config, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- p.run(ctx) }()
	for {
		select {
		case err := <-done:
			return nil, err
		case next := <-configs:
			if !p.cfg.RestartEqual(next) {
				cancel()
				return next, <-done
			}
			log.SetLevel(next.LogSeverityScreen)
			log.Info("Configuration changed")
			if err := p.dataplane.Send(ctx, dataplane.ConfigUpdate{Config: next}); err != nil {
				return nil, <-done // the driver has stopped or is about to
			}
		}
	}
}
