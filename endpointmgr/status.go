package endpointmgr

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/manx-dataplane/manx/dataplane"
	"github.com/manx-dataplane/manx/ifacemonitor"
)

// isUp says whether an endpoint is up but for what the syncers have to do.
func (ep *endpoint) isUp() bool {
	return !ep.removed && ep.active() &&
		ep.iface != nil && ep.iface.winner() == ep &&
		ep.iface.state == ifacemonitor.StateUp && ep.iface.configured
}

// isSettled says whether routes and limits of an interface are in the kernel.
func (m *Manager) isSettled(name string, applyErr error) bool {
	for _, part := range []any{m.cfg.RoutesV4, m.cfg.RoutesV6, m.cfg.QoS} {
		if part == nil {
			continue
		}
		teller, ok := part.(PendingTeller)
		if ok && teller.Pending(name) || !ok && applyErr != nil {
			return false
		}
	}
	return true
}

// reportLost reports endpoints that are gone, and those that were reported up and
// are not any more, or not without interruption.
func (m *Manager) reportLost() error {
	var errs []error
	for _, ep := range m.sortedStatuses() {
		var err error
		switch {
		case ep.removed:
			err = m.report(ep, StatusGone)
			if err == nil {
				delete(m.endpoints, ep.id)
				delete(m.dirtyStatuses, ep.id)
			}
		case ep.reported == StatusUp && (ep.outdated || !ep.isUp()):
			err = m.report(ep, StatusDown)
		}
		errs = append(errs, err)
		if err == nil {
			ep.outdated = false
		}
	}
	return errors.Join(errs...)
}

// reportAllReached reports the status of all endpoints that it may have changed
// for.
func (m *Manager) reportAllReached(applyErr error) (errs []error) {
	if len(m.dirtyStatuses) == 0 {
		return nil
	}
	for _, ep := range m.sortedStatuses() {
		done, err := m.reportReached(ep, applyErr)
		if done {
			delete(m.dirtyStatuses, ep.id)
		}
		errs = append(errs, err)
	}
	if len(m.dirtyStatuses) == 0 {
		m.dirtyStatuses = map[dataplane.WorkloadEndpointID]*endpoint{}
	}
	return errs
}

// reportReached reports the status of an endpoint after an apply, and returns
// whether it need not be looked at again.
func (m *Manager) reportReached(ep *endpoint, applyErr error) (done bool, err error) {
	switch {
	case ep.removed, ep.outdated:
		return false, nil // could not be reported before; CompleteDeferredWork tries again
	case !ep.isUp():
		err = m.report(ep, StatusDown)
	case !m.isSettled(ep.iface.name, applyErr):
		if ep.reported == "" {
			err = m.report(ep, StatusDown)
		}
		return false, err
	default:
		err = m.report(ep, StatusUp)
	}
	return err == nil, err
}

// report tells the reporter, if it was not told before.
func (m *Manager) report(ep *endpoint, status Status) error {
	if ep.reported == status && (status != StatusUp || ep.reportedSpec == ep.spec) {
		return nil
	}
	switch err := m.cfg.Status.OnStatus(ep.id, ep.spec, status); {
	case errors.Is(err, ErrNotReportable):
		m.log.WithError(err).WithField("endpoint", ep.id.String()).WithField("status", string(status)).
			Warn("Endpoint status cannot be reported, now or later")
	case err != nil:
		return fmt.Errorf("report endpoint %s as %s: %w", ep.id, status, err)
	}
	if ep.reported != "" {
		m.metrics.statuses.WithLabelValues(string(ep.reported)).Dec()
	}
	if status != StatusGone {
		m.metrics.statuses.WithLabelValues(string(status)).Inc()
	}
	if ep.reported != status {
		m.log.WithField("endpoint", ep.id.String()).WithField("iface", ep.spec.InterfaceName).
			WithField("status", string(status)).Info("Endpoint status changed")
	}
	ep.reported, ep.reportedSpec = status, ep.spec
	return nil
}

func (m *Manager) sortedStatuses() []*endpoint {
	if len(m.dirtyStatuses) == 0 {
		return nil
	}
	return slices.SortedFunc(maps.Values(m.dirtyStatuses), func(a, b *endpoint) int { return a.id.Compare(b.id) })
}

// noStatus is the reporter of a manager that has none.
type noStatus struct{}

func (noStatus) OnStatus(dataplane.WorkloadEndpointID, *dataplane.WorkloadEndpoint, Status) error {
	return nil
}
func (noStatus) OnAllReported() error { return nil }
