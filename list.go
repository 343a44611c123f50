package gendurable

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/pg"
)

// CountLimit is where each count of QueueStats and Counts stops: what it reads is bounded, however many instances there are.
// A count of CountLimit says "at least so many".
const CountLimit = pg.CountLimit

// QueueState is how many instances of a queue stand where, up to CountLimit each, and how the queue is doing. Unlike the
// QueueStats of Engine.Stats, which are about this process, it is what the database says of all of them.
type QueueState struct {
	Queue string
	// Ready may run now; Scheduled become eligible later (counted among the CountLimit most urgent runnable ones).
	Ready, Scheduled int64
	// Executing are claimed by whichever node.
	Executing int64
	// AwaitingSignal and AwaitingChildren are parked.
	AwaitingSignal, AwaitingChildren int64
	// Failed are those whose retention is not over yet. Done ones are not counted.
	Failed int64
	// OldestReady is when the ready instance that waits for longest became eligible; zero when none is ready. The time since
	// then is the queue's latency.
	OldestReady time.Time
	// PausedSince is zero when the queue is not paused.
	PausedSince time.Time
}

// QueueStats says how a queue is doing, on all nodes together. One round trip, whose cost does not grow with the table.
func (c *Client) QueueStats(ctx context.Context, queue string) (QueueState, error) {
	if err := checkQueue(queue); err != nil {
		return QueueState{}, err
	}
	states, err := c.queueStates(ctx, []string{queue})
	if err != nil {
		return QueueState{}, err
	}
	return states[0], nil
}

// Counts is QueueStats for all queues that have runnable, parked or failed instances or are paused, and those that this
// configuration knows: at most about 200, by name. Three round trips, whose cost grows with the number of queues only.
func (c *Client) Counts(ctx context.Context) ([]QueueState, error) {
	names, err := c.store.QueueNames(ctx, c.pool)
	if err != nil {
		return nil, fmt.Errorf("gendurable: count: %w", err)
	}
	paused, err := c.store.PausedQueues(ctx, c.pool)
	if err != nil {
		return nil, fmt.Errorf("gendurable: count: %w", err)
	}
	for _, q := range paused {
		names = append(names, q.Queue)
	}
	for q := range c.registry.queues {
		names = append(names, q)
	}
	slices.Sort(names)
	return c.queueStates(ctx, slices.Compact(names))
}

func (c *Client) queueStates(ctx context.Context, queues []string) ([]QueueState, error) {
	counts, err := c.store.CountQueues(ctx, c.pool, queues)
	if err != nil {
		return nil, fmt.Errorf("gendurable: count: %w", err)
	}
	states := make([]QueueState, len(counts))
	for i, n := range counts {
		states[i] = QueueState{
			Queue: n.Queue, Ready: n.Ready, Scheduled: n.Scheduled, Executing: n.Executing, AwaitingSignal: n.AwaitingSignal,
			AwaitingChildren: n.AwaitingChildren, Failed: n.Failed,
		}
		if n.OldestReady != nil {
			states[i].OldestReady = *n.OldestReady
		}
		if n.PausedAt != nil {
			states[i].PausedSince = *n.PausedAt
		}
	}
	return states, nil
}

// ListOptions choose what List returns. The zero value is the newest instances.
type ListOptions struct {
	// Queue, Machine and Status are filters; empty = any.
	Queue, Machine string
	Status         fsm.Status
	// Before goes on where an earlier page ended: its Next. 0 = from the newest.
	Before ID
	// Limit is the most instances to return. Default 100, at most 1,000.
	Limit int
}

// ListPage is a page of instances, the newest first.
type ListPage struct {
	Instances []ListedInstance
	// Next is where the next page begins; 0 = there is none.
	Next ID
}

// ListedInstance is what a list shows of an instance. Get has the rest.
type ListedInstance struct {
	ID             ID
	Machine        string
	Version        int
	Step           string
	Status         fsm.Status
	Queue          string
	Priority       int
	Attempt        int
	EligibleAt     time.Time
	CorrelationKey string
	ParentID       ID
	LastError      string
	InsertedAt     time.Time
	UpdatedAt      time.Time
}

// List returns a page of instances in the order of their insertion, the newest first. One call looks at 10,000 instances at
// most, so that a page of rare ones may be short or empty although there are more: go on until Next is 0.
func (c *Client) List(ctx context.Context, o ListOptions) (ListPage, error) {
	orInt(&o.Limit, 100)
	statuses := []fsm.Status{"", fsm.Runnable, fsm.Executing, fsm.AwaitingSignal, fsm.AwaitingChildren, fsm.StatusDone, fsm.StatusFailed}
	if o.Limit < 0 || o.Limit > 1000 || o.Before < 0 || !slices.Contains(statuses, o.Status) {
		return ListPage{}, fmt.Errorf("%w: list: Limit %d is between 1 and 1,000, Before %d is an id, Status %q a status or empty",
			ErrInvalid, o.Limit, o.Before, o.Status)
	}
	rows, next, err := c.store.List(ctx, c.pool, pg.ListRequest{
		Before: int64(o.Before), Limit: o.Limit, Queue: o.Queue, Machine: o.Machine, Status: string(o.Status),
	})
	if err != nil {
		return ListPage{}, fmt.Errorf("gendurable: list: %w", err)
	}
	page := ListPage{Next: ID(next), Instances: make([]ListedInstance, len(rows))}
	for i, r := range rows {
		page.Instances[i] = ListedInstance{
			ID: ID(r.ID), Machine: r.Machine, Version: r.Version, Step: r.Step, Status: fsm.Status(r.Status), Queue: r.Queue,
			Priority: int(r.Priority), Attempt: r.Attempt, EligibleAt: r.EligibleAt, CorrelationKey: r.CorrelationKey,
			ParentID: ID(r.ParentID), LastError: r.LastError, InsertedAt: r.InsertedAt, UpdatedAt: r.UpdatedAt,
		}
	}
	return page, nil
}
