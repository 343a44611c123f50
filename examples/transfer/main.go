// Command transfer enqueues a job in the same transaction that moves money: either both happen or neither.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/internal/devpg"
)

type Notice struct {
	From   string `json:"from"`
	To     string `json:"to"`
	Amount int    `json:"amount"`
}

// Notify tells the receiver of a transfer.
var Notify = fsm.NewJob("notify", func(ctx context.Context, j *fsm.JobCall[Notice]) (string, error) {
	return fmt.Sprintf("%s got %d from %s", j.Args.To, j.Args.Amount, j.Args.From), nil
})

var errPoor = errors.New("not enough money")

// transfer moves money and enqueues the notice. When it returns an error nothing has happened, the notice included.
func transfer(ctx context.Context, engine *gendurable.Engine, n Notice) (id gendurable.ID, err error) {
	err = engine.Tx(ctx, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `UPDATE accounts SET balance = balance - $2 WHERE name = $1 AND balance >= $2`, n.From, n.Amount)
		if err != nil {
			return err
		}
		if id, err = engine.InsertTx(ctx, tx, Notify.New(n)); err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return errPoor // takes the notice back, too
		}
		_, err = tx.Exec(ctx, `UPDATE accounts SET balance = balance + $2 WHERE name = $1`, n.To, n.Amount)
		return err
	})
	return id, err
}

func run(ctx context.Context, pool *pgxpool.Pool, out io.Writer) error {
	if err := gendurable.Migrate(ctx, pool); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, `CREATE TABLE accounts (name text PRIMARY KEY, balance int NOT NULL);
		INSERT INTO accounts VALUES ('ada', 100), ('bob', 0)`)
	if err != nil {
		return err
	}
	engine, err := gendurable.Start(ctx, pool, gendurable.Config{Machines: []fsm.Definition{Notify}})
	if err != nil {
		return err
	}
	defer engine.Stop(context.WithoutCancel(ctx))

	id, err := transfer(ctx, engine, Notice{From: "ada", To: "bob", Amount: 70})
	if err != nil {
		return err
	}
	settled, err := engine.Await(ctx, id)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s\n", settled.Result)

	id, err = transfer(ctx, engine, Notice{From: "ada", To: "bob", Amount: 70})
	fmt.Fprintf(out, "the second transfer: %v\n", err)
	if _, err := engine.Get(ctx, id); !errors.Is(err, gendurable.ErrNotFound) {
		return fmt.Errorf("the notice of the failed transfer: %v, want ErrNotFound", err)
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
