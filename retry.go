package gendurable

import (
	"context"
	"fmt"

	"github.com/gendurable/gendurable/pg"
)

// Retry lets a failed instance run again: it becomes runnable at the step that failed, with the state as that step found it,
// attempt and crashes at 0. Its id, queue, priority and keys are as before. Its inbox is gone: it was deleted when the
// instance failed, so a step that awaited signals sees none. A cancelled instance is a failed one, too.
//
// A child whose parent is waiting for its children is waited for again; any other child goes its own way from now on, its
// parent no longer knows it. Instances that a cancel or retention took with it are not brought back.
//
// The history of a machine that keeps one (fsm.History) gets a transition "retried", if this process lists the machine or
// the instance has a record already.
//
// Retry fails with ErrNotFound when there is no such instance (any more), with ErrNotFailed when it has not failed, and with
// a DuplicateError when somebody occupies its correlation key meanwhile.
func (c *Client) Retry(ctx context.Context, id ID) error {
	n, _, err := address(id)
	if err != nil {
		return err
	}
	r, err := c.store.Retry(ctx, c.pool, n)
	if err != nil {
		return fmt.Errorf("gendurable: retry instance %d: %w", id, err)
	}
	switch r.Result {
	case pg.RetryUnknown:
		return fmt.Errorf("%w: %d", ErrNotFound, id)
	case pg.RetryNotFailed:
		return fmt.Errorf("%w: instance %d", ErrNotFailed, id)
	case pg.RetryOccupied:
		return &DuplicateError{Key: r.Key, Occupant: ID(r.Occupant)}
	}
	c.announce([]string{r.Queue}, 0)
	return nil
}
