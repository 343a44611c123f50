// Package scheduler runs one queue of one node: it claims rows, runs their steps and keeps their leases.
//
// Three actors do it. The queue's supervisor restarts the other two. The scheduler decides what to claim, start,
// beat and give back; all of its decisions are those of package core. The steps actor runs steps on a pool of
// step actors; it outlives a scheduler that fails, and tells the next one what runs.
//
// Goroutines and what they own:
//
//   - the scheduler's mailbox owns the core; its calls to the database each have a goroutine, whose answer comes
//     back as a message with the number of the life that asked;
//   - the mailbox of steps owns the table of runs; a run is shared with the step actor that carries it out;
//   - a step actor blocks in Receive while its step runs and commits; user code runs on a goroutine of its own
//     below it. Steps can end that wait at any time through the run's channels.
package scheduler

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/actors/scheduler/core"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/internal/stepping"
	"github.com/gendurable/gendurable/pg"
)

// Store is what a queue needs of the database. *pg.Store satisfies it. Its methods are called from many
// goroutines at once.
type Store interface {
	Claim(ctx context.Context, r pg.ClaimRequest) ([]pg.Claimed, error)
	Heartbeat(ctx context.Context, worker string, lease time.Duration, ids []int64) ([]pg.Beat, error)
	ExtendOne(ctx context.Context, worker string, lease time.Duration, id int64) (pg.Beat, error)
	Release(ctx context.Context, worker string, claims []pg.ClaimRef) (ending int, err error)
	ReleaseUnheld(ctx context.Context, worker string, held []int64) (int, error)
	stepping.Pages
}

// Config describes a queue. Queue, Worker, Store, Specs, Flushers and Logger are required; a zero value elsewhere
// means the default.
type Config struct {
	Queue string
	// Worker is the claim identity of this queue in this process: <engine>:<queue>@<node>-<incarnation>. Nobody
	// else may use it.
	Worker string
	Store  Store
	// Specs finds a definition; nil = this process does not know it. Called from several goroutines.
	Specs func(machine string, version int) *fsm.Spec
	// Flushers commit the outcomes. Children of one parent go to one of them.
	Flushers []*actor.PID
	Logger   *slog.Logger
	// Limiter admits rows to gates and rate limits. Nil: nothing is limited. Gates are the names of the gates in force;
	// the queue learns of changes by actors.LimitsInForce.
	Limiter *actor.PID
	Gates   []string
	// CountedElsewhere says that the limiter's counters are not in the database, where a claim could read them.
	CountedElsewhere bool

	// Together commits an outcome together with the work that it carries, in a transaction of their own, and returns when
	// the fate of both is known or alive ends. step is the context of the step that brought the outcome: it is the work's,
	// too. Its error is *pg.WorkError when the work is to blame, and *actors.RefusedError when the content of the outcome is:
	// the step's error handler gets that; pg.ErrCancelRequested when the row is to be ended instead. nil = no such outcome is accepted.
	Together func(alive, step context.Context, o pg.Outcome, work any, timeout time.Duration) (pg.Verdict, error)

	// Concurrency is how many steps run at once; default 10. Those that only wait for their commit come on top: see package core.
	Concurrency int
	// Lease and Heartbeat: 60 s and 20 s.
	Lease, Heartbeat time.Duration
	// PollBusy and PollIdle bound the time between two claims that nobody asked for; 1 s and 5 s.
	PollBusy, PollIdle time.Duration
	// MaxPrefetch is the most rows claimed ahead of free slots, MaxClaim the most that one claim asks for; 500.
	MaxPrefetch, MaxClaim int
	// InlineLimit is how many steps of a row run in a row before it goes back to the queue; default 100.
	InlineLimit int
	// DrainGrace is how long a step may run on after its context was cancelled at the end of a drain; 2 s.
	DrainGrace time.Duration
	// StepGrace is how long a step may run on after its timeout; 30 s.
	StepGrace time.Duration
	// IdleSteps is how long an idle step actor is kept; 10 s.
	IdleSteps time.Duration
	// Limits bound what a step may produce.
	Limits fsm.Limits
	// Counters and QueueCounters count; nil = into the void.
	Counters      *actors.Counters
	QueueCounters *actors.QueueCounters
	// Telemetry learns of claims and steps; nil = nobody does.
	Telemetry actors.Telemetry
	// LeftOut is told of the steps that this process cannot run: all of them, whenever there are others. It must not block. May
	// be nil.
	LeftOut func(steps []pg.StepRef)
	// GiveUp is called when an actor of the queue keeps failing and was given up; the queue then stands still.
	// It is called on a goroutine of its own. May be nil.
	GiveUp func(child *actor.PID, reason any)
}

func (c *Config) fill() {
	or := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	if c.Concurrency <= 0 {
		c.Concurrency = 10
	}
	if c.InlineLimit <= 0 {
		c.InlineLimit = 100
	}
	or(&c.Lease, 60*time.Second)
	or(&c.Heartbeat, 20*time.Second)
	or(&c.IdleSteps, 10*time.Second)
	if c.Counters == nil {
		c.Counters = new(actors.Counters)
	}
	if c.QueueCounters == nil {
		c.QueueCounters = new(actors.QueueCounters)
	}
}

func (c *Config) core() core.Config {
	return core.Config{
		Concurrency: c.Concurrency, Lease: c.Lease, Heartbeat: c.Heartbeat, PollBusy: c.PollBusy, PollIdle: c.PollIdle,
		MaxPrefetch: c.MaxPrefetch, MaxClaim: c.MaxClaim, DrainGrace: c.DrainGrace, CountedElsewhere: c.CountedElsewhere,
		Knows: func(s pg.StepRef) bool {
			spec := c.Specs(s.Machine, s.Version)
			return spec != nil && spec.HasStep(s.Step)
		},
		Jitter: rand.Float64,
	}
}

// Props makes the supervisor of a queue, for one spawn. It takes actors.Poke, actors.CancelRequested,
// actors.QueuePaused, actors.LimitsInForce, actors.SlotsFreed and actors.Drain. A drained queue goes on answering; it is stopped like any actor, and then leaves what still runs
// to its lease.
func Props(cfg Config) *actor.Props {
	cfg.fill()
	life := newLife(cfg.Gates)
	supervision := actors.NewSupervisor(actors.Supervision{Logger: cfg.Logger, Counters: cfg.Counters, GiveUp: cfg.GiveUp})
	return actors.NewProps(cfg.Logger, cfg.Counters, func() actor.Actor {
		return &queue{cfg: &cfg, life: life}
	}, actor.WithSupervisor(supervision))
}
