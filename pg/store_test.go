package pg

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable/internal/devpg"
)

// patience bounds every wait of a test; nothing is expected to take nearly as long.
const patience = 30 * time.Second

// testContext ends with the test, or when its patience does: long after a machine that does much else has inserted a million rows.
func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 16*patience)
	t.Cleanup(cancel)
	return ctx
}

// open gives the test a Store on a fresh, migrated database, on the engine's kind of pool.
func open(t testing.TB) *Store {
	t.Helper()
	s, _ := openWithHost(t, Options{})
	return s
}

// openWithHost is open that also returns the pool the engine's was derived from.
func openWithHost(t testing.TB, o Options) (*Store, *pgxpool.Pool) {
	t.Helper()
	host := devpg.Database(t, Migrate)
	ctx := testContext(t)
	pool, err := EnginePool(ctx, host, 8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s, err := Open(ctx, pool, o)
	if err != nil {
		t.Fatal(err)
	}
	return s, host
}

// exec runs a statement that prepares or changes what the test looks at; public is the schema of test databases.
func exec(t testing.TB, s *Store, sql string, args ...any) {
	t.Helper()
	if _, err := s.pool.Exec(testContext(t), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// value reads one value.
func value[T any](t testing.TB, s *Store, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := s.pool.QueryRow(testContext(t), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func TestOpenRefusesWhatItDoesNotFit(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	pool := devpg.Database(t)
	if _, err := Open(ctx, pool, Options{}); !errors.Is(err, ErrNotMigrated) {
		t.Errorf("an empty database: %v, expected ErrNotMigrated", err)
	}
	if err := Migrate(ctx, pool); err != nil {
		t.Fatal(err)
	}
	s, err := Open(ctx, pool, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if s.Schema() != "public" {
		t.Errorf("the schema is %q, expected the current one, public", s.Schema())
	}
	if _, err := Open(ctx, pool, Options{Schema: "elsewhere"}); !errors.Is(err, ErrNotMigrated) {
		t.Errorf("a schema that is not there: %v, expected ErrNotMigrated", err)
	}
	if _, err := Open(ctx, pool, Options{Engine: "a:b"}); err == nil {
		t.Error("an engine name with a colon was accepted; it would be ambiguous in claim identities")
	}
	if err := NewMigrator(pool, "").Down(ctx, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(ctx, pool, Options{}); !errors.Is(err, ErrNotMigrated) {
		t.Errorf("the original's tables alone: %v, expected ErrNotMigrated", err)
	}
	exec(t, s, `COMMENT ON TABLE gen_durable IS '4'`)
	if _, err := Open(ctx, pool, Options{}); !errors.Is(err, ErrWrongVersion) {
		t.Errorf("the original's version 4: %v, expected ErrWrongVersion", err)
	}
}

func TestEnginePoolSettings(t *testing.T) {
	t.Parallel()
	s := open(t)
	for name, want := range engineSettings {
		if name == "tcp_keepalives_idle" || name == "tcp_keepalives_interval" || name == "tcp_keepalives_count" {
			continue // read as 0 over a Unix socket, whatever was asked for
		}
		if got := value[string](t, s, `SELECT current_setting($1)`, name); got != want {
			t.Errorf("%s is %s, expected %s", name, got, want)
		}
	}
}
