package core

import (
	"fmt"
	"testing"
	"time"

	"github.com/gendurable/gendurable/limiter"
	"github.com/gendurable/gendurable/pg"
)

func elsewhere(c *Config) { c.CountedElsewhere = true }

// exhausted plays a queue whose head is a row of each of so many keys, all of which have nothing left, for so long; and
// returns how many claims it made and how many of them brought rows. Whatever a claim does not leave out it brings.
func exhausted(q *limitedQueue, keys int, row func(key string) pg.Claimed, deny func(pg.Claimed) limiter.Decision, during time.Duration) (claims, bringing int) {
	q.t.Helper()
	names := make([]limitKey, keys)
	for i := range names {
		r := row(fmt.Sprint("g:", i))
		names[i] = limitKey{deny(r).By, r.ConcurrencyKey + r.RateLimit}
	}
	asked, releases := q.fx.Claim, 0
	on := func(e Event) {
		q.now = q.now.Add(time.Millisecond)
		fx := q.on(e)
		asked += fx.Claim
		if len(fx.Release) > 0 {
			releases++
		}
	}
	for end := q.now.Add(during); q.now.Before(end); {
		switch {
		case releases > 0:
			releases--
			on(ReleaseResult{})
		case asked > 0:
			claims++
			var e AdmitResult
			for i, key := range names {
				if len(e.Rows) == asked {
					break
				}
				if d := q.c.limits.denied[key]; d == nil || !d.closed {
					r := row(key.key)
					r.ID = int64(i + 1)
					e.Rows, e.Decisions = append(e.Rows, r), append(e.Decisions, deny(r))
				}
			}
			asked = 0
			on(ClaimResult{Pending: len(e.Rows), Took: time.Millisecond})
			if len(e.Rows) > 0 {
				bringing++
				on(e)
			}
		default:
			q.now = later(q.now, q.fx.Wake)
			on(Tick{})
		}
	}
	return claims, bringing
}

func denyGate(r pg.Claimed) limiter.Decision {
	d := fullGate
	d.Key = r.ConcurrencyKey
	return d
}

func denyRate(r pg.Claimed) limiter.Decision {
	d := spent(time.Hour)
	d.Key = r.RateLimit
	return d
}

// TestExhaustedKeysCountedElsewhereMakeNoLoop: no claim can read their counters, so each is remembered; what cannot be is
// claimed in vain no more than about once a second.
func TestExhaustedKeysCountedElsewhereMakeNoLoop(t *testing.T) {
	t.Parallel()
	const minute = 60
	for _, c := range []struct {
		name string
		keys int
		row  func(string) pg.Claimed
		deny func(pg.Claimed) limiter.Decision
		// claims that bring rows, in a minute
		most int
	}{
		// A gate is asked again after 0.1, 0.2, 0.4, … and then every 5 s: 17 times a minute, by two claims of 100 rows.
		{"200 keys of a gate", 200, gatedRow, denyGate, 3 * 17},
		{"200 keys of a rate", 200, ratedRow, denyRate, 3},
		{"5,000 keys of a rate", 5000, ratedRow, denyRate, 51},
		// The last 2,000 cannot be remembered.
		{"12,000 keys of a rate", 12_000, ratedRow, denyRate, 101 + minute + 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			q := newLimitedQueue(t, elsewhere)
			claims, bringing := exhausted(q, c.keys, c.row, c.deny, minute*time.Second)
			t.Logf("%d claims, %d with rows", claims, bringing)
			// Beside those: polls, each second at most, and looks at once after what was opened.
			if bringing > c.most || claims > 2*c.most+2*minute {
				t.Errorf("%d claims in a minute, %d with rows; expected %d of these at most", claims, bringing, c.most)
			}
			if n := len(q.c.limits.denied); n != min(c.keys, elsewhereKeys) {
				t.Errorf("%d keys are remembered", n)
			}
			if n := len(q.c.limits.probed); n != 0 {
				t.Errorf("%d names are judged by counters that nobody can read", n)
			}
		})
	}
}

// TestLongKeysAreBounded: what a claim leaves out is a parameter of its statement.
func TestLongKeysAreBounded(t *testing.T) {
	t.Parallel()
	q := newLimitedQueue(t, elsewhere)
	for i := range elsewhereKeys {
		q.c.limits.deny(limitKey{limiter.KindRate, fmt.Sprintf("r:%01020d", i)}, spent(time.Hour), 0, q.now, 0)
	}
	if n := len(fmt.Sprint(q.c.limits.forClaim().SpentRates)); n > maxKeyBytes*5/4 {
		t.Errorf("a claim carries %d bytes", n)
	}
	bytes := 0
	for k := range q.c.limits.denied {
		bytes += len(k.key)
	}
	if bytes != q.c.limits.bytes || bytes > maxKeyBytes || bytes < maxKeyBytes-1024 {
		t.Errorf("keys of %d bytes are remembered, %d are counted", bytes, q.c.limits.bytes)
	}
	for k := range q.c.limits.denied {
		q.c.limits.forget(k)
	}
	if q.c.limits.bytes != 0 {
		t.Errorf("of no keys %d bytes are counted", q.c.limits.bytes)
	}
}

// TestAPauseDoesNotStopWhatIsAdmitted: claims of which something runs follow one another, and a freed slot counts for keys that
// are not remembered.
func TestAPauseDoesNotStopWhatIsAdmitted(t *testing.T) {
	t.Parallel()
	q := newLimitedQueue(t, elsewhere)
	for i := range elsewhereKeys {
		q.c.limits.deny(limitKey{limiter.KindGate, fmt.Sprint("x:", i)}, fullGate, 0, q.now, 0)
	}
	claimed := func(verdicts ...limiter.Verdict) {
		t.Helper()
		if q.fx.Claim == 0 {
			t.Fatal("no claim is due")
		}
		var e AdmitResult
		for _, v := range verdicts {
			q.id++
			r := gatedRow(fmt.Sprint("g:", q.id))
			r.ID = q.id
			d := limiter.Decision{Verdict: v}
			if v == limiter.Saturated {
				d = denyGate(r)
			}
			e.Rows, e.Decisions = append(e.Rows, r), append(e.Decisions, d)
		}
		q.on(ClaimResult{Pending: len(verdicts), Looked: q.fx.Claim, Took: time.Millisecond})
		q.on(e)
	}
	claimed(limiter.Saturated, limiter.Admitted)
	claimed(limiter.Saturated, limiter.Admitted) // which is due at once
	claimed(limiter.Saturated)
	if q.fx.Claim != 0 {
		t.Error("a claim in vain is followed by another at once")
	}
	at := q.now
	for q.fx.Claim == 0 {
		q.wait()
	}
	if waited := q.now.Sub(at); waited != gateFirst {
		t.Errorf("the next one comes after %v", waited)
	}
	if !q.c.limits.freed([]string{"g:3"}, q.now) {
		t.Error("a slot of a key that is not remembered came free, and nobody looks")
	}
	claimed(limiter.Admitted)
	if q.fx.Claim == 0 || q.c.limits.inVain != 0 {
		t.Error("after one that is admitted there is a pause")
	}
}
