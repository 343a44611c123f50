package gendurable

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/gendurable/gendurable/pg"
)

// Tx runs fn in a transaction on the host's pool, commits it, and then pokes the queues that InsertTx and SignalTx
// gave work to in it. An error or panic of fn rolls back; the error is returned as it is.
//
// The engine's rows that fn touches stay locked until it returns: keep it short.
func (c *Client) Tx(ctx context.Context, fn func(tx pgx.Tx) error) error {
	inner, err := c.pool.Begin(ctx)
	if err != nil {
		return fmt.Errorf("gendurable: begin: %w", err)
	}
	tx := &announcingTx{Tx: inner}
	// After a commit this is a no-op. It must run although ctx may be done.
	defer func() { _ = inner.Rollback(context.WithoutCancel(ctx)) }()
	if err := fn(tx); err != nil {
		return err
	}
	if err := inner.Commit(ctx); err != nil {
		return fmt.Errorf("gendurable: commit: %w", err)
	}
	for _, w := range tx.wakes {
		c.announce([]string{w.queue}, w.in)
	}
	return nil
}

// announcingTx remembers what to announce once the transaction has committed.
type announcingTx struct {
	pgx.Tx
	wakes []wake
}

// Commit refuses: the transaction belongs to Tx.
func (t *announcingTx) Commit(context.Context) error {
	return errors.New("gendurable: Tx commits by itself when its function returns nil")
}

// announceOnCommit returns what InsertTx does with its answers: remember them if tx came from Tx.
func announceOnCommit(tx pgx.Tx) func([]pg.Insertion, []pg.Inserted) {
	t, ok := tx.(*announcingTx)
	if !ok {
		return func([]pg.Insertion, []pg.Inserted) {}
	}
	return func(rows []pg.Insertion, answers []pg.Inserted) {
		t.wakes = append(t.wakes, wakesOf(rows, answers)...)
	}
}
