package pg

import (
	"context"
	"fmt"
	"time"
)

// Position is how far CollectTerminal has come: to the instance ID, which ended at EndedAt. The zero value is the start.
type Position struct {
	EndedAt time.Time
	ID      int64
}

// CollectTerminal deletes up to limit instances that ended longer ago than their retention, from a position on. It
// returns how many, and where the next call goes on; fewer than the limit are all there are. It spares the children of
// parents that are not terminal, the parents of children that are not, and what others hold locked. These, and with two
// retentions those of the longer one, are left behind: only a call from the start finds them later. One statement, one round trip.
func (s *Store) CollectTerminal(ctx context.Context, doneAfter, failedAfter time.Duration, from Position, limit int) (int, Position, error) {
	var n int
	var after, last *time.Time
	if !from.EndedAt.IsZero() {
		after = &from.EndedAt
	}
	next := from
	err := onFreshPlan(ctx, s.pool, func(db DB) error {
		return db.QueryRow(ctx, s.sql("collect"), doneAfter.Microseconds(), failedAfter.Microseconds(), limit,
			after, from.ID).Scan(&n, &last, &next.ID)
	})
	if err != nil {
		return 0, from, fmt.Errorf("pg: delete ended instances: %w", err)
	}
	if last == nil {
		return n, from, nil
	}
	next.EndedAt = *last
	return n, next, nil
}

// sideTableRetention is how long request ids, and the rows of vanished flushers and nodes, are kept.
const sideTableRetention = 24 * time.Hour

// CollectSideTables deletes request ids older than a day, at most limit, and the rows of flushers and nodes that have
// been silent for a day, and looks at as many records of histories for some whose instance is gone. It returns how many
// rows; call it again at once when that is limit or more. Four round trips.
func (s *Store) CollectSideTables(ctx context.Context, limit int) (int, error) {
	age := sideTableRetention.Microseconds()
	total, err := s.collectRequests(ctx, age, limit)
	if err != nil {
		return 0, err
	}
	var n int
	for _, sweep := range []string{"collect_flushers", "collect_nodes"} {
		err := onFreshPlan(ctx, s.pool, func(db DB) error {
			return db.QueryRow(ctx, s.sql(sweep), age).Scan(&n)
		})
		if err != nil {
			return total, fmt.Errorf("pg: %s: %w", sweep, err)
		}
		total += n
	}
	var last int64
	err = onFreshPlan(ctx, s.pool, func(db DB) error {
		return db.QueryRow(ctx, s.sql("collect_history"), s.looked.Load(), limit).Scan(&n, &last)
	})
	if err != nil {
		return total, fmt.Errorf("pg: collect_history: %w", err)
	}
	s.looked.Store(last)
	return total + n, nil
}

// collectRequests deletes request ids. After a full batch the next call goes on where it ended: what was deleted may stay in the index
// for as long as a transaction is open.
func (s *Store) collectRequests(ctx context.Context, age int64, limit int) (n int, err error) {
	var last *time.Time
	err = onFreshPlan(ctx, s.pool, func(db DB) error {
		return db.QueryRow(ctx, s.sql("collect_requests"), age, limit, s.forgot.Load()).Scan(&n, &last)
	})
	if err != nil {
		return 0, fmt.Errorf("pg: collect_requests: %w", err)
	}
	if n < limit {
		last = nil
	}
	s.forgot.Store(last)
	return n, nil
}

// VacuumStats is what decides on a vacuum of our own.
type VacuumStats struct {
	Dead, Live int64 // rows of the instance table and the inboxes, as the statistics have them
	Allowed    bool  // our role owns the tables; without that a vacuum does nothing
}

// VacuumStats reads the statistics of the two tables that bleed dead rows. One round trip.
func (s *Store) VacuumStats(ctx context.Context) (VacuumStats, error) {
	var v VacuumStats
	err := onFreshPlan(ctx, s.pool, func(db DB) error {
		return db.QueryRow(ctx, s.sql("vacuum_stats")).Scan(&v.Dead, &v.Live, &v.Allowed)
	})
	if err != nil {
		return VacuumStats{}, fmt.Errorf("pg: read the statistics of dead rows: %w", err)
	}
	return v, nil
}

// Vacuum vacuums these tables, except one that somebody vacuums, or holds a lock on, just now. It takes as long as it
// takes; the end of ctx stops it without harm.
func (s *Store) Vacuum(ctx context.Context) error {
	if _, err := s.pool.Exec(ctx, s.sql("vacuum")); err != nil {
		return fmt.Errorf("pg: vacuum: %w", err)
	}
	return nil
}
