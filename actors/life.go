package actors

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

// Life is what one incarnation of an actor started: calls on goroutines, and timers. What they come to arrives
// as a message, and is ignored when the incarnation is over. Its methods are called from the actor's Receive.
//
//	switch m := a.life.Open(ctx).(type) {
//	case *actor.Started:
//		a.life.After(time.Second, tick{})
//	case tick:
//		a.life.Go(func(ctx context.Context) any { n, err := a.store.Sweep(ctx); return swept{n, err} })
//	case swept:
//		...
//
// The zero value is ready; a new incarnation has a new one.
type Life struct {
	ctx    context.Context
	cancel context.CancelFunc
	self   *actor.PID
	root   *actor.RootContext
	log    *slog.Logger
	over   bool
}

// sent is a message that belongs to one life.
type sent struct {
	Quiet
	life    *Life
	message any
}

// crashed says that a call panicked.
type crashed struct{ reason any }

// Open returns the message to handle: that of ctx, or what a Go or After of this life sent; nil when that
// belongs to an earlier life. It begins the life with Started, ends it with Stopping or Restarting (the contexts of its calls are
// cancelled then), and panics when a call panicked, so that the actor is restarted as if it had panicked itself.
func (l *Life) Open(ctx actor.Context) any {
	switch m := ctx.Message().(type) {
	case *actor.Started:
		l.ctx, l.cancel = context.WithCancel(context.Background())
		l.self, l.root, l.log = ctx.Self(), ctx.ActorSystem().Root, ctx.Logger()
		return m
	case *actor.Stopping, *actor.Restarting:
		l.over = true
		if l.cancel != nil {
			l.cancel()
		}
		return m
	case sent:
		if m.life != l || l.over {
			return nil
		}
		if c, ok := m.message.(crashed); ok {
			panic(c.reason)
		}
		return m.message
	default:
		return m
	}
}

// Go runs call on a goroutine and sends the actor what it returns. The context ends with the life.
func (l *Life) Go(call func(ctx context.Context) any) {
	go func() {
		var result any
		defer func() {
			if r := recover(); r != nil {
				l.log.Error("gendurable: a call of an actor panicked",
					"actor", l.self.GetId(), "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
				result = crashed{r}
			}
			l.root.Send(l.self, sent{life: l, message: result})
		}()
		result = call(l.ctx)
	}()
}

// GoFor is Go with a bound on the call's time: on a connection that is silently dead, a call would not return for as
// long as the network stack hopes.
func (l *Life) GoFor(d time.Duration, call func(ctx context.Context) any) {
	l.Go(func(ctx context.Context) any {
		ctx, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		return call(ctx)
	})
}

// After sends the actor a message once d has passed.
func (l *Life) After(d time.Duration, message any) {
	time.AfterFunc(d, func() { l.root.Send(l.self, sent{life: l, message: message}) })
}

// Tell sends the actor a message, from any goroutine that this life started.
func (l *Life) Tell(message any) { l.root.Send(l.self, sent{life: l, message: message}) }

// Send sends a message to another actor; nothing happens when to is nil.
func (l *Life) Send(to *actor.PID, message any) {
	if to != nil {
		l.root.Send(to, message)
	}
}

// Outage keeps the log short while something fails over and over: one line when it begins and one when it ends. It is
// safe for concurrent use.
type Outage struct{ on atomic.Bool }

// Begin logs the failure as a warning unless the outage was on already.
func (o *Outage) Begin(log *slog.Logger, message string, err error) {
	if o.on.CompareAndSwap(false, true) {
		log.Warn("gendurable: "+message, "error", err)
	}
}

// Over logs the message if the outage was on.
func (o *Outage) Over(log *slog.Logger, message string) {
	if o.on.Load() && o.on.CompareAndSwap(true, false) {
		log.Info("gendurable: " + message)
	}
}

// Backoff is a pause that doubles from First to Max. The zero Backoff is not usable.
type Backoff struct {
	First, Max time.Duration
	next       time.Duration
}

// Next returns the pause to make now.
func (b *Backoff) Next() time.Duration {
	d := max(b.next, b.First)
	b.next = min(2*d, b.Max)
	return min(d, b.Max)
}

// Reset makes First the next pause again.
func (b *Backoff) Reset() { b.next = 0 }
