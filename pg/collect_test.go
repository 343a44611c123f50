package pg

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

func TestCollectTerminal(t *testing.T) {
	t.Parallel()
	s := open(t)
	ctx := testContext(t)
	const day = 24 * time.Hour
	end := func(st Status, age time.Duration, ids ...int64) {
		t.Helper()
		exec(t, s, `UPDATE gen_durable SET status = $1::text::durable_status, updated_at = now() - $2 * interval '1 microsecond' WHERE id = ANY ($3)`,
			string(st), age.Microseconds(), ids)
	}
	old, young := put(t, s, 25), put(t, s, 3)
	failedOld, failedYoung, live := put(t, s, 3), put(t, s, 3), put(t, s, 3)
	for _, id := range old {
		signal(t, s, id, "n")
	}
	deliver(t, s, s.pool, Delivery{ID: old[0], Name: "n", DedupKey: "d"})
	end(Done, 25*time.Hour, old...)
	end(Done, 23*time.Hour, young...)
	end(Failed, 8*day, failedOld...)
	end(Failed, 6*day, failedYoung...)
	end(Runnable, 100*day, live...)
	// Two children of a parent that is yet to see them, one of a parent that has ended, one whose own child runs.
	parent, children := put(t, s, 1)[0], put(t, s, 2)
	ended, orphan := put(t, s, 1)[0], put(t, s, 1)[0]
	busy, running := put(t, s, 1)[0], put(t, s, 1)[0]
	exec(t, s, `UPDATE gen_durable SET parent_id = $1 WHERE id = ANY ($2)`, parent, children)
	exec(t, s, `UPDATE gen_durable SET parent_id = $1 WHERE id = $2`, ended, orphan)
	exec(t, s, `UPDATE gen_durable SET parent_id = $1 WHERE id = $2`, busy, running)
	exec(t, s, `UPDATE gen_durable SET has_children = true WHERE id = ANY ($1)`, []int64{parent, ended, busy})
	end(Done, 30*day, append(children, ended, orphan, busy)...)

	pass := func(limit int) (total, calls int) {
		t.Helper()
		var at Position
		for {
			n, next, err := s.CollectTerminal(ctx, day, 7*day, at, limit)
			if err != nil {
				t.Fatal(err)
			}
			total, calls, at = total+n, calls+1, next
			if n < limit {
				return total, calls
			}
		}
	}
	if total, calls := pass(10); total != 25+3+2 || calls != 4 {
		t.Errorf("a pass deleted %d rows in %d calls, expected 30 in 4", total, calls)
	}
	want := slices.Concat(young, failedYoung, live, []int64{parent}, children, []int64{busy, running})
	if got := value[[]int64](t, s, `SELECT array_agg(id ORDER BY id) FROM gen_durable`); !slices.Equal(got, want) {
		t.Errorf("left are %v, expected %v", got, want)
	}
	if n := value[int](t, s, `SELECT (SELECT count(*) FROM signals)::int + (SELECT count(*) FROM gen_durable_dedup)::int`); n != 0 {
		t.Errorf("%d rows of deleted instances' signals and dedup keys are left", n)
	}
	end(Failed, 30*day, parent, running)
	if total, _ := pass(10); total != 5 {
		t.Errorf("after the parent and the child have ended: %d deleted, expected 5", total)
	}
}

func TestCollectTerminalPassesOverLockedRows(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	ctx := testContext(t)
	ids := put(t, s, 2)
	exec(t, s, `UPDATE gen_durable SET status = 'done', updated_at = now() - interval '2 days'`)
	tx, err := host.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, `SELECT FROM gen_durable WHERE id = $1 FOR KEY SHARE`, ids[0]); err != nil {
		t.Fatal(err)
	}
	n, next, err := s.CollectTerminal(ctx, time.Hour, time.Hour, Position{}, 100)
	if err != nil || n != 1 || next.ID != ids[1] {
		t.Errorf("%d, %+v, %v", n, next, err)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	// It is found from the start only, and an empty pass stays where it began.
	if n, at, err := s.CollectTerminal(ctx, time.Hour, time.Hour, next, 100); err != nil || n != 0 || at != next {
		t.Errorf("%d, %+v, %v; expected none from %+v on", n, at, err, next)
	}
	if n, _, err := s.CollectTerminal(ctx, time.Hour, time.Hour, Position{}, 100); err != nil || n != 1 {
		t.Errorf("%d, %v; expected the row that was locked", n, err)
	}
}

func TestCollectSideTables(t *testing.T) {
	t.Parallel()
	s := open(t)
	ctx := testContext(t)
	register(t, s, named(inc1))
	register(t, s, Node{Engine: "e", Name: "old", Incarnation: inc1})
	for i := range 5 {
		insert(t, s, s.pool, requested(fmt.Sprint("r", i)))
	}
	exec(t, s, `UPDATE gen_durable_requests SET inserted_at = now() - interval '25 hours' WHERE id < 'r3'`)
	exec(t, s, `UPDATE gen_durable_nodes SET beat = now() - interval '25 hours' WHERE node LIKE 'old%'`)
	exec(t, s, `INSERT INTO gen_durable_flushers VALUES ('dead', 1, now() - interval '25 hours'), ('alive', 1, now() - interval '23 hours')`)
	for i, want := range []int{2 + 1 + 1, 1, 0} {
		if n, err := s.CollectSideTables(ctx, 2); err != nil || n != want {
			t.Errorf("call %d: %d rows (%v), expected %d", i, n, err, want)
		}
	}
	got := value[string](t, s, `SELECT (SELECT string_agg(id, ' ' ORDER BY id) FROM gen_durable_requests) || ' ' || (SELECT string_agg(node, ' ') FROM gen_durable_nodes) || ' ' || (SELECT string_agg(name, ' ') FROM gen_durable_flushers)`)
	if got != "r3 r4 web alive" {
		t.Errorf("left: %s", got)
	}
}

func TestVacuum(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	ctx := testContext(t)
	put(t, s, 100)
	if err := s.Vacuum(ctx); err != nil {
		t.Fatal(err)
	}
	if n := value[int](t, s, `SELECT reltuples::int FROM pg_class WHERE oid = 'gen_durable'::regclass`); n != 100 {
		t.Errorf("the vacuum counted %d rows", n)
	}
	v, err := s.VacuumStats(ctx)
	if err != nil || !v.Allowed {
		t.Errorf("%+v, %v", v, err)
	}
	tx, err := host.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, `LOCK gen_durable IN SHARE UPDATE EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	if err := s.Vacuum(ctx); err != nil {
		t.Errorf("while somebody else vacuums: %v, expected to pass over", err)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	// A role without the tables' ownership is told so.
	stranger := "stranger_of_" + value[string](t, s, `SELECT current_database()`) // roles are shared by all databases
	exec(t, s, `CREATE ROLE `+stranger+`; GRANT SELECT ON gen_durable, signals TO `+stranger)
	t.Cleanup(func() {
		if _, err := s.pool.Exec(ctx, `DROP OWNED BY `+stranger+`; DROP ROLE `+stranger); err != nil {
			t.Error(err)
		}
	})
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, `SET ROLE `+stranger); err != nil {
		t.Fatal(err)
	}
	var dead, alive int64
	var allowed bool
	if err := conn.QueryRow(ctx, s.sql("vacuum_stats")).Scan(&dead, &alive, &allowed); err != nil || allowed {
		t.Errorf("a stranger may vacuum: %v, %v", allowed, err)
	}
	if _, err := conn.Exec(ctx, `RESET ROLE`); err != nil {
		t.Fatal(err)
	}
}

// TestSweepsDoNotDeadlock runs what takes many rows' locks against each other: collections, reclaims, batches of signals
// in opposite orders, and cancels of siblings, which take child and parent.
func TestSweepsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	ctx := testContext(t)
	committer := s.NewCommitter("c")
	const families, siblings = 10, 20
	var all []int64
	for range families {
		parent, children := spawn(t, s, committer, siblings)
		all = append(append(all, parent), children...)
	}
	orphans := hold(t, s, time.Hour, slices.Repeat([]string{"e:q@web-" + inc1}, 50)...)
	all = append(all, orphans...)

	stop := make(chan struct{})
	var sweeps, work sync.WaitGroup
	again := func(what func() error) {
		sweeps.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				// On a busy machine a foreign key's own wait for a child may exceed the lock_timeout; the next sweep has
				// the rows. A deadlock is what must not be.
				if err := what(); err != nil && !isState(err, "55P03") {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 2 {
		again(func() error { _, _, err := s.CollectTerminal(ctx, 0, 0, Position{}, 7); return err })
		again(func() error { _, _, err := s.ReclaimStale(ctx, "e", "web", inc2, testLease, testHeartbeat); return err })
	}
	for w := range 2 {
		work.Go(func() {
			for round := range 15 {
				ds := make([]Delivery, len(all))
				for i, id := range all {
					ds[i] = Delivery{ID: id, Name: "n", DedupKey: fmt.Sprint(w, round)}
				}
				if w == 1 {
					slices.Reverse(ds)
				}
				if _, err := s.Signal(ctx, host, ds); err != nil {
					t.Error(err)
				}
			}
		})
		work.Go(func() {
			ids := slices.Clone(all)
			if w == 1 {
				slices.Reverse(ids)
			}
			for _, id := range ids {
				if _, err := s.Cancel(ctx, host, id, "over"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	close(stop)
	sweeps.Wait()
	if _, _, err := s.CollectTerminal(ctx, 0, 0, Position{}, 1000); err != nil {
		t.Fatal(err)
	}
	if n := value[int](t, s, `SELECT count(*)::int FROM gen_durable`); n != 0 {
		t.Errorf("%d instances are left of families that were cancelled whole", n)
	}
}
