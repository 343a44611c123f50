package pg

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Retrial is what a retry came to.
type Retrial int

// The results of a retry.
const (
	// RetryUnknown: there is no such instance.
	RetryUnknown Retrial = iota
	// RetryNotFailed: it has not failed, so there is nothing to retry.
	RetryNotFailed
	// RetryOccupied: somebody occupies its correlation key meanwhile.
	RetryOccupied
	// Retried: it is runnable.
	Retried
)

// RetryResult answers a Retry.
type RetryResult struct {
	Result   Retrial
	Queue    string // of the instance; with Retried
	Key      string // with RetryOccupied
	Occupant int64  // with RetryOccupied; 0 when it has ended meanwhile
}

// Retry makes a failed instance runnable at its last step and state, attempt and crashes 0. Its inbox went when it failed.
// A parent that waits for its children waits for this one again; from any other parent the instance is cut off. It waits
// for whoever holds the row, then for whoever holds the parent's. Its history, if it keeps one, gets a record. One round trip,
// one more when nothing was retried.
func (s *Store) Retry(ctx context.Context, db DB, id int64) (RetryResult, error) {
	var r RetryResult
	err := atomically(ctx, db, func(db DB) error {
		var err error
		r, err = s.retry(ctx, db, id)
		if isState(err, "23505") { // for certain, or by a racing insert that may still be rolled back: who has it now?
			return s.occupied(ctx, db, id, &r, err)
		}
		return err
	})
	if err == nil && r.Result == RetryUnknown {
		var standing CancelResult
		if standing, err = s.standing(ctx, db, id, ""); err == nil && standing.ID != 0 {
			r.Result = RetryNotFailed
		}
	}
	if err != nil {
		return RetryResult{}, fmt.Errorf("pg: retry instance %d: %w", id, err)
	}
	return r, nil
}

// retry sends the whole transaction. Without a row it did nothing.
func (s *Store) retry(ctx context.Context, db DB, id int64) (r RetryResult, err error) {
	b := &pgx.Batch{}
	b.Queue(s.sql("retry_lock"), id)
	b.Queue(s.sql("retry_parent"), id)
	b.Queue(s.sql("retry"), id, s.historic).QueryRow(func(row pgx.Row) error {
		err := row.Scan(&r.Queue)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		r.Result = Retried
		return err
	})
	return r, db.SendBatch(ctx, b).Close()
}

// occupied finds out who has the key. If nobody has it any more, the refusal stands as it is, and the retry is made again.
func (s *Store) occupied(ctx context.Context, db DB, id int64, r *RetryResult, refusal error) error {
	*r = RetryResult{Result: RetryOccupied}
	err := db.QueryRow(ctx, s.sql("occupant"), id).Scan(&r.Key, &r.Occupant)
	if err == nil && r.Occupant == 0 {
		return refusal
	}
	return err
}
