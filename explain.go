package gendurable

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/pg"
)

// Reason says why an instance is not running, or that it is.
type Reason string

// The reasons. The comments name the fields of Cause that go with each.
const (
	// NotEligible: it is delayed (a schedule, a durable sleep, a retry's backoff). Until.
	NotEligible Reason = "not yet eligible"
	// QueuePaused: nothing of its queue is claimed until Resume. Since.
	QueuePaused Reason = "queue paused"
	// NoNode: no live process runs its queue.
	NoNode Reason = "no node runs the queue"
	// UnknownMachine: no live process that runs its queue knows its machine in this version, or its step. Nodes that run the queue.
	UnknownMachine Reason = "no node knows the machine"
	// Undecodable: the live processes that run its queue and know its step could not read the state of an instance at this
	// step, and leave the step out of their claims. Nodes.
	Undecodable Reason = "no node can read the state"
	// KeyHeld: another instance executes under its concurrency key, which allows one at a time. Key, Holder, Worker, Node,
	// Since, LastBeat.
	KeyHeld Reason = "concurrency key held"
	// CorrelationHeld: another instance occupies the correlation key that this one needs to execute. Only rows of the original
	// engine, with a scope of their own, wait for that. Holder.
	CorrelationHeld Reason = "correlation key held"
	// GateFull: all slots of its concurrency key's gate are taken. Key, Limit.
	GateFull Reason = "gate full"
	// UnknownLimit: it names a rate limit that nobody has configured. Key.
	UnknownLimit Reason = "unknown rate limit"
	// BucketEmpty: its rate limit has not enough tokens. Key, Until when it has, unless others take them.
	BucketEmpty Reason = "rate limit used up"
	// AwaitingSignals: it waits for one of these signals. Names, Until the timeout (zero = none), Since, and in Other the names of
	// signals that are in the inbox and not waited for.
	AwaitingSignals Reason = "awaiting signals"
	// AwaitingChildren: it waits until all its children have ended. Pending, Children (some of them), Since.
	AwaitingChildren Reason = "awaiting children"
	// Executing: it runs. Worker, Node, Since, Until (its lease), LastBeat; Cancelling when a cancel was requested.
	Executing Reason = "executing"
	// Ended: it is done or failed. Since.
	Ended Reason = "ended"
	// Ready: nothing keeps it; a process claims it when it has a free slot. Since, Nodes, Ahead.
	Ready Reason = "runnable"
)

// Cause is one reason, with what belongs to it. What does not is zero.
type Cause struct {
	Reason Reason
	Since  time.Time
	Until  time.Time
	Key    string // a concurrency key, or the key of a rate limit
	Holder ID     // the instance that stands in the way
	// Worker is the claim of the instance that executes, this one or the Holder, and Node the node in it. LastBeat is when that
	// node was last heard of; zero = never, or not for a day.
	Worker     string
	Node       string
	LastBeat   time.Time
	Cancelling bool
	Limit      int // of a gate
	Names      []string
	Other      []string
	Pending    int
	Children   []ID // at most 10 that have not ended, of the first 1,000
	Nodes      []string
	Ahead      int // how many of the first 1,000 rows of the queue come before it
}

// Explanation is the answer of Explain.
type Explanation struct {
	ID       ID
	Machine  string
	Version  int
	Step     string
	Status   fsm.Status
	Queue    string
	Priority int
	Attempt  int
	// LastError is that of a failed instance, or of the last failed attempt.
	LastError string
	// At is the database's time of the answer.
	At time.Time
	// Causes are everything that keeps the instance from running, at least one. The first has to go first.
	Causes []Cause
}

// Reason is the first of the Causes.
func (e *Explanation) Reason() Reason { return e.Causes[0].Reason }

// Explain says why an instance is not running, or where it does: from the database alone, in one round trip, whatever the size of
// the tables. It fails with ErrNotFound when there is no such instance (any more).
//
// It is a look at one moment: a row that is Ready now may be executing before the answer arrives. What processes can run is as of
// their last heartbeats.
func (c *Client) Explain(ctx context.Context, ref Ref) (*Explanation, error) {
	id, key, err := address(ref)
	if err != nil {
		return nil, err
	}
	var f *pg.Facts
	if key != "" {
		f, err = c.store.ExplainByKey(ctx, c.pool, key)
	} else {
		f, err = c.store.Explain(ctx, c.pool, id)
	}
	if err != nil {
		return nil, fmt.Errorf("gendurable: explain %s: %w", describe(ref), err)
	}
	if f == nil {
		return nil, fmt.Errorf("%w: %s", ErrNotFound, describe(ref))
	}
	return &Explanation{
		ID: ID(f.ID), Machine: f.Machine, Version: f.Version, Step: f.Step, Status: fsm.Status(f.Status), Queue: f.Queue,
		Priority: int(f.Priority), Attempt: f.Attempt, LastError: f.LastError, At: f.Now, Causes: causes(f),
	}, nil
}

// causes decides.
func causes(f *pg.Facts) []Cause {
	switch f.Status {
	case pg.Executing:
		return []Cause{{
			Reason: Executing, Worker: f.LockedBy, Node: nodeOf(f.LockedBy), Since: f.UpdatedAt, Until: value(f.LeaseExpiresAt),
			LastBeat: value(f.NodeBeat), Cancelling: f.CancelReason != nil,
		}}
	case pg.AwaitingSignal:
		c := Cause{Reason: AwaitingSignals, Names: f.Awaits, Until: value(f.AwaitDeadline), Since: f.UpdatedAt}
		for _, name := range f.Inbox {
			if !slices.Contains(f.Awaits, name) {
				c.Other = append(c.Other, name)
			}
		}
		return []Cause{c}
	case pg.AwaitingChildren:
		c := Cause{Reason: AwaitingChildren, Pending: f.ChildrenPending, Since: f.UpdatedAt}
		for _, id := range f.Children {
			c.Children = append(c.Children, ID(id))
		}
		return []Cause{c}
	case pg.Runnable:
		return obstacles(f)
	}
	return []Cause{{Reason: Ended, Since: f.UpdatedAt}}
}

// obstacles are what keeps a runnable row from being claimed.
func obstacles(f *pg.Facts) []Cause {
	var all []Cause
	add := func(stands bool, c Cause) {
		if stands {
			all = append(all, c)
		}
	}
	add(f.EligibleAt.After(f.Now), Cause{Reason: NotEligible, Until: f.EligibleAt})
	add(f.PausedAt != nil, Cause{Reason: QueuePaused, Since: value(f.PausedAt)})
	switch {
	case len(f.Serving) == 0:
		add(true, Cause{Reason: NoNode})
	case len(f.Stepping) == 0:
		add(true, Cause{Reason: UnknownMachine, Nodes: f.Serving})
	case len(f.Fitting) == 0:
		add(true, Cause{Reason: Undecodable, Nodes: f.Stepping})
	}
	wanted := f.CancelReason == nil // else it is to be ended, which takes no key, slot or token
	add(wanted && f.Holder != 0, Cause{
		Reason: KeyHeld, Key: f.ConcurrencyKey, Holder: ID(f.Holder), Worker: f.HolderLockedBy, Node: nodeOf(f.HolderLockedBy),
		Since: value(f.HolderSince), LastBeat: value(f.NodeBeat),
	})
	add(f.Occupant != 0, Cause{Reason: CorrelationHeld, Holder: ID(f.Occupant)})
	add(wanted && f.Gate && f.GateFree < 1, Cause{Reason: GateFull, Key: f.ConcurrencyKey, Limit: int(f.GateLimit)})
	add(wanted && f.RateLimit != "" && !f.Rate, Cause{Reason: UnknownLimit, Key: f.RateLimit})
	if wanted && f.Rate && f.RateWait != 0 {
		c := Cause{Reason: BucketEmpty, Key: f.RateLimit}
		if f.RateWait > 0 {
			c.Until = f.Now.Add(f.RateWait)
		}
		add(true, c)
	}
	add(len(all) == 0, Cause{Reason: Ready, Since: f.EligibleAt, Nodes: f.Fitting, Ahead: f.Ahead})
	return all
}

// nodeOf is the node in a claim identity; empty when it is not one of ours.
func nodeOf(worker string) string {
	_, node, ok := strings.Cut(worker, "@")
	if !ok || len(node) < 18 {
		return ""
	}
	return node[:len(node)-17]
}

func value(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}
