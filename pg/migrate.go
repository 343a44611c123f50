package pg

import (
	"bytes"
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// LatestVersion is the migration that this release needs: 1 is the original engine's schema, the later ones add ours.
const LatestVersion = 6

// ownVersion is the mark of our part of the schema when it is up to date, firstOwn the oldest that there is.
var ownVersion = strconv.Itoa(LatestVersion)

const firstOwn = 2

// ownMark reads the mark of our part; ok says that this release knows it.
func ownMark(mark string) (version int, ok bool) {
	version, err := strconv.Atoi(mark)
	return version, err == nil && version >= firstOwn && version <= LatestVersion
}

// outdated reports whether the mark is of an earlier release, which the migrator brings up to date.
func outdated(mark string) bool {
	version, known := ownMark(mark)
	return known && version < LatestVersion
}

// Migrator creates, adopts and removes the tables in one schema. It is safe for concurrent use, also by many processes
// at once: they take turns.
type Migrator struct {
	pool   *pgxpool.Pool
	schema string
}

// NewMigrator returns a migrator that connects the way the pool does, with two connections of its own while it works.
// An empty schema means the current schema of the pool's connections; a named one is created if it is missing.
func NewMigrator(pool *pgxpool.Pool, schema string) *Migrator {
	return &Migrator{pool: pool, schema: schema}
}

// Migrate brings the current schema of the pool's connections up to date: NewMigrator(pool, "").Up(ctx).
func Migrate(ctx context.Context, pool *pgxpool.Pool) error { return NewMigrator(pool, "").Up(ctx) }

// Up brings the schema to LatestVersion, each migration in a transaction of its own. It adopts the tables of the original
// engine at its schema version 3, and returns an error without touching anything if they carry another mark.
func (m *Migrator) Up(ctx context.Context) error {
	return m.exclusively(ctx, func(schema string, p *goose.Provider, _ *sql.DB) error {
		if _, err := p.Up(ctx); err != nil {
			return fmt.Errorf("pg: migrate schema %q: %w", schema, err)
		}
		return nil
	})
}

// Down takes the schema back to the version given: 1 removes what this engine added, 0 removes every table with all
// that is in it, those of an adopted database too.
func (m *Migrator) Down(ctx context.Context, to int) error {
	if to < 0 || to > LatestVersion {
		return fmt.Errorf("pg: there is no migration %d; choose 0 to %d", to, LatestVersion)
	}
	return m.exclusively(ctx, func(schema string, p *goose.Provider, db *sql.DB) error {
		// What was applied by hand from the printed SQL is not on record: put it there first.
		if _, err := p.UpTo(ctx, m.recorded(ctx, schema)); err != nil {
			return fmt.Errorf("pg: record the state of schema %q: %w", schema, err)
		}
		if _, err := p.DownTo(ctx, int64(to)); err != nil {
			return fmt.Errorf("pg: migrate schema %q down to %d: %w", schema, to, err)
		}
		if to > 0 {
			return nil
		}
		if _, err := db.ExecContext(ctx, "DROP TABLE IF EXISTS "+versionTable(schema)); err != nil {
			return fmt.Errorf("pg: drop the version table of schema %q: %w", schema, err)
		}
		return nil
	})
}

// Version returns the version of the schema: 0 without tables, 1 with the original's only, LatestVersion when ready; in
// between, that of an earlier release. It
// reads the marks on the tables, so it is right however the migrations were applied.
func (m *Migrator) Version(ctx context.Context) (int, error) {
	schema, err := resolveSchema(ctx, m.pool, m.schema)
	if err != nil {
		return 0, err
	}
	original, own, err := readMarks(ctx, m.pool, schema)
	version, known := ownMark(own)
	switch {
	case err != nil:
		return 0, err
	case original == "":
		return 0, nil
	case original == originalVersion && own == "":
		return 1, nil
	case original == originalVersion && known:
		return version, nil
	}
	return 0, fmt.Errorf("schema %q (marks %s/%s): %w", schema, original, own, ErrWrongVersion)
}

// recorded is the version that goose's record must show for the schema as it is; at least 1, its lowest.
func (m *Migrator) recorded(ctx context.Context, schema string) int64 {
	v, err := (&Migrator{pool: m.pool, schema: schema}).Version(ctx)
	if err != nil {
		return LatestVersion
	}
	return int64(max(v, 1))
}

// MigrationSQL returns the statements that the migrator would run, for those who migrate with a tool of their own: up
// from nothing (or from the original's version 3), down to nothing. An empty schema means public; the schema must
// exist. Each text is meant to run in one transaction, by one session at a time.
func MigrationSQL(schema string) (up, down string, err error) {
	if schema == "" {
		schema = "public"
	}
	if err := checkSchema(schema); err != nil {
		return "", "", err
	}
	files, err := fs.Glob(migrationFiles, "migrations/*.sql")
	if err != nil {
		return "", "", fmt.Errorf("pg: list the migrations: %w", err)
	}
	for _, file := range files {
		raw, err := migrationFiles.ReadFile(file)
		if err != nil {
			return "", "", fmt.Errorf("pg: read %s: %w", file, err)
		}
		u, d, _ := strings.Cut(string(raw), "-- +goose Down\n")
		up = up + printable(u, schema) + ";\n"
		down = printable(d, schema) + ";\n" + down
	}
	return up, down, nil
}

func printable(section, schema string) string { return inSchema(stripComments(section), schema) }

// exclusively runs fn with a provider for the schema while no other migrator works on it. The lock is one of a
// transaction on a second connection: it goes with the connection, and it works behind a transaction-pooling proxy.
func (m *Migrator) exclusively(ctx context.Context, fn func(string, *goose.Provider, *sql.DB) error) (err error) {
	schema, err := resolveSchema(ctx, m.pool, m.schema)
	if err != nil {
		return err
	}
	db := m.connect()
	defer func() { err = errors.Join(err, db.Close()) }()
	lock, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("pg: connect to migrate: %w", err)
	}
	defer func() { _ = lock.Rollback() }() // it wrote nothing; a lost connection ends it as well
	// The lock is waited for, and then held by a session that does nothing else, for as long as that takes.
	if _, err := lock.ExecContext(ctx, `SELECT set_config(name, '0', true)
		  FROM unnest('{lock_timeout,statement_timeout,idle_in_transaction_session_timeout}'::text[]) AS name`); err != nil {
		return fmt.Errorf("pg: prepare to wait for other migrators: %w", err)
	}
	if _, err := lock.ExecContext(ctx, `SELECT pg_advisory_xact_lock(hashtext('gen_durable migrations'), hashtext($1))`, schema); err != nil {
		return fmt.Errorf("pg: wait for other migrators of schema %q: %w", schema, err)
	}
	if err := refuseStrangers(ctx, m.pool, schema); err != nil {
		return err
	}
	if err := ensureSchema(ctx, db, schema); err != nil {
		return err
	}
	provider, err := newProvider(db, schema)
	if err != nil {
		return err
	}
	return fn(schema, provider, db)
}

// connect opens a database/sql handle that connects as the pool does.
func (m *Migrator) connect() *sql.DB {
	cfg := m.pool.Config()
	var opts []stdlib.OptionOpenDB
	if cfg.BeforeConnect != nil {
		opts = append(opts, stdlib.OptionBeforeConnect(cfg.BeforeConnect))
	}
	return stdlib.OpenDB(*cfg.ConnConfig, opts...)
}

// refuseStrangers returns an error if the tables carry a mark that this release neither adopts nor has made.
func refuseStrangers(ctx context.Context, db DB, schema string) error {
	original, own, err := readMarks(ctx, db, schema)
	if err != nil {
		return err
	}
	if _, known := ownMark(own); original != "" && original != originalVersion || own != "" && !known {
		return fmt.Errorf("schema %q (marks %s/%s, this release adopts and makes %s/%s): %w",
			schema, original, own, originalVersion, ownVersion, ErrWrongVersion)
	}
	return nil
}

func ensureSchema(ctx context.Context, db *sql.DB, schema string) error {
	var exists bool
	err := db.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)`, schema).Scan(&exists)
	if err == nil && !exists {
		_, err = db.ExecContext(ctx, "CREATE SCHEMA "+pgx.Identifier{schema}.Sanitize())
	}
	if err != nil {
		return fmt.Errorf("pg: create schema %q: %w", schema, err)
	}
	return nil
}

func newProvider(db *sql.DB, schema string) (*goose.Provider, error) {
	files, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		return nil, fmt.Errorf("pg: open the migrations: %w", err)
	}
	inner, err := database.NewStore(database.DialectPostgres, versionTable(schema))
	if err != nil {
		return nil, fmt.Errorf("pg: set up the version table: %w", err)
	}
	p, err := goose.NewProvider(goose.DialectCustom, db, schemaFS{files, schema},
		goose.WithStore(versionStore{inner}), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return nil, fmt.Errorf("pg: set up the migrations: %w", err)
	}
	return p, nil
}

func versionTable(schema string) string {
	return pgx.Identifier{schema, "gen_durable_migrations"}.Sanitize()
}

// versionStore is goose's Postgres store for a table whose name is quoted already, which goose's own check for the
// table's existence would take apart at the first dot.
type versionStore struct{ database.Store }

func (v versionStore) TableExists(ctx context.Context, db database.DBTxConn) (bool, error) {
	var exists bool
	err := db.QueryRowContext(ctx, `SELECT to_regclass($1) IS NOT NULL`, v.Tablename()).Scan(&exists)
	return exists, err
}

// schemaFS serves the migrations with the schema in place. Each section is one statement to goose, so that no name can
// confuse its search for the ends of statements.
type schemaFS struct {
	fs.FS
	schema string
}

func (f schemaFS) Open(name string) (fs.File, error) {
	file, err := f.FS.Open(name)
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err != nil || info.IsDir() {
		return file, err
	}
	raw, err := io.ReadAll(file)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return rewritten{file, bytes.NewReader([]byte(inSchema(string(raw), f.schema)))}, nil
}

type rewritten struct {
	fs.File
	content *bytes.Reader
}

func (r rewritten) Read(p []byte) (int, error) { return r.content.Read(p) }
