package scheduler

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/actors/scheduler/core"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/internal/stepping"
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
	// returning asks the scheduler for a slot for a run that has given up its own.
	returning struct {
		actors.Quiet
		id int64
	}
	// resume tells the steps actor which of those have got one.
	resume struct {
		actors.Quiet
		ids []int64
	}
)

// handOver gives up the run's slot, once: its outcome is with a flusher, and no code of it runs while it waits. While nobody
// waits for a slot that is not worth a message.
func (s *step) handOver(r *run) {
	if r.handed || !s.life.tight.Load() {
		return
	}
	r.handed = true
	if s.life.handed.add(core.HandedRow{Row: r.row, Took: time.Since(r.begun)}) {
		s.ctx.Send(s.scheduler, handedOver{})
	}
}

// regain waits for a slot if the run has given up its own; false = nobody waits for the run any more, or it was interrupted.
// Whoever gets it keeps it to its end, also over the further steps of a chain. A scheduler that fails meanwhile asks the steps actor
// what runs, which then repeats the wish.
func (s *step) regain(r *run) bool {
	select {
	case <-r.gone:
		return false
	default:
	}
	if !r.handed || r.regained {
		return true
	}
	slot := make(chan struct{})
	r.wants.Store(&slot)
	s.ctx.Send(s.scheduler, returning{id: r.row.ID})
	select {
	case <-slot:
		r.regained = true
		return true
	case <-r.gone:
	case <-r.ctx.Done():
	}
	r.wants.Store(nil)
	return false
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

// resume is told that the run has a slot again.
func (r *run) resume() {
	if slot := r.wants.Swap(nil); slot != nil {
		close(*slot)
	}
}
