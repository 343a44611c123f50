package gendurable

import (
	"log/slog"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/gendurable/gendurable/cluster"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/limiter"
)

// The defaults of Config.
const (
	DefaultName          = "gendurable"
	DefaultConcurrency   = 10
	DefaultLease         = 60 * time.Second
	DefaultHeartbeat     = 20 * time.Second
	DefaultDrainTimeout  = 25 * time.Second
	DefaultStepGrace     = 30 * time.Second
	DefaultLeaseSweep    = 5 * time.Second
	DefaultDeadlineSweep = time.Second
	DefaultGCInterval    = time.Minute
	DefaultSweepBatch    = 10_000
	DefaultRetainDone    = 24 * time.Hour
	DefaultRetainFailed  = 7 * 24 * time.Hour
	DefaultPollBusy      = time.Second
	DefaultPollIdle      = 5 * time.Second
	DefaultAwaitProbe    = 25 * time.Millisecond
	DefaultInlineLimit   = 100
	DefaultMaxBatch      = 500
	DefaultMaxBatchBytes = 16 << 20
	DefaultMaxPayload    = 1 << 20
)

// Config configures an engine. The zero value of every field is a good default; Start validates the whole and
// reports every problem at once.
type Config struct {
	// Name tells engines apart that share a process or a database: their registries and pokes do not meet, and
	// the name is part of every claim. Default "gendurable". It must not contain ':' or '@'.
	Name string
	// NodeName is the name of this process that is kept across restarts, such as a pod or host name that only one
	// process at a time has. With it, a start declares the predecessor of that name dead and takes its claims back at
	// once; an engine that sees itself replaced stops with ErrReplaced. Default: none; then the claims of a
	// dead process wait for their lease. It must not contain '@'.
	NodeName string
	// Schema holds the tables. Default: the current schema of the pool's search_path.
	Schema string

	// Machines are all machines and jobs that this process runs or inserts. Several versions of one name may
	// stand side by side.
	Machines []fsm.Definition
	// Cluster makes this process a node of a cluster: nodes with an engine of the same Name on the same database know each
	// other, share out the lanes of queues, announce work to each other and answer at their gateways. nil: the process is a node
	// by itself; many such nodes may share a database all the same. See docs/cluster.md.
	Cluster *cluster.Config
	// Role says what the process is for. Default RoleWorker.
	Role cluster.Role

	// Queues are the queues that this process runs, by name. Default: the queue "default" with DefaultConcurrency,
	// unless Machines is empty or Role is another than RoleWorker, which runs none.
	Queues map[string]Queue
	// InsertQueues are further queues that this process may insert into and other processes run.
	InsertQueues []string
	// Flushers route queues to group-commit flushers; each queue goes to the first that matches.
	// Default: one for all queues.
	Flushers []Flusher

	// RateLimits and Gates are the limits that this process declares, by name. At the start they are stored in the database,
	// where they hold for all processes; one that is taken out here stays in force until it is removed explicitly, see
	// RemoveRateLimits and RemoveGates. Default: none.
	RateLimits map[string]RateLimit
	Gates      map[string]Gate
	// Limiter counts rate limits and gates, the same one in all engines on a database. Default: in the database's own tables.
	Limiter limiter.Limiter
	// Crons are instances that are inserted periodically.
	Crons []Cron

	// Lease is how long a claim is trusted without a heartbeat, Heartbeat how often it is renewed. A lease must be
	// at least three heartbeats. Default 60 s and 20 s.
	Lease, Heartbeat time.Duration
	// DrainTimeout is how long Stop lets running steps finish before it cancels their contexts. Default 25 s.
	DrainTimeout time.Duration
	// StepGrace is how long a step may run on after its timeout before it is given up. Default 30 s.
	StepGrace time.Duration
	// LeaseSweep, DeadlineSweep and GCInterval are the intervals of the sweeps: expired leases (default 5 s), await
	// timeouts (default 1 s), terminal rows (default 60 s). SweepBatch is the most rows a statement takes (10,000).
	LeaseSweep, DeadlineSweep, GCInterval time.Duration
	SweepBatch                            int
	// RetainDone and RetainFailed are how long terminal instances stay. Default 1 day and 7 days.
	RetainDone, RetainFailed time.Duration
	// PollBusy and PollIdle bound the adaptive poll of a queue, which is the floor under all announcements of work:
	// from 1 s on a busy queue to 5 s on an idle one.
	PollBusy, PollIdle time.Duration
	// InlineLimit is how many steps of an inline chain (see fsm.Inline) run in a row before the instance goes back to
	// its queue, so that more urgent work can cut in. Default 100; 1 runs no step inline.
	InlineLimit int
	// AwaitProbe is how often the waiters of Await that no local commit answered look into the database, all of
	// them with one statement. Default 25 ms.
	AwaitProbe time.Duration
	// Pokes is how processes learn of runnable work before they poll. Default PokeLocal, in a cluster PokeCluster.
	Pokes PokeTransport
	// ListenURL is where PokePostgres listens, as a connection string, for a pool that goes through PgBouncer in
	// transaction mode or the like: LISTEN needs a session of its own on the server. Default: as the pool connects.
	ListenURL string
	// DisableVacuum turns off the engine's own VACUUM of its tables under load. It is off by itself when the
	// database role does not own them.
	DisableVacuum bool

	// MaxPayload is the largest encoded state, result or signal payload in bytes, before the Codec. Default 1 MiB, at most
	// 16 MiB.
	MaxPayload int
	// Codec is what states, results and signal payloads are stored through: encryption, as a rule. All processes that share
	// the rows need one that reads what the others write; rows that were written without one stay readable. Default: none.
	Codec Codec
	// Interoperable refuses states, results and payloads that are not JSON objects and keeps rows readable for
	// engines of other languages on the same tables.
	Interoperable bool
	// Connections is the size of the engine's private pool. Default: as many as the queues, flushers and sweeps
	// need at once; fewer are refused.
	Connections int

	// Logger receives the engine's log. Default slog.Default().
	Logger *slog.Logger
	// TracerProvider gets a span a step, an insert and a signal; MeterProvider gets the metrics of docs/telemetry.md. The
	// caller keeps owning them. Default: none, and then neither costs anything; OpenTelemetry's globals are never used.
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
	// ActorSystem is the host's own, to spawn the engine in; the engine then owns only its subtree. Default: one
	// of its own.
	ActorSystem *actor.ActorSystem
}

// Queue configures how this process runs one queue.
type Queue struct {
	// Concurrency is how many steps run at once. Default DefaultConcurrency. A step that has returned makes room for the next
	// while its outcome is being committed, of at most four rows a slot (1,000 at most): so a Concurrency of 1 runs one step at
	// a time, but only a concurrency key lets the next begin after the commit of the one before.
	Concurrency int
	// Lanes are the seats for schedulers of this queue in the whole cluster: 1 is one scheduler for all nodes, which takes
	// strictly by priority; n are spread over the nodes that run the queue, and move when nodes come and go. Concurrency counts
	// for each lane. A lane is no share of the rows, and promises no exclusion. Default 0: one scheduler on every node that
	// runs the queue. At most 1,000.
	Lanes int
}

// Flusher configures one group-commit flusher.
type Flusher struct {
	// Queues are the queues it serves; empty = all.
	Queues []string
	// MaxBatch and MaxBytes bound one commit. Default 500 outcomes and 16 MiB.
	MaxBatch, MaxBytes int
	// Linger is how long the first outcome of a batch waits for company. Default 0: a flusher writes as soon as
	// it is free, and what arrives meanwhile is the next batch.
	Linger time.Duration
}

// Codec encodes and decodes what is stored of states, results and signal payloads. See docs/codec.md.
type Codec = fsm.Codec

// PokeTransport says how runnable work is announced.
type PokeTransport string

// The transports. An announcement is a hint: nothing is lost without it, only the poll finds the work later.
const (
	// PokeLocal reaches the schedulers of this engine.
	PokeLocal PokeTransport = "local"
	// PokePostgres reaches those of every process with an engine of this name on this database as well, by LISTEN and
	// NOTIFY. It costs a connection a process, and a small commit now and then. Config.Name may have 46 bytes then.
	PokePostgres PokeTransport = "postgres"
	// PokeCluster reaches the nodes of the cluster that serve the queue, by actor messages, and with cancels and pauses all
	// those that run it. It needs Config.Cluster.
	PokeCluster PokeTransport = "cluster"
	// PokeNone announces nothing: all work is found by the poll.
	PokeNone PokeTransport = "none"
)

// withDefaults fills what is zero.
func (c Config) withDefaults() Config {
	orString(&c.Name, DefaultName)
	orDuration(&c.Lease, DefaultLease)
	orDuration(&c.Heartbeat, min(DefaultHeartbeat, c.Lease/3))
	orDuration(&c.DrainTimeout, DefaultDrainTimeout)
	orDuration(&c.StepGrace, DefaultStepGrace)
	orDuration(&c.LeaseSweep, DefaultLeaseSweep)
	orDuration(&c.DeadlineSweep, DefaultDeadlineSweep)
	orDuration(&c.GCInterval, DefaultGCInterval)
	orDuration(&c.RetainDone, DefaultRetainDone)
	orDuration(&c.RetainFailed, DefaultRetainFailed)
	orDuration(&c.PollBusy, DefaultPollBusy)
	orDuration(&c.PollIdle, max(DefaultPollIdle, c.PollBusy))
	orDuration(&c.AwaitProbe, DefaultAwaitProbe)
	orInt(&c.SweepBatch, DefaultSweepBatch)
	orInt(&c.InlineLimit, DefaultInlineLimit)
	orInt(&c.MaxPayload, DefaultMaxPayload)
	if c.Role == "" {
		c.Role = cluster.RoleWorker
	}
	if c.Cluster != nil && c.Cluster.Host != nil && c.ActorSystem == nil {
		c.ActorSystem = c.Cluster.Host.ActorSystem
	}
	switch {
	case c.Pokes != "":
	case c.Cluster != nil:
		c.Pokes = PokeCluster
	default:
		c.Pokes = PokeLocal
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Queues = queuesWithDefaults(c.Queues, len(c.Machines) > 0 && c.Role == cluster.RoleWorker)
	c.Flushers = flushersWithDefaults(c.Flushers)
	return c
}

func queuesWithDefaults(given map[string]Queue, machines bool) map[string]Queue {
	queues := make(map[string]Queue, len(given)+1)
	for name, q := range given {
		orInt(&q.Concurrency, DefaultConcurrency)
		queues[name] = q
	}
	if given == nil && machines {
		queues["default"] = Queue{Concurrency: DefaultConcurrency}
	}
	return queues
}

func flushersWithDefaults(given []Flusher) []Flusher {
	flushers := append([]Flusher(nil), given...)
	if len(flushers) == 0 {
		flushers = []Flusher{{}}
	}
	for i := range flushers {
		orInt(&flushers[i].MaxBatch, DefaultMaxBatch)
		orInt(&flushers[i].MaxBytes, DefaultMaxBatchBytes)
	}
	return flushers
}

func orString(v *string, def string) {
	if *v == "" {
		*v = def
	}
}

func orDuration(v *time.Duration, def time.Duration) {
	if *v == 0 {
		*v = def
	}
}

func orInt(v *int, def int) {
	if *v == 0 {
		*v = def
	}
}
