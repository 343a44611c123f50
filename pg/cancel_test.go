package pg

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
)

func cancelled(t testing.TB, s *Store, db DB, id int64, want Cancellation) CancelResult {
	t.Helper()
	r, err := s.Cancel(testContext(t), db, id, "changed my mind")
	if err != nil {
		t.Fatal(err)
	}
	if r.Result != want {
		t.Errorf("cancel came to %+v, expected result %d", r, want)
	}
	return r
}

func TestCancelEndsWhatIsNotExecuting(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	for _, from := range []Status{Runnable, AwaitingSignal, AwaitingChildren} {
		id := put(t, s, 1)[0]
		signal(t, s, id, "n")
		exec(t, s, `UPDATE gen_durable SET status = $2::text::durable_status, awaits = '{x}', await_deadline = now() WHERE id = $1`, id, string(from))
		r := cancelled(t, s, host, id, Ended)
		if r.ID != id || r.Queue != "default" || len(r.Woken) != 0 {
			t.Errorf("from %s: %+v", from, r)
		}
		got := get(t, s, id)
		if got.Status != Failed || got.LastError != "cancelled: changed my mind" || got.CancelReason != nil || got.Awaits != nil || got.AwaitDeadline != nil {
			t.Errorf("from %s the row became %+v", from, *got)
		}
		wantInbox(t, s, id)
		if r := cancelled(t, s, host, id, AlreadyTerminal); r.ID != id || r.Queue != "default" {
			t.Errorf("a second time: %+v", r)
		}
	}
	for _, id := range []int64{0, 999999} {
		cancelled(t, s, host, id, NoSuchInstance)
	}
}

func TestCancelAsksTheWorkerOfAnExecutingOne(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	put(t, s, 1)
	c := claimOne(t, s, alice)
	sig := signal(t, s, c.ID, "n")
	cancelled(t, s, host, c.ID, Requested)
	if r, err := s.Cancel(testContext(t), host, c.ID, "another reason"); err != nil || r.Result != Requested {
		t.Errorf("a second request: %+v, %v", r, err)
	}
	got := get(t, s, c.ID)
	if got.Status != Executing || got.LockedBy != alice || got.LeaseExpiresAt == nil || got.LastError != "" ||
		got.CancelReason == nil || *got.CancelReason != "changed my mind" {
		t.Errorf("the row became %+v", *got)
	}
	wantInbox(t, s, c.ID, sig)
}

func TestCancelTellsTheParent(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	ctx := testContext(t)
	parent, children := spawn(t, s, s.NewCommitter("c"), 4)
	signal(t, s, children[1], "n")
	if r := cancelled(t, s, host, children[0], Ended); len(r.Woken) != 0 {
		t.Errorf("a first child woke %v", r.Woken)
	}
	cancelled(t, s, host, children[0], AlreadyTerminal)

	// In a caller's transaction, also below a savepoint, where row versions carry another transaction's number.
	err := pgx.BeginFunc(ctx, host, func(tx pgx.Tx) error {
		cancelled(t, s, tx, children[1], Ended)
		return pgx.BeginFunc(ctx, tx, func(inner pgx.Tx) error {
			cancelled(t, s, inner, children[2], Ended)
			cancelled(t, s, inner, children[2], AlreadyTerminal)
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	wantInbox(t, s, children[1])
	if got := get(t, s, parent); got.Status != AwaitingChildren || got.ChildrenPending != 1 {
		t.Errorf("after three of four: %+v", *got)
	}
	if r := cancelled(t, s, host, children[3], Ended); !slices.Equal(r.Woken, []string{"default"}) {
		t.Errorf("the last child woke %v", r.Woken)
	}
	if got := get(t, s, parent); got.Status != Runnable || got.ChildrenPending != 0 {
		t.Errorf("after all: %+v", *got)
	}
}

func TestCancelByKey(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	ctx := testContext(t)
	id := insert(t, s, host, keyed("k"))[0].ID
	if r, err := s.CancelByKey(ctx, host, "nobody", "x"); err != nil || r.Result != NoSuchInstance {
		t.Errorf("a key that nobody occupies: %+v, %v", r, err)
	}
	if r, err := s.CancelByKey(ctx, host, "k", "x"); err != nil || r.Result != Ended || r.ID != id {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err := s.CancelByKey(ctx, host, "k", "x"); err != nil || r.Result != NoSuchInstance {
		t.Errorf("after it ended: %+v, %v", r, err)
	}
}

func TestCancelRaces(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	var id int64
	var last CancelResult
	statement := func(sql string) move {
		return func(ctx context.Context, _ *Store, db DB) error {
			_, err := db.Exec(ctx, sql, id)
			return err
		}
	}
	moves := map[string]move{
		"claim": statement(`UPDATE gen_durable SET status = 'executing', locked_by = 'w' WHERE id = $1`),
		"end":   statement(`UPDATE gen_durable SET status = 'done' WHERE id = $1`),
		"cancel": func(ctx context.Context, s *Store, db DB) (err error) {
			last, err = s.Cancel(ctx, db, id, "r")
			return err
		},
		"cancel-key": func(ctx context.Context, s *Store, db DB) (err error) {
			last, err = s.CancelByKey(ctx, db, "k", "r")
			return err
		},
		"successor": func(ctx context.Context, s *Store, db DB) error {
			_, err := s.Insert(ctx, db, []Insertion{keyed("k")})
			return err
		},
		"claims-nothing": func(ctx context.Context, s *Store, _ DB) error {
			c, err := s.Claim(ctx, ClaimRequest{Queue: "q", Worker: alice, Lease: patience, Limit: 10})
			if err == nil && len(c) != 0 {
				err = fmt.Errorf("claimed %+v", c)
			}
			return err
		},
	}
	for _, c := range []struct {
		name, script string
		result       Cancellation
		status       Status
		alive        int
	}{
		{"a claim first", `
			worker  begin
			worker  claim
			host    cancel       blocks
			worker  commit
			host    resumes`, Requested, Executing, 1},
		{"an ending first", `
			worker  begin
			worker  end
			host    cancel       blocks
			worker  commit
			host    resumes`, AlreadyTerminal, Done, 0},
		{"the cancel first", `
			host    begin
			host    cancel
			worker  claims-nothing
			host    commit
			worker  claims-nothing`, Ended, Failed, 0},
		{"the key moves to another instance", `
			worker  begin
			worker  end
			worker  successor
			host    cancel-key   blocks
			worker  commit
			host    resumes`, AlreadyTerminal, Done, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			exec(t, s, `DELETE FROM gen_durable`)
			id, last = insert(t, s, host, keyed("k"))[0].ID, CancelResult{}
			interleave(t, s, moves, c.script)
			if last.Result != c.result {
				t.Errorf("the answer: %+v", last)
			}
			wantStatus(t, s, c.status, id)
			if n := value[int](t, s, `SELECT count(*)::int FROM gen_durable WHERE status NOT IN ('done', 'failed')`); n != c.alive {
				t.Errorf("%d instances are alive, expected %d", n, c.alive)
			}
		})
	}
}
