// Command pipeline runs instances of a machine with several short steps, each durable on its own, in one task: without being
// claimed anew between the steps. Then it shows the same work requeued after each step.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/internal/devpg"
)

// Document is what the pipeline works on.
type Document struct {
	Text  string         `json:"text"`
	Words []string       `json:"words,omitempty"`
	Count map[string]int `json:"count,omitempty"`
}

// pipeline is a machine whose steps are small: what they do matters less than what it costs to go from one to the next.
func pipeline(name string, opts ...fsm.Option) *fsm.Machine[Document] {
	return fsm.New[Document](name, opts...).
		Step("clean", func(_ context.Context, c *fsm.Call[Document]) (fsm.Outcome, error) {
			c.State.Text = strings.ToLower(strings.TrimSpace(c.State.Text))
			return fsm.Next("split"), nil
		}).
		Step("split", func(_ context.Context, c *fsm.Call[Document]) (fsm.Outcome, error) {
			c.State.Words = strings.Fields(c.State.Text)
			return fsm.Next("count"), nil
		}).
		Step("count", func(_ context.Context, c *fsm.Call[Document]) (fsm.Outcome, error) {
			c.State.Count = map[string]int{}
			for _, word := range c.State.Words {
				c.State.Count[word]++
			}
			return fsm.Next("report"), nil
		}).
		Step("report", func(_ context.Context, c *fsm.Call[Document]) (fsm.Outcome, error) {
			return fsm.Done(fmt.Sprintf("%d words, %d of them different", len(c.State.Words), len(c.State.Count))), nil
		})
}

var (
	// Pipeline keeps its instances claimed from the first step to the last.
	Pipeline = pipeline("pipeline", fsm.Inline(), fsm.Queue("inline"))
	// Requeued is the same machine the usual way.
	Requeued = pipeline("requeued", fsm.Queue("requeued"))
)

func run(ctx context.Context, pool *pgxpool.Pool, out io.Writer) error {
	if err := gendurable.Migrate(ctx, pool); err != nil {
		return err
	}
	engine, err := gendurable.Start(ctx, pool, gendurable.Config{
		Machines: []fsm.Definition{Pipeline, Requeued},
		Queues:   map[string]gendurable.Queue{"inline": {Concurrency: 10}, "requeued": {Concurrency: 10}},
	})
	if err != nil {
		return err
	}
	defer engine.Stop(context.WithoutCancel(ctx))

	for _, machine := range []*fsm.Machine[Document]{Pipeline, Requeued} {
		id, err := engine.Insert(ctx, machine.New(Document{Text: "  The cat saw the dog saw the cat  "}))
		if err != nil {
			return err
		}
		settled, err := engine.Await(ctx, id, gendurable.UntilTerminal())
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s: %s\n", machine.Spec().Name, settled.Result)
	}
	stats := engine.Stats()
	for _, queue := range []string{"inline", "requeued"} {
		q := stats.Queues[queue]
		fmt.Fprintf(out, "queue %s: claimed %d times, %d steps went on without a claim\n", queue, q.ClaimedRows, q.Continued)
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
