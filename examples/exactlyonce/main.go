// Command exactlyonce pays out wages with InTx: the booking and the step's outcome are one transaction, so that each wage is
// booked exactly once, although the steps fail now and then on the way.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/internal/devpg"
)

type Wage struct {
	Employee string `json:"employee"`
	Amount   int    `json:"amount"`
}

var errUnlucky = errors.New("the function failed after it had written")

// Payout books a wage, with all that belongs to it, in one step.
var Payout = fsm.New[Wage]("payout").
	Step("book", func(ctx context.Context, c *fsm.Call[Wage]) (fsm.Outcome, error) {
		return gendurable.InTx(fsm.Done(c.State.Amount), func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO bookings (employee, amount) VALUES ($1, $2)`, c.State.Employee, c.State.Amount)
			if err != nil {
				return err
			}
			_, err = tx.Exec(ctx, `UPDATE account SET balance = balance - $1`, c.State.Amount)
			if err == nil && c.Attempt < 2 {
				err = errUnlucky // takes back both
			}
			return err
		}), nil
	}).
	OnError(func(ctx context.Context, c *fsm.Call[Wage], err error) (fsm.Outcome, error) {
		if errors.Is(err, errUnlucky) {
			return fsm.Retry(10 * time.Millisecond), nil
		}
		return fsm.Stop(err), nil
	})

func run(ctx context.Context, pool *pgxpool.Pool, out io.Writer) error {
	if err := gendurable.Migrate(ctx, pool); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, `CREATE TABLE bookings (employee text, amount int);
		CREATE TABLE account AS SELECT 1000 AS balance`)
	if err != nil {
		return err
	}
	engine, err := gendurable.Start(ctx, pool, gendurable.Config{Machines: []fsm.Definition{Payout}})
	if err != nil {
		return err
	}
	defer engine.Stop(context.WithoutCancel(ctx))

	for _, employee := range []string{"ada", "bob", "eve"} {
		id, err := engine.Insert(ctx, Payout.New(Wage{Employee: employee, Amount: 200}))
		if err != nil {
			return err
		}
		settled, err := engine.Await(ctx, id)
		if err != nil {
			return err
		}
		if err := settled.Err(); err != nil {
			return err
		}
	}
	var bookings, balance int
	err = pool.QueryRow(ctx, `SELECT (SELECT count(*) FROM bookings), (SELECT balance FROM account)`).Scan(&bookings, &balance)
	fmt.Fprintf(out, "%d bookings, %d left\n", bookings, balance)
	return err
}

func main() {
	ctx := context.Background()
	err := devpg.With(ctx, devpg.Options{}, func(pool *pgxpool.Pool) error { return run(ctx, pool, os.Stdout) })
	if err != nil {
		log.Fatal(err)
	}
}
