package docs_test

import (
	"context"
	"fmt"
	"time"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
)

// cancel-and-retry.md

func operate(ctx context.Context, engine *gendurable.Engine, id int64) error {
	result, err := engine.Cancel(ctx, gendurable.ID(id), "ordered by mistake")
	if err != nil || result == gendurable.CancelTooLate {
		return err
	}
	result, err = engine.Cancel(ctx, gendurable.ID(id), "ordered by mistake", gendurable.Cascade())
	if err != nil || result == gendurable.CancelTooLate {
		return err
	}
	err = engine.Retry(ctx, gendurable.ID(id))
	return err
}

func pauseAll(ctx context.Context, engine *gendurable.Engine) error {
	if err := engine.Pause(ctx, "mail"); err != nil {
		return err
	}
	paused, err := engine.PausedQueues(ctx)
	for _, q := range paused {
		if err := engine.Resume(ctx, q.Queue); err != nil {
			return err
		}
	}
	return err
}

var _ = []any{operate, pauseAll, crons, look}

// operations.md

func look(ctx context.Context, engine *gendurable.Engine) error {
	states, err := engine.Counts(ctx)
	for _, q := range states {
		fmt.Println(q.Queue, q.Ready, q.Executing, q.Failed, q.OldestReady)
	}
	return err
}

// cron.md

type ReportArgs struct {
	Day string `json:"day"`
}

var Report = fsm.NewJob("report", func(ctx context.Context, j *fsm.JobCall[ReportArgs]) (string, error) { return j.Args.Day, nil })

func crons(cfg gendurable.Config) gendurable.Config {
	cfg.Crons = []gendurable.Cron{{
		Name: "daily report", Schedule: "30 6 * * MON-FRI", TimeZone: "Europe/Berlin",
		New: func(at time.Time) fsm.Instance { return Report.New(ReportArgs{Day: at.Format(time.DateOnly)}) },
	}}
	return cfg
}
