// Command checkout runs a machine that awaits a payment signal with a timeout, addressed by its business key.
package main

import (
	"context"
	"errors"
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

type Order struct {
	ID   int `json:"id"`
	Paid int `json:"paid"`
}

type Payment struct {
	Amount int `json:"amount"`
}

type Receipt struct {
	Order int `json:"order"`
	Paid  int `json:"paid"`
}

// newCheckout makes the machine: start → await the payment → ship. The wait is a row in the database: it survives
// every restart, and takes no goroutine and no memory.
func newCheckout(patience time.Duration) *fsm.Machine[Order] {
	return fsm.New[Order]("checkout").
		Step("start", func(ctx context.Context, c *fsm.Call[Order]) (fsm.Outcome, error) {
			return fsm.Await("payment").Then("ship").Timeout(patience), nil
		}).
		Step("ship", func(ctx context.Context, c *fsm.Call[Order]) (fsm.Outcome, error) {
			if len(c.Awaited) == 0 {
				return fsm.Stop(errors.New("payment never came")), nil
			}
			var p Payment
			if err := c.Awaited[0].Decode(&p); err != nil {
				return nil, err
			}
			return fsm.Done(Receipt{Order: c.State.ID, Paid: p.Amount}), nil
		})
}

func run(ctx context.Context, pool *pgxpool.Pool, patience time.Duration, out io.Writer) error {
	if err := gendurable.Migrate(ctx, pool); err != nil {
		return err
	}
	checkout := newCheckout(patience)
	engine, err := gendurable.Start(ctx, pool, gendurable.Config{Machines: []fsm.Definition{checkout}})
	if err != nil {
		return err
	}
	defer engine.Stop(context.WithoutCancel(ctx))

	paid, err := engine.Insert(ctx, checkout.New(Order{ID: 42}), fsm.CorrelationKey("order:42"))
	if err != nil {
		return err
	}
	// The same order again is refused: its key is occupied.
	if _, err := engine.Insert(ctx, checkout.New(Order{ID: 42}), fsm.CorrelationKey("order:42")); !errors.Is(err, gendurable.ErrDuplicate) {
		return fmt.Errorf("a second order 42: %v, want ErrDuplicate", err)
	}
	unpaid, err := engine.Insert(ctx, checkout.New(Order{ID: 43}), fsm.CorrelationKey("order:43"))
	if err != nil {
		return err
	}
	// The payment provider's webhook knows the business key only, and delivers twice.
	for range 2 {
		err := engine.Signal(ctx, gendurable.Key("order:42"), "payment", Payment{Amount: 100}, gendurable.DedupKey("evt-7"))
		// Once the order has ended, nobody occupies its key any more.
		if err != nil && !errors.Is(err, gendurable.ErrNoTarget) {
			return err
		}
	}
	for _, id := range []gendurable.ID{paid, unpaid} {
		settled, err := engine.Await(ctx, id, gendurable.UntilTerminal())
		if err != nil {
			return err
		}
		if !settled.Done() {
			fmt.Fprintln(out, "an order failed:", settled.Error)
			continue
		}
		var receipt Receipt
		if err := settled.Decode(&receipt); err != nil {
			return err
		}
		fmt.Fprintf(out, "order %d is paid with %d\n", receipt.Order, receipt.Paid)
	}
	return nil
}

func main() {
	ctx := context.Background()
	err := devpg.With(ctx, devpg.Options{}, func(pool *pgxpool.Pool) error { return run(ctx, pool, 3*time.Second, os.Stdout) })
	if err != nil {
		log.Fatal(err)
	}
}
