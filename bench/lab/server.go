// Package lab is where systems are measured: one Postgres server with the same settings for all, a fresh database for
// each trial, and meters of what a trial costs.
package lab

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable/internal/devpg"
)

// settings are the server's, the same for every system. Nothing here trades durability: fsync, full_page_writes and
// synchronous_commit stay on. The rest keeps checkpoints and the cache from adding noise to runs of seconds.
var settings = map[string]string{
	"shared_buffers":     "1GB",
	"max_wal_size":       "16GB",
	"min_wal_size":       "2GB",
	"checkpoint_timeout": "1h",
	"wal_buffers":        "64MB",
	"fsync":              "on",
	"full_page_writes":   "on",
	"synchronous_commit": "on",
	"autovacuum":         "on",
	"track_io_timing":    "off",
}

// Server is the Postgres of one benchmark run.
type Server struct {
	pg    *devpg.Server
	admin *pgxpool.Pool
	next  atomic.Int64
	// statements says whether pg_stat_statements is loaded. It costs a few percent, so only a profile asks for it.
	statements bool
}

// Start starts a server. Statements asks for pg_stat_statements. The server must not be one that the environment names:
// its CPU time could not be read, and its settings are not ours.
func Start(ctx context.Context, statements bool) (*Server, error) {
	set := map[string]string{}
	for k, v := range settings {
		set[k] = v
	}
	if statements {
		set["shared_preload_libraries"] = "pg_stat_statements"
	}
	server, err := devpg.Start(ctx, devpg.Options{Private: true, Durable: true, Settings: set})
	if err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	cfg, err := pgxpool.ParseConfig(server.URL())
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 2
	admin, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, errors.Join(err, server.Stop(ctx))
	}
	return &Server{pg: server, admin: admin, statements: statements}, nil
}

// Stop ends the server and removes its data.
func (s *Server) Stop(ctx context.Context) error {
	s.admin.Close()
	return s.pg.Stop(ctx)
}

// Database is a fresh database for one trial.
type Database struct {
	Server *Server
	Name   string
	URL    string
	// Pool is the workload's own, to look with. Systems open theirs, so that their connections are gone when they stop.
	Pool *pgxpool.Pool
}

// Database creates one and makes the server forget the previous trial as far as that is possible: dirty pages are on
// disk before the trial begins.
func (s *Server) Database(ctx context.Context) (*Database, error) {
	name := fmt.Sprintf("trial_%d", s.next.Add(1))
	if _, err := s.admin.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return nil, fmt.Errorf("lab: create the trial's database: %w", err)
	}
	u, err := url.Parse(s.pg.URL())
	if err != nil {
		return nil, err
	}
	u.Path = "/" + name
	cfg, err := pgxpool.ParseConfig(u.String())
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 2
	cfg.ConnConfig.RuntimeParams["application_name"] = "bench"
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	d := &Database{Server: s, Name: name, URL: u.String(), Pool: pool}
	if s.statements {
		if _, err := pool.Exec(ctx, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements"); err != nil {
			return nil, errors.Join(fmt.Errorf("lab: pg_stat_statements: %w", err), d.Drop(ctx))
		}
	}
	return d, nil
}

// Attach is a database that another process has made.
func Attach(raw string) (*Database, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, err
	}
	return &Database{Name: strings.TrimPrefix(u.Path, "/"), URL: raw}, nil
}

// Settle prepares for the measured part: statistics of what was loaded, and a checkpoint.
func (d *Database) Settle(ctx context.Context) error {
	if _, err := d.Pool.Exec(ctx, "ANALYZE"); err != nil {
		return err
	}
	_, err := d.Server.admin.Exec(ctx, "CHECKPOINT")
	return err
}

// Drop closes the pool and drops the database.
func (d *Database) Drop(ctx context.Context) error {
	d.Pool.Close()
	_, err := d.Server.admin.Exec(ctx, "DROP DATABASE IF EXISTS "+d.Name+" WITH (FORCE)")
	return err
}

// Now is the time of the server's clock: the clock of the completion times that are read from rows.
func (d *Database) Now(ctx context.Context) (t time.Time, err error) {
	err = d.Pool.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&t)
	return t, err
}

// Open opens a pool of a system on the trial's database.
func (d *Database) Open(ctx context.Context, conns int32) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(d.URL)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = conns
	return pgxpool.NewWithConfig(ctx, cfg)
}

// Statement is one line of a profile of the server.
type Statement struct {
	Calls, Rows, WAL int64
	Millis           float64
	Query            string
}

// Top returns the statements that took the server longest in this database since the last Reset, at most n. It returns
// nothing unless the server was started with statements.
func (d *Database) Top(ctx context.Context, n int) ([]Statement, error) {
	if !d.Server.statements {
		return nil, nil
	}
	rows, err := d.Pool.Query(ctx, `
		SELECT calls, rows, wal_bytes::bigint AS wal, total_exec_time + total_plan_time AS millis,
		       regexp_replace(left(query, 300), '\s+', ' ', 'g') AS query
		  FROM pg_stat_statements
		 WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
		 ORDER BY 4 DESC LIMIT $1`, n)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Statement])
}

// Reset forgets the statements so far.
func (d *Database) Reset(ctx context.Context) error {
	if !d.Server.statements {
		return nil
	}
	_, err := d.Pool.Exec(ctx, "SELECT pg_stat_statements_reset()")
	return err
}
