package pg

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable/limiter"
	"github.com/gendurable/gendurable/limiter/limitertest"
)

// claimGated puts a row as the claim of a gated one leaves it.
func claimGated(t testing.TB, s *Store, worker, gate string) (id int64, claim int) {
	t.Helper()
	err := s.pool.QueryRow(testContext(t), `
		INSERT INTO gen_durable (fsm, step, status, locked_by, lease_expires_at, concurrency_key, concurrency_shard, claims)
		VALUES ('m', 'a', 'executing', $1, now() + interval '1 h', nullif($2, ''), CASE WHEN $2 <> '' THEN $3::smallint END, 7)
		RETURNING id, claims`, worker, gate, ProvisionalShard).Scan(&id, &claim)
	if err != nil {
		t.Errorf("claim a row: %v", err)
	}
	return id, claim
}

// endGated ends a row's execution as a flush does, and returns the id of the transaction.
func endGated(t testing.TB, s *Store, id int64) uint64 {
	t.Helper()
	var mark int64
	err := s.pool.QueryRow(testContext(t), `
		UPDATE gen_durable SET status = 'done', concurrency_shard = NULL, locked_by = NULL, lease_expires_at = NULL
		 WHERE id = $1 RETURNING pg_current_xact_id()::text::bigint`, id).Scan(&mark)
	if err != nil {
		t.Errorf("end row %d: %v", id, err)
	}
	return uint64(mark)
}

// process opens the Store as another process does.
func process(t testing.TB, s *Store) *Store {
	t.Helper()
	cfg := s.pool.Config()
	cfg.MaxConns = 2
	pool, err := pgxpool.NewWithConfig(testContext(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	own := *s
	own.pool = pool
	return &own
}

func TestLimiter(t *testing.T) {
	s := patient(t, open(t))
	limitertest.Run(t, func(t *testing.T) limitertest.Backend {
		exec(t, s, `TRUNCATE gen_durable, gen_durable_buckets, gen_durable_bucket_configs CASCADE`)
		t.Cleanup(func() {
			if n := value[int](t, s, `SELECT count(*)::int FROM gen_durable_buckets WHERE kind = 'conc' AND counted IS NULL`); n > 0 {
				t.Errorf("%d shards of gates were never counted", n)
			}
		})
		return limitertest.Backend{
			Limiter: s.NewLimiter(),
			Truth:   true,
			Peer:    func(t *testing.T) limiter.Limiter { return process(t, s).NewLimiter() },
			Claim:   func(t *testing.T, worker, gate string) (int64, int) { return claimGated(t, s, worker, gate) },
			End:     func(t *testing.T, id int64) uint64 { return endGated(t, s, id) },
		}
	})
}
