package pg

import (
	"context"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The workers of the tests.
const (
	alice = "gendurable:default@alice-00000000000000aa"
	bob   = "gendurable:default@bob-00000000000000bb"
)

// put inserts n instances, each changed by the functions given.
func put(t testing.TB, s *Store, n int, change ...func(*Insertion)) []int64 {
	t.Helper()
	rows := make([]Insertion, n)
	for i := range rows {
		rows[i] = Insertion{Machine: "m", Version: 1, Step: "a", State: []byte(`{"n": 0}`), Queue: "default"}
		for _, f := range change {
			f(&rows[i])
		}
	}
	inserted, err := s.Insert(testContext(t), s.pool, rows)
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]int64, n)
	for i, in := range inserted {
		ids[i] = in.ID
	}
	return ids
}

// claim claims up to limit rows of the default queue.
func claim(t testing.TB, s *Store, worker string, limit int) []Claimed {
	t.Helper()
	claimed, err := s.Claim(testContext(t), ClaimRequest{Queue: "default", Worker: worker, Lease: time.Minute, Limit: limit})
	if err != nil {
		t.Fatal(err)
	}
	return claimed
}

// claimOne expects exactly one row to be there.
func claimOne(t testing.TB, s *Store, worker string) Claimed {
	t.Helper()
	claimed := claim(t, s, worker, 10)
	if len(claimed) != 1 {
		t.Fatalf("claimed %d rows, expected one", len(claimed))
	}
	return claimed[0]
}

// outcome starts an outcome of a claimed row.
func outcome(c Claimed, worker string, kind Kind) Outcome {
	o := Outcome{ID: c.ID, Worker: worker, Claim: c.Claim, Kind: kind, ParentID: c.ParentID, HasInbox: c.HasInbox}
	if kind < KindDone {
		o.Step, o.State = "b", []byte(`{"n": 1}`)
	}
	switch kind {
	case KindAwait:
		o.Awaits = []string{"go"}
	case KindFailed:
		o.Error = "no"
	}
	return o
}

func flushAll(t testing.TB, c *Committer, outcomes ...Outcome) Flushed {
	t.Helper()
	f, err := c.Flush(testContext(t), outcomes)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Verdicts) != len(outcomes) {
		t.Fatalf("%d verdicts for %d outcomes", len(f.Verdicts), len(outcomes))
	}
	return f
}

// commitAll flushes outcomes that are all expected to hold.
func commitAll(t testing.TB, c *Committer, outcomes ...Outcome) Flushed {
	t.Helper()
	f := flushAll(t, c, outcomes...)
	for i, v := range f.Verdicts {
		if v.Fate != Committed || v.ID != outcomes[i].ID {
			t.Fatalf("outcome %d of row %d: verdict %+v, expected it to be committed", i, outcomes[i].ID, v)
		}
	}
	return f
}

func get(t testing.TB, s *Store, id int64) *Instance {
	t.Helper()
	in, err := s.Get(testContext(t), s.pool, id)
	if err != nil {
		t.Fatal(err)
	}
	if in == nil {
		t.Fatalf("instance %d is gone", id)
	}
	return in
}

// wantStatus compares the statuses of rows.
func wantStatus(t testing.TB, s *Store, want Status, ids ...int64) {
	t.Helper()
	for _, id := range ids {
		if got := get(t, s, id).Status; got != want {
			t.Errorf("row %d is %s, expected %s", id, got, want)
		}
	}
}

// signal delivers one signal by id and returns the signal's id.
func signal(t testing.TB, s *Store, target int64, name string) int64 {
	t.Helper()
	d, err := s.Signal(testContext(t), s.pool, []Delivery{{ID: target, Name: name, Payload: []byte(`{}`)}})
	if err != nil {
		t.Fatal(err)
	}
	if d[0].SignalID == 0 {
		t.Fatalf("the signal %q to %d was not stored: %+v", name, target, d[0])
	}
	return d[0].SignalID
}

// inbox returns the ids of the stored signals of a row.
func inbox(t testing.TB, s *Store, target int64) []int64 {
	t.Helper()
	return value[[]int64](t, s, `SELECT coalesce(array_agg(id ORDER BY id), '{}') FROM signals WHERE target_id = $1`, target)
}

func wantInbox(t testing.TB, s *Store, target int64, want ...int64) {
	t.Helper()
	if got := inbox(t, s, target); !slices.Equal(got, want) {
		t.Errorf("the inbox of %d is %v, expected %v", target, got, want)
	}
}

// expire makes the leases of all executing rows run out, as if their workers had been silent.
func expire(t testing.TB, s *Store) {
	t.Helper()
	exec(t, s, `UPDATE gen_durable SET lease_expires_at = now() - interval '1 s' WHERE status = 'executing'`)
}

// reap expires all leases and gives back the rows.
func reap(t testing.TB, s *Store) ReapResult {
	t.Helper()
	expire(t, s)
	r, err := s.ReapLeases(testContext(t), time.Time{}, 10000)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// snapshot is everything that is stored, for comparing before and after.
func snapshot(t testing.TB, s *Store) string {
	t.Helper()
	return value[string](t, s, `
		SELECT coalesce((SELECT string_agg(to_jsonb(g)::text, E'\n' ORDER BY id) FROM gen_durable g), '')
		    || E'\n' || coalesce((SELECT string_agg(to_jsonb(x)::text, E'\n' ORDER BY id) FROM signals x), '')`)
}

// spawn parks a fresh parent on n children and returns their ids.
func spawn(t testing.TB, s *Store, c *Committer, n int) (parent int64, children []int64) {
	t.Helper()
	put(t, s, 1, func(i *Insertion) { i.Priority = -1 })
	p := claim(t, s, alice, 1)[0]
	o := outcome(p, alice, KindChildren)
	for range n {
		o.Children = append(o.Children, Insertion{Machine: "c", Version: 1, Step: "a", Queue: "default"})
	}
	if v := commitAll(t, c, o).Verdicts[0]; v.Children != n {
		t.Fatalf("%d children were inserted, expected %d", v.Children, n)
	}
	return p.ID, value[[]int64](t, s, `SELECT array_agg(id ORDER BY id) FROM gen_durable WHERE parent_id = $1`, p.ID)
}

// patient returns the Store on a pool whose sessions wait for locks as long as it takes. Where many work on the same rows, one of
// them may hold a lock for longer than the engine's lock_timeout: on a busy machine it gets no processor meanwhile.
func patient(t testing.TB, s *Store) *Store {
	t.Helper()
	cfg := s.pool.Config()
	settings := cfg.AfterConnect
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if err := settings(ctx, conn); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, `SET lock_timeout = 0`)
		return err
	}
	pool, err := pgxpool.NewWithConfig(testContext(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	own := *s
	own.pool = pool
	return &own
}

// lines iterates over the lines of a snapshot.
func lines(text string) iter.Seq[string] { return strings.SplitSeq(text, "\n") }
