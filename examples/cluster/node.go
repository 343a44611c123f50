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
	"github.com/gendurable/gendurable/cluster"
	"github.com/gendurable/gendurable/fsm"
)

// What a node is told by its parent.
const (
	envNode  = "GENDURABLE_CLUSTER_NODE" // its number
	envURL   = "GENDURABLE_CLUSTER_URL"
	envLanes = "GENDURABLE_CLUSTER_LANES"
	envTTL   = "GENDURABLE_CLUSTER_TTL"
)

type task struct {
	Number int `json:"number"`
}

// work is the job that the nodes run.
var work = fsm.NewJob("work", func(ctx context.Context, j *fsm.JobCall[task]) (int, error) {
	select {
	case <-time.After(20 * time.Millisecond):
		return j.Args.Number, nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}, fsm.Queue("work"))

// runNode is one node: it runs until SIGTERM, or until its parent is gone, and says on its standard output where it is reached,
// and then how many steps it has run.
func runNode(number string) error {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	lanes, err := strconv.Atoi(os.Getenv(envLanes))
	if err != nil {
		return err
	}
	ttl, err := time.ParseDuration(os.Getenv(envTTL))
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, os.Getenv(envURL))
	if err != nil {
		return err
	}
	defer pool.Close()
	engine, err := gendurable.Start(ctx, pool, gendurable.Config{
		NodeName: "node-" + number,
		Machines: []fsm.Definition{work},
		Queues:   map[string]gendurable.Queue{"work": {Concurrency: 5, Lanes: lanes}},
		Cluster:  &cluster.Config{TTL: ttl},
		Logger:   quiet(),
	})
	if err != nil {
		return err
	}
	fmt.Println(engine.Address())
	report := time.NewTicker(100 * time.Millisecond)
	defer report.Stop()
	for {
		select {
		case <-report.C:
			fmt.Println(engine.Stats().Queues["work"].Committed)
		case <-ctx.Done():
			return engine.Stop(context.WithoutCancel(ctx))
		case <-engine.Done():
			return engine.Err()
		}
	}
}

// quiet leaves the screen to the table.
func quiet() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError + 1}))
}
