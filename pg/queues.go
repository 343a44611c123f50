package pg

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// PausedQueue is a queue of which nothing is claimed.
type PausedQueue struct {
	Queue    string
	PausedAt time.Time
}

// PauseQueue pauses a queue: what claims it after the commit, on whichever node, gets nothing, until ResumeQueue. Rows that
// are claimed already are not touched. It returns since when the queue is paused. One round trip.
func (s *Store) PauseQueue(ctx context.Context, db DB, queue string) (since time.Time, err error) {
	err = atomically(ctx, db, func(db DB) error {
		return db.QueryRow(ctx, s.sql("queue_pause"), queue).Scan(&since)
	})
	if err != nil {
		return since, fmt.Errorf("pg: pause queue %q: %w", queue, err)
	}
	return since, nil
}

// ResumeQueue lets a queue go on; it reports whether the queue was paused. One round trip.
func (s *Store) ResumeQueue(ctx context.Context, db DB, queue string) (was bool, err error) {
	err = atomically(ctx, db, func(db DB) error {
		tag, err := db.Exec(ctx, s.sql("queue_resume"), queue)
		was = tag.RowsAffected() > 0
		return err
	})
	if err != nil {
		return false, fmt.Errorf("pg: resume queue %q: %w", queue, err)
	}
	return was, nil
}

// Paused lists the names of the queues that are paused. One round trip.
func (s *Store) Paused(ctx context.Context) ([]string, error) {
	paused, err := s.PausedQueues(ctx, s.pool)
	names := make([]string, len(paused))
	for i, p := range paused {
		names[i] = p.Queue
	}
	return names, err
}

// PausedQueues lists the queues that are paused, by name. One round trip.
func (s *Store) PausedQueues(ctx context.Context, db DB) (paused []PausedQueue, err error) {
	err = onFreshPlan(ctx, db, func(db DB) error {
		rows, err := db.Query(ctx, s.sql("queue_paused"))
		if err != nil {
			return err
		}
		paused, err = pgx.CollectRows(rows, pgx.RowToStructByPos[PausedQueue])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pg: list the paused queues: %w", err)
	}
	return paused, nil
}
