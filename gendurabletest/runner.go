package gendurabletest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/limiter"
	"github.com/gendurable/gendurable/pg"
)

// DefaultMaxSteps is the default of Config.MaxSteps.
const DefaultMaxSteps = 1000

// Config configures a Runner. The zero value of every field but Machines is a good default.
type Config struct {
	// Machines are the machines and jobs that the test runs or inserts.
	Machines []fsm.Definition
	// Schema holds the tables. Default: the current schema of the database handle's search_path.
	Schema string
	// Queues are further queues that the test inserts into, besides those of the Machines.
	Queues []string
	// RateLimits are names of rate limits that inserts of the test use, besides those that the Machines were declared with.
	// They have no bound, because limits are not applied, and are not stored: other clients of the test know them by
	// Runner.Limiter.
	RateLimits []string
	// MaxSteps is how many steps one call of Run, Advance or FireTimeouts runs before it fails the test: a machine that
	// polls, or retries for ever, has no end of its own. Default DefaultMaxSteps.
	MaxSteps int
	// KeepDelays makes Run leave alone what is not eligible yet: retries, durable sleeps, schedules. Only Advance gets there.
	KeepDelays bool
	// CrashSteps makes the worker of each step die once, after the step's code has run and before its outcome is committed:
	// the code of every step runs twice, as it may in life. Attempt counts that.
	CrashSteps bool
	// StepGrace is how long a step may run on after its timeout before it is given up, as in gendurable.Config. Default 1 s.
	StepGrace time.Duration
	// MaxPayload, Interoperable and Codec are as in gendurable.Config.
	MaxPayload    int
	Interoperable bool
	Codec         gendurable.Codec
}

// Runner runs the steps of the instances in a test's tables, and is a client for them. It is for one goroutine at a time,
// but may be used by the code of steps. Its methods fail the test when the database does.
type Runner struct {
	// Client inserts, signals, cancels and reads. On a transaction it works inside it.
	*gendurable.Client

	t         testing.TB
	cfg       Config
	store     *pg.Store
	rehearsal pg.Rehearsal
	committer *pg.Committer
	db        gendurable.DB
	specs     map[machine]*fsm.Spec
	limits    fsm.Limits
	limiter   limiter.Limiter
	token     string
	// skip are the steps that this Runner cannot run.
	skip []pg.StepRef
	// history is what ran so far.
	history []Step
	// budget is how many more steps the present call may run, and tally what it has run.
	budget int
	tally  Tally
	// depth is how many calls are under way: steps may call, too.
	depth int
}

type machine struct {
	name    string
	version int
}

// New returns a Runner on db: a pool, a connection, or the test's own transaction, which must not be inside a savepoint. It
// fails the test when the configuration is wrong or the schema is not migrated.
func New(t testing.TB, db gendurable.DB, cfg Config) *Runner {
	t.Helper()
	if cfg.MaxSteps <= 0 {
		cfg.MaxSteps = DefaultMaxSteps
	}
	if cfg.StepGrace <= 0 {
		cfg.StepGrace = time.Second
	}
	r := &Runner{t: t, cfg: cfg, db: db, specs: make(map[machine]*fsm.Spec), token: token(t)}
	var err error
	r.store, err = pg.OpenOn(t.Context(), db, pg.Options{Schema: cfg.Schema, Interoperable: cfg.Interoperable})
	if err != nil {
		t.Fatalf("gendurabletest: %v", err)
	}
	r.limiter = &unbounded{Limiter: r.store.NewLimiter(), names: r.rateLimits()}
	r.Client, err = gendurable.NewClient(t.Context(), db, gendurable.ClientConfig{
		Schema: cfg.Schema, Machines: cfg.Machines, Queues: cfg.Queues, MaxPayload: cfg.MaxPayload,
		Interoperable: cfg.Interoperable, Codec: cfg.Codec, Limiter: r.limiter,
	})
	if err != nil {
		t.Fatalf("gendurabletest: %v", err)
	}
	for _, def := range cfg.Machines {
		spec := def.Spec()
		r.specs[machine{spec.Name, spec.Version}] = spec
	}
	r.limits = fsm.Limits{
		MaxPayload: cfg.MaxPayload, Interoperable: cfg.Interoperable, Codec: cfg.Codec, CheckInsertion: r.checkChild,
	}
	r.rehearsal = r.store.Rehearsal()
	name := "gendurabletest/" + r.token
	if err := r.rehearsal.CheckTop(t.Context(), name); err != nil {
		t.Fatalf("gendurabletest: %v", err)
	}
	r.committer = r.store.NewCommitter(name)
	return r
}

// Tx begins a transaction that is rolled back when the test ends. A Runner on it, a client on it, and the test's own
// statements in it see each other's rows, and nobody else does.
func Tx(t testing.TB, pool *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		t.Fatalf("gendurabletest: begin a transaction: %v", err)
	}
	t.Cleanup(func() {
		if err := tx.Rollback(context.Background()); err != nil && !tx.Conn().IsClosed() && err != pgx.ErrTxClosed {
			t.Errorf("gendurabletest: roll back the test's transaction: %v", err)
		}
	})
	return tx
}

// Schema makes a schema with the engine's tables and returns its name, for Config.Schema and for clients. It is dropped when
// the test ends.
func Schema(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	schema := "gendurabletest_" + token(t)
	if err := pg.NewMigrator(pool, schema).Up(t.Context()); err != nil {
		t.Fatalf("gendurabletest: %v", err)
	}
	t.Cleanup(func() {
		_, err := pool.Exec(context.Background(), "DROP SCHEMA "+pgx.Identifier{schema}.Sanitize()+" CASCADE")
		if err != nil {
			t.Errorf("gendurabletest: drop the test's schema: %v", err)
		}
	})
	return schema
}

func token(t testing.TB) string {
	t.Helper()
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		t.Fatalf("gendurabletest: make a unique name: %v", err)
	}
	return hex.EncodeToString(b[:])
}
