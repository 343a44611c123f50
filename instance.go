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

// Cancel ends an instance as failed with "cancelled: " and the reason. One that is not executing ends at once; an
// executing one keeps its key until its step returns. Its parent is told, its inbox deleted; its children go on.
// Cancel fails with ErrNotFound when there is no such instance; a repeated Cancel is harmless.
func (c *Client) Cancel(ctx context.Context, ref Ref, reason string) (Cancellation, error) {
	id, key, err := address(ref)
	if err != nil {
		return "", err
	}
	if reason = fsm.CleanError(reason); reason == "" {
		reason = "no reason given"
	}
	var r pg.CancelResult
	if key != "" {
		r, err = c.store.CancelByKey(ctx, c.pool, key, reason)
	} else {
		r, err = c.store.Cancel(ctx, c.pool, id, reason)
	}
	if err != nil {
		return "", fmt.Errorf("gendurable: cancel %s: %w", describe(ref), err)
	}
	if len(r.Woken) > 0 {
		c.announce(r.Woken, 0)
	}
	switch r.Result {
	case pg.Ended:
		return CancelEnded, nil
	case pg.Requested:
		c.cancelled(r.Queue, r.ID, reason)
		return CancelRequested, nil
	case pg.AlreadyTerminal:
		return CancelTooLate, nil
	}
	return "", fmt.Errorf("%w: %s", ErrNotFound, describe(ref))
}
