package pg

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable/internal/devpg"
)

// otherDefaults gives every later session of the database defaults that do not suit the engine.
func otherDefaults(t *testing.T, host *pgxpool.Pool) {
	t.Helper()
	db := pgx.Identifier{host.Config().ConnConfig.Database}.Sanitize()
	for _, set := range []string{
		"default_transaction_isolation = 'repeatable read'", "default_transaction_read_only = on", "lock_timeout = '1h'",
		"timezone = 'Asia/Kathmandu'", "datestyle = 'SQL, DMY'", "intervalstyle = 'iso_8601'", "standard_conforming_strings = off",
		"extra_float_digits = -3", "bytea_output = escape", "enable_indexscan = on", "plan_cache_mode = force_custom_plan",
	} {
		if _, err := host.Exec(testContext(t), "ALTER DATABASE "+db+" SET "+set); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOtherDefaults: the engine's sessions do not take over what the role, the database, or a hook of the host has set. A
// park under an older snapshot would sleep on the signal that it has waited for.
func TestOtherDefaults(t *testing.T) {
	t.Parallel()
	host := devpg.Database(t, Migrate)
	otherDefaults(t, host)
	ctx := testContext(t)
	pool, err := EnginePool(ctx, host, 4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s, err := Open(ctx, pool, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got := value[string](t, s, `SELECT current_setting('transaction_isolation') || current_setting('lock_timeout')`); got != "read committed200ms" {
		t.Errorf("the settings are %s", got)
	}
	put(t, s, 1)
	signal(t, s, claimOne(t, s, alice).ID, "noise") // the inbox is known of: a delivery need not write the row
	reap(t, s)
	row := claimOne(t, s, alice)
	interleave(t, s, map[string]move{
		"signal": signalling(row.ID),
		"park":   flushing(t, s, "park", Committed, outcome(row, alice, KindAwait)),
	}, `
		caller  begin
		caller  signal
		flusher park    blocks
		caller  commit
		flusher resumes
	`)
	wantStatus(t, s, Runnable, row.ID)

	cfg := host.Config()
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `SET lock_timeout = '1h'; SET default_transaction_isolation = serializable`)
		return err
	}
	hooked, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(hooked.Close)
	own, err := EnginePool(ctx, hooked, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(own.Close)
	var got string
	if err := own.QueryRow(ctx, `SELECT current_setting('transaction_isolation') || current_setting('lock_timeout')`).Scan(&got); err != nil {
		t.Fatal(err)
	}
	if got != "read committed200ms" {
		t.Errorf("behind a hook the settings are %s", got)
	}
	cfg.ConnConfig.DefaultQueryExecMode, cfg.AfterConnect = pgx.QueryExecModeCacheDescribe, nil
	nameless, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nameless.Close)
	if _, err := EnginePool(ctx, nameless, 1); err == nil || !strings.Contains(err.Error(), "ALTER ROLE") {
		t.Errorf("defaults that cannot be set right: %v", err)
	}
}

// modes are the ways of pgx to run a statement.
var modes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec,
	pgx.QueryExecModeSimpleProtocol,
}

// TestEveryExecMode: a host may run its pool in any mode; every statement of the host and of the engine works.
func TestEveryExecMode(t *testing.T) {
	t.Parallel()
	direct, host := openWithHost(t, Options{})
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			exec(t, direct, `TRUNCATE gen_durable, gen_durable_requests CASCADE`)
			ctx := testContext(t)
			cfg := host.Config()
			cfg.ConnConfig.DefaultQueryExecMode = mode
			pool, err := pgxpool.NewWithConfig(ctx, cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			client, err := Open(ctx, pool, Options{})
			if err != nil {
				t.Fatal(err)
			}
			useAsHost(t, client, pool)
			exec(t, direct, `TRUNCATE gen_durable, gen_durable_requests CASCADE`)

			private, err := EnginePool(ctx, pool, 4)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(private.Close)
			s, err := Open(ctx, private, Options{})
			if err != nil {
				t.Fatal(err)
			}
			c := s.NewCommitter(mode.String())
			f := newFamily(t, s, c)
			f.check(t, s, flushAll(t, c, f.outcomes...), false)
			if mode != pgx.QueryExecModeCacheStatement {
				waitsNoLonger(t, s, c)
			}
		})
	}
}

// useAsHost runs every statement of the host.
func useAsHost(t *testing.T, s *Store, db DB) {
	t.Helper()
	full := keyed("k'\\\"")
	full.State, full.RequestID, full.Delay, full.RateLimit, full.Weight = []byte(`{"a": "it's \\ \"é\""}`), "r", time.Hour, "l", 0.5
	timed := plain("m")
	timed.State, timed.EligibleAt, timed.ConcurrencyKey = full.State, time.Now().Add(-time.Hour), "c"
	timed.TraceContext = "trace"
	simple := plain("m")
	simple.State = full.State
	var ids []int64
	for _, rows := range [][]Insertion{{simple}, {timed}, {simple, simple}, {simple, timed}, {full, timed}, {full, full}} {
		for _, in := range insert(t, s, db, rows...) {
			ids = append(ids, in.ID)
		}
	}
	in := get(t, s, ids[0])
	if string(in.State) != string(full.State) || in.Priority != simple.Priority {
		t.Errorf("the instance is %+v", in)
	}
	if at := get(t, s, ids[1]).EligibleAt; at.Sub(timed.EligibleAt).Abs() > time.Millisecond {
		t.Errorf("eligible at %v, expected %v", at, timed.EligibleAt)
	}
	if byKey, err := s.GetByKey(testContext(t), db, full.CorrelationKey); err != nil || byKey == nil || byKey.Weight != 0.5 {
		t.Errorf("by its key: %+v, %v", byKey, err)
	}
	one := Delivery{ID: ids[0], Name: "n", Payload: full.State, DedupKey: "d"}
	many := deliver(t, s, db, one, Delivery{Key: full.CorrelationKey, Name: "n"}, Delivery{ID: ids[1], Name: "n", TraceContext: "trace"})
	again := deliver(t, s, db, one)
	if many[0].SignalID == 0 || many[1].SignalID == 0 || many[2].SignalID == 0 || !again[0].Duplicate {
		t.Errorf("delivered: %+v, %+v", many, again)
	}
	if r, err := s.CancelByKey(testContext(t), db, full.CorrelationKey, "why"); err != nil || r.Result != Ended {
		t.Errorf("the cancel: %+v, %v", r, err)
	}
	if list, err := s.History(testContext(t), db, ids[0], 0, 10); err != nil || len(list) != 0 {
		t.Errorf("the history: %+v, %v", list, err)
	}
	if n := value[int](t, s, `SELECT count(trace_context) FROM gen_durable`) + value[int](t, s, `SELECT count(trace_context) FROM signals`); n != 4 {
		t.Errorf("%d rows and signals carry a trace, expected 4", n)
	}
	settled, err := s.Settled(testContext(t), ids)
	if err != nil || fmt.Sprint(settled[len(ids)-1].Status) != "failed" {
		t.Errorf("settled: %+v, %v", settled, err)
	}
}

// waitsNoLonger expects a flush and a beat to give up on a row that somebody holds, without a setting of the session.
func waitsNoLonger(t *testing.T, s *Store, c *Committer) {
	t.Helper()
	if got := value[string](t, s, `SELECT current_setting('lock_timeout')`); got != "0" {
		t.Fatalf("the session's lock_timeout is %s", got)
	}
	put(t, s, 1)
	row := claim(t, s, alice, 10)[0]
	tx, err := s.pool.Begin(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if err := locking(row.ID)(testContext(t), s, tx); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Flush(testContext(t), []Outcome{outcome(row, alice, KindDone)}); !isState(err, "55P03") {
		t.Errorf("the flush: %v", err)
	}
	if beat, err := s.ExtendOne(testContext(t), alice, time.Minute, row.ID); err != nil || beat.State != Locked {
		t.Errorf("the beat: %+v, %v", beat, err)
	}
}
