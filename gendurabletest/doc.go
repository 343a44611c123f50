// Package gendurabletest tests machines and jobs, with the statements that an engine runs, but without an engine: in the
// test's own goroutine, one step after the other, and without waiting for anything.
//
//	r := gendurabletest.New(t, pool, gendurabletest.Config{Machines: []fsm.Definition{Checkout}})
//	id := r.MustInsert(Checkout.New(Order{ID: 42}))
//	r.Run() // until nothing is left to do
//	r.AssertAwaiting(id, "payment")
//	r.MustSignal(id, "payment", Payment{Amount: 100})
//	r.Run()
//	receipt := gendurabletest.Result[Receipt](r, id)
//
// A Runner runs everything that is in its tables, so they must be the test's own. There are three ways to that:
//
//   - a transaction that is rolled back (see Tx): fast, many tests side by side on one migrated database;
//   - a schema (see Schema): for steps that use a pool of their own;
//   - a database, for those who make one for each test anyway.
//
// # Time
//
// Run does not wait: a retry's backoff, a durable sleep, a schedule are over as soon as nothing else is left to do, the
// earliest first. Timeouts of awaits do not fire by themselves; FireTimeouts fires them. Advance moves time on by so much,
// and everything happens in its order: what is due after an hour before what is due after two.
//
// Time moves by moving the stored times back: the database's now() stays what it is, and so does time.Now in steps.
//
// # What is different from an engine
//
// Steps run one at a time, and one queue after the other. Inline chains take the way through the queue. Limits of the whole
// fleet (rates, gates) are not applied: a step never waits for another one. A step that ends its goroutine, or ignores its
// timeout, is run again at once, as if its lease were over. A machine that is not in Config.Machines is left alone, counted,
// and logged. Everything else is the same code and the same SQL.
package gendurabletest
