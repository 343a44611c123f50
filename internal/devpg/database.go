package devpg

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// testConns is the MaxConns of the pool that Database returns.
	testConns = 8

	// dbPatience bounds each step in the life of a test's database.
	dbPatience = time.Minute

	// leakPatience is how long a test's pool may take to get its connections back when the test ends.
	leakPatience = 15 * time.Second

	// lockClass is the first half of the advisory locks by which test processes show that they live.
	lockClass = 0x67640001
)

// A Migration prepares a database, for instance by creating the schema.
type Migration = func(ctx context.Context, pool *pgxpool.Pool) error

// Database gives the test an empty database of its own, prepared by the migrations in order, and a pool
// of at most 8 connections on it. When the test ends, the pool is closed and the database dropped; a
// connection that is not given back by then fails the test.
//
// The migrations run once in a test process, on a template that the databases are copied from. Each is
// recognised by its identity: pass a package-level function. A closure or a method value is a new
// function each time, and the template is made anew for it.
//
// Other connections: pool.Config().ConnString() is the URL of the database. For a larger pool, change a
// copy of the configuration and open it: c := pool.Config(); c.MaxConns = 40; pgxpool.NewWithConfig(ctx, c).
//
// All tests of a process share a server: the one that the environment names, else a private one that
// starts with the first call and ends with the process. Parallel tests, and test processes that share a
// server, do not get in each other's way.
func Database(t testing.TB, migrate ...Migration) *pgxpool.Pool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), dbPatience)
	defer cancel()
	s, err := sharedServer()
	if err != nil {
		t.Fatal(err)
	}
	template := "template0"
	if len(migrate) > 0 {
		if template, err = s.template(ctx, migrate); err != nil {
			t.Fatal(err)
		}
	}
	name := s.newName()
	if err := s.create(ctx, name, template); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.drop(name); err != nil {
			t.Error(err)
		}
	})
	pool, err := s.pool(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closePool(t, pool) })
	return pool
}

// ServerFor starts a private server for the test and stops it when the test ends. It is for tests that restart or
// kill their server; others share one through Database.
func ServerFor(t testing.TB, o Options) *Server {
	t.Helper()
	o.Private = true
	s, err := Start(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), dbPatience)
		defer cancel()
		if err := s.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return s
}

func closePool(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	closed := make(chan struct{})
	go func() {
		pool.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(leakPatience):
		t.Errorf("devpg: the test ended with %d connections of its pool still in use", pool.Stat().AcquiredConns())
	}
}

// testServer is the server that the tests of this process share.
type testServer struct {
	url   string
	token string // in the names of all our databases
	fast  bool   // without fsync: copying files beats writing every page to the log
	names atomic.Int64

	// alive holds the advisory lock that keeps other processes from sweeping our databases away. It has
	// no other use and stays open until the process ends.
	alive *pgx.Conn

	idle chan *pgx.Conn // connections to the maintenance database that nobody uses now

	mu        sync.Mutex
	templates map[string]*template
}

type template struct {
	once    sync.Once
	name    string
	err     error
	migrate []Migration // Invariant: kept, so that no other function gets the address in the map's key.
}

var sharedServer = sync.OnceValues(func() (*testServer, error) {
	ctx := context.Background()
	srv, err := Start(ctx, Options{})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dbPatience)
	defer cancel()
	var token [4]byte
	if _, err := rand.Read(token[:]); err != nil {
		return nil, err
	}
	s := &testServer{url: srv.URL(), token: hex.EncodeToString(token[:]), fast: srv.home != nil, idle: make(chan *pgx.Conn, 2), templates: map[string]*template{}}
	if s.alive, err = pgx.Connect(ctx, s.url); err != nil {
		return nil, fmt.Errorf("devpg: connect to the test server: %w", err)
	}
	if _, err := s.alive.Exec(ctx, "select pg_advisory_lock($1, $2)", int32(lockClass), lockKey(s.token)); err != nil {
		return nil, fmt.Errorf("devpg: mark this test process as alive: %w", err)
	}
	if srv.home == nil {
		if err := s.sweep(ctx); err != nil {
			return nil, fmt.Errorf("devpg: drop databases of test processes that died: %w", err)
		}
	}
	return s, nil
})

// lockKey is the token as the second half of an advisory lock.
func lockKey(token string) int32 {
	n, _ := strconv.ParseUint(token, 16, 32)
	return int32(uint32(n))
}

// sweep drops the databases of processes that ended without doing so: their lock is free.
func (s *testServer) sweep(ctx context.Context) error {
	rows, err := s.alive.Query(ctx, `select datname, substr(datname, 4, 8) from pg_database where datname ~ '^gd_[0-9a-f]{8}_' and substr(datname, 4, 8) <> $1`, s.token)
	if err != nil {
		return err
	}
	type row struct{ Name, Token string }
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		return err
	}
	for _, r := range found {
		var free bool
		if err := s.alive.QueryRow(ctx, "select pg_try_advisory_lock($1, $2)", int32(lockClass), lockKey(r.Token)).Scan(&free); err != nil {
			return err
		}
		if !free {
			continue
		}
		_, err := s.alive.Exec(ctx, "drop database if exists "+pgx.Identifier{r.Name}.Sanitize()+" with (force)")
		if _, uerr := s.alive.Exec(ctx, "select pg_advisory_unlock($1, $2)", int32(lockClass), lockKey(r.Token)); uerr != nil {
			return uerr
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *testServer) newName() string {
	return fmt.Sprintf("gd_%s_%d", s.token, s.names.Add(1))
}

// template returns the name of a database that the migrations were run on.
func (s *testServer) template(ctx context.Context, migrate []Migration) (string, error) {
	key := ""
	for _, m := range migrate {
		// The address of the function value, not of its code: two closures of one function literal
		// that captured different variables are two migrations.
		key += fmt.Sprintf("%x ", *(*uintptr)(unsafe.Pointer(&m)))
	}
	s.mu.Lock()
	t := s.templates[key]
	if t == nil {
		t = &template{name: s.newName() + "_template", migrate: slices.Clone(migrate)}
		s.templates[key] = t
	}
	s.mu.Unlock()
	t.once.Do(func() { t.err = s.migrate(ctx, t) })
	return t.name, t.err
}

func (s *testServer) migrate(ctx context.Context, t *template) error {
	if err := s.create(ctx, t.name, "template0"); err != nil {
		return err
	}
	pool, err := s.pool(ctx, t.name)
	if err != nil {
		return err
	}
	defer pool.Close()
	for _, m := range t.migrate {
		if err := m(ctx, pool); err != nil {
			return fmt.Errorf("devpg: migrate the template of the test databases: %w", err)
		}
	}
	return nil
}

// create makes a database. A template whose last connection is only just closing makes the server say
// that it is in use, after it waited for a while itself.
func (s *testServer) create(ctx context.Context, name, template string) error {
	statement := "create database " + pgx.Identifier{name}.Sanitize() + " template " + pgx.Identifier{template}.Sanitize()
	if s.fast {
		statement += " strategy file_copy"
	}
	for {
		err := s.exec(ctx, statement)
		var pgErr *pgconn.PgError
		if errors.As(err, &pgErr) && pgErr.Code == "55006" && pause(ctx, pollInterval) == nil {
			continue
		}
		if err != nil {
			return fmt.Errorf("devpg: create a test database: %w", err)
		}
		return nil
	}
}

func (s *testServer) drop(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), dbPatience)
	defer cancel()
	if err := s.exec(ctx, "drop database if exists "+pgx.Identifier{name}.Sanitize()+" with (force)"); err != nil {
		return fmt.Errorf("devpg: drop a test database: %w", err)
	}
	return nil
}

// exec runs one statement on the maintenance database, on a connection that an earlier call left or on a
// new one. A pool of pgx would leave a goroutine behind in tests that look for leaks.
func (s *testServer) exec(ctx context.Context, statement string) error {
	var conn *pgx.Conn
	select {
	case conn = <-s.idle:
	default:
		var err error
		if conn, err = pgx.Connect(ctx, s.url); err != nil {
			return err
		}
	}
	_, err := conn.Exec(ctx, statement)
	if !conn.IsClosed() {
		select {
		case s.idle <- conn:
			return err
		default:
		}
	}
	conn.Close(context.WithoutCancel(ctx))
	return err
}

func (s *testServer) pool(ctx context.Context, database string) (*pgxpool.Pool, error) {
	u, err := withDatabase(s.url, database)
	if err != nil {
		return nil, err
	}
	c, err := pgxpool.ParseConfig(u)
	if err != nil {
		return nil, fmt.Errorf("devpg: configure a pool: %w", err)
	}
	c.MaxConns = testConns
	pool, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("devpg: open a pool: %w", err)
	}
	return pool, nil
}

// withDatabase returns the connection string with another database. It may be a URL or a list of
// keywords and values, where the last one of a keyword counts.
func withDatabase(dsn, database string) (string, error) {
	u, err := url.Parse(dsn)
	if err != nil || u.Scheme == "" {
		return dsn + " dbname=" + database, nil
	}
	u.Path = "/" + database
	q := u.Query()
	if q.Has("dbname") || q.Has("database") {
		q.Del("dbname")
		q.Del("database")
		u.RawQuery = q.Encode()
	}
	return u.String(), nil
}
