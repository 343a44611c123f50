package pg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gendurable/gendurable/limiter"
)

// Facts are what the database says of why an instance is not running. What does not matter in its status is left out.
type Facts struct {
	Now      time.Time // the database's clock
	ID       int64
	Machine  string
	Version  int
	Step     string
	Status   Status
	Queue    string
	Priority int16
	Attempt  int

	EligibleAt      time.Time
	ConcurrencyKey  string
	RateLimit       string
	Weight          float64
	Awaits          []string
	AwaitDeadline   *time.Time
	ChildrenPending int
	LockedBy        string
	LeaseExpiresAt  *time.Time
	CancelReason    *string
	LastError       string
	UpdatedAt       time.Time // of an executing row: when it was claimed; of a terminal one: when it ended

	PausedAt *time.Time // of its queue; nil = it is not paused
	// Holder is the row that executes under the same concurrency key, which allows one at a time; 0 = none.
	Holder         int64
	HolderLockedBy string
	HolderSince    *time.Time
	// Occupant is the row that occupies the correlation key which this row needs to execute; 0 = none. It is never set for
	// rows of ours, whose scopes do not let that happen.
	Occupant int64

	// Gate says that the concurrency key belongs to a gate, of GateLimit slots, of which GateFree are free.
	Gate                bool
	GateLimit, GateFree float64
	// Rate says that the rate limit is configured; its tokens for this row are there in RateWait (0 = now, negative = never).
	Rate     bool
	RateWait time.Duration

	Inbox    []string // names of signals that wait, of the first 1,000
	Children []int64  // up to ten that have not ended, of the first 1,000
	// Serving are the live nodes that run the queue; Knowing those of them that know the machine's version; Stepping those
	// of them that know its step; Fitting those of them that have not found the state to be unreadable.
	Serving, Knowing, Stepping, Fitting []string
	// NodeBeat is when the node that executes the row, or its Holder, was last heard of; nil = it has no row.
	NodeBeat *time.Time
	// Ahead is how many of the queue's first 1,000 rows come before this one and are due.
	Ahead int
}

// Explain returns what decides about the instance, or nil when there is none (any more). One round trip.
func (s *Store) Explain(ctx context.Context, db DB, id int64) (*Facts, error) {
	if id == 0 {
		return nil, nil
	}
	f, err := s.explain(ctx, db, id, "")
	if err != nil {
		return nil, fmt.Errorf("pg: explain instance %d: %w", id, err)
	}
	return f, nil
}

// ExplainByKey is Explain for the instance that occupies the correlation key.
func (s *Store) ExplainByKey(ctx context.Context, db DB, key string) (*Facts, error) {
	f, err := s.explain(ctx, db, 0, key)
	if err != nil {
		return nil, fmt.Errorf("pg: explain the instance with key %q: %w", key, err)
	}
	return f, nil
}

// shards are the counters of one limit's key as they are stored.
type shards struct {
	total      *float64 // of the limit; nil = it is not configured
	n          *int
	rate       *float64 // tokens a second
	numbers    []int16
	capacities []float64
	available  []float64
	ages       []float64 // seconds since the last refill
}

func (s *Store) explain(ctx context.Context, db DB, id int64, key string) (*Facts, error) {
	var f Facts
	var gate, rate shards
	err := onFreshPlan(ctx, db, func(db DB) error {
		return db.QueryRow(ctx, s.sql("explain"), id, key).Scan(&f.Now, &f.ID, &f.Machine, &f.Version, &f.Step, &f.Status,
			&f.Queue, &f.Priority, &f.Attempt, &f.EligibleAt, &f.ConcurrencyKey, &f.RateLimit, &f.Weight, &f.Awaits,
			&f.AwaitDeadline, &f.ChildrenPending, &f.LockedBy, &f.LeaseExpiresAt, &f.CancelReason, &f.LastError, &f.UpdatedAt,
			&f.PausedAt, &f.Holder, &f.HolderLockedBy, &f.HolderSince, &f.Occupant,
			&gate.total, &gate.n, &gate.numbers, &gate.capacities, &gate.available,
			&rate.total, &rate.n, &rate.rate, &rate.numbers, &rate.available, &rate.ages,
			&f.Inbox, &f.Children, &f.Serving, &f.Knowing, &f.Stepping, &f.Fitting, &f.NodeBeat, &f.Ahead)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if f.Gate = gate.total != nil; f.Gate {
		f.GateLimit, f.GateFree = *gate.total, gate.slots()
		f.Holder, f.HolderLockedBy, f.HolderSince = 0, "", nil // of a time before it became a gate's
	}
	if f.Rate = rate.total != nil; f.Rate {
		f.RateWait = wait(rate.buckets(), min(f.Weight, *rate.total))
	}
	return &f, nil
}

// slots counts the free slots of a gate's key, as limit_admit does.
func (s *shards) slots() float64 {
	if len(s.numbers) == 0 {
		return *s.total // a key without counters is made full
	}
	free := 0.0
	for i, number := range s.numbers {
		if int(number) < *s.n {
			share := limiter.Share(*s.total, *s.n, int(number))
			free += max(min(share, s.capacities[i])-(s.capacities[i]-s.available[i]), 0)
		}
	}
	return free
}

// wait is how long it takes until the buckets have so many tokens together; 0 = they have.
func wait(buckets []limiter.Bucket, tokens float64) time.Duration {
	have := 0.0
	for _, b := range buckets {
		have += b.Tokens
	}
	if have >= tokens {
		return 0
	}
	return limiter.Until(buckets, tokens)
}

// buckets are the counters of a rate limit's key as they are now, refilled as limit_admit does.
func (s *shards) buckets() []limiter.Bucket {
	var all []limiter.Bucket
	add := func(number int, tokens func(share, fill float64) float64) {
		share := limiter.Share(*s.total, *s.n, number)
		fill := 0.0
		if *s.total > 0 {
			fill = share * *s.rate / *s.total
		}
		all = append(all, limiter.Bucket{Tokens: min(share, tokens(share, fill)), Capacity: share, PerSecond: fill})
	}
	if len(s.numbers) == 0 {
		for number := range *s.n {
			add(number, func(share, _ float64) float64 { return share })
		}
	}
	for i, number := range s.numbers {
		if int(number) < *s.n {
			add(int(number), func(_, fill float64) float64 { return s.available[i] + s.ages[i]*fill })
		}
	}
	return all
}
