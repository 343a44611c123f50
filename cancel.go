package gendurable

import (
	"context"
	"fmt"

	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/instance"
	"github.com/gendurable/gendurable/pg"
)

// Cancellation says what a Cancel came to.
type Cancellation = instance.Cancellation

// The results of Cancel.
const (
	// CancelEnded: the instance was not executing and is failed now.
	CancelEnded = instance.CancelEnded
	// CancelRequested: it is executing. Its step's context is cancelled, and whatever the step returns, the
	// instance ends as failed.
	CancelRequested = instance.CancelRequested
	// CancelTooLate: it was terminal already.
	CancelTooLate = instance.CancelTooLate
)

// CancelOption is an option of Cancel.
type CancelOption = instance.CancelOption

// Cascade makes Cancel go on to the instance's children, their children, and so on: the instance first, then each of the
// others in a transaction of its own. It goes on below an instance that has ended already.
func Cascade() CancelOption { return instance.Cascade() }

// Cancel ends an instance as failed with "cancelled: " and the reason. One that is not executing ends at once. An executing
// one keeps its key until its step returns: the context of the step is cancelled, on this node at once, on others with
// PokePostgres or PokeCluster at once, too, else with their next heartbeat. The parent is told and the inbox deleted when it ends; its
// children go on, unless Cascade is given.
//
// What is returned is about the instance itself. Cancel fails with ErrNotFound when there is no such instance; a repeated
// Cancel is harmless. When one with Cascade fails, some of the descendants may be cancelled and others not: repeat it, by
// the instance's id.
func (c *Client) Cancel(ctx context.Context, ref Ref, reason string, opts ...CancelOption) (Cancellation, error) {
	id, key, err := address(ref)
	if err != nil {
		return "", err
	}
	how := instance.CancellingOf(opts)
	if reason = fsm.CleanError(reason); reason == "" {
		reason = "no reason given"
	}
	r, err := c.cancelOne(ctx, id, key, reason)
	if err != nil {
		return "", fmt.Errorf("gendurable: cancel %s: %w", describe(ref), err)
	}
	var result Cancellation
	switch r.Result {
	case pg.Ended:
		result = CancelEnded
	case pg.Requested:
		result = CancelRequested
	case pg.AlreadyTerminal:
		result = CancelTooLate
	default:
		return "", fmt.Errorf("%w: %s", ErrNotFound, describe(ref))
	}
	if how.Cascade {
		if err := c.cancelBelow(ctx, r.ID, reason); err != nil {
			return result, fmt.Errorf("gendurable: cancel %s was %s, its descendants were cancelled only in part, repeat it: %w",
				describe(ref), result, err)
		}
	}
	return result, nil
}

// cancelOne cancels one instance and tells whoever has to know.
func (c *Client) cancelOne(ctx context.Context, id int64, key, reason string) (r pg.CancelResult, err error) {
	if key != "" {
		r, err = c.store.CancelByKey(ctx, c.pool, key, reason)
	} else {
		r, err = c.store.Cancel(ctx, c.pool, id, reason)
	}
	if err != nil {
		return r, err
	}
	if len(r.Woken) > 0 {
		c.announce(r.Woken, 0)
	}
	if r.Result == pg.Requested {
		c.operator(pg.Notice{Kind: pg.NoticeCancel, Queue: r.Queue, ID: r.ID, Claim: r.Claim}, reason)
	}
	return r, nil
}

// cancelBelow cancels all descendants, level by level. An instance gets no more children once it has ended or its cancel is
// requested, so the children found after that are all that it will ever have.
func (c *Client) cancelBelow(ctx context.Context, root int64, reason string) error {
	for parents := []int64{root}; len(parents) > 0; {
		parent := parents[0]
		parents = parents[1:]
		children, err := c.store.Offspring(ctx, c.pool, parent)
		if err != nil {
			return err
		}
		for _, child := range children {
			if _, err := c.cancelOne(ctx, child, "", reason); err != nil {
				return err
			}
		}
		parents = append(parents, children...)
	}
	return nil
}
