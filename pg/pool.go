package pg

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// engineSettings are the session settings of the engine's own connections. They would be wrong on the host's: they
// suit exactly our statements, which are prepared once, touch few rows, and always by an index.
var engineSettings = map[string]string{
	"application_name": "gendurable",
	// The statements look again under the locks they hold, and what they cannot see there is lost: a park under an older
	// snapshot sleeps on a signal. Roles and databases may have other defaults.
	"default_transaction_isolation": readCommitted,
	"default_transaction_read_only": "off",
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

const readCommitted = "read committed"

// flushSettings are those engineSettings that a flush needs where sessions cannot have settings; it makes them local to
// its transaction. See session_settings.
var flushSettings = []string{"lock_timeout", "enable_hashjoin", "enable_mergejoin", "enable_seqscan", "jit"}

// EnginePool opens a pool for the engine's own statements: the host's configuration, at most maxConns connections, and
// session settings that suit these statements. A host whose connections use no named statements (a transaction-pooling
// proxy) gets no session settings, because such a proxy refuses or mixes them up: there each flush makes the few it needs
// local to its transaction, and EnginePool fails when the role's own defaults do not fit. Of the modes without named
// statements the pool uses cache_describe, whichever the host's is. The caller closes the pool.
func EnginePool(ctx context.Context, host *pgxpool.Pool, maxConns int32) (*pgxpool.Pool, error) {
	cfg := host.Config()
	cfg.MaxConns = max(maxConns, 1)
	cfg.MinConns, cfg.MinIdleConns = 0, 0
	if namesStatements(cfg) {
		withSettings(cfg)
	} else {
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
		if cfg.ConnConfig.DescriptionCacheCapacity == 0 {
			cfg.ConnConfig.DescriptionCacheCapacity = 512
		}
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("pg: open the engine's pool: %w", err)
	}
	if !namesStatements(cfg) {
		if err := checkDefaults(ctx, pool); err != nil {
			pool.Close()
			return nil, err
		}
	}
	return pool, nil
}

// namesStatements reports whether connections keep state that belongs to us alone: then they may have settings as well.
func namesStatements(cfg *pgxpool.Config) bool {
	return cfg.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement
}

// withSettings gives each session our settings once it stands, behind whatever a hook of the host's sets. As startup
// parameters they would be refused by a proxy, or worse, ignored.
func withSettings(cfg *pgxpool.Config) {
	hook := cfg.AfterConnect
	names := slices.Collect(maps.Keys(engineSettings))
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if hook != nil {
			if err := hook(ctx, conn); err != nil {
				return err
			}
		}
		if _, err := conn.Exec(ctx, `SELECT set_config(name, value, false) FROM unnest($1::text[], $2::text[]) AS u(name, value)`,
			pgx.QueryExecModeExec, names, valuesOf(names)); err != nil {
			return fmt.Errorf("pg: make the engine's session settings: %w", err)
		}
		return nil
	}
}

func valuesOf(names []string) []string {
	values := make([]string, len(names))
	for i, name := range names {
		values[i] = engineSettings[name]
	}
	return values
}

// checkDefaults refuses a role whose transactions are not what the statements need, where no setting of ours can help.
func checkDefaults(ctx context.Context, pool *pgxpool.Pool) error {
	var isolation, readOnly string
	err := pool.QueryRow(ctx, `SELECT current_setting('default_transaction_isolation'), current_setting('default_transaction_read_only')`).
		Scan(&isolation, &readOnly)
	if err != nil {
		return fmt.Errorf("pg: read the role's defaults: %w", err)
	}
	if isolation != readCommitted || readOnly != "off" {
		return errors.New("pg: the engine's transactions must be read committed and may write, but this role's are " + isolation +
			", read only: " + readOnly + "; ALTER ROLE ... SET default_transaction_isolation = 'read committed' and " +
			"default_transaction_read_only = off, or give the engine a pool with named statements (cache_statement), where it sets them itself")
	}
	return nil
}
