package pg

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"
)

// flushing is the move that flushes outcomes with a Committer of the session's own, which is left open beforehand so that
// only the flush itself can meet locks.
func flushing(t *testing.T, s *Store, name string, want Fate, outcomes ...Outcome) move {
	t.Helper()
	opened := s.NewCommitter(name)
	if err := opened.open(testContext(t)); err != nil {
		t.Fatal(err)
	}
	return func(ctx context.Context, own *Store, _ DB) error {
		c := own.NewCommitter(name)
		c.seq = opened.seq
		f, err := c.Flush(ctx, outcomes)
		for _, v := range f.Verdicts {
			if v.Fate != want {
				return fmt.Errorf("verdict %+v, expected fate %d", v, want)
			}
		}
		return err
	}
}

func signalling(targets ...int64) move {
	return func(ctx context.Context, own *Store, db DB) error {
		var ds []Delivery
		for _, id := range targets {
			ds = append(ds, Delivery{ID: id, Name: "go", Payload: []byte(`{}`)})
		}
		_, err := own.Signal(ctx, db, ds)
		return err
	}
}

func locking(id int64) move {
	return func(ctx context.Context, _ *Store, db DB) error {
		_, err := db.Exec(ctx, `SELECT 1 FROM gen_durable WHERE id = $1 FOR NO KEY UPDATE`, id)
		return err
	}
}

// TestSignalAndPark: a delivery that meets a park is not lost, whichever comes first (trap 1).
func TestSignalAndPark(t *testing.T) {
	t.Parallel()
	s := open(t)
	put(t, s, 3)
	rows := claim(t, s, alice, 3)
	park := outcome(rows[0], alice, KindAwait)
	interleave(t, s, map[string]move{
		"signal": signalling(rows[0].ID),
		"park":   flushing(t, s, "one", Committed, park),
	}, `
		caller  begin
		caller  signal
		flusher park    blocks
		caller  commit
		flusher resumes
	`)
	wantStatus(t, s, Runnable, rows[0].ID)
	// The park comes first and is held open by the next row, which has the lower id.
	interleave(t, s, map[string]move{
		"hold":   locking(rows[1].ID),
		"signal": signalling(rows[2].ID),
		"park":   flushing(t, s, "two", Committed, outcome(rows[1], alice, KindAwait), outcome(rows[2], alice, KindAwait)),
	}, `
		host    begin
		host    hold
		flusher park    blocks
		caller  signal  blocks
		host    commit
		flusher resumes
		caller  resumes
	`)
	wantStatus(t, s, Runnable, rows[2].ID)
	wantStatus(t, s, AwaitingSignal, rows[1].ID)
}

// TestSignalMeetsTheLastStep: the inbox of a row that ends goes with it even if its first signal came in between.
func TestSignalMeetsTheLastStep(t *testing.T) {
	t.Parallel()
	s := open(t)
	put(t, s, 1)
	row := claimOne(t, s, alice)
	interleave(t, s, map[string]move{
		"signal": signalling(row.ID),
		"end":    flushing(t, s, "end", Committed, outcome(row, alice, KindDone)),
	}, `
		caller  begin
		caller  signal
		flusher end     blocks
		caller  commit
		flusher resumes
	`)
	wantStatus(t, s, Done, row.ID)
	wantInbox(t, s, row.ID)
}

// TestLockOrder: a flush takes its rows in descending id order, whatever the order and the kinds of its outcomes, and so meets a
// batch of signals to the same rows without a deadlock (trap 2).
func TestLockOrder(t *testing.T) {
	t.Parallel()
	s := open(t)
	for _, kinds := range [][3]Kind{{KindDone, KindDone, KindDone}, {KindDone, KindNext, KindAwait}, {KindAwait, KindRetry, KindNext},
		{KindContinue, KindContinue, KindContinue}, {KindContinue, KindDone, KindContinue}} {
		exec(t, s, `TRUNCATE gen_durable CASCADE`)
		ids := put(t, s, 3)
		rows := claim(t, s, alice, 3)
		var batch []Outcome
		for i := range rows {
			batch = append(batch, outcome(rows[i], alice, kinds[i]))
		}
		interleave(t, s, map[string]move{
			"hold":   locking(ids[1]),
			"flush":  flushing(t, s, "order", Committed, batch...),
			"signal": signalling(ids[2], ids[0], ids[1]),
			"look": func(ctx context.Context, own *Store, _ DB) error {
				blocked, err := own.Blocked(ctx, append(ids, 1<<40))
				slices.Sort(blocked)
				if err == nil && !slices.Equal(blocked, ids[1:]) {
					err = fmt.Errorf("blocked are %v, expected the one that is held and the one above it (of %v)", blocked, ids)
				}
				return err
			},
		}, `
			host    begin
			host    hold
			flusher flush   blocks
			watch   look
			caller  signal  blocks
			host    commit
			flusher resumes
			caller  resumes
		`)
	}
}

// TestParentsInTheLockOrder: a parent that is younger than another row of the flush is locked before that row, so that
// a batch of signals to both does not deadlock with the flush.
func TestParentsInTheLockOrder(t *testing.T) {
	t.Parallel()
	s := open(t)
	c := s.NewCommitter("setup")
	old := put(t, s, 1)[0]
	between := put(t, s, 1, func(i *Insertion) { i.Queue = "other" })[0]
	parent, _ := spawn(t, s, c, 1)
	rows := claim(t, s, alice, 2) // the old one and the child
	interleave(t, s, map[string]move{
		"hold":   locking(between),
		"flush":  flushing(t, s, "order", Committed, outcome(rows[0], alice, KindDone), outcome(rows[1], alice, KindDone)),
		"signal": signalling(old, between, parent),
	}, `
		host    begin
		host    hold
		caller  signal  blocks
		flusher flush   blocks
		host    commit
		caller  resumes
		flusher resumes
	`)
	if parent < old || old != rows[0].ID {
		t.Fatalf("the parent is %d, the other row %d of %v", parent, old, claimedIDs(rows))
	}
	wantStatus(t, s, Runnable, parent)
}

// TestTwoFlushesJoinOneParent: the second decrement waits and starts from the first one's number.
func TestTwoFlushesJoinOneParent(t *testing.T) {
	t.Parallel()
	s := open(t)
	c := s.NewCommitter("setup")
	first, _ := spawn(t, s, c, 2)
	a := claim(t, s, alice, 2)
	second, _ := spawn(t, s, c, 2)
	b := claim(t, s, alice, 2)
	interleave(t, s, map[string]move{
		"hold": locking(second),
		"one":  flushing(t, s, "one", Committed, outcome(a[0], alice, KindDone), outcome(b[0], alice, KindDone)),
		"two":  flushing(t, s, "two", Committed, outcome(b[1], alice, KindDone), outcome(a[1], alice, KindFailed)),
	}, `
		host  begin
		host  hold
		left  one blocks
		right two blocks
		host  commit
		left  resumes
		right resumes
	`)
	wantStatus(t, s, Runnable, first, second)
}

// TestReaperMeetsFanOut: while a fan-out is on its way the reaper cannot take the parent, whose lease has run out; and a
// parent that it took before spawns nothing (trap 16).
func TestReaperMeetsFanOut(t *testing.T) {
	t.Parallel()
	s := open(t)
	put(t, s, 1)
	row := claimOne(t, s, alice)
	fan := outcome(row, alice, KindChildren)
	live := []string{"runnable", "executing", "awaiting_signal", "awaiting_children"}
	fan.Children = []Insertion{{Machine: "c", Version: 1, Step: "a", Queue: "kids", CorrelationKey: "k", CorrelationScope: live}}
	expire(t, s)
	reaping := func(want int) move {
		return func(ctx context.Context, own *Store, db DB) error {
			var r ReapResult
			err := db.QueryRow(ctx, own.sql("reap"), 100, nil).Scan(new(slots).after(&r.Rows, &r.Queues, new(time.Time))...)
			if err == nil && r.Rows != want {
				err = fmt.Errorf("reaped %d rows, expected %d", r.Rows, want)
			}
			return err
		}
	}
	moves := map[string]move{
		"insert": func(ctx context.Context, own *Store, db DB) error {
			_, err := own.Insert(ctx, db, []Insertion{{Machine: "c", Version: 1, Step: "a", Queue: "kids", CorrelationKey: "k", CorrelationScope: live}})
			return err
		},
		"fan":  flushing(t, s, "fan", Committed, fan),
		"late": flushing(t, s, "late", Stale, fan),
		"skip": reaping(0),
		"reap": reaping(1),
	}
	interleave(t, s, moves, `
		host    begin
		host    insert
		flusher fan     blocks
		reaper  skip
		host    rollback
		flusher resumes
		reaper  skip
	`)
	if in := get(t, s, row.ID); in.Status != AwaitingChildren || in.ChildrenPending != 1 {
		t.Errorf("the parent is %+v", in)
	}
	exec(t, s, `TRUNCATE gen_durable CASCADE`)
	exec(t, s, `ALTER SEQUENCE gen_durable_id_seq RESTART WITH `+fmt.Sprint(row.ID))
	put(t, s, 1)
	if again := claimOne(t, s, alice); again.ID != row.ID {
		t.Fatalf("the row is %d", again.ID)
	}
	expire(t, s)
	interleave(t, s, moves, `
		reaper  begin
		reaper  reap
		flusher late    blocks
		reaper  commit
		flusher resumes
	`)
	if n := value[int](t, s, `SELECT count(*)::int FROM gen_durable`); n != 1 {
		t.Errorf("there are %d rows, expected no child of the parent that was taken", n)
	}
}

// TestTakenWhileTheFlushWaits: the guard is asked again when the flush gets its row, for each kind (trap 6).
func TestTakenWhileTheFlushWaits(t *testing.T) {
	t.Parallel()
	s := open(t)
	c := s.NewCommitter("setup")
	for kind := KindNext; kind <= KindFailed; kind++ {
		exec(t, s, `TRUNCATE gen_durable CASCADE`)
		parent, _ := spawn(t, s, c, 1)
		row := claimOne(t, s, alice)
		handed := signal(t, s, row.ID, "go")
		expire(t, s)
		interleave(t, s, map[string]move{
			"reap": func(ctx context.Context, own *Store, db DB) error {
				_, err := db.Exec(ctx, own.sql("reap"), 100, nil)
				return err
			},
			"take": func(ctx context.Context, own *Store, db DB) error {
				_, err := db.Exec(ctx, own.sql("claim"), claimArgs(ClaimRequest{Queue: "default", Worker: bob, Lease: time.Minute, Limit: 100})...)
				return err
			},
			"flush": flushing(t, s, "flush", Stale, everyKind(row, alice, []int64{handed})[kind]),
		}, `
			reaper  begin
			reaper  reap
			reaper  take
			flusher flush   blocks
			reaper  commit
			flusher resumes
		`)
		in := get(t, s, row.ID)
		if in.LockedBy != bob || in.Status != Executing || in.Step != "a" {
			t.Errorf("kind %d: the row is %+v", kind, in)
		}
		wantStatus(t, s, AwaitingChildren, parent)
		wantInbox(t, s, row.ID, handed)
	}
}

// TestClaimRaces: a claim passes by what another has locked, and a key's second row is not committed.
func TestClaimRaces(t *testing.T) {
	t.Parallel()
	s := open(t)
	ids := put(t, s, 4)
	keyed := put(t, s, 2, func(i *Insertion) { i.ConcurrencyKey, i.Queue = "k", "keyed" })
	claiming := func(queue string, limit int) move {
		return func(ctx context.Context, own *Store, db DB) error {
			_, err := db.Exec(ctx, own.sql("claim"), claimArgs(ClaimRequest{Queue: queue, Worker: bob, Lease: time.Minute, Limit: limit})...)
			return err
		}
	}
	var got []Claimed
	interleave(t, s, map[string]move{
		"claim": claiming("default", 2),
		"rest": func(ctx context.Context, own *Store, _ DB) (err error) {
			got, err = own.Claim(ctx, ClaimRequest{Queue: "default", Worker: alice, Lease: time.Minute, Limit: 10})
			return err
		},
		"keyed": claiming("keyed", 10),
		"again": func(ctx context.Context, own *Store, _ DB) error {
			rows, err := own.Claim(ctx, ClaimRequest{Queue: "keyed", Worker: alice, Lease: time.Minute, Limit: 10})
			if err == nil && len(rows) != 0 {
				err = fmt.Errorf("claimed %d rows of a key that is taken", len(rows))
			}
			return err
		},
		"hold": locking(keyed[0]),
	}, `
		one  begin
		one  claim
		two  rest
		one  commit
		host begin
		host hold
		one  begin
		one  keyed
		host commit
		two  again blocks
		one  commit
		two  resumes
	`)
	if len(got) != 2 || got[0].ID != ids[2] {
		t.Errorf("the second claim got %+v", got)
	}
}
