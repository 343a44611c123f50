package pg

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable/limiter"
)

// originalVersion is the version mark of the original's part of the schema that Open accepts; ownVersion is that of ours.
const originalVersion = "3"

// ErrNotMigrated says that the schema lacks the engine's tables or some of their newer columns.
var ErrNotMigrated = errors.New("pg: the schema is not migrated; run the migrator (Up), or apply its printed SQL")

// ErrWrongVersion says that the schema carries the version mark of a release that this one does not know.
var ErrWrongVersion = errors.New("pg: the schema has a version this release does not know; use the release that fits it, or another schema")

// Options configure a Store.
type Options struct {
	// Schema is where the tables are. Empty: the current schema of the pool's connections.
	Schema string
	// Engine is the engine's instance name, the first part of every claim identity. It contains no ':' and no '@'.
	// Empty: "gendurable".
	Engine string
	// Interoperable says that nodes of the original engine share the tables: new rows are marked as if they might
	// have signals and children already, because the other engine does not keep our marks.
	Interoperable bool
	// Freed is told of the slots of gates that rows held until ReapLeases, ReclaimStale, RegisterNode or Release took them
	// from their workers, after that is durable: they are to be credited to the limiter. It must not block. May be nil:
	// then the reconciler finds them.
	Freed func([]limiter.Release)
	// ForeignLimiter says that another limiter than the Store's own admits the rows. That one stamps no shard on them, so
	// Freed is told of every gated row that was taken, with a negative Shard: only the limiter knows which had a slot.
	ForeignLimiter bool
	// Historic are the machines that keep a history, as far as this process knows: a Cancel adds to it.
	Historic []string
}

// Store runs the engine's statements on one schema. It is safe for concurrent use.
type Store struct {
	pool          *pgxpool.Pool // nil in a store that OpenOn made on something else
	other         DB            // that; nil with a pool
	schema        string
	engine        string
	interoperable bool
	sessionless   bool // the pool's sessions may have no settings; see EnginePool
	freed         func([]limiter.Release)
	foreign       bool // another limiter admits; see Options
	// The sequences behind gen_durable.id and signals.id, qualified and quoted.
	idSequence, signalSequence string

	text map[string]string // statement texts by name, ready to send

	historic []string                   // Invariant: never nil
	forgot   *atomic.Pointer[time.Time] // the request id up to which CollectSideTables has deleted; nil = it begins at the start
	looked   *atomic.Int64              // the instance up to which CollectSideTables has looked through the histories
}

// Open checks that the schema is migrated and prepares the statement texts. The pool is the one that the engine's own
// statements run on; the caller keeps owning it. It returns an error that wraps ErrNotMigrated or ErrWrongVersion when
// the schema does not fit.
func Open(ctx context.Context, pool *pgxpool.Pool, o Options) (*Store, error) {
	s, err := OpenOn(ctx, pool, o)
	if err != nil {
		return nil, err
	}
	s.sessionless = !namesStatements(pool.Config())
	return s, nil
}

// OpenOn is Open for a store whose claims, sweeps, flushes and reads run on db, without any settings: a caller's transaction
// or connection, for one goroutine, which then pays for the plans that its session makes. In a transaction now() stands still,
// an error ends it all, and there must be no savepoint (see CheckTop). What only a running engine needs (nodes, limits,
// notices, garbage collection) is not for such a store.
func OpenOn(ctx context.Context, db DB, o Options) (*Store, error) {
	if o.Engine == "" {
		o.Engine = "gendurable"
	}
	if strings.ContainsAny(o.Engine, ":@\x00") {
		return nil, fmt.Errorf("pg: the engine name %q contains ':', '@' or NUL; choose another", o.Engine)
	}
	schema, err := resolveSchema(ctx, db, o.Schema)
	if err != nil {
		return nil, err
	}
	original, own, err := readMarks(ctx, db, schema)
	if err != nil {
		return nil, err
	}
	switch {
	case original == "" || original == originalVersion && (own == "" || outdated(own)):
		return nil, fmt.Errorf("schema %q: %w", schema, ErrNotMigrated)
	case original != originalVersion || own != ownVersion:
		return nil, fmt.Errorf("schema %q (marks %s/%s, expected %s/%s): %w",
			schema, original, own, originalVersion, ownVersion, ErrWrongVersion)
	}
	s := &Store{
		schema: schema, engine: o.Engine, interoperable: o.Interoperable, text: loadStatements(schema),
		freed: o.Freed, foreign: o.ForeignLimiter, historic: append([]string{}, o.Historic...), looked: new(atomic.Int64),
		forgot: new(atomic.Pointer[time.Time]),
	}
	if pool, ok := db.(*pgxpool.Pool); ok {
		s.pool = pool
	} else {
		s.other = db
	}
	err = db.QueryRow(ctx, `SELECT pg_get_serial_sequence($1, 'id'), pg_get_serial_sequence($2, 'id')`,
		pgx.Identifier{schema, "gen_durable"}.Sanitize(), pgx.Identifier{schema, "signals"}.Sanitize(),
	).Scan(&s.idSequence, &s.signalSequence)
	if err != nil {
		return nil, fmt.Errorf("pg: find the identity sequences in schema %q: %w", schema, err)
	}
	return s, nil
}

// db is what claims, sweeps, flushes and reads run on.
func (s *Store) db() DB {
	if s.pool == nil {
		return s.other
	}
	return s.pool
}

// Schema returns the schema that holds the tables, unquoted.
func (s *Store) Schema() string { return s.schema }

// sql returns the text of the statement in sql/<name>.sql. An unknown name is a mistake in this package.
func (s *Store) sql(name string) string {
	text, ok := s.text[name]
	if !ok {
		panic("pg: no statement " + name)
	}
	return text
}

// resolveSchema returns the schema to use: the given one, or the current one of the pool's connections.
func resolveSchema(ctx context.Context, db DB, schema string) (string, error) {
	if schema == "" {
		var current *string
		if err := db.QueryRow(ctx, "SELECT current_schema()").Scan(&current); err != nil {
			return "", fmt.Errorf("pg: find the current schema: %w", err)
		}
		if current == nil {
			return "", errors.New("pg: no schema in the connection's search_path exists; create it, or name one")
		}
		schema = *current
	}
	return schema, checkSchema(schema)
}

// readMarks returns the version marks of the original's part and of ours; empty = no such table or no mark. A
// gen_durable without a mark reads as "(none)": it is somebody's table, not a missing one.
func readMarks(ctx context.Context, db DB, schema string) (original, own string, err error) {
	err = db.QueryRow(ctx, `
		SELECT coalesce(max(coalesce(obj_description(c.oid, 'pg_class'), '(none)')) FILTER (WHERE c.relname = 'gen_durable'), ''),
		       coalesce(max(obj_description(c.oid, 'pg_class')) FILTER (WHERE c.relname = 'gen_durable_nodes'), '')
		  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		 WHERE n.nspname = $1 AND c.relname IN ('gen_durable', 'gen_durable_nodes')`, schema).Scan(&original, &own)
	if err != nil {
		return "", "", fmt.Errorf("pg: read the version marks of schema %q: %w", schema, err)
	}
	return original, own, nil
}

// onFreshPlan runs fn on db, and once more without any cached plan when the first run failed because a plan or a
// prepared statement went stale under it (a migration while nodes run, a proxy that dropped it). Inside a caller's
// transaction there is no second run: the failure has aborted it.
func onFreshPlan(ctx context.Context, db DB, fn func(DB) error) error {
	err := fn(db)
	if err == nil || !isStalePlan(err) {
		return err
	}
	switch d := db.(type) {
	case *pgxpool.Pool:
		return d.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
			if err := c.Conn().DeallocateAll(ctx); err != nil {
				return fmt.Errorf("pg: drop stale statements: %w", err)
			}
			return fn(c)
		})
	case *pgx.Conn:
		if d.PgConn().TxStatus() != 'I' {
			return err
		}
		if err := d.DeallocateAll(ctx); err != nil {
			return fmt.Errorf("pg: drop stale statements: %w", err)
		}
		return fn(d)
	}
	return err
}

// raceRetries bounds how often a transaction that lost a race is run again.
const raceRetries = 5

// atomically is onFreshPlan for an fn that is one transaction, which it runs again when that lost a race: a serialization
// failure (the host's transactions may be stricter than read committed), a deadlock, a unique key taken meanwhile. Inside
// a caller's transaction there is no second run.
func atomically(ctx context.Context, db DB, fn func(DB) error) error {
	for try := 0; ; try++ {
		err := onFreshPlan(ctx, db, fn)
		lost := isState(err, "40001") || isState(err, "40P01") || isState(err, "23505")
		if !lost || try == raceRetries || !ownTransaction(db) {
			return err
		}
	}
}

// isStalePlan reports whether a statement failed only because its cached plan or name is no longer good.
func isStalePlan(err error) bool {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return false
	}
	return e.Code == "26000" || e.Code == "0A000" && strings.Contains(e.Routine, "RevalidateCachedQuery")
}
