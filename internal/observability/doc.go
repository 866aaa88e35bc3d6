// Package observability holds no code, only tests: that metrics, alerts, dashboard,
// log lines and docs/operations.md agree with one another. What they are held
// against is what a real run of the agent exposes and what the source logs.
package observability
