package gendurabletest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/pg"
)

// work is what an outcome of gendurable.InTx carries.
type work interface {
	Do(ctx context.Context, tx pgx.Tx) error
}

// commitTogether commits an outcome with the work that it carries: on a pool or a connection in a transaction of their own, as
// an engine does. In the test's own transaction a failure cannot be undone without a savepoint, and ends the test.
func (r *Runner) commitTogether(o pg.Outcome, e *fsm.Encoded) (pg.Flushed, error) {
	r.t.Helper()
	w, ok := e.Work.(work)
	if !ok {
		return pg.Flushed{}, fmt.Errorf("gendurabletest: an outcome carries a %T, which is no work of gendurable.InTx", e.Work)
	}
	ctx, timeout := r.t.Context(), e.WorkTimeout
	if timeout <= 0 {
		timeout = gendurable.DefaultInTxTimeout
	}
	switch db := r.db.(type) {
	case *pgxpool.Pool:
		return r.store.CommitJoint(ctx, db, o, pg.Joint{Do: w.Do, Context: ctx, Timeout: timeout})
	case pgx.Tx:
		if err := within(ctx, timeout, db, w); err != nil {
			r.t.Fatalf("gendurabletest: the function of an InTx failed inside the test's own transaction, where it cannot be "+
				"rolled back alone; give the Runner a pool (see Schema) to test that: %v", err)
		}
		return r.committer.Flush(ctx, []pg.Outcome{o})
	}
	var flushed pg.Flushed
	err := pgx.BeginFunc(ctx, r.db, func(tx pgx.Tx) (err error) {
		if err := within(ctx, timeout, tx, w); err != nil {
			return &pg.WorkError{Err: err}
		}
		flushed, err = r.committer.Flush(ctx, []pg.Outcome{o}) // on the same connection, and so in the transaction
		return err
	})
	return flushed, err
}

func within(ctx context.Context, timeout time.Duration, tx pgx.Tx, w work) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return w.Do(ctx, tx)
}

// blame is the error that the step's handler gets to see; nil = the step is not to blame.
func (r *Runner) blame(err error) error {
	var failed *pg.WorkError
	switch {
	case errors.As(err, &failed):
		return failed.Err
	case pg.Classify(err) == pg.Data && r.survives():
		return fmt.Errorf("gendurable: the database refused the outcome: %w", err)
	}
	return nil
}
