package pg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable/internal/devpg"
)

// shape describes every object of a schema that the migrations make, the schema's name left out.
func shape(t *testing.T, pool *pgxpool.Pool, schema string) []string {
	t.Helper()
	rows, err := pool.Query(testContext(t), `
		SELECT format('column %s.%s %s %s %s default %s generated %s', c.relname, a.attname,
		              replace(format_type(a.atttypid, a.atttypmod), quote_ident($1) || '.', ''),
		              a.attnotnull, a.attidentity, replace(coalesce(pg_get_expr(d.adbin, d.adrelid), ''), quote_ident($1) || '.', ''), a.attgenerated)
		  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
		  LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
		 WHERE n.nspname = $1 AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
		UNION ALL
		SELECT 'index ' || replace(indexdef, quote_ident($1) || '.', '') FROM pg_indexes WHERE schemaname = $1
		UNION ALL
		SELECT format('constraint %s on %s: %s', k.conname, c.relname, replace(pg_get_constraintdef(k.oid), quote_ident($1) || '.', ''))
		  FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1
		UNION ALL
		SELECT format('table %s %s %s', c.relname, c.reloptions, obj_description(c.oid, 'pg_class'))
		  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relkind = 'r'
		UNION ALL
		SELECT format('enum %s %s', t.typname, (SELECT array_agg(e.enumlabel ORDER BY e.enumsortorder) FROM pg_enum e WHERE e.enumtypid = t.oid))
		  FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE n.nspname = $1 AND t.typtype = 'e'`, schema)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	// goose's own record is not part of what the printed SQL makes.
	lines = slices.DeleteFunc(lines, func(l string) bool { return strings.Contains(l, "gen_durable_migrations") })
	slices.Sort(lines)
	return lines
}

func sameShape(t *testing.T, what string, got, want []string) {
	t.Helper()
	for _, l := range got {
		if !slices.Contains(want, l) {
			t.Errorf("%s: unexpected: %s", what, l)
		}
	}
	for _, l := range want {
		if !slices.Contains(got, l) {
			t.Errorf("%s: missing: %s", what, l)
		}
	}
}

func up(t *testing.T, pool *pgxpool.Pool, schema string) {
	t.Helper()
	if err := NewMigrator(pool, schema).Up(testContext(t)); err != nil {
		t.Fatal(err)
	}
}

func wantVersion(t *testing.T, pool *pgxpool.Pool, schema string, want int) {
	t.Helper()
	got, err := NewMigrator(pool, schema).Version(testContext(t))
	if err != nil || got != want {
		t.Fatalf("schema %q is at version %d (%v), expected %d", schema, got, err, want)
	}
}

func TestMigrateUpDownUp(t *testing.T) {
	t.Parallel()
	pool := devpg.Database(t)
	ctx := testContext(t)
	wantVersion(t, pool, "", 0)
	up(t, pool, "")
	want := shape(t, pool, "public")
	if len(want) < 90 {
		t.Fatalf("the shape has %d lines only", len(want))
	}
	wantVersion(t, pool, "", LatestVersion)
	up(t, pool, "")
	sameShape(t, "up twice", shape(t, pool, "public"), want)
	down := func(to int) {
		t.Helper()
		if err := NewMigrator(pool, "").Down(ctx, to); err != nil {
			t.Fatal(err)
		}
		wantVersion(t, pool, "", to)
	}
	down(2)
	up(t, pool, "")
	sameShape(t, "up after down by one", shape(t, pool, "public"), want)
	down(1)
	original := shape(t, pool, "public")
	for _, l := range original {
		if strings.Contains(l, "crashes") || strings.Contains(l, "gen_durable_nodes") || strings.Contains(l, "fillfactor") {
			t.Errorf("ours is still there: %s", l)
		}
	}
	up(t, pool, "")
	sameShape(t, "up after down to the original", shape(t, pool, "public"), want)
	down(0)
	if left := shape(t, pool, "public"); len(left) != 0 {
		t.Errorf("left after down to nothing: %q", left)
	}
	if err := NewMigrator(pool, "").Down(ctx, 0); err != nil {
		t.Errorf("down when there is nothing: %v", err)
	}
	up(t, pool, "")
	sameShape(t, "up after down to nothing", shape(t, pool, "public"), want)
	if err := NewMigrator(pool, "").Down(ctx, LatestVersion+1); err == nil {
		t.Error("down to an unknown version was accepted")
	}
}

func TestMigrateAnySchema(t *testing.T) {
	t.Parallel()
	pool := devpg.Database(t)
	ctx := testContext(t)
	up(t, pool, "")
	want := shape(t, pool, "public")
	for _, schema := range []string{"plain", "With.Dots and spaces", `o'quote"d`, "semi;colon -- dash", "sch\u00e9ma", "$1", "a%s"} {
		t.Run(schema, func(t *testing.T) {
			up(t, pool, schema)
			up(t, pool, schema)
			if got := shape(t, pool, schema); len(got) != len(want) {
				sameShape(t, schema, got, want)
			}
			wantVersion(t, pool, schema, LatestVersion)
			s, err := Open(ctx, pool, Options{Schema: schema})
			if err != nil {
				t.Fatal(err)
			}
			id := insert(t, s, pool, keyed("k"))[0].ID
			if out := deliver(t, s, pool, Delivery{Key: "k", Name: "n", DedupKey: "d"})[0]; out.TargetID != id {
				t.Errorf("a signal: %+v", out)
			}
			if r, err := s.Cancel(ctx, pool, id, "over"); err != nil || r.Result != Ended {
				t.Errorf("a cancel: %+v, %v", r, err)
			}
			if err := NewMigrator(pool, schema).Down(ctx, 0); err != nil {
				t.Fatal(err)
			}
			wantVersion(t, pool, schema, 0)
		})
	}
	wantVersion(t, pool, "public", LatestVersion)
	for _, schema := range []string{"pg_mine", strings.Repeat("x", 64), "a\x00b", "a\nb", "a$gen_durable$b"} {
		if err := NewMigrator(pool, schema).Up(ctx); err == nil {
			t.Errorf("the schema %q was accepted", schema)
		}
		if _, _, err := MigrationSQL(schema); err == nil {
			t.Errorf("SQL was printed for the schema %q", schema)
		}
	}
}

func TestMigrateByManyAtOnce(t *testing.T) {
	t.Parallel()
	pool := devpg.Database(t)
	var wg sync.WaitGroup
	for i := range 10 {
		schema := "" // some name it, some rely on the connection's
		if i%2 == 1 {
			schema = "public"
		}
		wg.Go(func() {
			if err := NewMigrator(pool, schema).Up(testContext(t)); err != nil {
				t.Error(err)
			}
			if _, err := Open(testContext(t), pool, Options{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	wantVersion(t, pool, "", LatestVersion)
	files, err := fs.Glob(migrationFiles, "migrations/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if err := pool.QueryRow(testContext(t), `SELECT count(*) FROM gen_durable_migrations`).Scan(&n); err != nil || n != len(files)+1 {
		t.Errorf("%d records of migrations (%v), expected the zero mark and one for each", n, err)
	}
}

// originalTables is a version 3 database as the original engine's own migrations leave it: grown step by step, with the
// columns in another order than ours, and with data.
const originalTables = `
CREATE TYPE durable_status AS ENUM ('runnable', 'executing', 'awaiting_signal', 'awaiting_children', 'done', 'failed');
CREATE TABLE gen_durable (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    fsm text NOT NULL, fsm_version int NOT NULL DEFAULT 1, status durable_status NOT NULL DEFAULT 'runnable',
    step text NOT NULL, state jsonb NOT NULL DEFAULT '{}', queue text NOT NULL DEFAULT 'default',
    priority smallint NOT NULL DEFAULT 0, eligible_at timestamptz NOT NULL DEFAULT now(), attempt int NOT NULL DEFAULT 0,
    awaits text[], await_deadline timestamptz, locked_by text, lease_expires_at timestamptz, result jsonb, last_error text,
    parent_id bigint REFERENCES gen_durable ON DELETE SET NULL, children_pending int NOT NULL DEFAULT 0,
    inserted_at timestamptz NOT NULL DEFAULT now(), updated_at timestamptz NOT NULL DEFAULT now());
ALTER TABLE gen_durable
    ADD concurrency_key text, ADD concurrency_shard smallint,
    ADD concurrency_name text GENERATED ALWAYS AS (split_part(concurrency_key, ':', 1)) STORED,
    ADD rate_limit text, ADD weight float8 NOT NULL DEFAULT 1,
    ADD correlation_key text, ADD correlation_scope durable_status[] NOT NULL DEFAULT '{}',
    ADD correlation_guard text GENERATED ALWAYS AS (CASE WHEN status = ANY (correlation_scope) THEN correlation_key END) STORED;
CREATE INDEX gen_durable_pick ON gen_durable (queue, priority, eligible_at) WHERE status = 'runnable';
CREATE INDEX gen_durable_lease ON gen_durable (lease_expires_at) WHERE status = 'executing';
CREATE INDEX gen_durable_await_deadline ON gen_durable (await_deadline) WHERE status = 'awaiting_signal' AND await_deadline IS NOT NULL;
CREATE UNIQUE INDEX gen_durable_concurrency_active ON gen_durable (concurrency_key) WHERE status = 'executing' AND concurrency_key IS NOT NULL AND concurrency_shard IS NULL;
CREATE UNIQUE INDEX gen_durable_correlation ON gen_durable (correlation_guard) WHERE correlation_guard IS NOT NULL;
CREATE INDEX gen_durable_parent ON gen_durable (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX gen_durable_gc ON gen_durable (updated_at) WHERE status IN ('done', 'failed');
CREATE TABLE signals (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, target_id bigint NOT NULL REFERENCES gen_durable ON DELETE CASCADE,
    name text NOT NULL, payload jsonb NOT NULL DEFAULT '{}', dedup_key text, inserted_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (target_id, dedup_key));
CREATE INDEX signals_target ON signals (target_id, name);
CREATE TABLE gen_durable_bucket_configs (kind text NOT NULL CHECK (kind IN ('rate', 'conc')), name text NOT NULL,
    rate float8, capacity float8 NOT NULL, shards smallint NOT NULL DEFAULT 1, PRIMARY KEY (kind, name));
CREATE TABLE gen_durable_buckets (kind text NOT NULL, key text NOT NULL, shard smallint NOT NULL DEFAULT 0,
    capacity float8 NOT NULL, available float8 NOT NULL, last_refill timestamptz, PRIMARY KEY (kind, key, shard),
    CONSTRAINT gen_durable_buckets_check CHECK (available >= 0 AND available <= capacity));
COMMENT ON TABLE gen_durable IS '3';
INSERT INTO gen_durable (fsm, step, correlation_key, correlation_scope) VALUES ('Elixir.Order', 'Elixir.Pay', 'k', '{runnable,executing}');
INSERT INTO signals (target_id, name) SELECT id, 'paid' FROM gen_durable;`

func TestMigrateAdoptsTheOriginal(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	pool, fresh := devpg.Database(t), devpg.Database(t)
	if _, err := pool.Exec(ctx, originalTables); err != nil {
		t.Fatal(err)
	}
	wantVersion(t, pool, "", 1)
	theirs := shape(t, pool, "public")
	up(t, pool, "")
	up(t, fresh, "")
	sameShape(t, "adopted and fresh", shape(t, pool, "public"), shape(t, fresh, "public"))
	s, err := Open(ctx, pool, Options{})
	if err != nil {
		t.Fatal(err)
	}
	i, err := s.GetByKey(ctx, pool, "k")
	if err != nil || i == nil || i.Machine != "Elixir.Order" || i.Crashes != 0 || i.CancelReason != nil {
		t.Fatalf("the original's row: %+v, %v", i, err)
	}
	if !value[bool](t, s, `SELECT has_inbox AND has_children FROM gen_durable`) {
		t.Error("the original's rows may have signals and children, but are not marked so")
	}
	insert(t, s, pool, keyed("mine"))
	if err := NewMigrator(pool, "").Down(ctx, 1); err != nil {
		t.Fatal(err)
	}
	sameShape(t, "given back", shape(t, pool, "public"), theirs)
}

func TestMigrateRefusesAnotherMark(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	for _, mark := range []string{`'2'`, `'4'`, `NULL`} {
		pool := devpg.Database(t)
		if _, err := pool.Exec(ctx, originalTables+`COMMENT ON TABLE gen_durable IS `+mark); err != nil {
			t.Fatal(err)
		}
		before := shape(t, pool, "public")
		if err := NewMigrator(pool, "").Up(ctx); !errors.Is(err, ErrWrongVersion) {
			t.Errorf("mark %s: %v, expected a refusal", mark, err)
		}
		sameShape(t, "refused", shape(t, pool, "public"), before)
		upSQL, _, err := MigrationSQL("public")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pool.Exec(ctx, upSQL); err == nil || !strings.Contains(err.Error(), "adopts version 3 only") {
			t.Errorf("mark %s: the printed SQL was refused with %v", mark, err)
		}
		sameShape(t, "refused in print", shape(t, pool, "public"), before)
		if _, err := NewMigrator(pool, "").Version(ctx); !errors.Is(err, ErrWrongVersion) {
			t.Errorf("mark %s: version says %v", mark, err)
		}
		if err := NewMigrator(pool, "").Down(ctx, 0); err == nil {
			t.Errorf("mark %s: down removed tables that are not ours to judge", mark)
		}
		sameShape(t, "refused to remove", shape(t, pool, "public"), before)
	}
}

func TestPrintedSQL(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	printed, migrated := devpg.Database(t), devpg.Database(t)
	if _, err := printed.Exec(ctx, `CREATE SCHEMA "odd ""one"`); err != nil {
		t.Fatal(err)
	}
	for _, schema := range []string{"public", `odd "one`} {
		upSQL, downSQL, err := MigrationSQL(schema)
		if err != nil {
			t.Fatal(err)
		}
		psql(t, ctx, printed, upSQL)
		wantVersion(t, printed, schema, LatestVersion)
		if _, err := Open(ctx, printed, Options{Schema: schema}); err != nil {
			t.Error(err)
		}
		up(t, migrated, schema)
		sameShape(t, schema, shape(t, printed, schema), shape(t, migrated, schema))
		// The migrator takes over from the printed SQL, in both directions.
		up(t, printed, schema)
		psql(t, ctx, printed, downSQL)
		wantVersion(t, printed, schema, 0)
		if left := shape(t, printed, schema); len(left) != 0 {
			t.Errorf("left after the printed down: %q", left)
		}
		psql(t, ctx, printed, fmt.Sprintf("DROP TABLE %s;", versionTable(schema)))
		psql(t, ctx, printed, upSQL)
		if err := NewMigrator(printed, schema).Down(ctx, 0); err != nil {
			t.Fatal(err)
		}
		if left := shape(t, printed, schema); len(left) != 0 {
			t.Errorf("left after down of what was printed: %q", left)
		}
	}
}

// psql applies a script as a user would.
func psql(t *testing.T, ctx context.Context, pool *pgxpool.Pool, script string) {
	t.Helper()
	binary, err := osexec.LookPath("psql")
	if err != nil {
		found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/psql")
		if len(found) == 0 {
			t.Fatal("this test needs psql; install the Postgres client package")
		}
		binary = found[0]
	}
	cmd := osexec.CommandContext(ctx, binary, pool.Config().ConnString(), "-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("psql: %v\n%s", err, out)
	}
}
