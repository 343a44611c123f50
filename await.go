package gendurable

import (
	"context"
	"errors"
	"fmt"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/instance"
	"github.com/gendurable/gendurable/pg"
)

// Settled is where an awaited instance came to rest.
type Settled = instance.Settled

// AwaitOption is an option of Await.
type AwaitOption = instance.AwaitOption

// UntilTerminal makes Await wait on when the instance parks for a signal.
func UntilTerminal() AwaitOption { return instance.UntilTerminal() }

// Await waits until the instance settles: it is done, failed, or parked for a signal (see UntilTerminal). A key is
// resolved once, at the start. When ctx ends first the error is ErrStillBusy, which also matches ctx's own
// error, and says nothing against the instance; ErrNotFound means that there is no such instance (any more);
// with ErrCodec the rest of the answer holds.
// Any number of callers may wait; together they cost one statement a tick, and nothing when a step of this
// engine settles the instance.
func (c *Client) Await(ctx context.Context, ref Ref, opts ...AwaitOption) (Settled, error) {
	id, err := c.resolve(ctx, ref)
	if err != nil {
		return Settled{}, err
	}
	how := instance.AwaitingOf(opts)
	for {
		reply := make(chan actors.AwaitReply, 1)
		c.waiter.await(actors.AwaitInstance{ID: id, UntilTerminal: how.UntilTerminal, Done: ctx.Done(), Reply: reply})
		r, err := answered(ctx, c.waiter.ended(), reply)
		switch {
		case errors.Is(r.Err, actors.ErrRestarting):
			continue
		case err != nil:
			return Settled{ID: ID(id)}, fmt.Errorf("%w: instance %d", err, id)
		}
		return c.settled(id, r)
	}
}

// answered waits for the reply, and prefers it to every other end of the wait.
func answered(ctx context.Context, ended <-chan struct{}, reply <-chan actors.AwaitReply) (actors.AwaitReply, error) {
	var why error
	select {
	case r := <-reply:
		return r, nil
	case <-ctx.Done():
		why = fmt.Errorf("%w: %w", ErrStillBusy, context.Cause(ctx))
	case <-ended:
		why = ErrStopped
	}
	select {
	case r := <-reply:
		return r, nil
	default:
		return actors.AwaitReply{}, why
	}
}

func (c *Client) settled(id int64, r actors.AwaitReply) (Settled, error) {
	switch {
	case errors.Is(r.Err, actors.ErrStopped):
		return Settled{ID: ID(id)}, ErrStopped
	case r.Err != nil:
		return Settled{ID: ID(id)}, r.Err
	case r.Settled.Status == "":
		return Settled{ID: ID(id)}, fmt.Errorf("%w: %d", ErrNotFound, id)
	}
	return c.settledOf(r.Settled)
}

func (c *Client) settledOf(s pg.Settled) (Settled, error) {
	out := Settled{ID: ID(s.ID), Status: fsm.Status(s.Status), Error: s.Error, Awaits: s.Awaits}
	result, err := c.limits.Reveal("result", s.Result)
	if err != nil {
		return out, fmt.Errorf("gendurable: instance %d settled, but: %w", s.ID, err)
	}
	out.Result = result
	return out, nil
}
