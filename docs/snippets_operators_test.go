package docs_test

import (
	"context"

	"github.com/gendurable/gendurable"
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

var _ = []any{operate, pauseAll}
