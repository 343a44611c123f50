// Command cron inserts a job each second, on two engines as if they were two processes, and shows that each occurrence ran
// once.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/internal/devpg"
)

type Tick struct {
	At time.Time `json:"at"`
}

// ticker makes a job that passes on for which occurrence it ran.
func ticker(ran chan<- time.Time) *fsm.Job[Tick, string] {
	return fsm.NewJob("tick", func(ctx context.Context, j *fsm.JobCall[Tick]) (string, error) {
		ran <- j.Args.At
		return j.Args.At.Format(time.TimeOnly), nil
	})
}

func run(ctx context.Context, pool *pgxpool.Pool, out io.Writer) error {
	if err := gendurable.Migrate(ctx, pool); err != nil {
		return err
	}
	ran := make(chan time.Time, 100)
	job := ticker(ran)
	for range 2 {
		engine, err := gendurable.Start(ctx, pool, gendurable.Config{
			Machines: []fsm.Definition{job},
			Crons: []gendurable.Cron{{
				Name: "tick", Schedule: "* * * * * *", Missed: gendurable.MissedAll,
				New: func(at time.Time) fsm.Instance { return job.New(Tick{At: at}) },
			}},
		})
		if err != nil {
			return err
		}
		defer engine.Stop(context.WithoutCancel(ctx))
	}
	seen := make(map[time.Time]int)
	for range 3 {
		select {
		case at := <-ran:
			seen[at]++
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	fmt.Fprintf(out, "3 runs, %d occurrences\n", len(seen))
	return nil
}

func main() {
	ctx := context.Background()
	err := devpg.With(ctx, devpg.Options{}, func(pool *pgxpool.Pool) error { return run(ctx, pool, os.Stdout) })
	if err != nil {
		log.Fatal(err)
	}
}
