package pg

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Cancel ends an instance that is not executing: failed with the reason, its inbox deleted, its parent told, in one
// transaction. For an executing one it leaves a request that its worker, or whoever claims it next, fulfils; of several
// requests the first reason counts. It waits for whoever holds the row. One round trip on a pool or a connection, one more
// when there was nothing to cancel; three at most in a caller's transaction.
func (s *Store) Cancel(ctx context.Context, db DB, id int64, reason string) (CancelResult, error) {
	if id == 0 {
		return CancelResult{}, nil
	}
	r, err := s.cancel(ctx, db, id, "", reason)
	if err != nil {
		return CancelResult{}, fmt.Errorf("pg: cancel instance %d: %w", id, err)
	}
	return r, nil
}

// CancelByKey is Cancel for the instance that occupies the correlation key; it takes one round trip more. An instance
// that gave the key up while we waited for its row is left alone.
func (s *Store) CancelByKey(ctx context.Context, db DB, key, reason string) (CancelResult, error) {
	r, err := s.standing(ctx, db, 0, key)
	if err == nil && r.ID != 0 {
		r, err = s.cancel(ctx, db, r.ID, key, reason)
	}
	if err != nil {
		return CancelResult{}, fmt.Errorf("pg: cancel the instance with key %q: %w", key, err)
	}
	return r, nil
}

func (s *Store) cancel(ctx context.Context, db DB, id int64, key, reason string) (CancelResult, error) {
	r := CancelResult{ID: id}
	err := atomically(ctx, db, func(db DB) error {
		if ownTransaction(db) {
			return s.cancelPiped(ctx, db, key, reason, &r)
		}
		return s.cancelInside(ctx, db, key, reason, &r)
	})
	if err != nil || r.Result != NoSuchInstance {
		return r, err
	}
	// Nothing was there to cancel: it is terminal, or gone.
	standing, err := s.standing(ctx, db, id, "")
	if standing.ID != 0 {
		standing.Result = AlreadyTerminal
	}
	return standing, err
}

// ownTransaction reports whether a pipeline sent on db is a transaction of its own. Only then does the riders' proof hold
// (row versions written by this very transaction); a caller's transaction may be in a savepoint.
func ownTransaction(db DB) bool {
	switch d := db.(type) {
	case *pgxpool.Pool:
		return true
	case *pgxpool.Conn:
		return d.Conn().PgConn().TxStatus() == 'I'
	case *pgx.Conn:
		return d.PgConn().TxStatus() == 'I'
	}
	return false
}

// cancelPiped sends the cancel and, unseen whether they are needed, its riders.
func (s *Store) cancelPiped(ctx context.Context, db DB, key, reason string, r *CancelResult) error {
	ids := []int64{r.ID}
	batch := &pgx.Batch{}
	batch.Queue(s.sql("cancel"), r.ID, key, reason)
	batch.Queue(s.sql("flush_inbox"), ids, false)
	batch.Queue(s.sql("cancel_history"), r.ID, s.historic, false)
	batch.Queue(s.sql("flush_join"), ids, false)
	results := db.SendBatch(ctx, batch)
	err := r.scan(results.QueryRow())
	for range 2 {
		if err == nil {
			_, err = results.Exec()
		}
	}
	if err == nil {
		err = r.collectWoken(results.Query())
	}
	if cerr := results.Close(); err == nil {
		err = cerr
	}
	return err
}

// cancelInside does the same in a caller's transaction, one statement after the other.
func (s *Store) cancelInside(ctx context.Context, db DB, key, reason string, r *CancelResult) error {
	if err := r.scan(db.QueryRow(ctx, s.sql("cancel"), r.ID, key, reason)); err != nil || r.Result != Ended {
		return err
	}
	ids := []int64{r.ID}
	batch := &pgx.Batch{}
	batch.Queue(s.sql("flush_inbox"), ids, true)
	batch.Queue(s.sql("cancel_history"), r.ID, s.historic, true)
	batch.Queue(s.sql("flush_join"), ids, true)
	results := db.SendBatch(ctx, batch)
	_, err := results.Exec()
	if err == nil {
		_, err = results.Exec()
	}
	if err == nil {
		err = r.collectWoken(results.Query())
	}
	if cerr := results.Close(); err == nil {
		err = cerr
	}
	return err
}

// scan reads the answer of the cancel statement; no row leaves the result at NoSuchInstance.
func (r *CancelResult) scan(row pgx.Row) error {
	var ended bool
	err := row.Scan(&ended, &r.Queue, &r.Claim)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return err
	}
	if r.Result = Requested; ended {
		r.Result = Ended
	}
	return nil
}

func (r *CancelResult) collectWoken(rows pgx.Rows, err error) error {
	if err == nil {
		r.Woken, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	return err
}

// Offspring returns the children of an instance that live or may have children themselves, in id order. One round trip.
func (s *Store) Offspring(ctx context.Context, db DB, id int64) (children []int64, err error) {
	err = onFreshPlan(ctx, db, func(db DB) error {
		rows, err := db.Query(ctx, s.sql("offspring"), id)
		if err != nil {
			return err
		}
		children, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pg: list the children of instance %d: %w", id, err)
	}
	return children, nil
}

// standing finds the instance and its queue; an ID of 0 = there is none.
func (s *Store) standing(ctx context.Context, db DB, id int64, key string) (r CancelResult, err error) {
	err = onFreshPlan(ctx, db, func(db DB) error {
		err := db.QueryRow(ctx, s.sql("standing"), id, key).Scan(&r.ID, &r.Queue)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	return r, err
}
