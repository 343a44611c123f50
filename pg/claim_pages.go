package pg

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// InboxPage returns the next signals of the instance, at most limit, that are not among those handed: the names the
// instance parked on before the others, then oldest first. None = no more. One round trip.
func (s *Store) InboxPage(ctx context.Context, id int64, handed []int64, limit int) (page []Signal, err error) {
	if handed == nil {
		handed = []int64{}
	}
	err = onFreshPlan(ctx, s.db(), func(db DB) error {
		rows, err := db.Query(ctx, s.sql("inbox_page"), id, handed, limit)
		if err != nil {
			return err
		}
		page, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Signal])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pg: read on in the inbox of instance %d: %w", id, err)
	}
	return page, nil
}

// ChildrenPage returns the children of the instance with ids above after, at most limit, in id order. None = no more.
// One round trip.
func (s *Store) ChildrenPage(ctx context.Context, id, after int64, limit int) (page []Child, err error) {
	err = onFreshPlan(ctx, s.db(), func(db DB) error {
		rows, err := db.Query(ctx, s.sql("children_page"), id, after, limit)
		if err != nil {
			return err
		}
		page, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Child])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pg: read on in the children of instance %d: %w", id, err)
	}
	return page, nil
}
