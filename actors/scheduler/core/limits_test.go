package core

import (
	"fmt"
	"testing"
	"time"

	"github.com/gendurable/gendurable/limiter"
	"github.com/gendurable/gendurable/pg"
)

// limitedQueue drives a core whose claims bring rows with limits.
type limitedQueue struct {
	t   *testing.T
	c   *Core
	now time.Time
	fx  *Effects
	id  int64
}

func newLimitedQueue(t *testing.T, change ...func(*Config)) *limitedQueue {
	q := &limitedQueue{t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	cfg := Config{Concurrency: 100, Gates: []string{"g"}}
	for _, f := range change {
		f(&cfg)
	}
	q.c = New(cfg, false, q.now)
	q.on(Tick{})
	return q
}

func (q *limitedQueue) on(e Event) *Effects {
	q.fx = q.c.On(e, q.now)
	return q.fx
}

// wait lets time pass to the next wake.
func (q *limitedQueue) wait() {
	q.t.Helper()
	if q.fx.Wake.IsZero() {
		q.t.Fatal("nothing is due")
	}
	q.now = q.fx.Wake
	q.on(Tick{})
}

func gatedRow(key string) pg.Claimed {
	shard := int16(pg.ProvisionalShard)
	return pg.Claimed{Version: 1, ConcurrencyKey: key, ConcurrencyShard: &shard, Weight: 1}
}

func ratedRow(key string) pg.Claimed { return pg.Claimed{Version: 1, RateLimit: key, Weight: 1} }

// answer answers the claim that is due with a row of each, and their admission with the decision; then the release.
func (q *limitedQueue) answer(d limiter.Decision, rows ...pg.Claimed) {
	q.t.Helper()
	if q.fx.Claim == 0 {
		q.t.Fatal("no claim is due")
	}
	for i := range rows {
		q.id++
		rows[i].ID = q.id
	}
	q.on(ClaimResult{Pending: len(rows), Took: time.Millisecond})
	if q.fx.Claim != 0 {
		q.t.Fatal("another claim beside the admission")
	}
	decisions := make([]limiter.Decision, len(rows))
	for i := range rows {
		decisions[i] = d
		if d.By == limiter.KindGate {
			decisions[i].Key = rows[i].ConcurrencyKey
		} else if d.By == limiter.KindRate {
			decisions[i].Key = rows[i].RateLimit
		}
	}
	q.on(AdmitResult{Rows: rows, Decisions: decisions})
}

// names is the set that a claim was given.
func names(list ...string) string { return fmt.Sprint(pg.NamesOf(list...)) }

func (q *limitedQueue) expect(what string, got pg.Names, want ...string) {
	q.t.Helper()
	if fmt.Sprint(got) != names(want...) {
		q.t.Errorf("%s are %v, expected %v", what, got, want)
	}
}

var fullGate = limiter.Decision{Verdict: limiter.Saturated, By: limiter.KindGate, RetryIn: -1}

func spent(in time.Duration) limiter.Decision {
	return limiter.Decision{Verdict: limiter.Saturated, By: limiter.KindRate, RetryIn: in}
}

// TestAFullGateIsLeftOutUntilASlotIsFreed: its key is left out, its name judged by the counters from then on; a freed slot
// opens it, though not before its rows are back.
func TestAFullGateIsLeftOutUntilASlotIsFreed(t *testing.T) {
	t.Parallel()
	q := newLimitedQueue(t)
	q.expect("the gates", q.fx.Limits.Gates, "g")
	q.answer(fullGate, gatedRow("g:a"))
	if len(q.fx.Release) != 1 || len(q.fx.Start) != 0 {
		t.Fatalf("the denied row: %+v", q.fx)
	}
	q.on(Freed{Keys: []string{"g:a"}})
	if q.fx.Claim != 0 {
		q.expect("while it is on its way back the keys left out", q.fx.Limits.BusyGates, "g:a")
		q.answer(limiter.Decision{})
	}
	q.on(ReleaseResult{})
	for q.fx.Claim == 0 {
		q.wait()
	}
	q.expect("the keys left out", q.fx.Limits.BusyGates)
	q.expect("the names judged by the counters", q.fx.Limits.ProbedGates, "g")
	q.answer(limiter.Decision{Shard: 3}, gatedRow("g:a"))
	if len(q.fx.Start) != 1 || *q.fx.Start[0].ConcurrencyShard != 3 {
		t.Errorf("the admitted row: %+v", q.fx)
	}
}

// TestASpentRateIsLeftOutUntilItsTokensAreThere, and then only as many rows are taken as had tokens the last time.
func TestASpentRateIsLeftOutUntilItsTokensAreThere(t *testing.T) {
	t.Parallel()
	q := newLimitedQueue(t)
	begun := q.now
	q.answer(spent(70*time.Millisecond), ratedRow("r"))
	q.on(ReleaseResult{})
	q.on(Poked{})
	q.expect("the keys left out", q.fx.Limits.SpentRates, "r")
	q.answer(limiter.Decision{})
	for q.fx.Claim == 0 {
		q.wait()
	}
	if waited := q.now.Sub(begun); waited != 70*time.Millisecond {
		t.Errorf("it is asked again after %v", waited)
	}
	q.expect("the keys left out", q.fx.Limits.SpentRates)
	if n := q.fx.Limits.RateQuotas["r"]; n != 1 {
		t.Errorf("%d rows are taken", n)
	}
}

// TestManyKeysAreJudgedByTheCounters: what is remembered is bounded, however many keys are exhausted.
func TestManyKeysAreJudgedByTheCounters(t *testing.T) {
	t.Parallel()
	q := newLimitedQueue(t)
	var rows []pg.Claimed
	for i := range 5000 {
		rows = append(rows, ratedRow(fmt.Sprint("r:", i)))
	}
	q.answer(spent(time.Hour), rows...)
	if n := len(q.c.limits.denied); n != manyKeys {
		t.Errorf("%d keys are remembered", n)
	}
	if q.fx.Claim == 0 { // for more rows were there than it had asked for
		t.Fatal("no claim follows a full one")
	}
	q.expect("the names judged by the counters", q.fx.Limits.ProbedRates, "r")
	for i := range 3 * maxDenied {
		q.c.limits.deny(limitKey{limiter.KindRate, fmt.Sprint("n", i, ":x")}, spent(time.Hour), 0, q.now, 0)
	}
	if n := len(q.c.limits.denied); n > maxDenied {
		t.Errorf("%d keys of many names are remembered", n)
	}
}

// TestAnUnknownRateWaitsForNews: nothing but a change of the limits brings it back.
func TestAnUnknownRateWaitsForNews(t *testing.T) {
	t.Parallel()
	q := newLimitedQueue(t)
	q.answer(limiter.Decision{Verdict: limiter.Unconfigured, By: limiter.KindRate, RetryIn: -1}, ratedRow("new:x"))
	q.on(ReleaseResult{})
	q.on(Poked{})
	q.expect("the unknown names", q.fx.Limits.UnknownRates, "new")
	q.answer(limiter.Decision{})
	q.on(InForce{limiter.Config{Rates: []limiter.Rate{{Name: "new"}}}})
	if q.fx.Claim == 0 {
		t.Fatal("news of the limit make no claim")
	}
	q.expect("the unknown names", q.fx.Limits.UnknownRates)
	q.expect("the gates", q.fx.Limits.Gates)
}

// TestAFailedAdmissionGivesAllBack: rows of which nobody knows whether they were admitted do not run.
func TestAFailedAdmissionGivesAllBack(t *testing.T) {
	t.Parallel()
	q := newLimitedQueue(t)
	q.on(ClaimResult{Pending: 2})
	rows := []pg.Claimed{gatedRow("g"), ratedRow("r")}
	rows[0].ID, rows[1].ID = 1, 2
	q.on(AdmitResult{Rows: rows, Err: fmt.Errorf("away")})
	if len(q.fx.Release) != 2 || len(q.fx.Start) != 0 {
		t.Errorf("%+v", q.fx)
	}
}

// TestSlowClaimsPassOver: a claim that took long for nothing is followed by one that learns how far it looked, and that by
// ones which begin there; everything is looked at again after a second, or so long that it takes a tenth of the time, and when something was
// stirred.
func TestSlowClaimsPassOver(t *testing.T) {
	t.Parallel()
	q := newLimitedQueue(t)
	slow := 200 * time.Millisecond
	q.on(ClaimResult{Took: slow})
	q.on(Poked{})
	for q.fx.Claim == 0 {
		q.wait()
	}
	if !q.fx.Survey {
		t.Fatal("a slow claim is not followed by one that learns how far it looked")
	}
	at := q.now
	q.on(ClaimResult{Took: slow, Priorities: []int16{0, 3}, At: at})
	surveyed := q.now
	poke := func() {
		q.on(Poked{})
		for q.fx.Claim == 0 {
			q.wait()
		}
	}
	poke()
	if want := []pg.Lane{{Priority: 0, Since: at.Add(-lateCommit)}, {Priority: 3, Since: at.Add(-lateCommit)}}; fmt.Sprint(q.fx.Since) != fmt.Sprint(want) {
		t.Fatalf("the claim begins at %v, expected %v", q.fx.Since, want)
	}
	if q.fx.Others != at.Add(-lateCommit) {
		t.Errorf("in other priorities the claim begins at %v", q.fx.Others)
	}
	for q.on(ClaimResult{Took: time.Millisecond, Rows: []pg.Claimed{{ID: 1}}}); q.fx.Since != nil || q.fx.Claim == 0; q.wait() {
		if q.fx.Claim > 0 { // a poll
			q.on(ClaimResult{Took: time.Millisecond})
		}
	}
	if waited := q.now.Sub(surveyed); q.fx.Since != nil || !q.fx.Others.IsZero() || waited < 9*slow || waited > 10*slow {
		t.Errorf("after %v the claim begins at %v", waited, q.fx.Since)
	}
	q.on(ClaimResult{Took: slow, Priorities: []int16{0}, At: q.now})
	q.c.scan.stir()
	poke()
	if q.fx.Since != nil {
		t.Errorf("a stirred claim begins at %v", q.fx.Since)
	}
}

// TestAPokeIsFollowedByALookAtAllRows: what it announced may be among the rows that its claim passed over. So all are looked at
// soon, without another poke or a poll, also when the time for that has come while the claim was on its way.
func TestAPokeIsFollowedByALookAtAllRows(t *testing.T) {
	t.Parallel()
	for _, took := range []time.Duration{time.Millisecond, 2 * fullEvery} {
		q := newLimitedQueue(t, func(c *Config) { c.PollBusy, c.PollIdle = time.Hour, time.Hour })
		poked := func() {
			t.Helper()
			for q.on(Poked{}); q.fx.Claim == 0; {
				q.wait()
			}
		}
		q.on(ClaimResult{Took: 100 * time.Millisecond})
		poked()
		q.on(ClaimResult{Took: 100 * time.Millisecond, Priorities: []int16{0}, At: q.now})
		surveyed := q.now
		poked()
		if q.fx.Since == nil {
			t.Fatal("the claim looks at all rows")
		}
		q.now = q.now.Add(took) // as this process sees it: the statement was quick
		q.on(ClaimResult{Took: time.Millisecond})
		for q.fx.Claim == 0 {
			q.wait()
		}
		if waited := q.now.Sub(surveyed); q.fx.Since != nil || waited > fullEvery+took {
			t.Errorf("after a claim of %v the next one comes %v after the survey, and begins at %v", took, waited, q.fx.Since)
		}
	}
}

// TestRowsToBeEndedAreClaimedAtOnce: one whose cancel was requested while it was claimed, and that comes back, asks the limiter for
// nothing, and neither its limit nor a poll is waited for.
func TestRowsToBeEndedAreClaimedAtOnce(t *testing.T) {
	t.Parallel()
	reason := "enough"
	rows := []pg.Claimed{gatedRow("g:a"), ratedRow("r"), gatedRow("g:b")}
	rows[0].CancelReason, rows[1].CancelReason = &reason, &reason
	if free, limited, requests := Limited(rows); len(free) != 2 || len(limited) != 1 || len(requests) != 1 || requests[0].Gate != "g:b" {
		t.Errorf("free are %v, the limiter is asked for %v", free, requests)
	}
	q := newLimitedQueue(t, func(c *Config) { c.PollBusy, c.PollIdle = time.Hour, time.Hour })
	q.answer(spent(time.Hour), ratedRow("r"))
	if q.on(ReleaseResult{}); q.fx.Claim != 0 {
		t.Fatal("the return of a denied row causes a claim")
	}
	q.on(Poked{})
	q.answer(spent(time.Hour), ratedRow("r:b"))
	if q.on(ReleaseResult{Ending: 1}); q.fx.Claim == 0 || q.fx.Since != nil {
		t.Fatal("no claim looks for the row that is to be ended")
	}
	row := gatedRow("g:a")
	row.ID, row.CancelReason = 99, &reason
	if q.on(ClaimResult{Rows: []pg.Claimed{row}, Took: time.Millisecond}); len(q.fx.Start) != 1 {
		t.Errorf("it is not ended: %+v", q.fx)
	}
}

// TestRowsThatAQuotaLeftAreClaimedAtOnce: a claim that came back short because it left rows of a rate has not seen the end.
func TestRowsThatAQuotaLeftAreClaimedAtOnce(t *testing.T) {
	t.Parallel()
	q := newLimitedQueue(t)
	q.answer(spent(70*time.Millisecond), ratedRow("r"))
	q.on(ReleaseResult{})
	for i := 0; i < 10 && (q.fx.Claim == 0 || q.fx.Limits.RateQuotas["r"] == 0); i++ {
		if q.fx.Claim != 0 {
			q.on(ClaimResult{})
			continue
		}
		q.wait()
	}
	row := ratedRow("r")
	row.ID = 7
	q.on(ClaimResult{Pending: 1, Looked: 5, Took: time.Millisecond})
	q.on(AdmitResult{Rows: []pg.Claimed{row}, Decisions: []limiter.Decision{{}}})
	if q.fx.Claim == 0 {
		t.Fatal("no claim follows")
	}
	if n := q.fx.Limits.RateQuotas["r"]; n != 2 {
		t.Errorf("%d rows are taken", n)
	}
}

// TestAChangedRateIsAskedAtOnce: how long its rows wait was reckoned with the old one.
func TestAChangedRateIsAskedAtOnce(t *testing.T) {
	t.Parallel()
	q := newLimitedQueue(t)
	rate := limiter.Rate{Name: "r", Allowed: 1, Per: time.Hour}
	limits := func() InForce {
		return InForce{Config: limiter.Config{Gates: []limiter.Gate{{Name: "g", Limit: 1}}, Rates: []limiter.Rate{rate}}}
	}
	q.on(ClaimResult{})
	q.on(limits())
	q.on(Poked{})
	q.answer(spent(time.Hour), ratedRow("r:a"))
	q.on(ReleaseResult{})
	for range 10 {
		if q.fx.Claim != 0 {
			q.on(ClaimResult{})
		}
	}
	if q.on(limits()); q.fx.Claim != 0 {
		t.Fatal("the same rate causes a claim")
	}
	rate.Allowed = 1000
	if q.on(limits()); q.fx.Claim == 0 {
		t.Fatal("the raised rate causes no claim")
	}
	q.expect("the keys left out", q.fx.Limits.SpentRates)
}
