package pg

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// CronStanding says where periodic insertions stand.
type CronStanding struct {
	// Last has the last occurrence of each, as far as known: the one that was inserted or passed over last, or when the name
	// was entered.
	Last map[string]time.Time
	// Now is the time on the database's clock.
	Now time.Time
}

// EnterCron enters the names that are new, as of now, and returns where all of them stand; names must not repeat. One that
// another process enters at the same moment may be missing from the answer. One round trip.
func (s *Store) EnterCron(ctx context.Context, names []string) (CronStanding, error) {
	out := CronStanding{Last: make(map[string]time.Time, len(names))}
	err := onFreshPlan(ctx, s.pool, func(db DB) error {
		rows, err := db.Query(ctx, s.sql("cron_enter"), names)
		if err != nil {
			return err
		}
		var name string
		var last time.Time
		_, err = pgx.ForEachRow(rows, []any{&name, &last, &out.Now}, func() error {
			out.Last[name] = last
			return nil
		})
		return err
	})
	if err != nil {
		return CronStanding{}, fmt.Errorf("pg: see where %d periodic insertions stand: %w", len(names), err)
	}
	return out, nil
}

// CronFired is what became of an occurrence.
type CronFired struct {
	// Claimed: it was this call that claimed the occurrence. If not, somebody else has, or it is not due on the database's clock.
	Claimed bool
	// ID is the instance that was inserted, 0 when its correlation key was occupied.
	ID int64
}

// FireCron claims the occurrence at the time given, and inserts the instance for it in the same statement: on any number of
// nodes an occurrence is inserted once. EligibleAt and RequestID of the instance are ignored. One round trip.
func (s *Store) FireCron(ctx context.Context, name string, at time.Time, in Insertion) (CronFired, error) {
	var fired CronFired
	var scope int16
	err := error(nil)
	if in.CorrelationKey != "" {
		scope, err = scopeCode(in.CorrelationScope)
	}
	if err == nil {
		err = atomically(ctx, s.pool, func(db DB) error {
			var id *int64
			err := db.QueryRow(ctx, s.sql("cron_fire"), name, at, in.Machine, int32(in.Version), in.Step, jsonOrEmpty(in.State),
				in.Queue, in.Priority, in.ConcurrencyKey, in.RateLimit, weightOrOne(in.Weight), micros(in.Delay),
				s.interoperable, in.CorrelationKey, scope).Scan(&fired.Claimed, &id)
			fired.ID = orZero(id)
			return err
		})
	}
	if err != nil {
		return CronFired{}, fmt.Errorf("pg: insert the occurrence %v of %q: %w", at, name, err)
	}
	return fired, nil
}

// PassCron passes over the occurrences up to the one at the time given. One round trip.
func (s *Store) PassCron(ctx context.Context, name string, at time.Time) error {
	err := onFreshPlan(ctx, s.pool, func(db DB) error {
		_, err := db.Exec(ctx, s.sql("cron_pass"), name, at)
		return err
	})
	if err != nil {
		return fmt.Errorf("pg: pass over the occurrence %v of %q: %w", at, name, err)
	}
	return nil
}
