package pg

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Joint is what is committed together with an outcome.
type Joint struct {
	// Do runs statements of the user's in the transaction. It may be called again, in another transaction, when one was
	// lost with its connection. It must not end the transaction.
	Do func(ctx context.Context, tx pgx.Tx) error
	// Context is what Do's context is derived from.
	Context context.Context
	// Timeout bounds one transaction, from its begin to its commit.
	Timeout time.Duration
}

// WorkError says that the user's part of a joint commit failed; nothing was committed.
type WorkError struct{ Err error }

func (e *WorkError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *WorkError) Unwrap() error { return e.Err }

// ErrCancelRequested says that a joint commit was not tried, because a cancel was requested for the row.
var ErrCancelRequested = errors.New("pg: a cancel was requested for the instance")

// errNotOwned says that the row is not the worker's any more.
var errNotOwned = errors.New("pg: the row is no longer this worker's")

// errLost says that a transaction was lost, and not by the fault of what it contained. If its COMMIT had been sent,
// nobody knows yet what became of it.
var errLost = errors.New("pg: the transaction was lost")

// CommitJoint commits an outcome and the work of j in one transaction on a connection of the pool. First it takes the lock
// on the worker's row and so proves that it still is the worker's. A transaction that was lost with its connection, or to
// a deadlock, is made again, Do included, for as long as ctx lives; whether a COMMIT that nobody heard of took place is
// decided by the same proof, which waits for the old backend.
//
// It answers as a flush does; a Stale outcome's work is not committed either. An error is a *WorkError, one of the class Data
// (the outcome's content was refused), ErrCancelRequested, or ctx's: only with the last it is not known what was committed.
func (s *Store) CommitJoint(ctx context.Context, pool *pgxpool.Pool, o Outcome, j Joint) (Flushed, error) {
	var unheard []string // transactions whose COMMIT was sent and not answered
	for try := 0; ; try++ {
		f := newFlush(s, []*entry{{Outcome: &o, verdict: Verdict{ID: o.ID, Fate: Stale}}})
		xid, err := s.tryJoint(ctx, pool, f, j)
		switch {
		case err == nil:
			f.marked()
			return Flushed{Verdicts: []Verdict{f.entries[0].verdict}, Woken: slices.Sorted(maps.Keys(f.woken))}, nil
		case errors.Is(err, errNotOwned):
			flushed, err := s.jointFate(ctx, pool, &o, unheard)
			if err == nil {
				return flushed, nil
			}
		case !errors.Is(err, errLost):
			return Flushed{}, fmt.Errorf("pg: commit an outcome with its work: %w", err)
		case xid != "":
			unheard = append(unheard, xid)
		}
		if waitErr := pause(ctx, try); waitErr != nil {
			return Flushed{}, fmt.Errorf("pg: commit an outcome with its work: %w (the last try: %w)", waitErr, err)
		}
	}
}

// tryJoint makes one transaction. It returns its number when COMMIT was sent.
func (s *Store) tryJoint(ctx context.Context, pool *pgxpool.Pool, f *flush, j Joint) (xid string, err error) {
	own, cancel := context.WithTimeout(ctx, j.Timeout)
	defer cancel()
	tx, err := pool.BeginTx(own, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	if err != nil {
		return "", fmt.Errorf("%w: begin: %w", errLost, err)
	}
	defer func() { // after a commit a no-op; it gives the connection back also when the work ends its goroutine
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = tx.Rollback(cleanup)
	}()
	number, err := s.proveJoint(own, tx, f.entries[0].Outcome, j.Timeout)
	if err != nil {
		return "", err
	}
	if err := s.work(own, tx, j); err != nil {
		return "", err
	}
	var b pgx.Batch
	b.Queue(s.sql("session_settings"), jointSettings, valuesOf(jointSettings))
	f.queueOutcomes(&b)
	var top bool
	b.Queue(s.sql("joint_top"), f.entries[0].ID).QueryRow(func(row pgx.Row) error { return row.Scan(&top) })
	err = tx.SendBatch(own, &b).Close()
	switch {
	case errors.Is(err, pgx.ErrNoRows) || err == nil && !f.entries[0].committed:
		return "", &WorkError{errors.New("pg: the function of InTx has changed the row of the very instance that runs it")}
	case err != nil:
		return "", s.jointFault(err)
	case !top:
		return "", &WorkError{errors.New("pg: the function of InTx has left a savepoint open: commit or roll back each transaction begun in it")}
	}
	switch err := tx.Commit(own); {
	case err == nil:
		return number, nil
	case isState(err, "40001") || isState(err, "40P01"):
		return "", fmt.Errorf("%w: commit: %w", errLost, err)
	case isAborted(err): // a deferred constraint of the user's, for instance: none of ours is deferred
		return "", &WorkError{fmt.Errorf("pg: commit an outcome with its work: %w", err)}
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return "", s.jointFault(err)
	default:
		return number, fmt.Errorf("%w: commit: %w", errLost, err)
	}
}

// jointSettings are what the statements of an outcome need of a session that is the host's.
var jointSettings = []string{"enable_hashjoin", "enable_mergejoin", "enable_seqscan", "jit"}

// proveJoint locks the row and returns the number of the transaction. The server ends a transaction that nobody has heard of
// for as long as it may take at most: its lock must not outlive the process, or the connection, by hours.
func (s *Store) proveJoint(ctx context.Context, tx pgx.Tx, o *Outcome, timeout time.Duration) (number string, err error) {
	var reason *string
	var b pgx.Batch
	b.Queue(s.sql("session_settings"), []string{"idle_in_transaction_session_timeout"},
		[]string{strconv.FormatInt(max(timeout.Milliseconds(), 1), 10)})
	b.Queue(s.sql("joint_guard"), o.ID, o.Worker, int32(o.Claim)).QueryRow(func(row pgx.Row) error {
		return row.Scan(&reason, &number)
	})
	err = tx.SendBatch(ctx, &b).Close()
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return "", errNotOwned
	case err != nil:
		return "", fmt.Errorf("%w: prove the ownership: %w", errLost, err)
	case reason != nil:
		return "", ErrCancelRequested
	}
	return number, nil
}

// work runs the user's part. What fails because the connection is gone, is not its fault.
func (s *Store) work(own context.Context, tx pgx.Tx, j Joint) error {
	ctx, cancel := context.WithTimeout(j.Context, j.Timeout)
	defer cancel()
	err := j.Do(ctx, tx)
	switch {
	case own.Err() != nil || ctx.Err() != nil && j.Context.Err() == nil:
		return &WorkError{fmt.Errorf("pg: the function of InTx took longer than its timeout of %v: %w", j.Timeout,
			errors.Join(context.DeadlineExceeded, err))}
	case err == nil:
		return nil
	case tx.Conn().IsClosed() && j.Context.Err() == nil:
		return fmt.Errorf("%w: %w", errLost, err)
	}
	return &WorkError{err}
}

// jointFault says whose fault it is that the statements of the outcome, or the COMMIT, failed.
func (s *Store) jointFault(err error) error {
	switch {
	case errors.Is(err, pgx.ErrTxClosed), errors.Is(err, pgx.ErrTxCommitRollback), isState(err, "25P02"):
		return &WorkError{fmt.Errorf("pg: the function of InTx returned nil, but has ended its transaction or left it failed: %w", err)}
	case Classify(err) == Data:
		return err
	}
	return fmt.Errorf("%w: %w", errLost, err)
}

// jointFate tells a row that was lost from one that an earlier attempt has committed.
func (s *Store) jointFate(ctx context.Context, pool *pgxpool.Pool, o *Outcome, unheard []string) (Flushed, error) {
	stale := Flushed{Verdicts: []Verdict{{ID: o.ID, Fate: Stale}}}
	if len(unheard) == 0 {
		return stale, nil
	}
	var committed bool
	var queues []string
	err := within(ctx, 0, func(ctx context.Context) error {
		b := &pgx.Batch{}
		b.Queue(s.sql("joint_fate"), unheard).QueryRow(func(row pgx.Row) error { return row.Scan(&committed) })
		b.Queue(s.sql("flush_queues"), []int64{o.ID, o.ParentID}).QueryRow(func(row pgx.Row) error { return row.Scan(&queues) })
		return pool.SendBatch(ctx, b).Close()
	})
	switch {
	case err != nil && Classify(err) == Data: // a number of another server's: this one never saw the transaction
		return stale, nil
	case err != nil:
		return Flushed{}, err
	case !committed:
		return stale, nil
	}
	for i := range o.Children {
		queues = append(queues, o.Children[i].Queue)
	}
	slices.Sort(queues)
	return Flushed{
		Verdicts: []Verdict{{ID: o.ID, Fate: Committed, Status: asked(o.Kind), Children: len(o.Children), Assumed: true}},
		Woken:    slices.Compact(queues),
	}, nil
}
