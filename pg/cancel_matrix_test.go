package pg

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// why is the error of what was cancelled by a captive's move.
const why = "cancelled: why"

// TestCancelMeetsEachOutcome: whichever of the two comes first, the instance ends once and lets go of everything.
func TestCancelMeetsEachOutcome(t *testing.T) {
	t.Parallel()
	type end struct {
		cancel Cancellation
		status Status
		err    string
	}
	later := map[Kind]end{ // when the outcome comes first
		KindNext:     {Ended, Failed, why},
		KindRetry:    {Ended, Failed, why},
		KindAwait:    {Ended, Failed, why},
		KindChildren: {Ended, Failed, why},
		KindContinue: {Requested, Failed, why}, // it runs on, and its next outcome ends it
		KindDone:     {AlreadyTerminal, Done, ""},
		KindFailed:   {AlreadyTerminal, Failed, "no"},
	}
	eachKey(t, func(t *testing.T, captured func(*testing.T) *captive) {
		for kind, want := range later {
			t.Run(fmt.Sprint("the cancel, then kind ", kind), func(t *testing.T) {
				c := captured(t)
				interleave(t, c.s, map[string]move{"cancel": c.cancel, "flush": c.flush(kind)}, `
					caller  begin
					caller  cancel
					flusher flush   blocks
					caller  commit
					flusher resumes
				`)
				c.expect([]Cancellation{Requested}, []Fate{Cancelled})
				c.free(Failed, why)
			})
			t.Run(fmt.Sprint("kind ", kind, ", then the cancel"), func(t *testing.T) {
				c := captured(t)
				interleave(t, c.s, map[string]move{"hold": locking(c.before.ID), "cancel": c.cancel, "flush": c.withBefore(kind)}, `
					host    begin
					host    hold
					flusher flush   blocks
					caller  cancel  blocks
					host    commit
					flusher resumes
					caller  resumes
				`)
				c.expect([]Cancellation{want.cancel}, []Fate{Committed})
				c.finish()
				c.free(want.status, want.err)
			})
		}
	})
}

// TestCancelMeetsTheReaper: a request outlives the worker, and an instance that was just given back ends at once.
func TestCancelMeetsTheReaper(t *testing.T) {
	t.Parallel()
	cases := []struct {
		what, script string
		cancels      []Cancellation
		fates        []Fate
	}{
		{"the reap first", `
			reaper  begin
			reaper  reap
			caller  cancel  blocks
			reaper  commit
			caller  resumes
			reaper  skip`, []Cancellation{Ended}, nil},
		{"the cancel first", `
			caller  begin
			caller  cancel
			reaper  skip
			caller  commit
			reaper  reap`, []Cancellation{Requested}, nil},
		{"a reap that comes to nothing", `
			reaper  begin
			reaper  reap
			caller  cancel  blocks
			reaper  rollback
			caller  resumes
			flusher flush
			reaper  skip`, []Cancellation{Requested}, []Fate{Cancelled}},
		{"a late outcome between the reap and the next claim", `
			caller  cancel
			reaper  begin
			reaper  reap
			flusher end     blocks
			reaper  commit
			flusher resumes`, []Cancellation{Requested}, []Fate{Stale}},
		{"a second cancel of what was reaped", `
			caller  cancel
			reaper  reap
			caller  cancel
			flusher flush
			caller  cancel`, []Cancellation{Requested, Ended, AlreadyTerminal}, []Fate{Stale}},
		{"the reaper while a request is fulfilled", `
			caller  cancel
			host    begin
			host    hold
			flusher end     blocks
			reaper  skip
			caller  cancel  blocks
			host    commit
			flusher resumes
			caller  resumes
			reaper  skip`, []Cancellation{Requested, AlreadyTerminal}, []Fate{Cancelled}},
		{"the claim after the reap", `
			reaper  reap
			worker  begin
			worker  take
			caller  cancel  blocks
			flusher flush
			worker  commit
			caller  resumes`, []Cancellation{Requested}, []Fate{Stale}},
		{"the cancel while a claim looks for what was reaped", `
			reaper  reap
			caller  begin
			caller  cancel
			worker  miss
			caller  commit
			worker  miss`, []Cancellation{Ended}, nil},
	}
	eachKey(t, func(t *testing.T, captured func(*testing.T) *captive) {
		for _, one := range cases {
			t.Run(one.what, func(t *testing.T) {
				c := captured(t)
				exec(t, c.s, `UPDATE gen_durable SET lease_expires_at = now() - interval '1 s' WHERE id = $1`, c.row.ID)
				interleave(t, c.s, map[string]move{
					"cancel": c.cancel, "reap": c.reaping(1), "skip": c.reaping(0), "hold": locking(c.before.ID), "take": c.take,
					"flush": c.flush(KindNext), "end": c.withBefore(KindDone),
					"miss": func(ctx context.Context, own *Store, _ DB) error {
						rows, err := own.Claim(ctx, c.request(bob, "default"))
						if err == nil && len(rows) != 0 {
							err = fmt.Errorf("claimed %+v", rows)
						}
						return err
					},
				}, one.script)
				if strings.Contains(one.script, "rollback") {
					c.reaped.clear()
				}
				c.expect(one.cancels, one.fates)
				c.finish()
				c.free(Failed, why)
			})
		}
	})
}

// TestCancelMeetsARetry: each of the two is answered by what the other has made of the instance, and each life ends once.
func TestCancelMeetsARetry(t *testing.T) {
	t.Parallel()
	cases := []struct {
		what, script string
		cancels      []Cancellation
		fates        []Fate
		retries      []Retrial
	}{
		// A cancel does not wait for a retry that is not committed: then it is the one that came first.
		{"the retry first", `
			other   begin
			other   retry
			caller  cancel
			other   commit
			caller  cancel`, []Cancellation{AlreadyTerminal, Ended}, nil, []Retrial{Retried}},
		{"a retry that comes to nothing", `
			other   begin
			other   retry
			caller  cancel
			other   rollback
			caller  cancel
			other   retry
			caller  cancel`, []Cancellation{AlreadyTerminal, AlreadyTerminal, Ended}, nil, []Retrial{Retried, Retried}},
		{"a cancel of what was retried, then a retry", `
			other   retry
			caller  begin
			caller  cancel
			other   retry   blocks
			caller  commit
			other   resumes
			caller  cancel`, []Cancellation{Ended, Ended}, nil, []Retrial{Retried, Retried}},
		{"a request, then a retry", `
			other   retry
			worker  claim
			caller  begin
			caller  cancel
			other   retry   blocks
			caller  commit
			other   resumes`, []Cancellation{Requested}, nil, []Retrial{Retried, RetryNotFailed}},
		{"a retry while the request is fulfilled", `
			other   retry
			worker  claim
			caller  cancel
			host    begin
			host    hold
			worker  end     blocks
			other   retry   blocks
			host    commit
			worker  resumes
			other   resumes
			caller  cancel`, []Cancellation{Requested, Ended}, []Fate{Cancelled}, []Retrial{Retried, Retried}},
		{"a retry forgets the request that was fulfilled", `
			other   retry
			worker  claim
			caller  cancel
			worker  flush
			other   retry
			worker  claim
			worker  done`, []Cancellation{Requested}, []Fate{Cancelled, Committed}, []Retrial{Retried, Retried}},
	}
	eachKey(t, func(t *testing.T, captured func(*testing.T) *captive) {
		for _, one := range cases {
			t.Run(one.what, func(t *testing.T) {
				c := captured(t)
				c.now(c.flush(KindFailed))
				c.fates = nil
				interleave(t, c.s, map[string]move{
					"cancel": c.cancel, "retry": c.retry, "claim": c.claim(bob), "hold": locking(c.before.ID),
					"flush": c.flush(KindNext), "done": c.flush(KindDone), "end": c.withBefore(KindDone),
				}, one.script)
				if strings.Contains(one.script, "rollback") {
					c.ends++ // the retry that was answered, but came to nothing
				}
				c.expect(one.cancels, one.fates, one.retries...)
				c.finish()
				if slices.Contains(one.fates, Committed) {
					c.free(Done, "")
				} else {
					c.free(Failed, why)
				}
			})
		}
	})
}

// TestCancelMeetsTheWake: what is parked holds no slot any more, and ends whether or not it was woken just before; a signal
// that comes second is refused.
func TestCancelMeetsTheWake(t *testing.T) {
	t.Parallel()
	eachKey(t, func(t *testing.T, captured func(*testing.T) *captive) {
		for _, one := range []struct {
			first, second string
			accepted      int
		}{{"signal", "cancel", 1}, {"timeout", "cancel", 0}, {"cancel", "signal", 0}} {
			t.Run(one.first+", then "+one.second, func(t *testing.T) {
				c := captured(t)
				c.now(c.flush(KindAwait))
				wantStatus(t, c.s, AwaitingSignal, c.row.ID)
				exec(t, c.s, `UPDATE gen_durable SET await_deadline = now() - interval '1 s' WHERE id = $1`, c.row.ID)
				accepted := 0
				interleave(t, c.s, map[string]move{
					"cancel": c.cancel,
					"signal": func(ctx context.Context, own *Store, db DB) error {
						d, err := own.Signal(ctx, db, []Delivery{{ID: c.row.ID, Name: "go", Payload: []byte(`{}`)}})
						if err == nil && d[0].SignalID != 0 {
							accepted++
						}
						return err
					},
					"timeout": func(ctx context.Context, own *Store, db DB) error {
						_, err := db.Exec(ctx, own.sql("wake"), 100, nil)
						return err
					},
				}, fmt.Sprintf(`
					one begin
					one %s
					two %s      blocks
					one commit
					two resumes
				`, one.first, one.second))
				if accepted != one.accepted {
					t.Errorf("%d signals were accepted, expected %d", accepted, one.accepted)
				}
				c.expect([]Cancellation{Ended}, []Fate{Committed})
				c.free(Failed, why)
			})
		}
	})
}

// TestCancelMeetsTheLastChild: a parent that is cancelled while its last child ends is not woken, and one that was woken ends.
func TestCancelMeetsTheLastChild(t *testing.T) {
	t.Parallel()
	eachKey(t, func(t *testing.T, captured func(*testing.T) *captive) {
		for what, script := range map[string]string{
			"the cancel first": `
				caller  begin
				caller  cancel
				flusher join    blocks
				caller  commit
				flusher resumes`,
			"the child first": `
				host    begin
				host    hold
				flusher join    blocks
				caller  cancel  blocks
				host    commit
				flusher resumes
				caller  resumes`,
		} {
			t.Run(what, func(t *testing.T) {
				c := captured(t)
				c.now(c.flush(KindChildren))
				child := claimOne(t, c.s, bob)
				join := []Outcome{outcome(child, bob, KindDone), outcome(c.before, alice, KindDone)}
				interleave(t, c.s, map[string]move{
					"cancel": c.cancel, "hold": locking(c.before.ID), "join": flushing(t, c.s, "join", Committed, join...),
				}, script)
				wantStatus(t, c.s, Done, child.ID)
				c.expect([]Cancellation{Ended}, []Fate{Committed})
				c.free(Failed, why)
			})
		}
	})
}
