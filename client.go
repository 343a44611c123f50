package gendurable

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/internal/telemetry"
	"github.com/gendurable/gendurable/limiter"
	"github.com/gendurable/gendurable/pg"
)

// Client inserts, signals, awaits, reads and cancels instances without running any: what a web process needs.
// It has no actors and no connections of its own. All methods are safe for concurrent use. An Engine has the
// same methods.
type Client struct {
	pool     DB
	store    *pg.Store
	registry *registry
	limits   fsm.Limits
	// announce tells schedulers of runnable work: an engine its own, and others as Config.Pokes says; a client none, or
	// with PokePostgres those of other processes.
	announce func(queues []string, in time.Duration)
	// operator tells who may hold rows of a cancel request or a pause: an engine its own schedulers, and others as
	// Config.Pokes says; a client none, or with PokePostgres those of other processes. reason is that of a cancel.
	operator func(n pg.Notice, reason string)
	waiter   waiter
	inForce  *inForce
	tracer   *telemetry.Tracer // nil = no traces
}

// DB is where a client's statements run: a *pgxpool.Pool, or for a client that lives as long as one transaction or connection
// does a pgx.Tx or a *pgx.Conn.
type DB interface {
	pg.Copier
	// Begin starts a transaction, or within one a savepoint.
	Begin(ctx context.Context) (pgx.Tx, error)
}

// waiter answers Await: the await actor of an engine, or a client's own prober.
type waiter interface {
	// await registers a caller.
	await(m actors.AwaitInstance)
	// ended is closed when nobody answers any more.
	ended() <-chan struct{}
}

// ClientConfig configures a Client. The zero value is good.
type ClientConfig struct {
	// Name is the engine's name, as in Config.
	Name string
	// Schema holds the tables. Default: the current schema of the pool's search_path.
	Schema string
	// Machines are what may be inserted. Default: anything.
	Machines []fsm.Definition
	// Queues are where. The queues that Machines name need not be repeated. Default: those, or any without Machines.
	Queues []string
	// AwaitProbe is how often the waiters of Await look into the database, all with one statement. Default 25 ms.
	AwaitProbe time.Duration
	// MaxPayload is the largest encoded state or signal payload in bytes. Default 1 MiB, at most 16 MiB.
	MaxPayload int
	// Interoperable and Codec are as in Config.
	Interoperable bool
	Codec         Codec
	// Pokes is PokePostgres to announce what this client inserts and signals to the processes with an engine of its Name.
	// It takes a connection of the pool for a moment, shortly after the call. Default PokeNone: their polls find the work.
	Pokes PokeTransport
	// Limiter is where the engines of the same name count limits, as their Config.Limiter: an insert with a rate limit asks it
	// whether the limit is configured. Default: the database.
	Limiter limiter.Limiter
	// Logger receives the client's log. Default slog.Default().
	Logger *slog.Logger
	// TracerProvider gets a span an insert and a signal, which the steps' spans go on from. Default: none.
	TracerProvider trace.TracerProvider
}

// NewClient returns a client on the host's pool. It fails with ErrNotMigrated when the schema is not there.
//
// On a transaction or a single connection (see DB) all that it does happens there, and it is for one goroutine at a time. It
// must not Await there, and cannot announce by PokePostgres.
func NewClient(ctx context.Context, db DB, cfg ClientConfig) (*Client, error) {
	orString(&cfg.Name, DefaultName)
	orDuration(&cfg.AwaitProbe, DefaultAwaitProbe)
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	p := &problems{}
	p.name("Name", cfg.Name, ":@")
	p.machines(cfg.Machines)
	for _, q := range cfg.Queues {
		p.name("Queues", q, "@")
	}
	p.duration("AwaitProbe", cfg.AwaitProbe)
	if cfg.Pokes != "" && cfg.Pokes != PokeNone && cfg.Pokes != PokePostgres {
		p.addf("Pokes %q: a client's are %q or %q", cfg.Pokes, PokePostgres, PokeNone)
	}
	p.channel(cfg.Pokes, cfg.Name)
	p.maxPayload(cfg.MaxPayload)
	pool, isPool := db.(*pgxpool.Pool)
	if isPool || db == nil {
		p.pool(pool)
	} else if cfg.Pokes == PokePostgres {
		p.addf("Pokes %q: only a client on a pool can announce; without it the poll finds the work", cfg.Pokes)
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	store, err := openStore(ctx, db, pg.Options{Schema: cfg.Schema, Engine: cfg.Name, Interoperable: cfg.Interoperable, Historic: historic(cfg.Machines)})
	if err != nil {
		return nil, fmt.Errorf("gendurable: open the database: %w", err)
	}
	reg := newRegistry(cfg.Machines, cfg.Queues...)
	reg.anyMachine = len(cfg.Machines) == 0
	reg.anyQueue = reg.anyMachine && len(cfg.Queues) == 0
	c := newClient(db, store, reg, fsm.Limits{MaxPayload: cfg.MaxPayload, Interoperable: cfg.Interoperable, Codec: cfg.Codec})
	c.inForce.reload = store.NewLimiter().SyncConfig
	if cfg.Limiter != nil {
		c.inForce.reload = cfg.Limiter.SyncConfig
	}
	c.tracer = telemetry.NewTracer(cfg.TracerProvider, cfg.Name)
	c.waiter = newProber(store, cfg.AwaitProbe, cfg.Logger)
	if cfg.Pokes == PokePostgres {
		token, err := uniqueToken()
		if err != nil {
			return nil, err
		}
		notices, err := store.Notices(token, pool, "")
		if err != nil {
			return nil, fmt.Errorf("gendurable: announcements: %w", err)
		}
		a := newAnnouncer(notices, cfg.Logger)
		c.announce, c.operator = a.announce, a.operator
	}
	return c, nil
}

func openStore(ctx context.Context, db DB, o pg.Options) (*pg.Store, error) {
	if pool, ok := db.(*pgxpool.Pool); ok {
		return pg.Open(ctx, pool, o)
	}
	return pg.OpenOn(ctx, db, o)
}

func newClient(pool DB, store *pg.Store, reg *registry, limits fsm.Limits) *Client {
	limits.CheckInsertion = reg.check
	force := new(inForce)
	limits.CheckRateLimit = force.check
	return &Client{
		pool: pool, store: store, registry: reg, limits: limits, inForce: force,
		announce: func([]string, time.Duration) {},
		operator: func(pg.Notice, string) {},
	}
}

// Poke tells schedulers, those of other processes too where Pokes is PokePostgres, that the queues have runnable work: what to do after committing a
// transaction in which InsertTx or SignalTx was called. Without it the poll finds the work, at the latest after
// Config.PollIdle. It never blocks.
func (c *Client) Poke(queues ...string) {
	if len(queues) > 0 {
		c.announce(queues, 0)
	}
}

// resolve turns an address into an id. It fails with ErrNotFound when nobody occupies a key.
func (c *Client) resolve(ctx context.Context, ref Ref) (int64, error) {
	id, key, err := address(ref)
	if err != nil || key == "" {
		return id, err
	}
	inst, err := c.store.GetByKey(ctx, c.pool, key)
	if err != nil {
		return 0, fmt.Errorf("gendurable: look up key %q: %w", key, err)
	}
	if inst == nil {
		return 0, fmt.Errorf("%w: nobody occupies the key %q", ErrNotFound, key)
	}
	return inst.ID, nil
}
