package dataplane_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/manx-dataplane/manx/dataplane"
)

func TestReadinessNeedsBothSidesInSyncAndTheFirstApply(t *testing.T) {
	inBubble(t, dataplane.Config{}, func(r *rig) {
		r.Expect(r.driver.Health()).To(Equal(dataplane.Report{Live: true}))
		r.qos.apply = func() error { time.Sleep(time.Second); return errInjected }
		r.run()
		r.driver.Wake()
		synctest.Wait()
		r.Expect(r.driver.Health()).To(Equal(dataplane.Report{Live: true, Details: []string{
			"the datastore is not in sync yet", "the interface monitor is not in sync yet",
		}}))
		r.send(dataplane.InSync{})
		synctest.Wait()
		r.Expect(r.driver.Health().Details).To(Equal([]string{"the interface monitor is not in sync yet"}))
		r.driver.OnIfaceInSync()
		synctest.Wait()
		r.Expect(r.driver.Health()).To(Equal(dataplane.Report{Live: true, Details: []string{"the first apply is not done yet"}}))
		r.sleep(time.Second)
		r.Expect(r.driver.Health()).To(Equal(dataplane.Report{
			Live: true, Ready: true, Details: []string{"last apply: qos: injected"},
		}), "an item that fails is told but does not make the node unready")
	})
}

func TestLivenessIsLostWhenTheLoopHangsAndSaysInWhat(t *testing.T) {
	inBubble(t, dataplane.Config{}, func(r *rig) {
		r.runInSync()
		r.sleep(time.Hour)
		r.Expect(r.driver.Health().Live).To(BeTrue(), "idle is not dead")

		r.qos.apply = func() error { time.Sleep(5 * time.Minute); return nil }
		r.driver.Wake()
		r.sleep(89 * time.Second)
		r.Expect(r.driver.Health().Live).To(BeTrue())
		r.sleep(90 * time.Second)
		report := r.driver.Health()
		r.Expect(report.Live).To(BeFalse())
		r.Expect(report.Details).To(ContainElement("still applying: qos (for 2m59s)"))
		r.Expect(report.Details).To(ContainElement(HavePrefix("the main loop last came round ")))

		r.sleep(3 * time.Minute)
		r.Expect(r.driver.Health()).To(Equal(dataplane.Report{Live: true, Ready: true}))
	})
}

func TestHealthShowsEachErrorOfTheLastApplyButNotAThousand(t *testing.T) {
	inBubble(t, dataplane.Config{}, func(r *rig) {
		r.manager.work = func() error {
			var errs []error
			for i := range 1000 {
				errs = append(errs, fmt.Errorf("endpoint %d", i))
			}
			return errors.Join(errs...)
		}
		r.runInSync()
		details := r.driver.Health().Details
		r.Expect(details).To(HaveLen(11))
		r.Expect(details[0]).To(Equal("last apply: endpoint 0"))
		r.Expect(details[10]).To(Equal("last apply: and 990 more"))
	})
}

func TestHealthTellsWhatManagersAndSyncersHaveToTell(t *testing.T) {
	inBubble(t, dataplane.Config{}, func(r *rig) {
		r.runInSync()
		r.set(func() {
			r.manager.detail = []string{"one"}
			r.qos.detail = []string{"device bwcali1 is stuck"}
		})
		r.sleep(30 * time.Second) // told even if nothing is applied meanwhile
		r.Expect(r.take()).To(BeEmpty())
		r.Expect(r.driver.Health().Details).To(Equal([]string{"one", "device bwcali1 is stuck"}))
	})
}

func TestHealthAfterStopIsNeitherLiveNorReady(t *testing.T) {
	inBubble(t, dataplane.Config{}, func(r *rig) {
		r.runInSync()
		r.cancel()
		synctest.Wait()
		r.Expect(r.driver.Health()).To(Equal(dataplane.Report{Details: []string{"stopped"}}))
	})
}

func TestHealthHandlerAnswersWithStatusAndDetail(t *testing.T) {
	inBubble(t, dataplane.Config{}, func(r *rig) {
		get := func(path string) (int, dataplane.Report) {
			w := httptest.NewRecorder()
			r.driver.HealthHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			var report dataplane.Report
			_ = json.Unmarshal(w.Body.Bytes(), &report)
			return w.Code, report
		}
		r.run()
		r.driver.Wake()
		synctest.Wait()
		code, _ := get("/liveness")
		r.Expect(code).To(Equal(http.StatusOK))
		code, report := get("/readiness")
		r.Expect(code).To(Equal(http.StatusServiceUnavailable))
		r.Expect(report.Details).To(ContainElement("the datastore is not in sync yet"))

		r.send(dataplane.InSync{})
		r.driver.OnIfaceInSync()
		synctest.Wait()
		code, report = get("/readiness")
		r.Expect(code).To(Equal(http.StatusOK))
		r.Expect(report).To(Equal(dataplane.Report{Live: true, Ready: true}))

		r.cancel()
		synctest.Wait()
		code, _ = get("/liveness")
		r.Expect(code).To(Equal(http.StatusServiceUnavailable))
		code, _ = get("/other")
		r.Expect(code).To(Equal(http.StatusNotFound))
	})
}
