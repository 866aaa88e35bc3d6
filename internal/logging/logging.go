// Package logging spares those who take a logger the question whether they got one.
package logging

import (
	"io"

	"github.com/sirupsen/logrus"
)

// OrDiscard returns the logger, or for nil one that discards everything.
func OrDiscard(log logrus.FieldLogger) logrus.FieldLogger {
	if log != nil {
		return log
	}
	discard := logrus.New()
	discard.SetOutput(io.Discard)
	return discard
}
