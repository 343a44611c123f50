package pg

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Get returns the instance, or nil when there is none (any more). One round trip.
func (s *Store) Get(ctx context.Context, db DB, id int64) (*Instance, error) {
	if id == 0 {
		return nil, nil
	}
	i, err := s.get(ctx, db, id, "")
	if err != nil {
		return nil, fmt.Errorf("pg: get instance %d: %w", id, err)
	}
	return i, nil
}

// GetByKey returns the instance that occupies the correlation key, or nil when none does. One round trip.
func (s *Store) GetByKey(ctx context.Context, db DB, key string) (*Instance, error) {
	i, err := s.get(ctx, db, 0, key)
	if err != nil {
		return nil, fmt.Errorf("pg: get the instance with key %q: %w", key, err)
	}
	return i, nil
}

func (s *Store) get(ctx context.Context, db DB, id int64, key string) (*Instance, error) {
	var i Instance
	err := onFreshPlan(ctx, db, func(db DB) error {
		return db.QueryRow(ctx, s.sql("get"), id, key).Scan(&i.ID, &i.Machine, &i.Version, &i.Step, &i.Status, &i.State,
			&i.Result, &i.LastError, &i.Queue, &i.Priority, &i.Attempt, &i.Crashes, &i.Awaits, &i.AwaitDeadline,
			&i.EligibleAt, &i.ConcurrencyKey, &i.RateLimit, &i.Weight, &i.CorrelationKey, &i.CorrelationScope,
			&i.ParentID, &i.ChildrenPending, &i.LockedBy, &i.LeaseExpiresAt, &i.CancelReason, &i.InsertedAt, &i.UpdatedAt)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &i, nil
}

// Settled says where the instances stand, one answer an id, in their order. One round trip; one look-up by primary key
// for each.
func (s *Store) Settled(ctx context.Context, ids []int64) ([]Settled, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	found := make(map[int64]Settled, len(ids))
	err := onFreshPlan(ctx, s.db(), func(db DB) error {
		rows, err := db.Query(ctx, s.sql("settled"), ids)
		if err != nil {
			return err
		}
		var one Settled
		_, err = pgx.ForEachRow(rows, []any{&one.ID, &one.Status, &one.Result, &one.Error, &one.Awaits}, func() error {
			found[one.ID] = one
			one.Result, one.Awaits = nil, nil
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pg: look at %d awaited instances: %w", len(ids), err)
	}
	out := make([]Settled, len(ids))
	for i, id := range ids {
		out[i] = found[id]
		out[i].ID = id
	}
	return out, nil
}
