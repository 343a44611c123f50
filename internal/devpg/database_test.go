package devpg_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable/internal/devpg"
)

var migrated atomic.Int64

func createTable(ctx context.Context, pool *pgxpool.Pool) error {
	migrated.Add(1)
	_, err := pool.Exec(ctx, "create table things (id int primary key)")
	return err
}

func fillTable(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := pool.Exec(ctx, "insert into things select generate_series(1, 3)")
	return err
}

func count(t *testing.T, pool *pgxpool.Pool, query string, args ...any) (n int) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), query, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestDatabasesAreSeparateCopiesOfOneTemplate(t *testing.T) {
	before := migrated.Load()
	a := devpg.Database(t, createTable, fillTable)
	b := devpg.Database(t, createTable, fillTable)
	if _, err := a.Exec(context.Background(), "delete from things"); err != nil {
		t.Fatal(err)
	}
	if got := count(t, b, "select count(*) from things"); got != 3 {
		t.Errorf("the other database has %d rows, want 3", got)
	}
	if got := migrated.Load() - before; got > 1 {
		t.Errorf("migrated %d times for two databases", got)
	}
}

func TestDatabaseTellsClosuresApart(t *testing.T) {
	named := func(table string) devpg.Migration {
		return func(ctx context.Context, pool *pgxpool.Pool) error {
			_, err := pool.Exec(ctx, "create table "+pgx.Identifier{table}.Sanitize()+" (id int)")
			return err
		}
	}
	devpg.Database(t, named("one"))
	pool := devpg.Database(t, named("two"))
	if got := count(t, pool, "select count(*) from pg_class where relname in ('one', 'two')"); got != 1 {
		t.Errorf("found %d of the two tables, want 1", got)
	}
	if got := count(t, pool, "select count(*) from two"); got != 0 {
		t.Errorf("table two has %d rows", got)
	}
}

func TestDatabaseIsDroppedWhenTheTestEnds(t *testing.T) {
	watch := devpg.Database(t)
	var name string
	t.Run("inner", func(t *testing.T) {
		pool := devpg.Database(t)
		if err := pool.QueryRow(context.Background(), "select current_database()").Scan(&name); err != nil {
			t.Fatal(err)
		}
		// A connection beside the pool does not stop the database from being dropped.
		conn, err := pgx.Connect(context.Background(), pool.Config().ConnString())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.PgConn().Conn().Close() })
	})
	if got := count(t, watch, "select count(*) from pg_database where datname = $1", name); got != 0 {
		t.Errorf("database %s is still there", name)
	}
}

func TestDatabasesOfParallelTests(t *testing.T) {
	for range 8 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			pool := devpg.Database(t, createTable, fillTable)
			if got := count(t, pool, "select count(*) from things"); got != 3 {
				t.Errorf("%d rows, want 3", got)
			}
			if got := pool.Config().MaxConns; got != 8 {
				t.Errorf("the pool has at most %d connections, want 8", got)
			}
			if dsn := pool.Config().ConnString(); !strings.Contains(dsn, "gd_") {
				t.Errorf("the connection string %q does not name the database", dsn)
			}
		})
	}
}

func BenchmarkDatabase(b *testing.B) {
	for b.Loop() {
		func() {
			t := &scope{TB: b}
			defer t.end()
			devpg.Database(t, createTable)
		}()
	}
}

// scope is a test within a benchmark whose cleanups run when it ends.
type scope struct {
	testing.TB
	cleanups []func()
}

func (s *scope) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }

func (s *scope) end() {
	for i := len(s.cleanups) - 1; i >= 0; i-- {
		s.cleanups[i]()
	}
}
