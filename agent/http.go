package agent

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/sirupsen/logrus"
)

// listenInterval is the time between two attempts to listen on an address that
// is taken.
const listenInterval = time.Second

// serveHTTP serves handler on host:port until ctx ends. Pods need routes and limits
// more than anyone needs to look on: an address that cannot be had is logged, once,
// and tried again.
func serveHTTP(ctx context.Context, log logrus.FieldLogger, host string, port int, handler http.Handler) {
	log = log.WithField("address", net.JoinHostPort(host, strconv.Itoa(port)))
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	said := ""
	for ctx.Err() == nil {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err == nil {
			said = ""
			err = server.Serve(listener)
		}
		if ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			log.WithError(err).Error("Cannot serve health or metrics; trying again")
		}
		select {
		case <-ctx.Done():
		case <-time.After(listenInterval):
		}
	}
}
