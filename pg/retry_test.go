package pg

import (
	"context"
	"testing"
)

func retried(t *testing.T, s *Store, db DB, id int64, want Retrial) RetryResult {
	t.Helper()
	r, err := s.Retry(testContext(t), db, id)
	if err != nil {
		t.Fatal(err)
	}
	if r.Result != want {
		t.Errorf("the retry came to %+v, expected result %d", r, want)
	}
	return r
}

func TestRetryRunsTheLastStepAgain(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	c := s.NewCommitter("c")
	id := put(t, s, 1, func(i *Insertion) { i.ConcurrencyKey, i.RateLimit, i.Weight = "k", "lim", 2 })[0]
	retried(t, s, host, id, RetryNotFailed)
	retried(t, s, host, 999999, RetryUnknown)
	row := claimOne(t, s, alice)
	retried(t, s, host, id, RetryNotFailed)
	exec(t, s, `UPDATE gen_durable SET attempt = 4, crashes = 3, crash_step = 'a' WHERE id = $1`, id)
	cancelled(t, s, host, id, Requested)
	flushCancelled(t, c, outcome(row, alice, KindFailed))
	if r := retried(t, s, host, id, Retried); r.Queue != "default" {
		t.Errorf("%+v", r)
	}
	got := get(t, s, id)
	if got.Status != Runnable || got.Step != "a" || string(got.State) != `{"n": 0}` || got.Attempt != 0 || got.Crashes != 0 ||
		got.CancelReason != nil || got.ConcurrencyKey != "k" || got.RateLimit != "lim" || got.Weight != 2 || got.LockedBy != "" {
		t.Errorf("the retried row is %+v", *got)
	}
	retried(t, s, host, id, RetryNotFailed)
	commitAll(t, c, outcome(claimOne(t, s, bob), bob, KindDone))
	retried(t, s, host, id, RetryNotFailed)
}

// flushCancelled flushes an outcome that a cancel turns into a failure.
func flushCancelled(t *testing.T, c *Committer, o Outcome) {
	t.Helper()
	if v := flushAll(t, c, o).Verdicts[0]; v.Fate != Cancelled {
		t.Fatalf("verdict %+v", v)
	}
}

func TestRetryMeetsItsKeyTaken(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	first := insert(t, s, host, keyed("k"))[0].ID
	cancelled(t, s, host, first, Ended)
	second := insert(t, s, host, keyed("k"))[0].ID
	if r := retried(t, s, host, first, RetryOccupied); r.Key != "k" || r.Occupant != second {
		t.Errorf("%+v, expected the key of %d", r, second)
	}
	wantStatus(t, s, Failed, first)
	cancelled(t, s, host, second, Ended)
	retried(t, s, host, first, Retried)
	retried(t, s, host, second, RetryOccupied)
}

// TestRetryOfAChild: a parent that waits waits for one more, any other loses the child.
func TestRetryOfAChild(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	parent, children := spawn(t, s, s.NewCommitter("c"), 3)
	cancelled(t, s, host, children[0], Ended)
	cancelled(t, s, host, children[1], Ended)
	retried(t, s, host, children[0], Retried)
	if p := get(t, s, parent); p.ChildrenPending != 2 || p.Status != AwaitingChildren {
		t.Errorf("after the retry of a child: %+v", *p)
	}
	if c := get(t, s, children[0]); c.ParentID != parent || c.Status != Runnable {
		t.Errorf("the child is %+v", *c)
	}
	cancelled(t, s, host, children[0], Ended)
	if r := cancelled(t, s, host, children[2], Ended); len(r.Woken) != 1 {
		t.Errorf("the last child woke %v", r.Woken)
	}
	wantStatus(t, s, Runnable, parent)
	before := get(t, s, parent)
	retried(t, s, host, children[1], Retried)
	if p := get(t, s, parent); p.ChildrenPending != 0 || p.Status != Runnable || !p.UpdatedAt.Equal(before.UpdatedAt) {
		t.Errorf("a parent that does not wait became %+v", *p)
	}
	if c := get(t, s, children[1]); c.ParentID != 0 || c.Status != Runnable {
		t.Errorf("the child that nobody waits for is %+v", *c)
	}
}

// siblings are two children of a waiting parent, the first of which was cancelled, and the moves on them.
func siblings(t *testing.T) (s *Store, parent int64, children []int64, moves map[string]move, results map[string]int) {
	t.Helper()
	s, host := openWithHost(t, Options{})
	parent, children = spawn(t, s, s.NewCommitter("c"), 2)
	cancelled(t, s, host, children[0], Ended)
	moves, results = map[string]move{}, map[string]int{}
	for i, id := range children {
		retry, cancel := []string{"retry0", "retry1"}[i], []string{"cancel0", "cancel1"}[i]
		moves[retry] = func(ctx context.Context, s *Store, db DB) error {
			r, err := s.Retry(ctx, db, id)
			results[retry] = int(r.Result)
			return err
		}
		moves[cancel] = func(ctx context.Context, s *Store, db DB) error {
			r, err := s.Cancel(ctx, db, id, "why")
			results[cancel] = int(r.Result)
			return err
		}
	}
	return s, parent, children, moves, results
}

// TestRetryAfterTheLastSibling: nobody waits for the retried child, which goes its own way.
func TestRetryAfterTheLastSibling(t *testing.T) {
	t.Parallel()
	s, parent, children, moves, results := siblings(t)
	interleave(t, s, moves, `
		end   begin
		end   cancel1
		retry retry0  blocks
		end   commit
		retry resumes
	`)
	wantStatus(t, s, Runnable, parent, children[0])
	if c := get(t, s, children[0]); results["retry0"] != int(Retried) || c.ParentID != 0 {
		t.Errorf("the retry came to %v, the child is %+v", results["retry0"], *c)
	}
}

// TestRetryBeforeTheLastSibling: the end of the sibling does not wake the parent, that of the retried child does.
func TestRetryBeforeTheLastSibling(t *testing.T) {
	t.Parallel()
	s, parent, _, moves, results := siblings(t)
	interleave(t, s, moves, `
		retry begin
		retry retry0
		end   cancel1 blocks
		retry commit
		end   resumes
		end   cancel0
	`)
	if results["cancel0"] != int(Ended) || results["cancel1"] != int(Ended) {
		t.Errorf("the cancels came to %v", results)
	}
	if p := get(t, s, parent); p.Status != Runnable || p.ChildrenPending != 0 {
		t.Errorf("after both children have ended the parent is %+v", *p)
	}
}

// TestRetryRacesAKey: the retry waits for an insert of its key, and either order has one live instance.
func TestRetryRacesAKey(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	id := insert(t, s, host, keyed("k"))[0].ID
	cancelled(t, s, host, id, Ended)
	var results []Retrial
	moves := map[string]move{
		"insert": func(ctx context.Context, s *Store, db DB) error {
			_, err := s.Insert(ctx, db, []Insertion{keyed("k")})
			return err
		},
		"retry": func(ctx context.Context, s *Store, db DB) error {
			r, err := s.Retry(ctx, db, id)
			results = append(results, r.Result)
			return err
		},
	}
	interleave(t, s, moves, `
		one begin
		one insert
		two retry blocks
		one rollback
		two resumes
	`)
	cancelled(t, s, host, id, Ended)
	interleave(t, s, moves, `
		one begin
		one insert
		two retry blocks
		one commit
		two resumes
	`)
	if len(results) != 2 || results[0] != Retried || results[1] != RetryOccupied {
		t.Errorf("the retries came to %v", results)
	}
}
