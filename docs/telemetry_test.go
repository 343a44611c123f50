package docs_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
)

// telemetry.md

var audited = fsm.New[Order]("audited", fsm.History()).
	Step("check", func(ctx context.Context, c *fsm.Call[Order]) (fsm.Outcome, error) {
		return fsm.Next("book"), nil
	}).
	Step("book", func(ctx context.Context, c *fsm.Call[Order]) (fsm.Outcome, error) {
		return fsm.Done(nil), nil
	})

func startObserved(ctx context.Context, pool *pgxpool.Pool, traces trace.TracerProvider, metrics metric.MeterProvider) (*gendurable.Engine, error) {
	return gendurable.Start(ctx, pool, gendurable.Config{
		Machines:       []fsm.Definition{audited},
		TracerProvider: traces,
		MeterProvider:  metrics,
	})
}

func printHistory(ctx context.Context, engine *gendurable.Engine, id gendurable.ID) error {
	var page gendurable.HistoryPage
	for {
		list, err := engine.History(ctx, id, page)
		if err != nil || len(list) == 0 {
			return err
		}
		for _, t := range list {
			fmt.Println(t.At, t.Step, t.Attempt, t.Took, t.Outcome, t.Next, t.Status, t.Error)
			page.After = t.Seq
		}
	}
}

var _ = []any{startObserved, printHistory}
