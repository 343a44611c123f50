package pg

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// move is one named thing that a session of a script does. s is the Store on the session's only connection; db is that
// connection, or the transaction that the session has open (then s must not be asked to run anything on its own).
type move func(ctx context.Context, s *Store, db DB) error

// interleave plays a script of several database sessions, whose locks are really held. Each line is
//
//	<session> <move> [returns | blocks | fails <SQLSTATE>]
//
// The moves begin, commit and rollback open and end a transaction of the session. A move that blocks is seen waiting
// for another session's lock before the script goes on; later, "<session> resumes [fails <SQLSTATE>]" expects that it
// has come to its end. Nothing may be left blocked when the script ends.
func interleave(t *testing.T, s *Store, moves map[string]move, script string) {
	t.Helper()
	unanalyzed(t, s)
	st := &stage{t: t, store: s, moves: moves, sessions: map[string]*session{}, watcher: onConn(t, s, "watcher")}
	for line := range strings.Lines(script) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if len(words) == 1 {
			t.Fatalf("script line %q: expected a session and a move", strings.TrimSpace(line))
		}
		st.line = strings.Join(words, " ")
		st.play(words[0], words[1], words[2:])
	}
	for name, se := range st.sessions {
		if se.running != nil {
			t.Errorf("session %s is still blocked at the end of the script", name)
		}
	}
}

// unanalyzed keeps the plans as they are for tables that are not tiny, and with them the order in which a flush takes its rows, which
// scripts count on: after an ANALYZE of a handful of rows the planner drives from the table. See ISSUES 100.
func unanalyzed(t *testing.T, s *Store) {
	t.Helper()
	exec(t, s, `ALTER TABLE gen_durable SET (autovacuum_enabled = off)`)
}

type stage struct {
	t        *testing.T
	store    *Store
	moves    map[string]move
	sessions map[string]*session
	watcher  *Store
	line     string
}

type session struct {
	store   *Store // on a pool of one connection
	tx      pgx.Tx
	running chan error // Invariant: non-nil exactly while a move is blocked
}

func (st *stage) play(name, what string, expected []string) {
	st.t.Helper()
	se := st.sessions[name]
	if se == nil {
		se = &session{store: onConn(st.t, st.store, name)}
		st.sessions[name] = se
	}
	if what == "resumes" {
		if se.running == nil {
			st.t.Fatalf("%s: nothing is blocked there", st.line)
		}
		st.await(se, expected)
		return
	}
	if se.running != nil {
		st.t.Fatalf("%s: the session is still blocked in an earlier move", st.line)
	}
	se.running = make(chan error, 1)
	do := st.move(se, what)
	go func(done chan<- error) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		done <- do(ctx)
	}(se.running)
	if len(expected) > 0 && expected[0] == "blocks" {
		st.awaitBlocked(name, se)
		return
	}
	st.await(se, expected)
}

func (st *stage) move(se *session, what string) func(context.Context) error {
	switch what {
	case "begin":
		return func(ctx context.Context) (err error) {
			// The transaction outlives this move, and its context must too.
			se.tx, err = se.store.pool.Begin(context.WithoutCancel(ctx))
			return err
		}
	case "commit", "rollback":
		return func(ctx context.Context) error {
			tx := se.tx
			se.tx = nil
			if what == "commit" {
				return tx.Commit(ctx)
			}
			return tx.Rollback(ctx)
		}
	}
	do, ok := st.moves[what]
	if !ok {
		st.t.Fatalf("%s: there is no move %q", st.line, what)
	}
	var db DB = se.store.pool
	if se.tx != nil {
		db = se.tx
	}
	return func(ctx context.Context) error { return do(ctx, se.store, db) }
}

// await expects the session's move to come to its end.
func (st *stage) await(se *session, expected []string) {
	st.t.Helper()
	var err error
	select {
	case err = <-se.running:
	case <-time.After(patience):
		st.t.Fatalf("%s: it did not come to its end", st.line)
	}
	se.running = nil
	var pgErr *pgconn.PgError
	switch {
	case len(expected) == 2 && expected[0] == "fails":
		if !errors.As(err, &pgErr) || pgErr.Code != expected[1] {
			st.t.Fatalf("%s: it ended with %v", st.line, err)
		}
	case err != nil:
		st.t.Fatalf("%s: %v", st.line, err)
	case len(expected) > 0 && (len(expected) > 1 || expected[0] != "returns"):
		st.t.Fatalf("%s: cannot expect %q", st.line, expected)
	}
}

// awaitBlocked expects the session's move to be waiting for a lock that another session holds.
func (st *stage) awaitBlocked(name string, se *session) {
	st.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		select {
		case err := <-se.running:
			se.running <- err
			st.t.Fatalf("%s: it did not block (it ended with %v)", st.line, err)
		default:
		}
		if value[bool](st.t, st.watcher, `
			SELECT EXISTS (SELECT FROM pg_stat_activity
			                WHERE datname = current_database() AND application_name = $1 AND wait_event_type = 'Lock'
			                  AND cardinality(pg_blocking_pids(pid)) > 0)`, appName(name)) {
			return
		}
	}
	st.t.Fatalf("%s: it neither blocked nor ended", st.line)
}

func appName(session string) string { return "session " + session }

// onConn returns the Store on a connection of its own that waits for locks as long as it takes.
func onConn(t *testing.T, s *Store, name string) *Store {
	t.Helper()
	cfg := s.pool.Config()
	cfg.MaxConns = 1
	params := maps.Clone(engineSettings)
	cfg.AfterConnect = nil // it would set the lock_timeout as well
	params["application_name"], params["lock_timeout"] = appName(name), "0"
	cfg.ConnConfig.RuntimeParams = params
	pool, err := pgxpool.NewWithConfig(testContext(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeSession(t, pool, name) })
	own := *s
	own.pool = pool
	return &own
}

// closeSession ends a session's connection, also when a failed script left it blocked or in a transaction.
func closeSession(t *testing.T, pool *pgxpool.Pool, name string) {
	cfg := pool.Config().ConnConfig
	conn, err := pgx.ConnectConfig(context.Background(), cfg)
	if err != nil {
		t.Error(fmt.Errorf("end session %s: %w", name, err))
		return
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(context.Background(), `
		SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		 WHERE datname = current_database() AND application_name = $1 AND pid <> pg_backend_pid()`, appName(name)); err != nil {
		t.Error(fmt.Errorf("end session %s: %w", name, err))
	}
}

func TestInterleaveSeesLocks(t *testing.T) {
	t.Parallel()
	s := open(t)
	exec(t, s, `CREATE TABLE stage (id int PRIMARY KEY, n int NOT NULL); INSERT INTO stage VALUES (1, 0)`)
	add := func(ctx context.Context, _ *Store, db DB) error {
		_, err := db.Exec(ctx, `UPDATE stage SET n = n + 1 WHERE id = 1`)
		return err
	}
	again := func(ctx context.Context, _ *Store, db DB) error {
		_, err := db.Exec(ctx, `INSERT INTO stage VALUES (2, 0)`)
		return err
	}
	interleave(t, s, map[string]move{"add": add, "again": again}, `
		one  begin
		one  add
		two  begin
		two  add     blocks
		one  commit
		two  resumes
		two  again
		one  again   blocks
		two  commit
		one  resumes fails 23505
	`)
	if n := value[int](t, s, `SELECT n FROM stage WHERE id = 1`); n != 2 {
		t.Errorf("the counter is %d, expected 2", n)
	}
}
