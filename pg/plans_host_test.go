package pg

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// fill puts 300,000 rows into the tables, mostly terminal, with 5,000 executing and an inbox for some, and gathers
// statistics, so that the planner sees what it sees in production.
func fill(t *testing.T, s *Store) {
	t.Helper()
	exec(t, s, `
		INSERT INTO gen_durable (fsm, step, queue, status, locked_by, lease_expires_at, correlation_key, correlation_scope, parent_id, updated_at)
		SELECT 'm', 'a', 'q', CASE WHEN i % 60 = 0 THEN 'executing' WHEN i % 50 = 0 THEN 'runnable' WHEN i % 3 = 0 THEN 'failed' ELSE 'done' END::durable_status,
		       CASE WHEN i % 60 = 0 THEN 'e:q@n-00000000000000a1' END, CASE WHEN i % 60 = 0 THEN now() + interval '1 minute' END,
		       'k' || i, '{runnable,executing,awaiting_signal,awaiting_children}',
		       CASE WHEN i % 7 = 0 THEN 1 END, now() - i * interval '3 seconds'
		  FROM generate_series(1, 300000) AS i;
		INSERT INTO signals (target_id, name) SELECT id, 'n' FROM gen_durable WHERE id % 10 = 0;
		INSERT INTO gen_durable_dedup (target_id, dedup_key) SELECT id, 'd' FROM gen_durable WHERE id % 10 = 0;
		INSERT INTO gen_durable_requests (id, instance_id) SELECT 'r' || id, id FROM gen_durable WHERE id % 10 = 0`)
	exec(t, s, `ANALYZE`)
}

// planNode is what the tests look at of a plan.
type planNode struct {
	Type     string     `json:"Node Type"`
	Relation string     `json:"Relation Name"`
	Index    string     `json:"Index Name"`
	Plans    []planNode `json:"Plans"`
}

// uses collects how a plan reaches the tables: "index name" or "Seq Scan table".
func (n planNode) uses() []string {
	var out []string
	if strings.Contains(n.Type, "Index") {
		out = append(out, n.Index)
	}
	if n.Type == "Seq Scan" {
		out = append(out, "Seq Scan "+n.Relation)
	}
	for _, p := range n.Plans {
		out = append(out, p.uses()...)
	}
	return out
}

// genericPlan returns how a statement's generic plan reaches the tables, under the settings of the connection.
func genericPlan(t *testing.T, conn *pgxpool.Conn, text string) []string {
	t.Helper()
	ctx := testContext(t)
	sd, err := conn.Conn().Prepare(ctx, "", text)
	if err != nil {
		t.Fatal(err)
	}
	args := strings.TrimSuffix(strings.Repeat("NULL, ", len(sd.ParamOIDs)), ", ")
	if args != "" {
		args = "(" + args + ")"
	}
	if _, err := conn.Exec(ctx, "PREPARE explained AS "+text); err != nil {
		t.Fatal(err)
	}
	var raw []byte
	if err := conn.QueryRow(ctx, "EXPLAIN (FORMAT JSON) EXECUTE explained"+args).Scan(&raw); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(ctx, "DEALLOCATE explained"); err != nil {
		t.Fatal(err)
	}
	var plans []struct{ Plan planNode }
	if err := json.Unmarshal(raw, &plans); err != nil {
		t.Fatal(err)
	}
	used := plans[0].Plan.uses()
	slices.Sort(used)
	return slices.Compact(used)
}

// TestPlansOfHostAndSweeps names each statement with the only ways it may reach the tables, under the host's settings
// and under the engine's.
func TestPlansOfHostAndSweeps(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	fill(t, s)
	ctx := testContext(t)
	exec(t, s, `INSERT INTO gen_durable_history (instance_id, step, attempt, outcome, status)
		SELECT i / 5, 'a', 0, 'next', 'runnable' FROM generate_series(1, 100000) AS i`)
	exec(t, s, `ANALYZE gen_durable_history`)
	const history = "gen_durable_history_pkey"
	const pkey, guard, lease, parent = "gen_durable_pkey", "gen_durable_correlation", "gen_durable_lease", "gen_durable_parent"
	allowed := map[string][]string{
		"insert_one":       nil,
		"insert_many":      nil,
		"insert_alike":     nil,
		"insert_bare":      nil,
		"insert_keyed":     {guard, "gen_durable_requests_pkey"},
		"insert_forget":    {pkey, "gen_durable_requests_pkey", "gen_durable_requests_age"},
		"insert_found":     {guard, "gen_durable_requests_pkey"},
		"signal":           {pkey, guard, "gen_durable_dedup_pkey"},
		"signal_one":       {pkey, guard, "gen_durable_dedup_pkey"},
		"get":              {pkey, guard},
		"standing":         {pkey, guard},
		"settled":          {pkey},
		"cancel":           {pkey},
		"collect":          {"gen_durable_gc", pkey, parent, history},
		"collect_history":  {history, pkey},
		"cancel_history":   {history, pkey},
		"history":          {history},
		"collect_requests": {"gen_durable_requests_age", "gen_durable_requests_pkey"},
		"queue_pause":      nil,
		"offspring":        {parent, pkey},
		"cron_enter":       {"gen_durable_cron_pkey", "Seq Scan gen_durable_cron"}, // a row a name
		"cron_fire":        {"gen_durable_cron_pkey", "Seq Scan gen_durable_cron"},
		"cron_pass":        {"gen_durable_cron_pkey", "Seq Scan gen_durable_cron"},
		"joint_guard":      {pkey},
		"joint_fate":       nil,
		"joint_top":        {pkey},
		"retry_lock":       {pkey},
		"retry_parent":     {pkey},
		"retry":            {pkey, history},
		"occupant":         {pkey, guard},
		"queue_resume":     {"gen_durable_queues_pkey", "Seq Scan gen_durable_queues"}, // a row a paused queue
		"queue_paused":     {"gen_durable_queues_pkey", "Seq Scan gen_durable_queues"},
		"reclaim":          {lease, pkey, guard},
		"inbox_page":       {"signals_target", "signals_pkey", pkey},
		"children_page":    {parent, pkey},
	}
	for settings, pool := range map[string]*pgxpool.Pool{"host": host, "engine": s.pool} {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		if _, err := conn.Exec(ctx, `SET plan_cache_mode = force_generic_plan`); err != nil {
			t.Fatal(err)
		}
		for name, indexes := range allowed {
			for _, used := range genericPlan(t, conn, s.sql(name)) {
				if !slices.Contains(indexes, used) {
					t.Errorf("%s, with the settings of the %s, uses %s; expected only %v", name, settings, used, indexes)
				}
			}
		}
	}
	t.Run("values", func(t *testing.T) { plansWithValues(t, s, host) })
}

// plansWithValues runs what the host's first executions plan by the values given, and reads what they touched.
func plansWithValues(t *testing.T, s *Store, host *pgxpool.Pool) {
	ctx := testContext(t)
	scans := func() int64 {
		t.Helper()
		if _, err := host.Exec(ctx, `SELECT pg_stat_clear_snapshot()`); err != nil {
			t.Fatal(err)
		}
		return value[int64](t, s, `SELECT coalesce(pg_stat_get_numscans('gen_durable'::regclass), 0)`)
	}
	conn, err := host.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	flush := func() {
		t.Helper()
		if _, err := conn.Exec(ctx, `SELECT pg_stat_force_next_flush()`); err != nil {
			t.Fatal(err)
		}
	}
	flush()
	before := scans()
	var ds []Delivery
	var rows []Insertion
	for i := range 2000 {
		ds = append(ds, Delivery{ID: int64(60 * (i + 1)), Name: "n"}, Delivery{Key: fmt.Sprint("k", 50*(i+1)), Name: "n"})
		rows = append(rows, keyed(fmt.Sprint("k", 50*(i+1))))
	}
	for range 6 {
		if _, err := s.Signal(ctx, conn, ds); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Insert(ctx, conn, rows); err != nil {
			t.Fatal(err)
		}
	}
	flush()
	if after := scans(); after != before {
		t.Errorf("signals and inserts read the whole table %d times", after-before)
	}
}
