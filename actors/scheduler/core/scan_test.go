package core

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/gendurable/gendurable/limiter"
	"github.com/gendurable/gendurable/pg"
)

// slowQueue is a queue whose looks at everything take so long, as behind what an open transaction keeps. Its claims pass that over.
func slowQueue(t *testing.T, full time.Duration) *limitedQueue {
	t.Helper()
	q := newLimitedQueue(t)
	q.answers(ClaimResult{Took: full})
	q.answers(ClaimResult{Took: full, Priorities: []int16{0, 3}, At: q.now})
	if q.fx.Since == nil || q.fx.Survey {
		t.Fatalf("after the survey the claim begins at %v", q.fx.Since)
	}
	return q
}

// answers answers the claim in flight and waits for the next one.
func (q *limitedQueue) answers(r ClaimResult) {
	q.t.Helper()
	q.now = q.now.Add(r.Took)
	for claim := q.on(r).Claim; claim == 0; {
		if q.fx.ReleaseUnheld {
			claim = q.on(UnheldResult{}).Claim
			continue
		}
		q.c.supply.note(known)
		if claim = q.on(Tick{}).Claim; claim == 0 && !q.fx.ReleaseUnheld {
			q.now = q.fx.Wake
			claim = q.on(Tick{}).Claim
		}
	}
}

// TestLookingAtAllRowsTakesATenthOfTheTime: however many dead rows an open transaction keeps, and while it waits, what has been
// passed over since does not make the other claims slow.
func TestLookingAtAllRowsTakesATenthOfTheTime(t *testing.T) {
	t.Parallel()
	const full, slow = 8 * time.Second, 50 * time.Millisecond
	q := slowQueue(t, full)
	surveyed, first := q.now, q.fx.Since
	q.answers(ClaimResult{Took: slow})
	if !q.fx.Survey || fmt.Sprint(q.fx.Since) != fmt.Sprint(first) {
		t.Fatalf("after a slow one the claim begins at %v and does not learn how far it looks", q.fx.Since)
	}
	q.c.supply.ahead.due = true // walks all as well: for when all is looked at
	steps := 0
	for ; q.fx.Since != nil; steps++ { // each is slow, and had more to claim than it asked for, of the more urgent priority
		at := q.now
		if q.fx.Ahead > 0 {
			t.Fatalf("claim %d looks ahead", steps)
		}
		q.answers(ClaimResult{Took: slow, Looked: 1000, At: at, LastPriority: 0, LastEligible: at.Add(-2 * lateCommit)})
		if want := []pg.Lane{{Priority: 0, Since: at.Add(-2 * lateCommit)}, first[1]}; q.fx.Since != nil && fmt.Sprint(q.fx.Since) != fmt.Sprint(want) {
			t.Fatalf("claim %d begins at %v, expected %v", steps, q.fx.Since, want)
		}
	}
	if q.fx.Ahead == 0 {
		t.Error("the look at all rows does not look ahead")
	}
	if waited := q.now.Sub(surveyed); waited < fullPause*full || waited > (fullPause+1)*full || steps < 10 {
		t.Errorf("%v and %d claims after a look at all rows of %v all are looked at again", waited, steps, full)
	}
}

// TestStepsGoForwardOnly, also in priorities of which there were no rows at the last look, but there only behind what was exhausted.
// A quick claim does not ask how far it looked.
func TestStepsGoForwardOnly(t *testing.T) {
	t.Parallel()
	q := slowQueue(t, 8*time.Second)
	slow := 50 * time.Millisecond
	q.answers(ClaimResult{Took: slow})
	others, at := q.fx.Others, q.now
	q.answers(ClaimResult{Took: slow, At: at, Looked: 1000, LastPriority: 3, LastEligible: at})
	if q.fx.Others != others {
		t.Errorf("others begin at %v behind a claim that left some", q.fx.Others)
	}
	q.answers(ClaimResult{Took: slow, At: at})
	stepped := q.fx.Since
	if want := at.Add(-lateCommit); stepped[0].Since != want || stepped[1].Since != want || q.fx.Others != want {
		t.Errorf("the claim begins at %v and %v, expected %v", stepped, q.fx.Others, want)
	}
	q.answers(ClaimResult{Took: slow, At: at.Add(-time.Second)}) // the server's clock was set back
	if fmt.Sprint(q.fx.Since) != fmt.Sprint(stepped) || q.fx.Others != at.Add(-lateCommit) {
		t.Errorf("the claim goes back to %v and %v", q.fx.Since, q.fx.Others)
	}
	if q.answers(ClaimResult{Took: slow}); fmt.Sprint(q.fx.Since) != fmt.Sprint(stepped) {
		t.Errorf("a claim that lost a race has moved the next one to %v", q.fx.Since)
	}
	if q.answers(ClaimResult{Took: time.Millisecond, At: q.now}); q.fx.Survey {
		t.Error("after a quick claim the next one asks how far it looks")
	}
}

// TestASurveyThatLostARace has not looked as far as it seems: nothing is passed over for it.
func TestASurveyThatLostARace(t *testing.T) {
	t.Parallel()
	q := newLimitedQueue(t)
	for range 3 {
		if q.answers(ClaimResult{Took: time.Second}); q.fx.Since != nil || !q.fx.Survey {
			t.Fatalf("the claim begins at %v", q.fx.Since)
		}
	}
}

// TestWhatComesFreeIsLookedForAtOnce among the rows that are passed over, and again as long as that brings some of them. A look that
// brings none, or only others, is followed by claims that pass them over, for four times as long.
func TestWhatComesFreeIsLookedForAtOnce(t *testing.T) {
	t.Parallel()
	const full = 8 * time.Second
	q := slowQueue(t, full)
	q.answers(ClaimResult{Took: time.Millisecond})
	for i := range 3 {
		q.c.scan.stir()
		q.answers(ClaimResult{Took: time.Millisecond})
		if q.fx.Since != nil || len(q.fx.Passed.Lanes) != 2 || q.fx.Passed.Others.IsZero() {
			t.Fatalf("the claim after that begins at %v", q.fx.Since)
		}
		q.answers(ClaimResult{Took: full, Gained: 1, Rows: []pg.Claimed{{ID: int64(100 + i)}}})
		if q.fx.Since == nil || q.fx.Passed.Lanes != nil {
			t.Fatal("all is looked at once more although nothing has come free")
		}
	}
	q.c.scan.stir()
	q.answers(ClaimResult{Took: time.Millisecond})
	q.c.scan.stir() // while it is on its way, as under load
	q.answers(ClaimResult{Took: full, Gained: 1, Rows: []pg.Claimed{{ID: 200}, {ID: 201}}})
	for began := q.now; q.fx.Since != nil; q.answers(ClaimResult{Took: time.Millisecond}) {
		if q.now.Sub(began) > 4*full+time.Second {
			t.Fatalf("not looked for again after %v", q.now.Sub(began))
		}
	}
}

// TestPassed: a row is among what is passed over if it is older than its priority's lane, or than all others.
func TestPassed(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	rows := []pg.Claimed{
		{Priority: 0, EligibleAt: now}, {Priority: 0, EligibleAt: now.Add(-time.Second)},
		{Priority: 1, EligibleAt: now.Add(-time.Second)}, {Priority: 1, EligibleAt: now.Add(-time.Hour)},
	}
	if n := (Passed{[]pg.Lane{{Priority: 0, Since: now}}, now.Add(-time.Minute)}).Among(rows); n != 2 {
		t.Errorf("%d rows of 2", n)
	}
	if n := (Passed{}).Among(rows); n != 0 {
		t.Errorf("%d rows of none", n)
	}
}

// TestALookThatIsFullIsMadeAgain: one stir may have brought more to life than a claim takes. As long as most of what it brings had been
// passed over, that is at once.
func TestALookThatIsFullIsMadeAgain(t *testing.T) {
	t.Parallel()
	q := slowQueue(t, 8*time.Second)
	q.c.scan.stir()
	q.answers(ClaimResult{Took: time.Millisecond})
	for range 3 {
		q.answers(ClaimResult{Took: 8 * time.Second, Gained: 60, Pending: 0, Looked: 100})
		if q.fx.Since != nil {
			t.Fatal("the rest is passed over")
		}
	}
	q.answers(ClaimResult{Took: 8 * time.Second, Looked: 100})
	if q.fx.Since == nil {
		t.Fatal("a look that gained nothing is made again at once")
	}
}

// TestWhatAClaimLeftIsNotPassedOver: the limiter was likely to admit no more of it just then.
func TestWhatAClaimLeftIsNotPassedOver(t *testing.T) {
	t.Parallel()
	q := slowQueue(t, 8*time.Second)
	for q.fx.Since != nil {
		q.answers(ClaimResult{Took: time.Millisecond})
	}
	q.now = q.now.Add(8 * time.Second)
	q.on(ClaimResult{Took: 8 * time.Second, Pending: 1, Looked: 10, Priorities: []int16{0}, At: q.now})
	q.on(AdmitResult{Rows: []pg.Claimed{ratedRow("r")}, Decisions: []limiter.Decision{{Verdict: limiter.Admitted}}})
	if q.fx.Claim == 0 || q.fx.Since != nil {
		t.Errorf("the claim for the rest begins at %v", q.fx.Since)
	}
}

// TestAQuickLookMayHaveSeenNothing: of a paused queue no row is read. So the next one learns how far it looks, and if that is quick as
// well, nothing is passed over any more.
func TestAQuickLookMayHaveSeenNothing(t *testing.T) {
	t.Parallel()
	q := slowQueue(t, 8*time.Second)
	q.answers(ClaimResult{Took: time.Millisecond})
	q.c.scan.stir()
	for q.fx.Since != nil {
		q.answers(ClaimResult{Took: time.Millisecond})
	}
	for i := range 2 {
		if q.fx.Since != nil || q.fx.Survey != (i == 1) {
			t.Fatalf("claim %d begins at %v, and learns how far it looks: %v", i, q.fx.Since, q.fx.Survey)
		}
		q.answers(ClaimResult{Took: time.Millisecond, At: q.now})
	}
	if q.fx.Since != nil || q.fx.Passed.Lanes != nil {
		t.Errorf("rows are passed over from %v on", q.c.scan.since)
	}
}

// TestAPokeInVainStirs: what it announced may have an old eligible_at, as rows that a reaper gave back.
func TestAPokeInVainStirs(t *testing.T) {
	t.Parallel()
	q := slowQueue(t, 8*time.Second)
	q.on(ClaimResult{Took: time.Millisecond})
	for q.on(Poked{}); q.fx.Claim == 0; {
		q.wait()
	}
	if q.fx.Since == nil {
		t.Fatal("the poke makes the queue look at everything at once")
	}
	q.on(ClaimResult{Took: time.Millisecond})
	for began := q.now; q.fx.Claim == 0; q.wait() {
		if q.now.Sub(began) > time.Second {
			t.Fatal("no look follows a poke that brought nothing")
		}
	}
	if q.fx.Since != nil {
		t.Errorf("after a poke that brought nothing the claim begins at %v", q.fx.Since)
	}
}

// TestALookThatFailsIsNotRepeatedAtOnce: its length may be what makes it fail, or lose races. The other claims go on, and what it was
// made for is not forgotten.
func TestALookThatFailsIsNotRepeatedAtOnce(t *testing.T) {
	t.Parallel()
	const full = 8 * time.Second
	for name, fails := range map[string]ClaimResult{
		"cut off":    {Took: 15 * time.Second, Err: errors.New("deadline"), Unknown: true},
		"lost races": {Took: full},
	} {
		q := slowQueue(t, full)
		for q.fx.Since != nil {
			q.answers(ClaimResult{Took: time.Millisecond})
		}
		q.c.scan.inFlight.stirred = true // it was made for that, too
		if q.answers(fails); q.fx.Since == nil {
			t.Fatalf("%s: the next claim looks at everything again", name)
		}
		began := q.now
		for q.fx.Since != nil {
			q.answers(ClaimResult{Took: time.Millisecond})
		}
		want := 4 * fails.Took // and not fullPause times as long
		if waited := q.now.Sub(began); waited < want-time.Second || waited > want+time.Second {
			t.Errorf("%s: all is looked at again after %v, expected %v", name, waited, want)
		}
	}
}

// TestRowsOfASlowClaimAreBeatenAtOnce: their leases began with it.
func TestRowsOfASlowClaimAreBeatenAtOnce(t *testing.T) {
	t.Parallel()
	for took, soon := range map[time.Duration]bool{time.Second: false, 15 * time.Second: true} {
		q := newLimitedQueue(t)
		q.now = q.now.Add(took)
		q.on(ClaimResult{Took: took, Rows: []pg.Claimed{{ID: 1}}, Pending: 1})
		if got := slices.Contains(q.fx.Beat, 1); got != soon {
			t.Errorf("after a claim of %v it beats %v", took, q.fx.Beat)
		}
		q.on(BeatResult{})
		row := gatedRow("g:a")
		row.ID = 2
		q.on(AdmitResult{Rows: []pg.Claimed{row}, Decisions: []limiter.Decision{{Verdict: limiter.Admitted}}})
		if got := slices.Contains(q.fx.Beat, 2); got != soon {
			t.Errorf("after a claim of %v and the admission it beats %v", took, q.fx.Beat)
		}
	}
}
