package pg

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/gendurable/gendurable/limiter"
)

// TestPlansOfTheLimiter names each of its statements with the indexes it uses, on the statistics of many rows, keys and
// limits, as the engine's connections and as others plan it.
func TestPlansOfTheLimiter(t *testing.T) {
	s, host := openWithHost(t, Options{})
	exec(t, s, `
		INSERT INTO gen_durable (fsm, step, status) SELECT 'm', 'a', CASE WHEN i % 100 = 0 THEN 'executing' ELSE 'done' END::durable_status FROM generate_series(1, 60000) i;
		INSERT INTO gen_durable_bucket_configs SELECT k, 'n' || i, CASE k WHEN 'rate' THEN 1 END, 100, 2 FROM generate_series(1, 2000) i, unnest('{rate,conc}'::text[]) k;
		INSERT INTO gen_durable_buckets SELECT k, 'n' || i || ':' || p, shard, 50, 50, now() FROM generate_series(1, 200) i, generate_series(1, 50) p, unnest('{rate,conc}'::text[]) k, generate_series(0, 1) shard`)
	exec(t, s, `ANALYZE`)
	const pkey, lease, buckets, configs = "gen_durable_pkey", "gen_durable_lease", "gen_durable_buckets_pkey", "gen_durable_bucket_configs_pkey"
	statements := map[string][]string{
		"limit_admit":         {configs, buckets, pkey},
		"limit_credit":        {configs, buckets},
		"limit_gates_lock":    {buckets},
		"limit_gates_heal":    {configs, buckets, lease},
		"limit_rates_sweep":   {configs, buckets},
		"limit_config_remove": {configs},
	}
	sweeps := map[string]bool{"limit_gates_lock": true, "limit_rates_sweep": true}
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
			bad := ""
			plan.each(func(n detail) {
				switch n.Type {
				case "Index Scan", "Index Only Scan", "Bitmap Index Scan":
					used = append(used, n.Index)
				case "Seq Scan":
					// Where sessions cannot have our settings, a sweep may as well read the counters whole.
					if settings == "default" && sweeps[name] && strings.HasPrefix(n.Relation, "gen_durable_bucket") {
						used = append(used, n.Relation+"_pkey")
					} else {
						bad = "a Seq Scan on " + n.Relation
					}
				}
				if strings.HasPrefix(n.Subplan, "hashed") {
					bad = n.Subplan
				}
			})
			slices.Sort(used)
			if used = slices.Compact(used); !slices.Equal(used, want) || bad != "" {
				t.Errorf("%s with %s settings: uses %v, expected %v; %s\n%s", name, settings, used, want, bad, raw)
			}
		}
	}
}

// TestRoundTripsOfTheLimiter counts what its calls cost once their statements are prepared.
func TestRoundTripsOfTheLimiter(t *testing.T) {
	direct := open(t)
	s, trips := counted(t, direct)
	ctx := testContext(t)
	l := s.NewLimiter()
	own := limiter.Config{
		Gates: []limiter.Gate{{Name: "g", Limit: 50, Shards: 4}},
		Rates: []limiter.Rate{{Name: "r", Allowed: 500, Per: forAges, Shards: 4}},
	}
	var rows []limiter.Request
	var d []limiter.Decision
	for _, c := range []struct {
		name    string
		want    int
		prepare func()
		do      func() error
	}{
		{"sync", 1, nil, func() error { _, err := l.SyncConfig(ctx, own); return err }},
		{"read", 1, nil, func() error { _, err := l.SyncConfig(ctx, limiter.Config{}); return err }},
		{"admit without limits", 0, nil, func() error { _, err := l.Admit(ctx, alice, make([]limiter.Request, 3)); return err }},
		{"admit to both", 1, func() { rows = asking(t, direct, 30, "g:a", "r:a") },
			func() (err error) { d, err = l.Admit(ctx, alice, rows); return err }},
		{"admit to many keys", 1, func() {
			for _, key := range []string{"g:b", "g:c", "g:d"} {
				rows = append(rows, asking(t, direct, 30, key, "r")...)
			}
		}, func() (err error) { d, err = l.Admit(ctx, alice, rows); return err }},
		{"credit", 1, func() {
			for _, r := range rows {
				endGated(t, direct, r.ID)
			}
		}, func() error {
			var released []limiter.Release
			for i, r := range rows {
				if d[i].Verdict == limiter.Admitted {
					released = append(released, limiter.Release{Slot: limiter.Slot{Key: r.Gate, Shard: d[i].Shard}, Mark: 3})
				}
			}
			return l.Credit(ctx, released)
		}},
		{"credit nothing", 0, nil, func() error { return l.Credit(ctx, nil) }},
		{"reconcile without gates", 4, func() { exec(t, direct, `DELETE FROM gen_durable_buckets WHERE kind = 'conc'`) },
			func() error { _, err := l.Reconcile(ctx); return err }},
		{"remove", 1, nil, func() error { return l.RemoveConfig(ctx, limiter.Name{Kind: limiter.KindGate, Name: "g"}) }},
	} {
		var got int
		for range 2 { // the first run prepares
			if c.prepare != nil {
				c.prepare()
			}
			trips.take()
			if err := c.do(); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			got = trips.take()
		}
		if got != c.want {
			t.Errorf("%s took %d round trips, expected %d", c.name, got, c.want)
		}
	}
}
