package actors

import (
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/asynkron/protoactor-go/actor"
)

// NewProps makes the Props of every actor of the engine. The actor that producer makes is wrapped in a guard:
//
//   - A panic is logged with its stack and then handed on to the supervisor, so that the actor is restarted.
//   - In Stopping, Stopped and Restarting it is only logged: handed on, it would leave the parent
//     waiting for ever. In Terminated it is handed on by a message to itself, after the library has done its
//     own book-keeping of children.
//   - Nothing that is sent to its name while it is being spawned is lost, or harms the sender; see mailbox.
//   - The guard also carries out the delayed restarts of the children that NewSupervisor decides.
//
// counters may be nil. The Props may be used for any number of spawns.
func NewProps(logger *slog.Logger, counters *Counters, producer func() actor.Actor, opts ...actor.PropsOption) *actor.Props {
	if counters == nil {
		counters = new(Counters)
	}
	return actor.PropsFromProducer(func() actor.Actor {
		return &guard{inner: producer(), log: logger, counters: counters}
	}, append([]actor.PropsOption{actor.WithMailbox(newMailbox)}, opts...)...)
}

// guard is one incarnation of an actor. It wraps the actor rather than being a receiver middleware, because a
// middleware makes the library allocate an envelope for each message and has no state of its own.
type guard struct {
	inner    actor.Actor
	log      *slog.Logger
	counters *Counters
	// closing is set once the actor stops or restarts: its children were told to stop and must not be restarted.
	closing bool
}

// rethrow carries a panic out of a lifecycle message into an ordinary one.
type rethrow struct {
	Quiet
	reason any
}

func (g *guard) Receive(ctx actor.Context) {
	finished := false
	defer func() {
		if !finished {
			g.failed(ctx, recover())
		}
	}()
	switch m := ctx.Message().(type) {
	case rethrow:
		panic(m.reason)
	case restartChild:
		g.restartChild(ctx, m.child)
	case Crash:
		panic(m)
	case *actor.Stopping, *actor.Restarting:
		g.closing = true
		g.inner.Receive(ctx)
	default:
		g.inner.Receive(ctx)
	}
	finished = true
}

// failed decides what becomes of a panic (reason is not nil) or a runtime.Goexit (reason is nil).
func (g *guard) failed(ctx actor.Context, reason any) {
	message := ctx.Message()
	if r, ok := message.(rethrow); ok {
		panic(r.reason) // logged when it happened
	}
	g.counters.Panics.Add(1)
	if reason == nil {
		// Nothing can stop a Goexit; the mailbox's goroutine ends and the actor is lost.
		g.log.Error("gendurable: runtime.Goexit inside an actor, it will never answer again",
			"actor", ctx.Self().GetId(), "message", fmt.Sprintf("%T", message))
		return
	}
	g.log.Error("gendurable: an actor panicked",
		"actor", ctx.Self().GetId(), "message", fmt.Sprintf("%T", message), "panic", fmt.Sprint(reason), "stack", string(debug.Stack()))
	switch message.(type) {
	case *actor.Stopping, *actor.Stopped, *actor.Restarting:
	case *actor.Terminated:
		ctx.Send(ctx.Self(), rethrow{reason: reason})
	default:
		panic(reason)
	}
}

func (g *guard) restartChild(ctx actor.Context, child *actor.PID) {
	supervisor, ok := ctx.(actor.Supervisor)
	if g.closing || !ok {
		return
	}
	for _, c := range ctx.Children() {
		// The same pointer, not an equal name: a child that was stopped and spawned anew did not fail.
		if c == child {
			supervisor.RestartChildren(child)
			return
		}
	}
}

// Quiet, embedded in a message type, keeps the library from logging the message when it reaches an actor
// that has stopped. Messages carry users' data, which has no business in a log.
type Quiet struct{}

// IgnoreDeadLetterLogging implements the library's marker interface.
func (Quiet) IgnoreDeadLetterLogging() {}
