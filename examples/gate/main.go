// Command gate asks a model that answers only three requests at once for each of its regions, whatever asks for it.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/internal/devpg"
)

// Question is what the model is asked.
type Question struct {
	Text string `json:"text"`
}

// model stands for the service; it counts who is asking.
type model struct {
	mu        sync.Mutex
	now, most int
}

func (m *model) ask(string) string {
	m.enter(1)
	defer m.enter(-1)
	return "42"
}

func (m *model) enter(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now += n
	m.most = max(m.most, m.now)
}

// asking is a machine that prepares a question, asks it while it holds a slot of the gate, and goes on without one.
func asking(m *model) *fsm.Machine[Question] {
	return fsm.New[Question]("asking").
		Step("prepare", func(_ context.Context, c *fsm.Call[Question]) (fsm.Outcome, error) {
			c.State.Text += "?"
			return fsm.Next("ask").ConcurrencyKey("model:eu"), nil
		}).
		Step("ask", func(_ context.Context, c *fsm.Call[Question]) (fsm.Outcome, error) {
			c.State.Text += " " + m.ask(c.State.Text)
			return fsm.Next("report").ReleaseKey(), nil
		}).
		Step("report", func(_ context.Context, c *fsm.Call[Question]) (fsm.Outcome, error) {
			return fsm.Done(c.State.Text), nil
		})
}

const questions = 40

func run(ctx context.Context, pool *pgxpool.Pool, out io.Writer) error {
	if err := gendurable.Migrate(ctx, pool); err != nil {
		return err
	}
	service := &model{}
	machine := asking(service)
	engine, err := gendurable.Start(ctx, pool, gendurable.Config{
		Machines: []fsm.Definition{machine},
		Gates: map[string]gendurable.Gate{
			"model": {Limit: 3},
		},
	})
	if err != nil {
		return err
	}
	defer engine.Stop(context.WithoutCancel(ctx))

	var ids []gendurable.ID
	for i := range questions {
		id, err := engine.Insert(ctx, machine.New(Question{fmt.Sprint("Question ", i)}))
		if err != nil {
			return err
		}
		ids = append(ids, id)
	}
	for _, id := range ids {
		if _, err := engine.Await(ctx, id, gendurable.UntilTerminal()); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "%d answers, never more than 3 at once: %t\n", questions, service.most <= 3)
	return nil
}

func main() {
	ctx := context.Background()
	err := devpg.With(ctx, devpg.Options{}, func(pool *pgxpool.Pool) error { return run(ctx, pool, os.Stdout) })
	if err != nil {
		log.Fatal(err)
	}
}
