package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/internal/devpg"
)

type options struct {
	orders         int
	dir            string
	paymentTimeout time.Duration
	out            io.Writer
}

// killAt are the shares of the work after which the worker is killed.
var killAt = []float64{0.3, 0.65}

// conductor plays everybody but the worker: it places the orders, pays them, kills and restarts the worker, and
// checks the end.
type conductor struct {
	options
	url      string
	pool     *pgxpool.Pool
	client   *gendurable.Client
	orders   []expectation
	ids      map[int]gendurable.ID
	progress *progress
	worker   *process
	resumed  []time.Duration
}

// runDemo is the whole demo. It returns nil only if every check passed.
func runDemo(ctx context.Context, o options) (err error) {
	began := time.Now()
	orders, err := readOrders(o.orders)
	if err != nil {
		return err
	}
	fmt.Fprintln(o.out, "starting a private Postgres ...")
	server, err := devpg.Start(ctx, devpg.Options{Dir: o.dir, Durable: true})
	if err != nil {
		return err
	}
	defer func() {
		if stopErr := server.Stop(context.WithoutCancel(ctx)); err == nil {
			err = stopErr
		}
	}()
	c := &conductor{options: o, orders: orders, ids: make(map[int]gendurable.ID)}
	if err := c.prepare(ctx, server.URL()); err != nil {
		return err
	}
	defer c.pool.Close()
	defer func() { c.worker.kill() }()

	if err := c.run(ctx); err != nil {
		return err
	}
	f, err := prove(ctx, c.pool, orders)
	c.report(f, time.Since(began))
	if err != nil {
		return fmt.Errorf("the proof FAILED:\n%w", err)
	}
	fmt.Fprintln(o.out, "every order reached the right end; nothing committed was lost or run again")
	return nil
}

// prepare makes a schema of this run's own, so that the data of earlier runs stays to be looked at until the next.
func (c *conductor) prepare(ctx context.Context, url string) error {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return err
	}
	cfg.ConnConfig.RuntimeParams["search_path"] = "demo"
	if c.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return err
	}
	if _, err := c.pool.Exec(ctx, `DROP SCHEMA IF EXISTS demo CASCADE; CREATE SCHEMA demo`); err != nil {
		return fmt.Errorf("make the schema: %w", err)
	}
	if err := gendurable.Migrate(ctx, c.pool); err != nil {
		return err
	}
	if _, err := c.pool.Exec(ctx, ledgerSchema); err != nil {
		return fmt.Errorf("make the ledger: %w", err)
	}
	c.url = withSearchPath(url)
	// Only the definitions matter here: the conductor inserts orders, the worker runs them.
	p := &pipeline{}
	c.client, err = gendurable.NewClient(ctx, c.pool, gendurable.ClientConfig{
		Machines: []fsm.Definition{p.machine(), p.shipment()}, Logger: slog.Default(),
	})
	return err
}

// withSearchPath adds the demo's schema to a connection URL.
func withSearchPath(url string) string {
	sep := "?"
	if strings.Contains(url, "?") {
		sep = "&"
	}
	return url + sep + "search_path=demo"
}

// run places and pays the orders, and keeps a worker going until all orders have ended.
func (c *conductor) run(ctx context.Context) error {
	if err := c.place(ctx); err != nil {
		return err
	}
	c.progress = newProgress(c.out, c.total())
	defer c.progress.finish()
	if err := c.startWorker(1); err != nil {
		return err
	}
	paid := make(chan error, 1)
	go func() { paid <- c.pay(ctx) }()
	if err := c.watch(ctx); err != nil {
		return err
	}
	if err := <-paid; err != nil {
		return err
	}
	return c.worker.terminate()
}

// place inserts all orders in one statement.
func (c *conductor) place(ctx context.Context) error {
	p := &pipeline{}
	order := p.machine()
	var insts []fsm.Instance
	for _, o := range c.orders {
		insts = append(insts, order.New(o.Order, fsm.CorrelationKey(fmt.Sprintf("order:%d", o.Order.Order))))
	}
	answers, err := c.client.InsertMany(ctx, insts)
	if err != nil {
		return err
	}
	for i, a := range answers {
		c.ids[c.orders[i].Order.Order] = a.ID
	}
	fmt.Fprintf(c.out, "%d orders placed\n", len(answers))
	return nil
}

// pay sends the payments in random order, each twice, as payment providers do: before, while and after the
// orders wait for them. The dedup key makes the second a no-op. They go by id, because an order that
// has ended no longer occupies its key.
func (c *conductor) pay(ctx context.Context) error {
	const batch = 50
	var payments []gendurable.Delivery
	for _, o := range c.orders {
		if o.Expect != endShipped {
			continue
		}
		for range 2 {
			payments = append(payments, gendurable.Delivery{
				To: c.ids[o.Order.Order], Name: "payment", Payload: Payment{Cents: o.total()},
				DedupKey: fmt.Sprintf("payment-%d", o.Order.Order),
			})
		}
	}
	rand.Shuffle(len(payments), func(i, j int) { payments[i], payments[j] = payments[j], payments[i] })
	// Spread over much less than the payment timeout, so that whoever pays at all pays in time.
	pause := min(c.paymentTimeout/2, 3*time.Second) / time.Duration(len(payments)/batch+1)
	for len(payments) > 0 {
		n := min(batch, len(payments))
		if _, err := c.client.SignalMany(ctx, payments[:n]); err != nil {
			return err
		}
		payments = payments[n:]
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
	return nil
}

// total is how many instances there will be: the orders and the lines of those that are shipped.
func (c *conductor) total() int {
	n := len(c.orders)
	for _, o := range c.orders {
		if o.Expect == endShipped {
			n += len(o.Lines)
		}
	}
	return n
}

// watch shows the progress, kills the worker where it is due, and returns when everything has ended.
func (c *conductor) watch(ctx context.Context) error {
	total := c.total()
	deadline := time.Now().Add(100 * time.Second)
	for kills := 0; ; {
		var ended int
		err := c.pool.QueryRow(ctx, `SELECT count(*) FROM gen_durable WHERE status IN ('done', 'failed')`).Scan(&ended)
		if err != nil {
			return fmt.Errorf("count what has ended: %w", err)
		}
		c.progress.set(ended)
		if ended == total {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("only %d of %d instances have ended in time", ended, total)
		}
		if c.worker.exited() {
			return fmt.Errorf("the worker ended by itself: %w", c.worker.err)
		}
		if kills < len(killAt) && float64(ended) >= killAt[kills]*float64(total) {
			kills++
			if err := c.killAndRestart(ctx, kills+1); err != nil {
				return err
			}
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// killAndRestart kills the worker in the middle of its steps and measures how soon its successor works.
func (c *conductor) killAndRestart(ctx context.Context, number int) error {
	pid := c.worker.pid()
	c.worker.kill()
	killed := time.Now()
	var executing int
	if err := c.pool.QueryRow(ctx, `SELECT count(*) FROM gen_durable WHERE status = 'executing'`).Scan(&executing); err != nil {
		return err
	}
	c.progress.say("kill -9 %d: the worker died with %d rows claimed; starting it again", pid, executing)
	if err := c.startWorker(number); err != nil {
		return err
	}
	for working := false; !working; {
		err := c.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM ledger WHERE worker = $1)`, number).Scan(&working)
		if err != nil {
			return err
		}
		if time.Since(killed) > 30*time.Second {
			return fmt.Errorf("worker %d does not work", number)
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	c.resumed = append(c.resumed, time.Since(killed))
	c.progress.say("worker %d went on %v after the kill", number, c.resumed[len(c.resumed)-1].Round(time.Millisecond))
	return nil
}

func (c *conductor) report(f figures, took time.Duration) {
	fmt.Fprintf(c.out, "\n%8d orders shipped\n%8d orders refused as invalid\n%8d orders never paid, timed out\n", f.ends[endShipped], f.ends[endInvalid], f.ends[endUnpaid])
	fmt.Fprintf(c.out, "%8d instances, children included\n%8d runs of steps, of which\n%8d were repeated because a worker was killed before their commit\n", f.instances, f.runs, f.repeat)
	fmt.Fprintf(c.out, "%8d kills with SIGKILL, work resumed after %v\n%8s in all\n\n", len(c.resumed), rounded(c.resumed), took.Round(100*time.Millisecond))
}

func rounded(ds []time.Duration) []time.Duration {
	out := make([]time.Duration, len(ds))
	for i, d := range ds {
		out[i] = d.Round(10 * time.Millisecond)
	}
	return out
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
