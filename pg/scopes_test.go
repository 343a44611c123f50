package pg

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"
)

// foreign makes rows as only the original engine makes them: one key, occupied in one status.
func foreign(t *testing.T, s *Store, scope Status, ids ...int64) {
	t.Helper()
	exec(t, s, `UPDATE gen_durable SET correlation_key = 'k', correlation_scope = ARRAY[$2]::durable_status[] WHERE id = ANY ($1)`, ids, scope)
}

// occupy inserts the occupant of the key.
func occupy(t *testing.T, s *Store) int64 {
	t.Helper()
	return insert(t, s, s.pool, keyed("k"))[0].ID
}

// TestForeignScopeSignal: a wake that would bring a row of the original engine into its correlation scope while the key is
// occupied makes only that row wait, until the key is free (semantics 7).
func TestForeignScopeSignal(t *testing.T) {
	t.Parallel()
	s := open(t)
	for name, others := range map[string]int{"one": 0, "many": 3} {
		t.Run(name, func(t *testing.T) {
			exec(t, s, `TRUNCATE gen_durable CASCADE`)
			ids := put(t, s, 1+others)
			for _, id := range ids {
				park(t, s, id, "go")
			}
			foreign(t, s, Runnable, ids[0])
			occupant := occupy(t, s)
			var ds []Delivery
			for _, id := range ids {
				ds = append(ds, Delivery{ID: id, Name: "go"})
			}
			for i, d := range deliver(t, s, s.pool, ds...) {
				if d.SignalID == 0 || d.Woken != (i > 0) {
					t.Errorf("delivery %d: %+v", i, d)
				}
			}
			wantStatus(t, s, AwaitingSignal, ids[0])
			wantStatus(t, s, Runnable, ids[1:]...)
			wantWoken(t, s, 0)
			exec(t, s, `UPDATE gen_durable SET status = 'done' WHERE id = $1`, occupant)
			wantWoken(t, s, 1)
			wantStatus(t, s, Runnable, ids[0])
		})
	}
	t.Run("two with one key", func(t *testing.T) {
		exec(t, s, `TRUNCATE gen_durable CASCADE`)
		ids := put(t, s, 2)
		foreign(t, s, Runnable, func() []int64 { park(t, s, ids[0], "go"); park(t, s, ids[1], "go"); return ids }()...)
		woken := 0
		for _, d := range deliver(t, s, s.pool, Delivery{ID: ids[0], Name: "go"}, Delivery{ID: ids[1], Name: "go"}) {
			if d.Woken {
				woken++
			}
		}
		if woken != 1 {
			t.Errorf("%d of two rows with one key were woken", woken)
		}
	})
}

// wantWoken sweeps the deadlines once.
func wantWoken(t *testing.T, s *Store, want int) {
	t.Helper()
	r, err := s.WakeDeadlines(testContext(t), time.Time{}, 100)
	if err != nil || r.Rows != want {
		t.Errorf("the sweep woke %d, %v, expected %d", r.Rows, err, want)
	}
}

// TestForeignScopeRecheck is TestForeignScopeSignal for a signal that is there before the row parks.
func TestForeignScopeRecheck(t *testing.T) {
	t.Parallel()
	s := open(t)
	put(t, s, 2)
	rows := claim(t, s, alice, 2)
	for _, row := range rows {
		signal(t, s, row.ID, "go")
	}
	foreign(t, s, Runnable, rows[0].ID)
	occupant := occupy(t, s)
	got := commitAll(t, s.NewCommitter("recheck"), outcome(rows[0], alice, KindAwait), outcome(rows[1], alice, KindAwait))
	if v := got.Verdicts; v[0].Status != AwaitingSignal || v[1].Status != Runnable {
		t.Errorf("the verdicts are %+v", v)
	}
	wantStatus(t, s, AwaitingSignal, rows[0].ID)
	exec(t, s, `UPDATE gen_durable SET status = 'done' WHERE id = $1`, occupant)
	wantWoken(t, s, 1)
	wantStatus(t, s, Runnable, rows[0].ID)
}

// TestForeignScopesInOneBatch: a claim, a sweep, a release or a start that finds several rows with one key takes one of
// them, however large its batch, and all others besides.
func TestForeignScopesInOneBatch(t *testing.T) {
	t.Parallel()
	s := open(t)
	ctx := testContext(t)
	identity := func(i int) string { return fmt.Sprintf("gendurable:default@box-%016x", i) }
	for name, take := range map[string]func(ids []int64) (int, error){
		"claim": func(ids []int64) (int, error) {
			foreign(t, s, Executing, ids[:3]...)
			rows, err := s.Claim(ctx, ClaimRequest{Queue: "default", Worker: alice, Lease: time.Minute, Limit: 500})
			return len(rows), err
		},
		"wake": func(ids []int64) (int, error) {
			for _, id := range ids {
				park(t, s, id, "go")
			}
			exec(t, s, `UPDATE gen_durable SET await_deadline = now() - interval '1 s'`)
			foreign(t, s, Runnable, ids[:3]...)
			r, err := s.WakeDeadlines(ctx, time.Time{}, 500)
			return r.Rows, err
		},
		"reap": func(ids []int64) (int, error) {
			claim(t, s, alice, 500)
			foreign(t, s, Runnable, ids[:3]...)
			expire(t, s)
			r, err := s.ReapLeases(ctx, time.Time{}, 500)
			return r.Rows, err
		},
		"release": func(ids []int64) (int, error) {
			claim(t, s, alice, 500)
			foreign(t, s, Runnable, ids[:3]...)
			r, err := s.release(ctx, alice, firstClaims(ids...))
			return r.released, err
		},
		"start": func(ids []int64) (int, error) {
			claim(t, s, identity(1), 500)
			foreign(t, s, Runnable, ids[:3]...)
			n, _, err := s.ReclaimStale(ctx, "gendurable", "box", fmt.Sprintf("%016x", 2), time.Minute, 0)
			return n, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			exec(t, s, `TRUNCATE gen_durable CASCADE`)
			ids := put(t, s, 400)
			if n, err := take(ids); err != nil || n != 398 {
				t.Errorf("took %d, %v; expected one of three with a key, and 397 others", n, err)
			}
		})
	}
}

// TestForeignScopeRace: a delivery that loses the key to an insert which commits meanwhile looks again.
func TestForeignScopeRace(t *testing.T) {
	t.Parallel()
	s := open(t)
	ids := put(t, s, 2)
	for _, id := range ids {
		park(t, s, id, "go")
	}
	foreign(t, s, Runnable, ids[0])
	for _, targets := range [][]int64{ids[:1], ids} {
		interleave(t, s, map[string]move{
			"occupy": func(ctx context.Context, own *Store, db DB) error {
				_, err := own.Insert(ctx, db, []Insertion{keyed("k")})
				return err
			},
			"signal": signalling(targets...),
		}, `
			host   begin
			host   occupy
			caller signal  blocks
			host   commit
			caller resumes
		`)
		wantStatus(t, s, AwaitingSignal, ids[0])
		if !slices.Contains(inboxOf(t, s, ids[0]), "go {}") {
			t.Error("the signal was not stored")
		}
		exec(t, s, `DELETE FROM gen_durable WHERE correlation_key = 'k' AND id <> $1`, ids[0])
	}
}
