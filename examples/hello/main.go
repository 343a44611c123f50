// Command hello runs one job: the smallest use of the engine.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/internal/devpg"
)

type Greeting struct {
	Name string `json:"name"`
}

// Greet is a job: a function from arguments to a result. If it failed it would be retried, also by another process.
var Greet = fsm.NewJob("greet", func(ctx context.Context, j *fsm.JobCall[Greeting]) (string, error) {
	return "Hello, " + j.Args.Name + "!", nil
})

func run(ctx context.Context, pool *pgxpool.Pool, out io.Writer) error {
	if err := gendurable.Migrate(ctx, pool); err != nil {
		return err
	}
	engine, err := gendurable.Start(ctx, pool, gendurable.Config{Machines: []fsm.Definition{Greet}})
	if err != nil {
		return err
	}
	defer engine.Stop(context.WithoutCancel(ctx))

	id, err := engine.Insert(ctx, Greet.New(Greeting{Name: "world"}))
	if err != nil {
		return err
	}
	settled, err := engine.Await(ctx, id)
	if err != nil {
		return err
	}
	var text string
	if err := settled.Decode(&text); err != nil {
		return err
	}
	fmt.Fprintln(out, text)
	return nil
}

func main() {
	ctx := context.Background()
	// A private Postgres for the example; in your service the pool is the one that you have.
	err := devpg.With(ctx, devpg.Options{}, func(pool *pgxpool.Pool) error { return run(ctx, pool, os.Stdout) })
	if err != nil {
		log.Fatal(err)
	}
}
