// Package fsm is what authors of durable machines and jobs write with. It knows nothing of databases and actors: an
// engine runs what is defined here, and commits each decision to Postgres before anything proceeds from it.
//
// # A machine
//
// A machine is a set of named steps over a typed state. [New] begins one, [Machine.Step] adds to it:
//
//	var Checkout = fsm.New[Order]("checkout").
//		Step("start", start).
//		Step("ship", ship)
//
// The state type encodes as a JSON object: a struct, a map, or a pointer to one. A step is a function that looks at
// its [Call], changes the state in place, and returns an [Outcome]:
//
//   - [Next] goes to another step, now or after a durable sleep; with [Inline] in the same task.
//   - [Retry] runs the same step again later.
//   - [Await] parks the instance until a signal arrives or a timeout passes.
//   - [ScheduleChildren] inserts other instances and parks until all of them have ended.
//   - [Done] and [Stop] end the instance.
//
// The outcome, the new state, consumed signals and spawned children are committed in one transaction. A crash before
// it runs the step again from the state it started with, a crash after it never does: a step runs at least once, so
// its effects on the outside world should bear repetition.
//
// # Errors
//
// A step that returns an error, panics, exceeds its [StepTimeout], or returns an outcome that is not valid, goes to the
// machine's error handler ([Machine.OnError]) with the state as it was before the step. The handler returns any outcome;
// without a handler the instance is stopped with the error. A process that dies is no error: its lease runs out, and
// the step runs again elsewhere.
//
// The step's context ends when there is no use in going on; [context.Cause] is then [ErrLeaseLost], [ErrCancelled],
// [ErrDraining] or [ErrStepTimeout]. A step that returns the context's error after its context was cancelled was
// interrupted and did not fail: no handler is called, no attempt is counted, and it runs again from the state it
// started with. Only after [ErrCancelled] and [ErrStepTimeout] is it an error like any other.
//
// # Jobs
//
// [NewJob] makes a machine of one step from a function, with retries: see [MaxAttempts], [Backoff], [Cancel], [Snooze].
//
// # Instances
//
// [Machine.New] and [Job.New] make an [Instance], which an engine inserts, or a step schedules as a child. Options such
// as [CorrelationKey], [ScheduleIn] or [Priority] go with it.
//
// # What is refused
//
// Values that Postgres would refuse never get there. They are errors that match [ErrInvalid] and name the field and
// the limit: those of a definition are reported when an engine starts, those of an instance when it is inserted, those
// of an outcome go to the error handler.
package fsm
