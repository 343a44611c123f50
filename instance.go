package gendurable

import (
	"context"
	"fmt"

	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/instance"
	"github.com/gendurable/gendurable/pg"
)

// Instance is everything the database says of one instance.
type Instance = instance.Instance

// Get reads one instance. It fails with ErrNotFound when there is none (any more). When the Codec cannot read its state or
// result, these are nil, the error is ErrCodec, and the rest is there.
func (c *Client) Get(ctx context.Context, ref Ref) (*Instance, error) {
	id, key, err := address(ref)
	if err != nil {
		return nil, err
	}
	var row *pg.Instance
	if key != "" {
		row, err = c.store.GetByKey(ctx, c.pool, key)
	} else {
		row, err = c.store.Get(ctx, c.pool, id)
	}
	if err != nil {
		return nil, fmt.Errorf("gendurable: get %s: %w", describe(ref), err)
	}
	if row == nil {
		return nil, fmt.Errorf("%w: %s", ErrNotFound, describe(ref))
	}
	inst := instanceOf(row)
	if inst.State, err = c.limits.Reveal("state", row.State); err == nil {
		inst.Result, err = c.limits.Reveal("result", row.Result)
	}
	if err != nil {
		return inst, fmt.Errorf("gendurable: get %s: %w", describe(ref), err)
	}
	return inst, nil
}

func instanceOf(r *pg.Instance) *Instance {
	inst := &Instance{
		ID: ID(r.ID), Machine: r.Machine, Version: r.Version, Step: r.Step, Status: fsm.Status(r.Status),
		LastError: r.LastError, Queue: r.Queue, Priority: int(r.Priority),
		Attempt: r.Attempt, Crashes: r.Crashes, Awaits: r.Awaits, EligibleAt: r.EligibleAt,
		ConcurrencyKey: r.ConcurrencyKey, RateLimit: r.RateLimit, Weight: r.Weight, CorrelationKey: r.CorrelationKey,
		ParentID: ID(r.ParentID), ChildrenPending: r.ChildrenPending, LockedBy: r.LockedBy,
		InsertedAt: r.InsertedAt, UpdatedAt: r.UpdatedAt,
	}
	if r.AwaitDeadline != nil {
		inst.AwaitDeadline = *r.AwaitDeadline
	}
	if r.LeaseExpiresAt != nil {
		inst.LeaseExpiresAt = *r.LeaseExpiresAt
	}
	if r.CancelReason != nil {
		inst.CancelRequested, inst.CancelReason = true, *r.CancelReason
	}
	return inst
}
