package pg

import (
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// TestInsertOnceBeforeASecondLook: a stale statement of the second look does not repeat what the first has inserted.
func TestInsertOnceBeforeASecondLook(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	ctx := testContext(t)
	cfg := host.Config()
	cfg.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	insert(t, s, pool, keyed("k"))
	request := keyed("k")
	request.RequestID = "r"
	for range 2 {
		if out := insert(t, s, pool, plain("m"), request); !out[1].Duplicate {
			t.Errorf("the occupied key: %+v", out)
		}
		var name string
		if err := pool.QueryRow(ctx, `SELECT name FROM pg_prepared_statements WHERE statement LIKE '/* gendurable:insert_found %'`).Scan(&name); err != nil {
			t.Fatal(err)
		}
		if _, err := pool.Exec(ctx, `DEALLOCATE "`+name+`"`); err != nil {
			t.Fatal(err)
		}
	}
	if n := value[int](t, s, `SELECT count(*)::int FROM gen_durable WHERE correlation_key IS NULL`); n != 2 {
		t.Errorf("two inserts made %d instances", n)
	}
}

// TestSerializableHost: what the host's stricter transactions refuse because of a race is tried again.
func TestSerializableHost(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	cfg := host.Config()
	cfg.MaxConns = 4
	cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = "repeatable read"
	strict, err := pgxpool.NewWithConfig(testContext(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(strict.Close)
	ids := newInstances(t, s, host, 2)
	tx, err := s.pool.Begin(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(testContext(t), `UPDATE gen_durable SET step = 'b'`); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() { deliver(t, s, strict, Delivery{ID: ids[0], Name: "n"}) })
	all.Go(func() {
		deliver(t, s, strict, Delivery{ID: ids[1], Name: "n"}, Delivery{ID: ids[1], Name: "n"})
	})
	awaitValue(t, s, func(n int) bool { return n == 2 }, `SELECT count(*)::int FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock'`)
	if err := tx.Commit(testContext(t)); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	if n := value[int](t, s, `SELECT count(*)::int FROM signals`); n != 3 {
		t.Errorf("%d signals are stored", n)
	}
}
