// Command remote spawns machines from a process that has no database. It starts a worker process, which runs the engine, and is
// itself the thin one: it knows the worker's address, sends it what to run, and awaits the results.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/cluster"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/internal/devpg"
)

// envDatabase tells the worker process where the database is; a process without it is the thin one.
const envDatabase = "GENDURABLE_EXAMPLE_DATABASE"

type Quote struct {
	Item string `json:"item"`
}

type Approval struct {
	By string `json:"by"`
}

// Purchase waits until somebody approves it.
var Purchase = fsm.New[Quote]("purchase").
	Step("ask", func(ctx context.Context, c *fsm.Call[Quote]) (fsm.Outcome, error) {
		return fsm.Await("approval").Then("buy"), nil
	}).
	Step("buy", func(ctx context.Context, c *fsm.Call[Quote]) (fsm.Outcome, error) {
		var a Approval
		if err := c.Awaited[0].Decode(&a); err != nil {
			return nil, err
		}
		return fsm.Done(fmt.Sprintf("%s, approved by %s", c.State.Item, a.By)), nil
	})

// work is the worker process: an engine that can be reached from outside, by the address that it prints.
func work(ctx context.Context, pool *pgxpool.Pool, out io.Writer, until <-chan struct{}) error {
	if err := gendurable.Migrate(ctx, pool); err != nil {
		return err
	}
	engine, err := gendurable.Start(ctx, pool, gendurable.Config{
		Machines: []fsm.Definition{Purchase},
		Cluster:  &cluster.Config{}, // on loopback, on a free port
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(out, engine.Address())
	<-until
	return engine.Stop(ctx)
}

// shop is the thin process: it has the machine's definition, and an address instead of a database.
func shop(ctx context.Context, worker string, out io.Writer) error {
	client, err := cluster.NewClient(cluster.ClientConfig{Gateways: []string{worker}})
	if err != nil {
		return err
	}
	defer client.Close()

	var ids []gendurable.ID
	for _, item := range []string{"lamp", "desk", "tent"} {
		id, err := client.Insert(ctx, Purchase.New(Quote{Item: item}), fsm.CorrelationKey("purchase:"+item))
		if err != nil {
			return err
		}
		ids = append(ids, id)
	}
	_, err = client.Insert(ctx, Purchase.New(Quote{Item: "lamp"}), fsm.CorrelationKey("purchase:lamp"))
	if !errors.Is(err, gendurable.ErrDuplicate) {
		return fmt.Errorf("a second lamp: %v, want ErrDuplicate", err)
	}
	fmt.Fprintln(out, "a second lamp is refused")
	for _, item := range []string{"lamp", "desk", "tent"} {
		if err := client.Signal(ctx, gendurable.Key("purchase:"+item), "approval", Approval{By: "Ada"}); err != nil {
			return err
		}
	}
	for _, id := range ids {
		settled, err := client.Await(ctx, id, gendurable.UntilTerminal())
		if err != nil {
			return err
		}
		var text string
		if err := settled.Decode(&text); err != nil {
			return err
		}
		fmt.Fprintln(out, text)
	}
	return nil
}

// both starts the worker process and is the thin one, until that is done.
func both(ctx context.Context, database string, out io.Writer) (err error) {
	worker := exec.CommandContext(ctx, os.Args[0])
	worker.Env = append(os.Environ(), envDatabase+"="+database)
	worker.Stderr = os.Stderr
	stdin, err := worker.StdinPipe() // its end is the worker's
	if err != nil {
		return err
	}
	stdout, err := worker.StdoutPipe()
	if err != nil {
		return err
	}
	if err := worker.Start(); err != nil {
		return err
	}
	defer func() {
		_ = stdin.Close()
		err = errors.Join(err, worker.Wait())
	}()
	address, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return fmt.Errorf("the worker did not say where it is: %w", err)
	}
	return shop(ctx, strings.TrimSpace(address), out)
}

// workUntilAlone runs the worker until its parent is gone.
func workUntilAlone(ctx context.Context, database string) error {
	pool, err := pgxpool.New(ctx, database)
	if err != nil {
		return err
	}
	defer pool.Close()
	alone := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(alone)
	}()
	return work(ctx, pool, os.Stdout, alone)
}

func main() {
	ctx := context.Background()
	var err error
	if database := os.Getenv(envDatabase); database != "" {
		err = workUntilAlone(ctx, database)
	} else {
		// A private Postgres for the worker; the thin process does not use it.
		err = devpg.With(ctx, devpg.Options{}, func(pool *pgxpool.Pool) error {
			return both(ctx, pool.Config().ConnString(), os.Stdout)
		})
	}
	if err != nil {
		log.Fatal(err)
	}
}
