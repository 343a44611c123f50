package pg

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// explainStaysBounded: whatever an instance waits for, its explanation reads a bounded part of the million rows, by indexes
// only. It adds what would be long to read: twenty thousand children that have ended, an inbox, shards, and a delayed
// backlog before the instance in its queue.
func explainStaysBounded(t *testing.T, s *Store, conns map[string]*pgx.Conn) {
	exec(t, s, `SET session_replication_role = replica;
		INSERT INTO gen_durable (fsm, step, queue, status, children_pending) VALUES ('m', 'a', 'default', 'awaiting_children', 1);
		INSERT INTO gen_durable (fsm, step, queue, status, parent_id)
		SELECT 'm', 'a', 'default', 'done', (SELECT max(id) FROM gen_durable) FROM generate_series(1, 20000);
		INSERT INTO gen_durable (fsm, step, queue, priority, eligible_at)
		SELECT 'm', 'a', 'default', -1, now() + interval '1 hour' FROM generate_series(1, 20000);
		INSERT INTO signals (target_id, name) SELECT (SELECT min(id) FROM gen_durable WHERE status = 'awaiting_signal'), 'n' || i
		  FROM generate_series(1, 20000) i;
		INSERT INTO gen_durable (fsm, step, status, locked_by, lease_expires_at, concurrency_key) VALUES
		       ('m', 'a', 'executing', 'e:q@n-00000000000000a1', now() + interval '1 minute', 'blocked');
		INSERT INTO gen_durable (fsm, step, concurrency_key, rate_limit) VALUES ('m', 'a', 'gate:1', 'rate:1');
		INSERT INTO gen_durable_bucket_configs VALUES ('conc', 'gate', NULL, 1000, 100), ('rate', 'rate', 1, 1000, 100);
		INSERT INTO gen_durable_buckets SELECT k, n || ':' || i / 100, i % 100, 10, 0, now()
		  FROM (VALUES ('conc', 'gate'), ('rate', 'rate')) v(k, n), generate_series(0, 49999) i;
		RESET session_replication_role`)
	small := []string{"gen_durable_nodes", "gen_durable_queues", "gen_durable_bucket_configs"}
	ids := map[string]int64{}
	for what, where := range map[string]string{
		"a delayed row":           `queue = 'default' AND eligible_at > now()`,
		"a row behind a backlog":  `queue = 'default' AND status = 'runnable' AND priority = 0 AND concurrency_key IS NULL`,
		"a row of a blocked key":  `concurrency_key = 'blocked' AND status = 'runnable'`,
		"a row with limits":       `concurrency_key = 'gate:1'`,
		"a parked row":            `status = 'awaiting_signal'`,
		"a parent":                `status = 'awaiting_children'`,
		"an executing row":        `status = 'executing'`,
		"a terminal row":          `status = 'failed'`,
		"a row that is not there": `false`,
	} {
		ids[what] = value[int64](t, s, `SELECT coalesce(min(id), 999999999) FROM gen_durable WHERE `+where)
	}
	text := s.sql("explain")
	for settings, conn := range conns {
		for _, mode := range []string{"force_generic_plan", "force_custom_plan"} {
			for what, id := range ids {
				plan, buffers := analyzed(t, conn, mode, text, fmt.Sprintf("(%d, '')", id))
				plan.each(func(n detail) {
					if strings.Contains(n.Type, "Seq Scan") && !slices.Contains(small, n.Relation) {
						t.Errorf("%s, %s settings, %s: a %s on %s", what, settings, mode, n.Type, n.Relation)
					}
				})
				if buffers > 2500 {
					t.Errorf("%s, %s settings, %s: read %d pages", what, settings, mode, buffers)
				}
			}
			if _, buffers := analyzed(t, conn, mode, text, "(0, 'k50')"); buffers > 2500 {
				t.Errorf("by key, %s settings, %s: read %d pages", settings, mode, buffers)
			}
		}
	}
}

// analyzed runs a statement and returns its plan, and how many pages it read.
func analyzed(t *testing.T, conn *pgx.Conn, mode, text, args string) (detail, int) {
	t.Helper()
	ctx := testContext(t)
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	var raw []byte
	_, err = tx.Exec(ctx, `SET LOCAL plan_cache_mode = `+mode)
	if err == nil {
		_, err = tx.Exec(ctx, "PREPARE analyzed AS "+text)
	}
	if err == nil {
		err = tx.QueryRow(ctx, "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE analyzed"+args).Scan(&raw)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, "DEALLOCATE analyzed"); err != nil {
		t.Fatal(err)
	}
	var plans []struct {
		Plan detail
	}
	var pages []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	if err := json.Unmarshal(raw, &plans); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &pages); err != nil {
		t.Fatal(err)
	}
	return plans[0].Plan, pages[0].Plan.Hit + pages[0].Plan.Read
}

// TestExplainIsOneRoundTrip: also by key, and for what is not there.
func TestExplainIsOneRoundTrip(t *testing.T) {
	t.Parallel()
	direct := open(t)
	s, trips := counted(t, direct)
	ctx := testContext(t)
	id := put(t, direct, 1, func(i *Insertion) {
		i.CorrelationKey, i.ConcurrencyKey = "k", "c"
		i.CorrelationScope = []string{"runnable", "executing", "awaiting_signal", "awaiting_children"}
	})[0]
	for round := range 2 {
		trips.take()
		byID, err := s.Explain(ctx, s.pool, id)
		if err != nil || byID == nil || byID.ID != id {
			t.Fatalf("%+v, %v", byID, err)
		}
		if got := trips.take(); round > 0 && got != 1 {
			t.Errorf("took %d round trips", got)
		}
		byKey, err := s.ExplainByKey(ctx, s.pool, "k")
		if err != nil || byKey == nil || byKey.ID != id {
			t.Fatalf("%+v, %v", byKey, err)
		}
		if got := trips.take(); got != 1 {
			t.Errorf("by key it took %d round trips", got)
		}
		none, err := s.ExplainByKey(ctx, s.pool, "nobody")
		if err != nil || none != nil {
			t.Errorf("of nothing it says %+v, %v", none, err)
		}
	}
}
