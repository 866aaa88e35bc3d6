// Command pause does nothing. As a container's first process it keeps the
// container's network namespace alive while agents come and go beside it, the way
// a Kubernetes pod's pause process does. SIGTERM ends it.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	fmt.Println("pausing")
	<-stop
}
