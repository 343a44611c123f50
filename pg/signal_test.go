package pg

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// deliver delivers the signals and fails the test on an error.
func deliver(t testing.TB, s *Store, db DB, ds ...Delivery) []Delivered {
	t.Helper()
	out, err := s.Signal(testContext(t), db, ds)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// park puts an instance where an await with these names would.
func park(t testing.TB, s *Store, id int64, names ...string) {
	t.Helper()
	exec(t, s, `UPDATE gen_durable SET status = 'awaiting_signal', awaits = $2, await_deadline = now() + interval '1 day' WHERE id = $1`, id, names)
}

func status(t testing.TB, s *Store, id int64) string {
	t.Helper()
	return value[string](t, s, `SELECT status::text FROM gen_durable WHERE id = $1`, id)
}

func inboxOf(t testing.TB, s *Store, id int64) []string {
	t.Helper()
	return value[[]string](t, s, `SELECT coalesce(array_agg(name || ' ' || payload ORDER BY id), '{}') FROM signals WHERE target_id = $1`, id)
}

func newInstances(t testing.TB, s *Store, db DB, n int) []int64 {
	t.Helper()
	rows := make([]Insertion, n)
	for i := range rows {
		rows[i] = plain("m")
	}
	var ids []int64
	for _, o := range insert(t, s, db, rows...) {
		ids = append(ids, o.ID)
	}
	return ids
}

func TestSignalWakesOnlyWhatAwaitsIt(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	ids := newInstances(t, s, host, 3)
	park(t, s, ids[0], "paid", "cancelled")
	out := deliver(t, s, host, Delivery{ID: ids[0], Name: "other", Payload: []byte(`{"n":1}`)})
	if out[0].Woken || out[0].SignalID == 0 || status(t, s, ids[0]) != "awaiting_signal" {
		t.Errorf("a name that is not awaited: %+v, the target is %s", out[0], status(t, s, ids[0]))
	}
	if !value[bool](t, s, `SELECT has_inbox FROM gen_durable WHERE id = $1`, ids[0]) {
		t.Error("the target does not know of its inbox")
	}
	out = deliver(t, s, host, Delivery{ID: ids[1], Name: "paid"}, Delivery{ID: ids[0], Name: "cancelled", Payload: []byte(`[2]`)})
	if out[0].Woken || !out[1].Woken || out[1].Queue != "q" || out[1].TargetID != ids[0] {
		t.Errorf("an awaited name: %+v", out)
	}
	got, err := s.Get(testContext(t), host, ids[0])
	if err != nil {
		t.Fatal(err)
	}
	if got.Status != Runnable || got.AwaitDeadline != nil || len(got.Awaits) != 2 || got.Attempt != 0 || !got.EligibleAt.Equal(got.UpdatedAt) {
		t.Errorf("the woken target: %+v", got)
	}
	if got := inboxOf(t, s, ids[0]); !slices.Equal(got, []string{`other {"n": 1}`, `cancelled [2]`}) {
		t.Errorf("its inbox: %q", got)
	}
	// A row that has its inbox marked and need not wake is not written again.
	before := value[string](t, s, `SELECT ctid::text FROM gen_durable WHERE id = $1`, ids[0])
	deliver(t, s, host, Delivery{ID: ids[0], Name: "paid"})
	if after := value[string](t, s, `SELECT ctid::text FROM gen_durable WHERE id = $1`, ids[0]); after != before {
		t.Error("a delivery that changes nothing at the target wrote it")
	}
}

func TestSignalRefusesWhatIsNotThere(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	forever := keyed("kept")
	forever.CorrelationScope = append(slices.Clone(liveScope), "done")
	free := keyed("free")
	free.CorrelationScope = nil
	rows := insert(t, s, host, plain("m"), plain("m"), forever, keyed("gone"), free, keyed("live"))
	exec(t, s, `UPDATE gen_durable SET status = 'done' WHERE id = ANY($1)`, []int64{rows[0].ID, rows[2].ID, rows[3].ID})
	exec(t, s, `UPDATE gen_durable SET status = 'failed' WHERE id = $1`, rows[1].ID)
	ds := []Delivery{
		{ID: rows[0].ID, Name: "a"}, {ID: rows[1].ID, Name: "a", DedupKey: "d"}, {Key: "kept", Name: "a"},
		{Key: "gone", Name: "a", DedupKey: "d"}, {Key: "free", Name: "a"}, {ID: 999999, Name: "a"},
		{Key: "nobody", Name: "a"}, {Name: "a"}, {Key: "live", Name: "a"},
	}
	for i, d := range ds[:8] {
		if out := deliver(t, s, host, d)[0]; out != (Delivered{}) {
			t.Errorf("entry %d alone was not refused: %+v", i, out)
		}
	}
	out := deliver(t, s, host, ds...)
	for i, o := range out[:8] {
		if o != (Delivered{}) {
			t.Errorf("entry %d was not refused: %+v", i, o)
		}
	}
	if out[8].TargetID != rows[5].ID || out[8].SignalID == 0 {
		t.Errorf("the only good one: %+v", out[8])
	}
	if n := value[int](t, s, `SELECT (SELECT count(*) FROM signals)::int + (SELECT count(*) FROM gen_durable_dedup)::int`); n != 1 {
		t.Errorf("%d rows were stored, expected the one that was accepted", n)
	}
}

func TestSignalDedup(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	ids := newInstances(t, s, host, 2)
	a := Delivery{ID: ids[0], Name: "n", DedupKey: "d"}
	out := deliver(t, s, host, a, a, Delivery{ID: ids[1], Name: "n", DedupKey: "d"}, Delivery{ID: ids[0], Name: "n"})
	if out[0].Duplicate || !out[1].Duplicate || out[2].Duplicate || out[3].Duplicate {
		t.Errorf("in one batch: %+v", out)
	}
	exec(t, s, `DELETE FROM signals`)
	park(t, s, ids[0], "n")
	if out := deliver(t, s, host, a, a); !out[0].Duplicate || !out[1].Duplicate || out[0].Woken {
		t.Errorf("a batch after the first was consumed: %+v", out)
	}
	if out := deliver(t, s, host, a)[0]; !out.Duplicate || out.Woken || out.TargetID != ids[0] || out.Queue != "q" {
		t.Errorf("after the first was consumed: %+v", out)
	}
	if got := status(t, s, ids[0]); got != "awaiting_signal" {
		t.Errorf("a duplicate woke its target: %s", got)
	}
	// What the original engine has accepted is in the inbox only.
	exec(t, s, `INSERT INTO signals (target_id, name, dedup_key) VALUES ($1, 'n', 'theirs')`, ids[0])
	if out := deliver(t, s, host, Delivery{ID: ids[0], Name: "n", DedupKey: "theirs"})[0]; !out.Duplicate {
		t.Errorf("a key that the original engine accepted: %+v", out)
	}
	if out := deliver(t, s, host, Delivery{ID: ids[0], Name: "n", DedupKey: "theirs"}, a); !out[0].Duplicate || !out[1].Duplicate {
		t.Errorf("the same in a batch: %+v", out)
	}
	exec(t, s, `DELETE FROM gen_durable WHERE id = $1`, ids[0])
	if n := value[int](t, s, `SELECT count(*)::int FROM gen_durable_dedup`); n != 1 {
		t.Errorf("%d keys remembered after the target was deleted, expected the other target's", n)
	}
}

func TestSignalManyThousands(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	const n = 60_000
	ids := newInstances(t, s, host, n/2)
	exec(t, s, `UPDATE gen_durable SET status = 'awaiting_signal', awaits = '{a}'`)
	ds := make([]Delivery, n)
	for i := range ds {
		ds[i] = Delivery{ID: ids[i/2], Name: []string{"a", "b"}[i%2], Payload: fmt.Appendf(nil, `%d`, i), DedupKey: fmt.Sprint("d", i%5)}
	}
	for i, o := range deliver(t, s, host, ds...) {
		if o.TargetID != ids[i/2] || o.SignalID == 0 || !o.Woken {
			t.Fatalf("entry %d: %+v", i, o)
		}
	}
	if !value[bool](t, s, `SELECT count(*) = $1 AND bool_and(id = first + payload::text::int) FROM (SELECT *, min(id) OVER () AS first FROM signals) AS x`, n) {
		t.Error("the signals are not stored in the order of the batch")
	}
	if got := value[int](t, s, `SELECT count(*)::int FROM gen_durable WHERE status = 'runnable'`); got != n/2 {
		t.Errorf("%d targets are runnable", got)
	}
}

func TestSignalBatchesInOppositeOrders(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	ids := newInstances(t, s, host, 50)
	var wg sync.WaitGroup
	const rounds = 40
	for w := range 4 {
		wg.Go(func() {
			for round := range rounds {
				ds := make([]Delivery, len(ids))
				for i, id := range ids {
					ds[i] = Delivery{ID: id, Name: "n", DedupKey: fmt.Sprint(round)}
				}
				if w%2 == 1 {
					slices.Reverse(ds)
				}
				if _, err := s.Signal(testContext(t), host, ds); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if n := value[int](t, s, `SELECT count(*)::int FROM signals`); n != rounds*len(ids) {
		t.Errorf("%d signals, expected each key once a target: %d", n, rounds*len(ids))
	}
}

// TestSignalRaces plays deliveries against what may happen to the target's row at the same time. The other side is raw
// SQL with the locks of a park and of an ending: what the flush itself does is its own tests' affair.
func TestSignalRaces(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	ctx := testContext(t)
	var id, bystander int64 // a bystander in the batch makes it take the statement for many
	var last Delivered
	statement := func(sql string) move {
		return func(ctx context.Context, _ *Store, db DB) error {
			_, err := db.Exec(ctx, sql, id)
			return err
		}
	}
	signal := func(d func() Delivery) move {
		return func(ctx context.Context, s *Store, db DB) error {
			ds := []Delivery{d()}
			if bystander != 0 {
				ds = append(ds, Delivery{ID: bystander, Name: "x"})
			}
			out, err := s.Signal(ctx, db, ds)
			if err == nil {
				last = out[0]
			}
			return err
		}
	}
	moves := map[string]move{
		"signal":     signal(func() Delivery { return Delivery{ID: id, Name: "paid", DedupKey: "d"} }),
		"signal-key": signal(func() Delivery { return Delivery{Key: "k", Name: "paid"} }),
		// The recheck is a statement of its own, so that its snapshot is taken when the park holds the row.
		"park": statement(`UPDATE gen_durable SET status = 'awaiting_signal', awaits = '{paid}' WHERE id = $1 AND status = 'executing'`),
		"recheck": statement(`UPDATE gen_durable g SET status = 'runnable' WHERE id = $1 AND status = 'awaiting_signal'
			AND EXISTS (SELECT FROM signals s WHERE s.target_id = g.id AND s.name = ANY (g.awaits))`),
		"end": statement(`UPDATE gen_durable SET status = 'done', updated_at = now() WHERE id = $1`),
		"successor": func(ctx context.Context, s *Store, db DB) error {
			_, err := s.Insert(ctx, db, []Insertion{keyed("k")})
			return err
		},
		"read-nothing": func(ctx context.Context, _ *Store, db DB) error {
			var n int
			if err := db.QueryRow(ctx, `SELECT count(*) FROM signals WHERE target_id = $1`, id).Scan(&n); err != nil || n != 0 {
				return fmt.Errorf("%d signals are visible: %w", n, err)
			}
			return nil
		},
	}
	for _, c := range []struct {
		name, script     string
		status           string
		stored, woken    bool
		lastWasDelivered bool
	}{
		{"park first", `
			worker  begin
			worker  park
			worker  recheck
			host    signal   blocks
			worker  commit
			host    resumes`, "runnable", true, true, true},
		{"signal first", `
			host    begin
			host    signal
			worker  begin
			worker  park     blocks
			host    commit
			worker  resumes
			worker  recheck
			worker  commit`, "runnable", true, false, true},
		{"signal first, rolled back", `
			host    begin
			host    signal
			worker  begin
			worker  park     blocks
			host    rollback
			worker  resumes
			worker  recheck
			worker  commit`, "awaiting_signal", false, false, true},
		{"end first", `
			worker  begin
			worker  end
			host    signal   blocks
			worker  commit
			host    resumes`, "done", false, false, false},
		{"end first, rolled back", `
			worker  begin
			worker  end
			host    signal   blocks
			worker  rollback
			host    resumes`, "executing", true, false, true},
		{"signal before the end", `
			host    begin
			host    signal
			worker  end      blocks
			watch   read-nothing
			host    commit
			worker  resumes`, "done", true, false, true},
		{"the key is freed and taken by another", `
			worker  begin
			worker  end
			worker  successor
			host    signal-key  blocks
			worker  commit
			host    resumes`, "done", false, false, false},
	} {
		play := func(t *testing.T, batch bool) {
			if _, err := host.Exec(ctx, `TRUNCATE gen_durable CASCADE`); err != nil {
				t.Fatal(err)
			}
			if bystander = 0; batch {
				bystander = newInstances(t, s, host, 1)[0]
			}
			id = insert(t, s, host, keyed("k"))[0].ID
			exec(t, s, `UPDATE gen_durable SET status = 'executing', locked_by = 'w' WHERE id = $1`, id)
			last = Delivered{}
			interleave(t, s, moves, c.script)
			if got := status(t, s, id); got != c.status {
				t.Errorf("the target is %s, expected %s", got, c.status)
			}
			if n := value[int](t, s, `SELECT count(*)::int FROM signals WHERE target_id = $1`, id); (n == 1) != c.stored {
				t.Errorf("%d signals are stored", n)
			}
			if n := value[int](t, s, `SELECT count(*)::int FROM gen_durable_dedup`); n > 0 && !c.stored {
				t.Errorf("%d dedup keys of a refused signal are stored", n)
			}
			if (last.SignalID != 0) != c.lastWasDelivered || last.Woken != c.woken {
				t.Errorf("the answer: %+v", last)
			}
		}
		t.Run(c.name, func(t *testing.T) { play(t, false) })
		t.Run(c.name+", in a batch", func(t *testing.T) { play(t, true) })
	}
}

func TestSignalHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	ctx := testContext(t)
	ids := newInstances(t, s, host, 2)
	tx, err := host.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	if _, err := s.Signal(ctx, tx, []Delivery{{ID: ids[0], Name: "n"}}); err != nil {
		t.Fatal(err)
	}
	if out := deliver(t, s, host, Delivery{ID: ids[1], Name: "n"})[0]; out.SignalID == 0 {
		t.Errorf("the other target: %+v", out)
	}
	// The engine's own sessions do not wait for a caller's transaction.
	_, err = s.Signal(ctx, s.pool, []Delivery{{ID: ids[0], Name: "n"}})
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != "55P03" {
		t.Errorf("an engine session met the open transaction and got %v, expected a lock timeout", err)
	}
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if n := len(inboxOf(t, s, ids[0])); n != 1 {
		t.Errorf("%d signals after the commit", n)
	}
}

func TestSignalRefusedByPostgres(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	ids := newInstances(t, s, host, 1)
	for name, bad := range map[string]Delivery{
		"NUL in JSON": {ID: ids[0], Name: "n", Payload: []byte(`"\u0000"`)},
		"NUL in name": {ID: ids[0], Name: "n\x00"},
		"not JSON":    {ID: ids[0], Name: "n", Payload: []byte(`nope`)},
		"dedup UTF-8": {ID: ids[0], Name: "n", DedupKey: "\xff"},
	} {
		var pgErr *pgconn.PgError
		if _, err := s.Signal(testContext(t), host, []Delivery{{ID: ids[0], Name: "fine"}, bad}); !errors.As(err, &pgErr) {
			t.Errorf("%s: %v, expected Postgres's refusal", name, err)
		}
	}
	if got := inboxOf(t, s, ids[0]); len(got) != 0 {
		t.Errorf("signals of refused batches were stored: %q", got)
	}
}

// TestStatementsSurviveAMigration changes the tables under connections that have planned their statements on them.
func TestStatementsSurviveAMigration(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	ctx := testContext(t)
	one := host.Config()
	one.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(ctx, one)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	id := insert(t, s, pool, plain("m"))[0].ID
	if _, err := s.Get(ctx, pool, id); err != nil {
		t.Fatal(err)
	}
	exec(t, s, `ALTER TABLE gen_durable ALTER COLUMN priority TYPE integer`)
	if i, err := s.Get(ctx, pool, id); err != nil || i.ID != id {
		t.Errorf("a column's type changed under a prepared statement: %v", err)
	}
	if _, err := pool.Exec(ctx, `DEALLOCATE ALL`); err != nil {
		t.Fatal(err)
	}
	if i, err := s.Get(ctx, pool, id); err != nil || i.ID != id {
		t.Errorf("the prepared statements are gone: %v", err)
	}
	if out := deliver(t, s, pool, Delivery{ID: id, Name: "n"}); out[0].SignalID == 0 {
		t.Errorf("a signal after that: %+v", out)
	}
	// In a caller's transaction the first failure has aborted everything; it must come out as it is.
	if _, err := s.Get(ctx, pool, id); err != nil {
		t.Fatal(err)
	}
	exec(t, s, `ALTER TABLE gen_durable ALTER COLUMN priority TYPE smallint`)
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := s.Get(ctx, tx, id)
		return err
	})
	if err != nil && !isStalePlan(err) {
		t.Errorf("in a caller's transaction: %v", err)
	}
	if i, err := s.Get(ctx, pool, id); err != nil || i.ID != id {
		t.Errorf("after it: %v", err)
	}
}
