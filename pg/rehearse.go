package pg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrSavepoint says that a transaction is inside a savepoint, where flushes cannot work: they tell the rows they have written
// by the transaction that wrote them.
var ErrSavepoint = errors.New("pg: the transaction is inside a savepoint (a nested Begin); use the outer one")

// Rehearsal is what a test helper needs beyond what an engine does: it bends time, and plays dead. It is for tables that
// belong to one test; nothing in it is bounded.
type Rehearsal struct{ store *Store }

// Rehearsal returns the rehearsal of a store.
func (s *Store) Rehearsal() Rehearsal { return Rehearsal{s} }

// CheckTop fails with ErrSavepoint when the store runs inside a savepoint. It writes the row of the flusher name.
func (r Rehearsal) CheckTop(ctx context.Context, name string) error {
	var top bool
	if err := r.store.db().QueryRow(ctx, r.store.sql("test_top"), name).Scan(&top); err != nil {
		return fmt.Errorf("pg: write a flusher's row: %w", err)
	}
	if !top {
		return ErrSavepoint
	}
	return nil
}

// Queues lists the queues with rows that are eligible now, the most urgent first.
func (r Rehearsal) Queues(ctx context.Context) ([]string, error) {
	rows, err := r.store.db().Query(ctx, r.store.sql("test_queues"))
	if err == nil {
		var queues []string
		if queues, err = pgx.CollectRows(rows, pgx.RowTo[string]); err == nil {
			return queues, nil
		}
	}
	return nil, fmt.Errorf("pg: list the queues with work: %w", err)
}

// Collapse makes the row that would become eligible next eligible at once. It returns its id, 0 when there is none.
func (r Rehearsal) Collapse(ctx context.Context) (id int64, err error) {
	err = r.store.db().QueryRow(ctx, r.store.sql("test_collapse")).Scan(&id)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("pg: make a later row eligible: %w", err)
	}
	return id, nil
}

// Advance moves time on by at most d, to the next moment at which something becomes due, and says how far that was and
// whether it met such a moment.
func (r Rehearsal) Advance(ctx context.Context, d time.Duration) (went time.Duration, met bool, err error) {
	var us int64
	if err := r.store.db().QueryRow(ctx, r.store.sql("test_advance"), d.Microseconds()).Scan(&us, &met); err != nil {
		return 0, false, fmt.Errorf("pg: advance time by %v: %w", d, err)
	}
	return time.Duration(us) * time.Microsecond, met, nil
}

// FireTimeouts wakes the parked instances given that await with a timeout, or all of them with none given. It returns
// their ids.
func (r Rehearsal) FireTimeouts(ctx context.Context, ids []int64) ([]int64, error) {
	rows, err := r.store.db().Query(ctx, r.store.sql("test_timeouts"), ids)
	if err == nil {
		ids, err = pgx.CollectRows(rows, pgx.RowTo[int64])
	}
	if err != nil {
		return nil, fmt.Errorf("pg: let awaits time out: %w", err)
	}
	return ids, r.Wake(ctx)
}

// Wake wakes whatever awaits have timed out, as an engine's sweep does.
func (r Rehearsal) Wake(ctx context.Context) error {
	_, err := r.store.WakeDeadlines(ctx, time.Time{}, rehearsed)
	return err
}

// Bury gives back the rows of a worker as if it had died and its leases were over.
func (r Rehearsal) Bury(ctx context.Context, worker string) error {
	if _, err := r.store.db().Exec(ctx, r.store.sql("test_expire"), worker); err != nil {
		return fmt.Errorf("pg: end the leases of %s: %w", worker, err)
	}
	_, err := r.store.ReapLeases(ctx, time.Time{}, rehearsed)
	return err
}

// rehearsed is how many rows a sweep takes: all that a test has.
const rehearsed = 1 << 30
