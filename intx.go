package gendurable

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/pg"
)

// DefaultInTxTimeout bounds the transaction of an InTx that names no timeout.
const DefaultInTxTimeout = 30 * time.Second

// InTx is an outcome that is committed together with what fn does in the database, in one transaction: both happen, or
// neither, and exactly once, however often a process or a connection dies on the way.
//
//	return gendurable.InTx(fsm.Next("ship"), func(ctx context.Context, tx pgx.Tx) error {
//		_, err := tx.Exec(ctx, `UPDATE stock SET left = left - 1 WHERE item = $1`, c.State.Item)
//		return err
//	}), nil
//
// The transaction is one of the host's pool, read committed, and its first statement proves that this process still owns
// the instance, whose row stays locked until the commit. fn runs after the step has returned, on another goroutine; what it
// changes in the state is not stored. It must not commit or roll back, and leave everything outside of the database
// alone: it is called again when its transaction was lost with the connection, or with an unanswered COMMIT that turns out
// not to have happened. InsertTx and SignalTx work in it, and their work is announced after the commit.
//
// An error or panic of fn rolls back and goes to the machine's error handler, like that of a step; so does a commit that
// takes longer than the timeout (see InTxTimeout), at which fn's context ends. The context also ends as the step's would. The
// outcome may be any but another InTx; a Next is never run inline. An error handler may return an InTx as well.
func InTx(outcome fsm.Outcome, fn func(ctx context.Context, tx pgx.Tx) error, opts ...InTxOption) fsm.Outcome {
	var how inTx
	for _, opt := range opts {
		opt(&how)
	}
	if fn == nil {
		return fsm.Together(outcome, nil, how.timeout)
	}
	return fsm.Together(outcome, work(fn), how.timeout)
}

// work is what an outcome made by InTx carries.
type work func(ctx context.Context, tx pgx.Tx) error

// InTxOption is an option of InTx.
type InTxOption func(*inTx)

type inTx struct{ timeout time.Duration }

// InTxTimeout bounds the transaction of an InTx, from its begin to its commit; 0 = DefaultInTxTimeout. Other statements on
// the instance, such as signals to it, wait for it meanwhile, and so does a connection of the host's pool.
func InTxTimeout(d time.Duration) InTxOption { return func(i *inTx) { i.timeout = d } }

// commitTogether is what schedulers commit the outcomes of InTx with.
func (e *Engine) commitTogether(alive, step context.Context, o pg.Outcome, w any, timeout time.Duration) (pg.Verdict, error) {
	fn, ok := w.(work)
	if !ok {
		return pg.Verdict{}, &pg.WorkError{Err: fmt.Errorf("%w: an outcome carries a %T, which is no work of InTx", ErrInvalid, w)}
	}
	orDuration(&timeout, DefaultInTxTimeout)
	var tx *announcingTx // of the last try
	// An engine's client is on a pool: Start takes nothing else.
	flushed, err := e.store.CommitJoint(alive, e.pool.(*pgxpool.Pool), o, pg.Joint{Context: step, Timeout: timeout,
		Do: func(ctx context.Context, inner pgx.Tx) error {
			tx = &announcingTx{Tx: inner}
			return fn.Do(ctx, tx)
		}})
	switch {
	case err != nil && pg.Classify(err) == pg.Data:
		return pg.Verdict{}, &actors.RefusedError{Err: err}
	case err != nil:
		return pg.Verdict{}, err
	}
	if len(flushed.Woken) > 0 {
		e.announce(flushed.Woken, 0)
	}
	if credit := actors.GivenUp([]pg.Outcome{o}, flushed.Verdicts); len(credit.Released)+len(credit.Lost) > 0 {
		e.tree.system.Root.Send(e.tree.limiterPID(), credit)
	}
	if flushed.Verdicts[0].Fate == pg.Committed {
		for _, w := range wakesOf(o.Children, make([]pg.Inserted, len(o.Children))) {
			if w.in > 0 { // Woken has the others
				e.announce([]string{w.queue}, w.in)
			}
		}
	}
	if tx != nil && flushed.Verdicts[0].Fate == pg.Committed {
		for _, w := range tx.wakes {
			e.announce([]string{w.queue}, w.in)
		}
	}
	return flushed.Verdicts[0], nil
}

// Do runs it, and turns a panic into its error. It is what gendurabletest knows of it.
func (fn work) Do(ctx context.Context, tx pgx.Tx) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &fsm.PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return fn(ctx, tx)
}
