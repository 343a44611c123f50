package pg

import (
	"slices"
	"testing"
)

// TestListsWalkIndexes: with the settings that these statements make, each reaches the instances by its indexes alone, and
// nothing is sorted but what the limits have let through.
func TestListsWalkIndexes(t *testing.T) {
	t.Parallel()
	s := open(t)
	exec(t, s, `
		INSERT INTO gen_durable (fsm, step, queue, status, lease_expires_at)
		SELECT 'm', 'a', 'q' || i % 5, (enum_range(NULL::durable_status))[1 + (i % 37) % 6], CASE WHEN (i % 37) % 6 = 1 THEN now() END
		  FROM generate_series(1, 20000) i;
		ANALYZE gen_durable`)
	conn, err := s.pool.Acquire(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(testContext(t), `SET enable_bitmapscan = off`); err != nil {
		t.Fatal(err)
	}
	const pick, lease, parked, failed = "gen_durable_pick", "gen_durable_lease", "gen_durable_parked", "gen_durable_failed"
	for name, want := range map[string][]string{
		"count_queue":  {failed, lease, parked, pick, "gen_durable_queues_pkey"},
		"count_queues": {failed, parked, pick},
		"list":         {"gen_durable_pkey"},
	} {
		plan, raw := explain(t, conn.Conn(), s.sql(name))
		var used []string
		plan.each(func(n detail) {
			switch n.Type {
			case "Index Scan", "Index Only Scan":
				used = append(used, n.Index)
			case "Seq Scan", "Bitmap Heap Scan":
				t.Errorf("%s has a %s: %s", name, n.Type, raw)
			case "Limit":
				for _, p := range n.Plans {
					if name == "count_queue" && p.Parent == "Outer" && p.Type != "Index Scan" && p.Type != "Index Only Scan" {
						t.Errorf("%s has a %s under a limit: %s", name, p.Type, raw)
					}
				}
			}
		})
		slices.Sort(used)
		if used = slices.Compact(used); !slices.Equal(used, want) {
			t.Errorf("%s uses %v, expected %v: %s", name, used, want, raw)
		}
	}
}
