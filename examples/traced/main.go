// Command traced runs a checkout that awaits a payment and then sends two parcels as children, and prints the traces that
// OpenTelemetry got of it.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/internal/devpg"
)

type Order struct {
	Parcels []string `json:"parcels"`
}

type Parcel struct {
	To string `json:"to"`
}

type Payment struct {
	Amount int `json:"amount"`
}

var Send = fsm.NewJob("send", func(ctx context.Context, j *fsm.JobCall[Parcel]) (string, error) {
	return "tracking number for " + j.Args.To, nil
})

var Checkout = fsm.New[Order]("checkout", fsm.History()).
	Step("start", func(ctx context.Context, c *fsm.Call[Order]) (fsm.Outcome, error) {
		return fsm.Await("payment").Then("ship"), nil
	}).
	Step("ship", func(ctx context.Context, c *fsm.Call[Order]) (fsm.Outcome, error) {
		var parcels []fsm.Instance
		for _, to := range c.State.Parcels {
			parcels = append(parcels, Send.New(Parcel{To: to}))
		}
		return fsm.ScheduleChildren(parcels...).Then("close"), nil
	}).
	Step("close", func(ctx context.Context, c *fsm.Call[Order]) (fsm.Outcome, error) {
		return fsm.Done(len(c.Children)), nil
	})

func run(ctx context.Context, pool *pgxpool.Pool, out io.Writer) error {
	if err := gendurable.Migrate(ctx, pool); err != nil {
		return err
	}
	// A service would export to a collector (otlptracegrpc.New) in the background (sdktrace.WithBatcher).
	exporter := tracetest.NewInMemoryExporter()
	tracing := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	engine, err := gendurable.Start(ctx, pool, gendurable.Config{
		Machines:       []fsm.Definition{Checkout, Send},
		TracerProvider: tracing,
	})
	if err != nil {
		return err
	}
	id, err := engine.Insert(ctx, Checkout.New(Order{Parcels: []string{"Ada", "Grace"}}))
	if err != nil {
		return err
	}
	if _, err := engine.Await(ctx, id); err != nil { // until it is parked
		return err
	}
	// In another process as a rule, and so in a trace of its own: the payment provider's webhook.
	if err := engine.Signal(ctx, id, "payment", Payment{Amount: 100}); err != nil {
		return err
	}
	if _, err := engine.Await(ctx, id, gendurable.UntilTerminal()); err != nil {
		return err
	}
	history, err := engine.History(ctx, id, gendurable.HistoryPage{})
	if err != nil {
		return err
	}
	// The spans of steps end once their outcome is committed; after Stop they all have.
	if err := engine.Stop(ctx); err != nil {
		return err
	}
	print(out, exporter.GetSpans().Snapshots())
	fmt.Fprintln(out)
	for _, t := range history {
		fmt.Fprintf(out, "%s came to %s: now %s\n", t.Step, t.Outcome, t.Status)
	}
	return nil
}

func main() {
	ctx := context.Background()
	err := devpg.With(ctx, devpg.Options{}, func(pool *pgxpool.Pool) error { return run(ctx, pool, os.Stdout) })
	if err != nil {
		log.Fatal(err)
	}
}
