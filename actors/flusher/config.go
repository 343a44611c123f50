// Package flusher is the group commit: it makes the outcomes of steps durable, many in one transaction, and
// answers each of its callers when its own outcome is.
//
// Goroutines and what they own:
//
//   - the actor owns the batch that is being filled and those that wait;
//   - one goroutine a flush owns the batch that is being written and answers its callers, also when the actor
//     dies meanwhile; a lock keeps it to one flush at a time across restarts of the actor;
//   - the side lane's goroutine owns the entries that cannot be written with the others: those whose row
//     somebody else has locked, and large fan-outs. It exists while there are any;
//   - the handover's goroutine owns committed continuations whose next step has signals or children to see: it reads
//     them and answers the callers. It exists while there are any.
package flusher

import (
	"context"
	"log/slog"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// Committer writes outcomes in one transaction. It is used by one goroutine at a time. It must neither reorder
// nor keep the slice.
type Committer interface {
	Flush(ctx context.Context, outcomes []pg.Outcome) (pg.Flushed, error)
}

// Rows looks at rows.
type Rows interface {
	// Blocked tells which rows are locked by somebody else just now, without waiting for any.
	Blocked(ctx context.Context, ids []int64) ([]int64, error)
	// Enrich fills in what the next steps of rows that go on see. Used by one goroutine at a time.
	Enrich(ctx context.Context, rows []pg.Claimed) error
}

// Config describes one flusher. Logger, Main, Side and Rows are required.
type Config struct {
	Logger   *slog.Logger
	Counters *actors.Counters
	// Main writes the batches, Side what must not hold them up. They are two committers with names of their own.
	Main, Side Committer
	Rows       Rows
	// Await learns of settled instances while somebody waits, Poke of queues with new work. May be nil.
	Await, Poke *actor.PID
	// Limiter gets back the slots of gates that committed outcomes have given up. May be nil.
	Limiter *actor.PID
	// MaxBatch and MaxBytes bound a flush: outcomes (default 500), and bytes of their encoded contents (default
	// 16 MiB; a larger single outcome is flushed alone).
	MaxBatch, MaxBytes int
	// Linger is how long a batch that is not full waits for more. Default 0: it is written as soon as the
	// flusher is free.
	Linger time.Duration
	// MaxChildren is the largest fan-out that is written together with other outcomes. Default 1,000.
	MaxChildren int
	// Backoff and MaxBackoff are the first and the longest pause between attempts while the database is away.
	// Default 50 ms and 2 s.
	Backoff, MaxBackoff time.Duration
	// SlowBackoff and MaxSlowBackoff are the same for an entry whose row is locked. Default 200 ms and 2 s.
	SlowBackoff, MaxSlowBackoff time.Duration
	// Telemetry learns of flushes; nil = nobody does.
	Telemetry actors.Telemetry
	// Classify tells what an error of Main, Side or Rows means. Default: pg.Classify and the error's SQLSTATE.
	Classify func(error) Fault
}

func (c Config) withDefaults() Config {
	if c.Counters == nil {
		c.Counters = new(actors.Counters)
	}
	if c.Classify == nil {
		c.Classify = classify
	}
	positive(&c.MaxBatch, 500)
	positive(&c.MaxBytes, 16<<20)
	positive(&c.MaxChildren, 1000)
	positive(&c.Backoff, 50*time.Millisecond)
	positive(&c.MaxBackoff, 2*time.Second)
	positive(&c.SlowBackoff, 200*time.Millisecond)
	positive(&c.MaxSlowBackoff, 2*time.Second)
	return c
}

func positive[T int | time.Duration](v *T, otherwise T) {
	if *v <= 0 {
		*v = otherwise
	}
}

// Props makes the Props of one flusher: they hold what outlives a restart of the actor, and are spawned once.
// The actor takes actors.Commit and actors.Flush.
func Props(c Config) *actor.Props {
	c = c.withDefaults()
	w := newWriter(c)
	return actors.NewProps(c.Logger, c.Counters, func() actor.Actor { return newFlusher(w) })
}
