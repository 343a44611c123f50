package pg

import (
	"context"
	"fmt"
	"maps"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// engineSettings are the session settings of the engine's own connections. They would be wrong on the host's: they
// suit exactly our statements, which are prepared once, touch few rows, and always by an index.
var engineSettings = map[string]string{
	"application_name": "gendurable",
	// A row held by a caller's open transaction must not hold a flush of innocent rows (they are tried again alone).
	"lock_timeout": "200ms",
	// One plan a statement, whatever the array sizes: the custom plans of the first runs would be costed by the sizes
	// seen then. The statements are written for the nested loop over an index; the tables' statistics, which never
	// show the few live rows among the terminal millions, talk the planner out of it.
	"plan_cache_mode":  "force_generic_plan",
	"enable_hashjoin":  "off",
	"enable_mergejoin": "off",
	"enable_seqscan":   "off",
	"jit":              "off",
	// The server notices a vanished node in about a minute instead of two hours, and drops its locks.
	"tcp_keepalives_idle":     "20",
	"tcp_keepalives_interval": "10",
	"tcp_keepalives_count":    "3",
}

// EnginePool opens a pool for the engine's own statements: the host's configuration, at most maxConns connections, and
// session settings that suit these statements. A host whose connections use no prepared statements (a
// transaction-pooling proxy) gets no session settings, because such a proxy refuses or mixes them up. The caller
// closes the pool.
func EnginePool(ctx context.Context, host *pgxpool.Pool, maxConns int32) (*pgxpool.Pool, error) {
	cfg := host.Config()
	cfg.MaxConns = max(maxConns, 1)
	cfg.MinConns, cfg.MinIdleConns = 0, 0
	switch cfg.ConnConfig.DefaultQueryExecMode {
	case pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe:
		if cfg.ConnConfig.RuntimeParams == nil {
			cfg.ConnConfig.RuntimeParams = map[string]string{}
		}
		maps.Copy(cfg.ConnConfig.RuntimeParams, engineSettings)
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("pg: open the engine's pool: %w", err)
	}
	return pool, nil
}
