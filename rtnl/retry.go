package rtnl

import (
	"errors"

	"golang.org/x/sys/unix"
)

// RetryInterrupted makes a dump again where something changed meanwhile (EINTR), a
// few times; then it returns the error.
func RetryInterrupted[T any](dump func() (T, error)) (T, error) {
	const attempts = 5
	for attempt := 1; ; attempt++ {
		result, err := dump()
		if err == nil || attempt == attempts || !errors.Is(err, unix.EINTR) {
			return result, err
		}
	}
}
