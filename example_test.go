package gendurable_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
)

type Greeting struct {
	Name string `json:"name"`
}

var Greet = fsm.NewJob("greet", func(ctx context.Context, j *fsm.JobCall[Greeting]) (string, error) {
	return "Hello, " + j.Args.Name + "!", nil
})

type Order struct {
	ID int `json:"id"`
}

type Payment struct {
	Amount int `json:"amount"`
}

type Receipt struct {
	Order int `json:"order"`
	Paid  int `json:"paid"`
}

// Checkout waits up to a day for the payment of an order.
var Checkout = fsm.New[Order]("checkout").
	Step("start", func(ctx context.Context, c *fsm.Call[Order]) (fsm.Outcome, error) {
		return fsm.Await("payment").Then("ship").Timeout(24 * time.Hour), nil
	}).
	Step("ship", func(ctx context.Context, c *fsm.Call[Order]) (fsm.Outcome, error) {
		if len(c.Awaited) == 0 {
			return fsm.Stop(errors.New("payment never came")), nil
		}
		var p Payment
		if err := c.Awaited[0].Decode(&p); err != nil {
			return nil, err // goes to the machine's error handler; without one, the instance fails
		}
		return fsm.Done(Receipt{Order: c.State.ID, Paid: p.Amount}), nil
	})

// The examples share one engine; in a service it is made once, see Start.
var (
	ctx    = context.Background()
	pool   *pgxpool.Pool
	engine *gendurable.Engine
)

func Example() {
	run := func(ctx context.Context, engine *gendurable.Engine) error {
		id, err := engine.Insert(ctx, Checkout.New(Order{ID: 42}), fsm.CorrelationKey("order:42"))
		if err != nil {
			return err
		}
		err = engine.Signal(ctx, gendurable.Key("order:42"), "payment", Payment{Amount: 100}, gendurable.DedupKey("evt-7"))
		if err != nil {
			return err
		}
		settled, err := engine.Await(ctx, id, gendurable.UntilTerminal())
		if err != nil {
			return err
		}
		var receipt Receipt
		if err := settled.Decode(&receipt); err != nil {
			return err // the instance failed; the text of its error is in here
		}
		fmt.Println("paid", receipt.Paid)
		return nil
	}
	if err := run(ctx, engine); err != nil {
		log.Fatal(err)
	}
}

// A service migrates, starts an engine, and drains it when it is told to end.
func ExampleStart() {
	run := func(ctx context.Context, nodeName string) error {
		if err := gendurable.Migrate(ctx, pool); err != nil {
			return err
		}
		engine, err := gendurable.Start(ctx, pool, gendurable.Config{
			NodeName: nodeName,
			Machines: []fsm.Definition{Checkout, Greet},
			Queues:   map[string]gendurable.Queue{"default": {Concurrency: 50}},
		})
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done(): // SIGTERM: let running steps finish
			return engine.Stop(context.WithoutCancel(ctx))
		case <-engine.Done(): // it gave up by itself
			return engine.Err()
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv("NODE_NAME")); err != nil {
		log.Fatal(err)
	}
}

// A process that only inserts, signals and waits needs no workers.
func ExampleNewClient() {
	client, err := gendurable.NewClient(ctx, pool, gendurable.ClientConfig{
		Machines: []fsm.Definition{Checkout, Greet},
		Queues:   []string{"default"},
	})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := client.Insert(ctx, Greet.New(Greeting{Name: "world"})); err != nil {
		log.Fatal(err)
	}
}

// A key that is occupied is an error, and names the occupant.
func ExampleClient_Insert() {
	id, err := engine.Insert(ctx, Checkout.New(Order{ID: 42}), fsm.CorrelationKey("order:42"))
	var taken *gendurable.DuplicateError
	switch {
	case errors.As(err, &taken):
		fmt.Println("order 42 is on its way already, as instance", taken.Occupant)
	case err != nil:
		log.Fatal(err)
	default:
		fmt.Println("inserted", id)
	}
}

// Many instances are inserted in one statement; each gets its answer.
func ExampleClient_InsertMany() {
	var orders []fsm.Instance
	for n := range 10_000 {
		orders = append(orders, Checkout.New(Order{ID: n}, fsm.CorrelationKey(fmt.Sprintf("order:%d", n))))
	}
	results, err := engine.InsertMany(ctx, orders)
	if err != nil {
		log.Fatal(err) // nothing was inserted
	}
	for n, r := range results {
		if r.Duplicate {
			fmt.Println("order", n, "is there already, as instance", r.ID)
		}
	}
}

// The dedup key makes the second delivery of a webhook harmless.
func ExampleClient_Signal() {
	err := engine.Signal(ctx, gendurable.Key("order:42"), "payment", Payment{Amount: 100}, gendurable.DedupKey("evt-7"))
	if errors.Is(err, gendurable.ErrNoTarget) {
		fmt.Println("there is no such order, or it has ended")
	} else if err != nil {
		log.Fatal(err)
	}
}

// InsertBulk loads what needs no answer.
func ExampleClient_InsertBulk() {
	var greetings []fsm.Instance
	for _, name := range []string{"Ada", "Grace", "Edsger"} {
		greetings = append(greetings, Greet.New(Greeting{Name: name}))
	}
	if err := engine.InsertBulk(ctx, greetings); err != nil {
		log.Fatal(err)
	}
}

// Await answers when the instance is done or failed, or parks for a signal (but see UntilTerminal).
func ExampleClient_Await() {
	id, err := engine.Insert(ctx, Greet.New(Greeting{Name: "world"}))
	if err != nil {
		log.Fatal(err)
	}
	patience, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	settled, err := engine.Await(patience, id)
	if errors.Is(err, gendurable.ErrStillBusy) {
		fmt.Println("not yet; it goes on without us")
		return
	} else if err != nil {
		log.Fatal(err)
	}
	var text string
	if err := settled.Decode(&text); err != nil {
		log.Fatal(err) // the job failed
	}
	fmt.Println(text)
}

// The order and its workflow are committed together, or neither is.
func ExampleClient_Tx() {
	order := Order{ID: 42}
	err := engine.Tx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO orders (id) VALUES ($1)`, order.ID); err != nil {
			return err
		}
		_, err := engine.InsertTx(ctx, tx, Checkout.New(order))
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
}

// In a transaction that you commit yourself, Poke replaces what Tx does after the commit.
func ExampleClient_Poke() {
	tx, err := pool.Begin(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer tx.Rollback(ctx)
	if _, err := engine.InsertTx(ctx, tx, Greet.New(Greeting{Name: "world"})); err != nil {
		log.Fatal(err)
	}
	if err := tx.Commit(ctx); err != nil {
		log.Fatal(err)
	}
	engine.Poke("default")
}

func ExampleClient_Cancel() {
	result, err := engine.Cancel(ctx, gendurable.Key("order:42"), "the customer changed their mind")
	if err != nil {
		log.Fatal(err)
	}
	if result == gendurable.CancelRequested {
		fmt.Println("a step is running; the instance ends when it returns")
	}
}
