// Package gendurable runs durable state machines and jobs on Postgres.
//
// A machine is a set of steps over a typed state. When a step returns, what it decided is committed to Postgres
// before anything proceeds from it. A process that dies loses nothing that was committed: another one, or
// the same one started again, goes on from there. Waiting, for a signal, for children, for a point in time, is a
// row in a table. It takes no goroutine and survives every restart.
//
// # A job
//
// A job is a function from arguments to a result. An error or a panic is retried with a growing pause, by
// whichever process is there:
//
//	var Greet = fsm.NewJob("greet", func(ctx context.Context, j *fsm.JobCall[Greeting]) (string, error) {
//		return "Hello, " + j.Args.Name + "!", nil
//	})
//
// # A machine
//
// A machine has several steps. Each returns an outcome: [fsm.Next], [fsm.Retry], [fsm.Await],
// [fsm.ScheduleChildren], [fsm.Done] or [fsm.Stop]. What a step leaves in c.State is stored with the outcome, unless it
// ends the instance:
//
//	// Checkout waits up to a day for the payment of an order.
//	var Checkout = fsm.New[Order]("checkout").
//		Step("start", func(ctx context.Context, c *fsm.Call[Order]) (fsm.Outcome, error) {
//			return fsm.Await("payment").Then("ship").Timeout(24 * time.Hour), nil
//		}).
//		Step("ship", func(ctx context.Context, c *fsm.Call[Order]) (fsm.Outcome, error) {
//			if len(c.Awaited) == 0 {
//				return fsm.Stop(errors.New("payment never came")), nil
//			}
//			var p Payment
//			if err := c.Awaited[0].Decode(&p); err != nil {
//				return nil, err // goes to the machine's error handler; without one, the instance fails
//			}
//			return fsm.Done(Receipt{Order: c.State.ID, Paid: p.Amount}), nil
//		})
//
// An error that a step returns, and a panic, go to the machine's error handler (Machine.OnError), which returns an
// outcome too. Package [github.com/gendurable/gendurable/fsm] has everything that authors of machines need; it
// knows no database, so machines can be tested without one.
//
// # An engine
//
// [Migrate] makes the tables, and may be called by any number of processes at once. [Start] runs machines on the pool
// that the service has already:
//
//	if err := gendurable.Migrate(ctx, pool); err != nil {
//		return err
//	}
//	engine, err := gendurable.Start(ctx, pool, gendurable.Config{
//		NodeName: nodeName,
//		Machines: []fsm.Definition{Checkout, Greet},
//		Queues:   map[string]gendurable.Queue{"default": {Concurrency: 50}},
//	})
//	if err != nil {
//		return err
//	}
//
// The zero value of each field of [Config] is a good default. A NodeName that is kept across restarts lets a
// process that was killed take its work back at once when it is started again. Any number of processes may run the
// same queues on one database.
//
// # Instances
//
// [Client.Insert] commits a new instance. A correlation key makes it unique while it lives, and is an
// address. [Client.Signal] delivers to an id or a key, [Client.Await] waits until the instance settles:
//
//	id, err := engine.Insert(ctx, Checkout.New(Order{ID: 42}), fsm.CorrelationKey("order:42"))
//	if err != nil {
//		return err
//	}
//	err = engine.Signal(ctx, gendurable.Key("order:42"), "payment", Payment{Amount: 100}, gendurable.DedupKey("evt-7"))
//	if err != nil {
//		return err
//	}
//	settled, err := engine.Await(ctx, id, gendurable.UntilTerminal())
//	if err != nil {
//		return err
//	}
//	var receipt Receipt
//	if err := settled.Decode(&receipt); err != nil {
//		return err // the instance failed; the text of its error is in here
//	}
//
// [Client.Get] reads an instance and [Client.Cancel] ends one. A process that only inserts, signals and waits uses
// [NewClient], which has no workers.
//
// # Transactions
//
// InsertTx, InsertManyTx and SignalTx take part in a transaction of yours: the instance exists if, and when, the
// transaction commits. [Client.Tx] begins, commits, and announces the work to this process's queues:
//
//	err := engine.Tx(ctx, func(tx pgx.Tx) error {
//		if _, err := tx.Exec(ctx, `INSERT INTO orders (id) VALUES ($1)`, order.ID); err != nil {
//			return err
//		}
//		_, err := engine.InsertTx(ctx, tx, Checkout.New(order))
//		return err
//	})
//
// # What is promised
//
// A step whose outcome was committed never runs again. A step that was interrupted before that runs again,
// from the state it started with: at least once. Its effects on the outside world must therefore bear repetition.
// An outcome of a worker that lost its claim is dropped whole. See the README for the limits of each promise, and
// the guides in docs/ for signals, children, identity, scheduling and operations.
//
// # The end
//
// [Engine.Stop] drains: nothing new is claimed, running steps finish and commit within Config.DrainTimeout. An engine
// that cannot go on closes [Engine.Done] and says why in [Engine.Err]; a service should watch it:
//
//	select {
//	case <-ctx.Done(): // SIGTERM: let running steps finish
//		return engine.Stop(context.WithoutCancel(ctx))
//	case <-engine.Done(): // it gave up by itself
//		return engine.Err()
//	}
package gendurable
