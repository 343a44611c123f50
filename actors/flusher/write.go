package flusher

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// writer is what outlives a restart of the actor: the committers, the side lane, and the context that ends them.
type writer struct {
	Config
	ctx    context.Context
	cancel context.CancelFunc
	side   *side
	// next answers callers whose next step has something to see.
	next *handover

	incarnations atomic.Int64
	active       atomic.Int64 // flushes in flight, of any incarnation

	// mu is held during a flush: after a restart the new incarnation's first waits for the old one's last.
	mu    sync.Mutex
	parts []part // the stack of write; owned by the holder of mu

	away actors.Outage
	root *actor.RootContext // set before the first message; nil without actors
	self *actor.PID
}

func newWriter(c Config) *writer {
	w := &writer{Config: c}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.side = newSide(w)
	w.next = &handover{w: w}
	return w
}

// attach remembers whom to tell. Called from Started, thus before anything that tells; only the first counts.
func (w *writer) attach(ctx actor.Context) {
	if w.self == nil {
		w.self, w.root = ctx.Self(), ctx.ActorSystem().Root
	}
}

// write makes the batch durable and answers all of its callers, or hands them to the side lane.
func (w *writer) write(b *batch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	pause := actors.Backoff{First: w.Backoff, Max: w.MaxBackoff}
	w.parts = append(w.parts[:0], w.divert(b, part{0, b.len(), 0}))
	for len(w.parts) > 0 {
		p := b.sift(w.pop(), w.dropGone)
		if p.size() == 0 {
			continue
		}
		flushed, err := w.flush(w.Main, b.outcomes[p.lo:p.hi])
		if err == nil {
			w.committed(b.outcomes[p.lo:p.hi], b.waiters[p.lo:p.hi], flushed)
			pause.Reset()
			continue
		}
		p.failed++
		fault := w.fault(err)
		switch decide(fault, p.size(), p.failed) {
		case again:
			w.push(p)
		case wait:
			w.noteAway(err)
			w.sleep(pause.Next())
			w.push(p)
		case probe:
			w.push(w.takeLocked(b, p))
		case halve:
			w.halve(b, p, fault)
		case aside:
			w.moveAside(&b.outcomes[p.lo], b.waiters[p.lo], nil)
		case refuse:
			w.refuse(&b.outcomes[p.lo], b.waiters[p.lo], err)
		case end:
			b.fail(p, actors.ErrStopped)
		}
	}
}

func (w *writer) push(p part) { w.parts = append(w.parts, p) }

func (w *writer) pop() part {
	p := w.parts[len(w.parts)-1]
	w.parts = w.parts[:len(w.parts)-1]
	return p
}

// divert moves entries on rows that are known to be locked straight to the side lane.
func (w *writer) divert(b *batch, p part) part {
	if w.side.nothingBlocked() {
		return p
	}
	return b.sift(p, func(o *pg.Outcome, c waiter) bool {
		ids := w.side.blockedBy(o)
		if ids == nil {
			return false
		}
		w.moveAside(o, c, ids)
		return true
	})
}

// dropGone takes out an entry that nobody waits for any more.
func (w *writer) dropGone(_ *pg.Outcome, c waiter) bool {
	if !c.left() {
		return false
	}
	w.Counters.Dropped.Add(1)
	c.answer(actors.Committed{Err: actors.ErrStopped})
	return true
}

// takeLocked asks which rows are locked and moves their entries to the side lane. When it finds some, the
// rest starts afresh; when it finds none, the rest keeps its count of failures.
func (w *writer) takeLocked(b *batch, p part) part {
	ids := make([]int64, 0, 2*p.size())
	for i := p.lo; i < p.hi; i++ {
		touched(&b.outcomes[i], func(id int64) { ids = append(ids, id) })
	}
	locked, err := w.locked(ids)
	if err != nil {
		w.Logger.Debug("gendurable: could not ask which rows are locked", "error", err)
		return p
	}
	if len(locked) == 0 {
		return p
	}
	w.Counters.Splits.Add(1)
	set := setOf(locked)
	p = b.sift(p, func(o *pg.Outcome, c waiter) bool {
		ids := intersect(o, set)
		if ids == nil {
			return false
		}
		w.moveAside(o, c, ids)
		return true
	})
	p.failed = 0
	return p
}

// halve cuts a part in two. If a lock is to blame that no row shows, entries that insert keys are suspected first:
// they go to the side lane, where each is tried alone.
func (w *writer) halve(b *batch, p part, f Fault) {
	w.Counters.Splits.Add(1)
	if f == Locked {
		suspects := 0
		for i := p.lo; i < p.hi; i++ {
			if keyed(&b.outcomes[i]) {
				suspects++
			}
		}
		if suspects > 0 && suspects < p.size() {
			w.push(b.sift(p, func(o *pg.Outcome, c waiter) bool {
				if !keyed(o) {
					return false
				}
				w.moveAside(o, c, nil)
				return true
			}))
			return
		}
	}
	if f == Content {
		p.failed = 0 // what else may go wrong with the halves has not been tried yet
	}
	mid := p.lo + p.size()/2
	w.push(part{mid, p.hi, p.failed})
	w.push(part{p.lo, mid, p.failed})
}

// moveAside hands an entry to the side lane: with the locked rows it needs, or without any when the reason is unknown.
func (w *writer) moveAside(o *pg.Outcome, c waiter, ids []int64) {
	w.Counters.SlowLane.Add(1)
	w.Counters.SlowLaneNow.Add(1)
	e := &entry{outcome: *o, waiter: c, slow: true, alone: ids == nil, blocked: ids, pause: w.SlowBackoff}
	if ids != nil {
		e.due = time.Now().Add(w.SlowBackoff)
	}
	w.side.add(e)
}

func (w *writer) refuse(o *pg.Outcome, c waiter, err error) {
	w.Counters.Refused.Add(1)
	w.Logger.Warn("gendurable: the database refused the outcome of a step", "instance", o.ID, "error", err)
	c.answer(actors.Committed{Err: &actors.RefusedError{Err: err}})
}

// errPanicked stands for a panic inside a committer: the content of one of the entries is taken to be the cause.
var errPanicked = errors.New("panic while writing outcomes")

// flush calls the committer. It runs on a goroutine of its own where a panic would end the host's process.
func (w *writer) flush(c Committer, outcomes []pg.Outcome) (flushed pg.Flushed, err error) {
	defer func() {
		if r := recover(); r != nil {
			w.Logger.Error("gendurable: writing outcomes panicked", "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			err = fmt.Errorf("%w: %v", errPanicked, r)
		}
	}()
	if w.ctx.Err() != nil {
		return flushed, w.ctx.Err()
	}
	var begun time.Time
	if w.Telemetry != nil {
		begun = time.Now()
	}
	flushed, err = c.Flush(w.ctx, outcomes)
	switch {
	case err == nil:
		if w.Telemetry != nil {
			w.Telemetry.Flushed(len(outcomes), time.Since(begun))
		}
		w.away.Over(w.Logger, "outcomes can be written again")
	case w.ctx.Err() != nil:
		err = w.ctx.Err()
	}
	return flushed, err
}

// fault tells what an error of flush means.
func (w *writer) fault(err error) Fault {
	switch {
	case w.ctx.Err() != nil:
		return Ended
	case errors.Is(err, errPanicked):
		return Content
	}
	return w.Classify(err)
}

// locked asks which of the rows are locked; a panic is an error here too.
func (w *writer) locked(ids []int64) (locked []int64, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic while looking for locked rows: %v", r)
		}
	}()
	return w.Rows.Blocked(w.ctx, ids)
}

// noteAway notes that a flush will be tried again after err.
func (w *writer) noteAway(err error) {
	w.Counters.FlushRetries.Add(1)
	w.away.Begin(w.Logger, "outcomes cannot be written just now; they are kept and tried again", err)
}

// sleep waits for d or the end of the flusher.
func (w *writer) sleep(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-w.ctx.Done():
	}
}
