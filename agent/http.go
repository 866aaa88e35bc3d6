package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"
)

// serveHTTP serves handler on host:port until ctx ends. what names the endpoint
// in errors. It returns nil when ctx ended it.
func serveHTTP(ctx context.Context, what, host string, port int, handler http.Handler) error {
	address := net.JoinHostPort(host, strconv.Itoa(port))
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("serve %s on %s: %w", what, address, err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s on %s: %w", what, address, err)
	}
	return nil
}
