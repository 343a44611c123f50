package pg

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// CountLimit is how far the counts of a queue go, each.
	CountLimit = 10_000
	// ListWindow is how many rows one call of List looks at, at most.
	ListWindow = 10_000
	maxQueues  = 200 // of one call of QueueCounts
)

// listSettings make the statements of this file walk an index and stop, also on the host's connections.
var listSettings = []string{"enable_seqscan", "enable_bitmapscan"}

// QueueCount is how many instances of a queue stand where. Each number stops at CountLimit.
type QueueCount struct {
	Queue                                                                 string
	Ready, Scheduled, Executing, AwaitingSignal, AwaitingChildren, Failed int64
	// PausedAt is since when the queue is paused; nil = it is not.
	PausedAt *time.Time
	// OldestReady is when the ready instance that waits for longest became eligible; nil = none is ready. Only the 100 most
	// urgent priorities in use are looked at.
	OldestReady *time.Time
}

// CountQueues counts the instances of queues, in one round trip. What it costs is bounded, however many there are.
func (s *Store) CountQueues(ctx context.Context, db DB, queues []string) ([]QueueCount, error) {
	counts := make([]QueueCount, len(queues))
	err := onFreshPlan(ctx, db, func(db DB) error {
		b := &pgx.Batch{}
		b.Queue(s.sql("session_settings"), listSettings, []string{"off", "off"})
		for i, q := range queues {
			c := &counts[i]
			*c = QueueCount{Queue: q}
			b.Queue(s.sql("count_queue"), q, int64(CountLimit)).QueryRow(func(row pgx.Row) error {
				return row.Scan(&c.Ready, &c.Scheduled, &c.Executing, &c.AwaitingSignal, &c.AwaitingChildren, &c.Failed, &c.PausedAt, &c.OldestReady)
			})
		}
		return db.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return nil, fmt.Errorf("pg: count the instances of %d queues: %w", len(queues), err)
	}
	return counts, nil
}

// QueueNames lists the queues that have runnable, parked or failed instances, or are paused: at most 200, by name. One round trip.
func (s *Store) QueueNames(ctx context.Context, db DB) (names []string, err error) {
	err = onFreshPlan(ctx, db, func(db DB) error {
		b := &pgx.Batch{}
		b.Queue(s.sql("session_settings"), listSettings, []string{"off", "off"})
		b.Queue(s.sql("count_queues"), int64(maxQueues)).Query(func(rows pgx.Rows) (err error) {
			names, err = pgx.CollectRows(rows, pgx.RowTo[string])
			return err
		})
		return db.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return nil, fmt.Errorf("pg: list the queues: %w", err)
	}
	return names, nil
}

// ListRequest asks for instances; an empty filter lets all pass.
type ListRequest struct {
	Before                 int64 // only lower ids; 0 = from the newest
	Limit                  int
	Queue, Machine, Status string
}

// Listed is an instance in a list.
type Listed struct {
	ID             int64
	Machine        string
	Version        int
	Step           string
	Status         Status
	Queue          string
	Priority       int16
	Attempt        int
	EligibleAt     time.Time
	CorrelationKey string
	ParentID       int64
	LastError      string
	InsertedAt     time.Time
	UpdatedAt      time.Time
}

// List returns instances, the newest first. It looks at ListWindow rows at most, of which fewer than asked for may pass the
// filter, or none: next is where to go on, 0 when there is no more. One round trip.
func (s *Store) List(ctx context.Context, db DB, r ListRequest) (list []Listed, next int64, err error) {
	var lowest, looked int64
	err = onFreshPlan(ctx, db, func(db DB) error {
		list = nil
		b := &pgx.Batch{}
		b.Queue(s.sql("session_settings"), listSettings, []string{"off", "off"})
		b.Queue(s.sql("list"), r.Before, int64(ListWindow), int64(r.Limit), r.Queue, r.Machine, r.Status).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var l Listed
				if rows.RawValues()[2] == nil { // nothing passed the filter
					return rows.Scan(&lowest, &looked, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil)
				}
				if err := rows.Scan(&lowest, &looked, &l.ID, &l.Machine, &l.Version, &l.Step, &l.Status, &l.Queue, &l.Priority, &l.Attempt,
					&l.EligibleAt, &l.CorrelationKey, &l.ParentID, &l.LastError, &l.InsertedAt, &l.UpdatedAt); err != nil {
					return err
				}
				list = append(list, l)
			}
			return rows.Err()
		})
		return db.SendBatch(ctx, b).Close()
	})
	switch {
	case err != nil:
		return nil, 0, fmt.Errorf("pg: list instances: %w", err)
	case len(list) == r.Limit:
		return list, list[len(list)-1].ID, nil
	case looked == ListWindow:
		return list, lowest, nil
	}
	return list, 0, nil
}
