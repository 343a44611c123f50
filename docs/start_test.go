package docs_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
)

// machines.md and jobs.md. Their machines and jobs are the examples of package fsm.

type CleanupArgs struct {
	Path string `json:"path"`
}

func startMachine(ctx context.Context, pool *pgxpool.Pool, Checkout *fsm.Machine[Order]) error {
	engine, err := gendurable.Start(ctx, pool, gendurable.Config{
		Machines: []fsm.Definition{Checkout},
		Queues:   map[string]gendurable.Queue{"default": {Concurrency: 10}, "checkout": {Concurrency: 5}},
	})
	if err != nil {
		return err
	}
	id, err := engine.Insert(ctx, Checkout.New(Order{ID: 42}), fsm.CorrelationKey("order:42"))
	fmt.Println(id)
	return err
}

func startJob(ctx context.Context, pool *pgxpool.Pool, Cleanup *fsm.Job[CleanupArgs, int]) error {
	engine, err := gendurable.Start(ctx, pool, gendurable.Config{
		Machines: []fsm.Definition{Cleanup},
		Queues:   map[string]gendurable.Queue{"default": {Concurrency: 10}},
	})
	if err != nil {
		return err
	}
	id, err := engine.Insert(ctx, Cleanup.New(CleanupArgs{Path: "/tmp/x"}))
	fmt.Println(id)
	return err
}

var _, _ = startMachine, startJob
