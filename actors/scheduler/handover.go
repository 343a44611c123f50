package scheduler

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/actors/scheduler/core"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/internal/stepping"
	"github.com/gendurable/gendurable/pg"
)

// gathering is what many have to tell one actor: it hears of all that has come together by one message.
type gathering[T any] struct {
	mu   sync.Mutex
	list []T
	// taken is what the actor has in hand. It belongs to the actor.
	taken []T
}

// add reports whether the actor has to be told. It need not be as long as there is something that it has not taken: the
// message that tells of that is on its way.
func (g *gathering[T]) add(v T) (tell bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.list = append(g.list, v)
	return len(g.list) == 1
}

// take returns what was added since the last time. It is the actor's until it takes again; it clears it when it is through, so
// that what hangs on it can go.
func (g *gathering[T]) take() []T {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.list, g.taken = g.taken[:0], g.list
	return g.taken
}

type (
	// handedOver tells the scheduler that life.handed has rows.
	handedOver struct{ actors.Quiet }
	// returning asks the scheduler for slots for runs that have given up their own: those of life.returning, or with life not 0, of
	// an actors.ListRunning, these.
	returning struct {
		actors.Quiet
		rows []core.ReturningRow
		life int64
	}
	// resume tells the steps actor what became of such wishes.
	resume struct {
		actors.Quiet
		rows []core.Resumed
	}
)

// slot is what a run knows of its slot. It belongs to the step actor, but for wants.
type slot struct {
	given bool          // it has given it up, for the turn-th time
	turn  int32         // how often it has
	since time.Time     // when it got it
	held  time.Duration // for how long it had it before
	step  time.Time     // when the present step began
	// kept is since when it has kept it without being ready to give it up for a commit; zero = it was ready before the next step. longest
	// is the longest of these times.
	kept    time.Time
	longest time.Duration
	// wants is the turn after which it waits for one; 0 = it does not. Whoever takes it back tells so by answer.
	wants  atomic.Int32
	chain  atomic.Bool // what waits is the next step of a chain
	answer chan bool   // whether it has got one
}

// took is for how long the run has had a slot.
func (s *slot) took(now time.Time) time.Duration {
	if s.given {
		return s.held
	}
	return s.held + now.Sub(s.since)
}

// runs notes that a step begins.
func (s *slot) runs(now time.Time) {
	if s.step = now; s.kept.IsZero() {
		s.kept = now
	}
}

// ran notes that a step has ended, or what else of its code runs in the slot.
func (s *slot) ran() { s.longest = max(s.longest, time.Since(s.kept)) }

// handOver gives up the run's slot: its outcome is with a flusher, and no code of it runs while it waits. While nobody waits for a slot
// that is not worth a message.
func (s *step) handOver(r *run, o *pg.Outcome, now time.Time) {
	goesOn := o.Kind == pg.KindContinue
	switch {
	case r.slot.given:
		return
	case !goesOn && !s.life.tight.Load():
		return
	case goesOn && !s.ready(r, o, now):
		return
	case goesOn && !s.life.brisk.Load():
		r.slot.kept = time.Time{} // it was ready
		return
	}
	r.slot.held, r.slot.given, r.slot.kept = r.slot.took(now), true, time.Time{}
	r.slot.turn++
	h := core.HandedRow{Row: r.row, Turn: int(r.slot.turn)}
	if !goesOn {
		h.Took = max(r.slot.held, 1)
	}
	if s.life.handed.add(h) {
		s.ctx.Send(s.scheduler, handedOver{})
	}
}

// ready reports whether a chain that goes on is ready to give up its slot for the commit: if its step was shorter than commits are, most slots
// would wait for the disk most of the time. But not if the limiter is asked about the next step: what it grants would lie idle
// while the chain waits for a slot, and be taken again if there is none.
func (s *step) ready(r *run, o *pg.Outcome, now time.Time) bool {
	return now.Sub(r.slot.step) < time.Duration(s.life.commitTook.Load()) && o.RateLimit == "" && o.Key != pg.SetKey
}

// regain waits for a slot if the run has given up its own; false = it is to go on without one: nobody waits for it any more, it was
// interrupted, or it is a chain and there is none to be had soon. A scheduler that fails meanwhile asks the steps actor what
// runs, which then repeats the wish.
func (s *step) regain(r *run, chain bool) bool {
	select {
	case <-r.gone:
		return false
	default:
	}
	if !r.slot.given {
		return true
	}
	if r.slot.answer == nil {
		r.slot.answer = make(chan bool, 1)
	}
	r.slot.chain.Store(chain)
	r.slot.wants.Store(r.slot.turn)
	if s.life.returning.add(core.ReturningRow{Row: r.row, Turn: int(r.slot.turn), Chain: chain}) {
		s.ctx.Send(s.scheduler, returning{})
	}
	var got bool
	select {
	case got = <-r.slot.answer:
	case <-r.gone:
		got = s.waitNoLonger(r)
	case <-r.ctx.Done():
		got = s.waitNoLonger(r)
	}
	if got {
		r.slot.given, r.slot.since = false, time.Now()
	}
	return got
}

// waitNoLonger takes the run's wish back, or the answer to it.
func (s *step) waitNoLonger(r *run) bool {
	if r.slot.wants.CompareAndSwap(r.slot.turn, 0) {
		return false
	}
	return <-r.slot.answer // it is on its way
}

// unheard is the end of a run whose outcome was refused and whose error handler was not called.
func (s *step) unheard(r *run) actors.StepEnded {
	select {
	case <-r.gone:
		return r.worthless(r.why())
	default:
	}
	if errors.Is(context.Cause(r.ctx), fsm.ErrCancelled) {
		return s.commit(r, nil, stepping.Failure("cancelled")) // the database knows the reason
	}
	return s.commit(r, nil, putBack(r))
}

// resume answers the run's wish for a slot.
func (r *run) resume(turn int, got bool) {
	if r.slot.wants.CompareAndSwap(int32(turn), 0) {
		r.slot.answer <- got
	}
}

// wish is what the run waits for, if it does.
func (r *run) wish() (w core.ReturningRow, waits bool) {
	turn := int(r.slot.wants.Load())
	return core.ReturningRow{Row: r.row, Turn: turn, Chain: r.slot.chain.Load()}, turn > 0
}
