package pg

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// fillMillion makes the table that plans are judged on: a million rows, nearly all terminal, as in production; 20,000
// runnable, of which one blocked key owns half; no executing ones when statistics are gathered, which is what they show.
// Many limits, with many keys.
func fillMillion(t *testing.T, s *Store) {
	t.Helper()
	exec(t, s, `SET session_replication_role = replica;
		INSERT INTO gen_durable (fsm, step, queue, status, concurrency_key, correlation_key, correlation_scope, parent_id, await_deadline, updated_at)
		SELECT 'm', 'a', CASE WHEN i % 10 = 0 THEN 'other' ELSE 'default' END,
		       CASE WHEN i % 50 = 0 THEN 'runnable' WHEN i % 101 = 0 THEN 'awaiting_signal' WHEN i % 3 = 0 THEN 'failed' ELSE 'done' END::durable_status,
		       CASE WHEN i % 100 = 0 THEN 'blocked' END, 'k' || i, '{runnable,executing,awaiting_signal,awaiting_children}',
		       CASE WHEN i % 7 = 0 THEN i / 1000 + 1 END, CASE WHEN i % 101 = 0 THEN now() + i * interval '1 s' END, now() - i * interval '1 s'
		  FROM generate_series(1, 1000000) AS i;
		INSERT INTO signals (target_id, name) SELECT i, 'n' FROM generate_series(1, 1000000, 10) i;
		INSERT INTO gen_durable_bucket_configs SELECT k, 'n' || i, CASE k WHEN 'rate' THEN 1 END, 100, 2 FROM generate_series(1, 2000) i, unnest('{rate,conc}'::text[]) k;
		INSERT INTO gen_durable_buckets SELECT k, 'n' || i || ':' || p, shard, 50, 50, now() FROM generate_series(1, 200) i, generate_series(1, 50) p, unnest('{rate,conc}'::text[]) k, generate_series(0, 1) shard;
		RESET session_replication_role`)
	exec(t, s, `ANALYZE`)
}

// detail is a plan node with what decides about its cost.
type detail struct {
	Type     string   `json:"Node Type"`
	Relation string   `json:"Relation Name"`
	Index    string   `json:"Index Name"`
	Join     string   `json:"Join Type"`
	Function string   `json:"Function Name"`
	Parent   string   `json:"Parent Relationship"`
	Subplan  string   `json:"Subplan Name"`
	Filter   string   `json:"Join Filter"`
	Plans    []detail `json:"Plans"`
}

func (n detail) each(f func(detail)) {
	f(n)
	for _, p := range n.Plans {
		p.each(f)
	}
}

// explain returns the generic plan of a statement on the connection.
func explain(t *testing.T, conn *pgx.Conn, text string) (detail, string) {
	t.Helper()
	ctx := testContext(t)
	sd, err := conn.Prepare(ctx, "", text)
	if err != nil {
		t.Fatal(err)
	}
	args := ""
	if n := len(sd.ParamOIDs); n > 0 {
		args = "(" + strings.TrimSuffix(strings.Repeat("NULL, ", n), ", ") + ")"
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
	var plans []struct{ Plan detail }
	if err := json.Unmarshal(raw, &plans); err != nil {
		t.Fatal(err)
	}
	return plans[0].Plan, string(raw)
}

// TestPlansOfTheEngine names each hot statement with the indexes it uses, all of them and no others, as the engine's own
// connections plan it: one generic plan, on the statistics of a million rows. The updates of a flush are nested loops
// driven by the array, so that they write in its order.
func TestPlansOfTheEngine(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{})
	fillMillion(t, s)
	const (
		pkey, pick, lease, guard = "gen_durable_pkey", "gen_durable_pick", "gen_durable_lease", "gen_durable_correlation"
		active, deadline, parent = "gen_durable_concurrency_active", "gen_durable_await_deadline", "gen_durable_parent"
		target, signals, flusher = "signals_target", "signals_pkey", "gen_durable_flushers_pkey"
		buckets, configs         = "gen_durable_buckets_pkey", "gen_durable_bucket_configs_pkey"
	)
	statements := map[string]struct {
		indexes []string
		driven  bool
	}{
		"claim":            {indexes: []string{configs, buckets, active, guard, pick, pkey, "gen_durable_queues_pkey"}},
		"claim_lanes":      {indexes: []string{pick}},
		"claim_ahead":      {indexes: []string{pick}},
		"claim_inbox":      {indexes: []string{target}},
		"claim_children":   {indexes: []string{parent}},
		"claim_counts":     {indexes: []string{parent}},
		"flush_fence":      {indexes: []string{flusher}},
		"flush_lock":       {indexes: []string{pkey}, driven: true},
		"flush_next":       {indexes: []string{pkey}, driven: true},
		"flush_continue":   {indexes: []string{pkey, signals}, driven: true},
		"flush_retry":      {indexes: []string{pkey}, driven: true},
		"flush_await":      {indexes: []string{pkey}, driven: true},
		"flush_recheck":    {indexes: []string{guard, pkey, target}, driven: true},
		"flush_children":   {indexes: []string{pkey}, driven: true},
		"flush_spawn":      {indexes: []string{pkey}, driven: true},
		"flush_end":        {indexes: []string{pkey}, driven: true},
		"flush_trace":      {indexes: []string{pkey}, driven: true},
		"flush_history":    {indexes: []string{pkey}, driven: true},
		"flush_consume":    {indexes: []string{pkey, signals}, driven: true},
		"flush_inbox":      {indexes: []string{pkey, target}, driven: true},
		"flush_inbox_late": {indexes: []string{target}},
		"flush_join":       {indexes: []string{pkey}, driven: true},
		"flush_missing":    {indexes: []string{pkey}, driven: true},
		"flush_queues":     {indexes: []string{pkey}, driven: true},
		"fate_fence":       {indexes: []string{flusher}},
		"fate_exists":      {indexes: []string{flusher}},
		"heartbeat":        {indexes: []string{pkey}, driven: true},
		"extend_one":       {indexes: []string{pkey}},
		"release":          {indexes: []string{guard, pkey}, driven: true},
		"unheld":           {indexes: []string{lease}},
		"reap":             {indexes: []string{guard, lease, pkey}},
		"wake":             {indexes: []string{deadline, guard, pkey}},
		"blocked":          {indexes: []string{pkey}, driven: true},

		"limit_admit":         {indexes: []string{configs, buckets, pkey}},
		"limit_credit":        {indexes: []string{configs, buckets}},
		"limit_gates_lock":    {indexes: []string{configs, buckets}},
		"limit_gates_heal":    {indexes: []string{configs, buckets, lease}},
		"limit_rates_sweep":   {indexes: []string{configs, buckets}},
		"limit_config_remove": {indexes: []string{configs}},
	}
	// Where sessions cannot have our settings, a sweep may as well read the counters whole.
	sweeps := map[string]bool{"limit_gates_lock": true, "limit_gates_heal": true, "limit_rates_sweep": true}
	engine, err := s.pool.Acquire(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Release()
	plain, err := host.Acquire(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Release()
	if _, err := plain.Exec(testContext(t), `SET plan_cache_mode = force_generic_plan`); err != nil {
		t.Fatal(err)
	}
	for name, want := range statements {
		for settings, conn := range map[string]*pgx.Conn{"the engine's": engine.Conn(), "default": plain.Conn()} {
			plan, raw := explain(t, conn, s.sql(name))
			var used []string
			driven, bad := false, ""
			plan.each(func(n detail) {
				switch n.Type {
				case "Index Scan", "Index Only Scan", "Bitmap Index Scan":
					used = append(used, n.Index)
				case "Seq Scan":
					// Tables with a row a flusher or a paused queue: without our settings they may as well be read whole.
					switch {
					case n.Relation == "gen_durable_flushers" || n.Relation == "gen_durable_queues":
						used = append(used, n.Relation+"_pkey")
					case settings == "default" && sweeps[name] && strings.HasPrefix(n.Relation, "gen_durable_bucket"):
						used = append(used, n.Relation+"_pkey")
					default:
						bad = "a Seq Scan on " + n.Relation
					}
				case "Nested Loop":
					driven = driven || drives(n.Plans[0])
					if inner := n.Plans[1]; settings != "default" && n.Filter != "" && inner.Index == "" && inner.Type != "Memoize" {
						bad = "a loop over a product: " + n.Filter
					}
				case "Hash Join", "Merge Join":
					if settings != "default" {
						bad = n.Type
					}
				}
				if strings.HasPrefix(n.Subplan, "hashed") {
					bad = n.Subplan
				}
			})
			slices.Sort(used)
			if used = slices.Compact(used); !slices.Equal(used, want.indexes) || bad != "" || driven != want.driven && want.driven {
				t.Errorf("%s with %s settings: uses %v, expected %v; driven by the array: %v; %s\n%s", name, settings, used, want.indexes, driven, bad, raw)
			}
		}
	}
	t.Run("claim", func(t *testing.T) { claimStopsEarly(t, engine.Conn(), s) })
	t.Run("explain", func(t *testing.T) {
		explainStaysBounded(t, s, map[string]*pgx.Conn{"the engine's": engine.Conn(), "default": plain.Conn()})
	})
}

// drives reports whether an unnest, perhaps under a sort, an append or another loop, is the outer side.
func drives(n detail) bool {
	found := n.Type == "Function Scan"
	for _, p := range n.Plans {
		found = found || (p.Parent == "Outer" || p.Parent == "Member") && drives(p)
	}
	return found
}

// claimStopsEarly: of each priority the scan takes rows in the order of the index, with neither a sort nor a join under its
// limit; and the limit over all of them, which stops it before it begins, asks once whether the queue is paused.
func claimStopsEarly(t *testing.T, conn *pgx.Conn, s *Store) {
	plan, raw := explain(t, conn, s.sql("claim"))
	scans, asked := 0, 0
	plan.each(func(n detail) {
		switch {
		case n.Type != "Limit" || len(n.Plans) == 0:
		case n.Plans[0].Type == "LockRows":
			scans++
			if scan := n.Plans[0].Plans[0]; scan.Type != "Index Scan" || scan.Index != "gen_durable_pick" {
				t.Errorf("under the limit is a %s: %s", scan.Type, raw)
			}
		case n.Subplan == "CTE candidate":
			asked++
			if paused := n.Plans[0]; paused.Parent != "InitPlan" || !strings.Contains(paused.Type, "Index") {
				t.Errorf("whether the queue is paused is asked by %+v: %s", paused, raw)
			}
		}
	})
	if scans != 1 || asked != 1 {
		t.Errorf("there are %d limited scans, and %d limits over them: %s", scans, asked, raw)
	}
}
