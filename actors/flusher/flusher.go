package flusher

import (
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// flusher is one incarnation of the actor.
type flusher struct {
	w           *writer
	incarnation int64

	open *batch   // being filled; never nil
	full []*batch // waiting, oldest first
	free []*batch // empty, for reuse

	writing   bool // this incarnation has a flush in flight
	scheduled bool // a flushNow is in the mailbox
	lingering bool // the open batch waits for more

	// handling is the caller of the message in hand as long as its entry is nowhere, for the case that handling panics.
	handling chan<- actors.Committed
	drains   []actors.Flush
}

type (
	// flushNow starts a flush of everything that was in the mailbox before it.
	flushNow struct{ actors.Quiet }
	// lingered ends the waiting of the open batch.
	lingered struct {
		actors.Quiet
		incarnation int64
	}
	// flushDone says that a flush ended and its callers were answered; it gives the batch back.
	flushDone struct {
		actors.Quiet
		incarnation int64
		batch       *batch
	}
	// sideIdle says that the side lane or the handover became empty.
	sideIdle struct{ actors.Quiet }
	// drainOver ends the patience of a drain.
	drainOver struct {
		actors.Quiet
		incarnation int64
	}
)

func newFlusher(w *writer) *flusher {
	return &flusher{w: w, incarnation: w.incarnations.Add(1), open: new(batch)}
}

func (f *flusher) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case actors.Commit:
		f.commit(ctx, &m)
	case flushNow:
		f.scheduled = false
		f.start(ctx)
	case flushDone:
		f.flushed(ctx, m)
	case lingered:
		if m.incarnation == f.incarnation {
			f.lingering = false
			f.start(ctx)
		}
	case actors.Flush:
		f.drain(ctx, m)
	case drainOver:
		if m.incarnation == f.incarnation && len(f.drains) > 0 {
			f.w.cancel() // ends what is in flight; its callers get ErrStopped
			f.abandon(actors.ErrStopped)
			f.drained()
		}
	case sideIdle:
		f.drained()
	case *actor.Started:
		f.w.attach(ctx)
	case *actor.Restarting:
		f.abandon(actors.ErrRestarting)
		for _, d := range f.drains {
			ctx.Send(ctx.Self(), d)
		}
	case *actor.Stopping:
		f.w.cancel()
		f.abandon(actors.ErrStopped)
		f.finish()
	}
}

func (f *flusher) commit(ctx actor.Context, m *actors.Commit) {
	f.handling = m.Reply
	f.enqueue(ctx, &m.Outcome, waiter{gone: m.Gone, reply: m.Reply})
	f.handling = nil
}

func (f *flusher) enqueue(ctx actor.Context, o *pg.Outcome, w waiter) {
	switch {
	case len(f.drains) > 0:
		w.answer(actors.Committed{Err: actors.ErrStopped})
		return
	case len(o.Children) > f.w.MaxChildren:
		f.handling = nil
		f.w.side.add(&entry{outcome: *o, waiter: w, alone: true})
		return
	}
	bytes := weigh(o)
	if f.open.len() >= f.w.MaxBatch || f.open.len() > 0 && f.open.bytes+bytes > f.w.MaxBytes {
		f.full = append(f.full, f.open)
		f.open = f.take()
	}
	first := f.open.len() == 0
	f.open.add(*o, w, bytes)
	f.handling = nil // one answer each: a second would be taken for that of the caller's next outcome
	switch {
	case f.writing || f.scheduled:
	case f.w.Linger > 0 && first && len(f.full) == 0:
		f.lingering = true
		self, system, over := ctx.Self(), ctx.ActorSystem(), lingered{incarnation: f.incarnation}
		time.AfterFunc(f.w.Linger, func() { system.Root.Send(self, over) })
	case f.lingering && f.open.len() < f.w.MaxBatch && len(f.full) == 0:
	default:
		// By way of the mailbox, so that what is in it already goes along.
		f.scheduled = true
		ctx.Send(ctx.Self(), flushNow{})
	}
}

// take returns an empty batch.
func (f *flusher) take() *batch {
	if n := len(f.free); n > 0 {
		b := f.free[n-1]
		f.free = f.free[:n-1]
		return b
	}
	return new(batch)
}

// start writes the oldest batch unless one is being written.
func (f *flusher) start(ctx actor.Context) {
	if f.writing {
		return
	}
	var b *batch
	switch {
	case len(f.full) > 0:
		b = f.full[0]
		f.full[0] = nil
		f.full = f.full[1:]
	case f.open.len() > 0 && (!f.lingering || f.open.len() >= f.w.MaxBatch):
		b = f.open
		f.open = f.take()
		f.lingering = false
	default:
		return
	}
	f.writing = true
	f.w.active.Add(1)
	self, root, incarnation := ctx.Self(), ctx.ActorSystem().Root, f.incarnation
	go func() {
		f.w.write(b)
		b.reset()
		f.w.active.Add(-1)
		root.Send(self, flushDone{incarnation: incarnation, batch: b})
	}()
}

func (f *flusher) flushed(ctx actor.Context, m flushDone) {
	if len(f.free) < 4 {
		f.free = append(f.free, m.batch)
	}
	if m.incarnation == f.incarnation {
		f.writing = false
		f.start(ctx)
	}
	f.drained()
}

// drain writes what is buffered and refuses what comes later.
func (f *flusher) drain(ctx actor.Context, m actors.Flush) {
	f.drains = append(f.drains, m)
	if m.Timeout > 0 {
		self, system, over := ctx.Self(), ctx.ActorSystem(), drainOver{incarnation: f.incarnation}
		time.AfterFunc(m.Timeout, func() { system.Root.Send(self, over) })
	}
	f.lingering = false
	f.start(ctx)
	f.drained()
}

// drained ends the drain if nothing is left anywhere, a flush of an earlier incarnation included.
func (f *flusher) drained() {
	if len(f.drains) > 0 && f.open.len() == 0 && len(f.full) == 0 && f.w.active.Load() == 0 && f.w.side.idle() && f.w.next.idle() {
		f.finish()
		// Stay closed: a closed drain keeps refusing what comes later.
		f.drains = append(f.drains, actors.Flush{})
	}
}

func (f *flusher) finish() {
	for _, d := range f.drains {
		if d.Done != nil {
			close(d.Done)
		}
	}
	f.drains = nil
}

// abandon answers everybody whose entry was not handed to a goroutine.
func (f *flusher) abandon(err error) {
	if f.handling != nil {
		waiter{reply: f.handling}.answer(actors.Committed{Err: err})
		f.handling = nil
	}
	for _, b := range append(f.full, f.open) {
		b.fail(part{0, b.len(), 0}, err)
	}
	f.full, f.open = nil, new(batch)
}
