package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
)

// The environment through which the conductor tells its worker what to do.
const (
	envWorker  = "DEMO_WORKER" // the number of the worker process
	envURL     = "DEMO_DATABASE_URL"
	envTimeout = "DEMO_PAYMENT_TIMEOUT"
)

// work runs the engine until SIGTERM, or until the conductor is gone.
func runWorker(number string) error {
	worker, err := strconv.Atoi(number)
	if err != nil {
		return fmt.Errorf("%s: %w", envWorker, err)
	}
	timeout, err := time.ParseDuration(os.Getenv(envTimeout))
	if err != nil {
		return fmt.Errorf("%s: %w", envTimeout, err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	// The conductor holds the other end of our standard input: end of file means that it died.
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()

	pool, err := pgxpool.New(ctx, os.Getenv(envURL))
	if err != nil {
		return err
	}
	defer pool.Close()
	p := &pipeline{ledger: &ledger{pool: pool, worker: worker}, paymentTimeout: timeout}
	engine, err := gendurable.Start(ctx, pool, gendurable.Config{
		// The name that is kept across restarts is what makes the next worker go on at once.
		NodeName: "demo-worker",
		Machines: []fsm.Definition{p.machine(), p.shipment()},
		Queues: map[string]gendurable.Queue{
			"orders":    {Concurrency: 40},
			"shipments": {Concurrency: 40},
		},
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-engine.Done():
		return engine.Err()
	}
	drain, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return engine.Stop(drain)
}
