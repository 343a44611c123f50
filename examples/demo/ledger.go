package main

import (
	"context"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"
)

// ledger is a plain table beside the engine's, written by the steps in transactions of their own. What it says
// happened is compared with what the engine promises.
type ledger struct {
	pool *pgxpool.Pool
	// worker tells the worker processes of one demo apart: 1, 2, 3.
	worker int
}

const ledgerSchema = `
CREATE TABLE ledger (
	id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	order_no int NOT NULL,
	step     text NOT NULL,
	worker   int NOT NULL,
	pid      int NOT NULL,
	at       timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE charges (order_no int PRIMARY KEY, cents int NOT NULL);`

// run records that a step of an order started.
func (l *ledger) run(ctx context.Context, order int, step string) error {
	_, err := l.pool.Exec(ctx, `INSERT INTO ledger (order_no, step, worker, pid) VALUES ($1, $2, $3, $4)`,
		order, step, l.worker, os.Getpid())
	if err != nil {
		return fmt.Errorf("write the ledger: %w", err)
	}
	return nil
}

// charge takes the money, once.
func (l *ledger) charge(ctx context.Context, order, cents int) error {
	_, err := l.pool.Exec(ctx, `INSERT INTO charges (order_no, cents) VALUES ($1, $2) ON CONFLICT DO NOTHING`, order, cents)
	if err != nil {
		return fmt.Errorf("charge: %w", err)
	}
	return nil
}
