package scheduler

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/actors/scheduler/core"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/limiter"
	"github.com/gendurable/gendurable/pg"
)

// run is one run of a row. The steps actor makes it and may end it; a step actor carries it out.
type run struct {
	row  *pg.Claimed // as it was claimed
	spec *fsm.Spec   // nil only when the row's cancel was requested

	// at is the row as the present step finds it: row itself, or what an inline chain has made of it. steps is how many
	// steps the chain has begun. Both belong to the step actor.
	at    *pg.Claimed
	steps int
	watch watch // of the present step; belongs to the step actor
	slot  slot

	// ctx is the step's. cancel says why it ends.
	ctx    context.Context
	cancel context.CancelCauseFunc
	// gone is closed when the outcome does not matter any more: the lease was lost, or abandoned is closed too.
	gone chan struct{}
	// abandoned is closed when nobody waits for the step any more.
	abandoned chan struct{}

	goneOnce, abandonedOnce sync.Once
	// committing: its outcome is with a flusher. The step actor sets it.
	committing atomic.Bool
	// suspected: a heartbeat found the row lost. While the outcome is with a flusher its own commit may be what made it look so.
	suspected atomic.Bool
}

func newRun(m actors.RunStep) *run {
	r := &run{row: m.Claimed, at: m.Claimed, spec: m.Spec, gone: make(chan struct{}), abandoned: make(chan struct{})}
	r.slot.since = time.Now()
	r.ctx, r.cancel = context.WithCancelCause(context.Background())
	return r
}

// lose makes the outcome of the run worthless.
func (r *run) lose(cause error) {
	r.cancel(cause)
	r.goneOnce.Do(func() { close(r.gone) })
}

// afterCommit ends the run if its row was found lost and an outcome's own commit cannot be what made it look so: that was refused,
// or it kept the row. The flag is looked at after committing was taken back, and set before that is looked at: so one of the
// two actors sees what the other has done.
func (r *run) afterCommit() {
	r.committing.Store(false)
	if r.suspected.Load() {
		r.lose(fsm.ErrLeaseLost)
	}
}

// abandon makes the step actor return at once, whatever the step does.
func (r *run) abandon(cause error) {
	r.lose(cause)
	r.abandonedOnce.Do(func() { close(r.abandoned) })
}

func (r *run) ended(end actors.StepEnd, delay time.Duration) actors.StepEnded {
	return actors.StepEnded{ID: r.row.ID, Claim: r.row.Claim, End: end, Delay: delay, Took: r.slot.took(time.Now()), Longest: r.slot.longest}
}

// steps is the parent of the step actors, and the truth about what runs.
type steps struct {
	cfg       *Config
	life      *life
	scheduler *actor.PID
	props     *actor.Props // of the step actors

	runs    map[int64]*run     // by row
	workers map[string]*worker // by the id of the step actor
	idle    []*worker          // the one that ended last is at the end
	timer   *time.Timer
	// ends are the runs that step actors of this life are through with and of which it has not taken notice.
	ends gathering[finished]
	// closing is set once this life ends. Invariant: nothing is spawned from then on. The library goes on handing an
	// actor its messages while it waits for its children, but told only those to stop that it had at the beginning: it
	// would wait for a later one for ever, and so would whoever waits for it.
	closing bool
}

// worker is a step actor as its parent sees it.
type worker struct {
	pid  *actor.PID
	run  *run // nil = idle
	idle time.Time
}

type (
	// finished is that a step actor is through with its run.
	finished struct {
		worker *worker
		run    *run
		ended  actors.StepEnded
	}
	// runsEnded tells the parent that there are some of them.
	runsEnded struct{ actors.Quiet }
	// abandon stops waiting for runs.
	abandon struct {
		actors.Quiet
		ids []int64
	}
	// sweep ends step actors that have been idle for long.
	sweep struct{ actors.Quiet }
)

func newSteps(cfg *Config, life *life, scheduler *actor.PID) *steps {
	s := &steps{cfg: cfg, life: life, scheduler: scheduler, runs: map[int64]*run{}, workers: map[string]*worker{}}
	s.props = actors.NewProps(cfg.Logger, cfg.Counters, func() actor.Actor {
		return &step{cfg: cfg, life: life, scheduler: scheduler, ends: &s.ends}
	}, actor.WithDispatcher(&life.goroutines))
	return s
}

func (s *steps) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case actors.RunSteps:
		for _, r := range m.Steps {
			s.start(ctx, r)
		}
	case runsEnded:
		s.ended(ctx)
	case *actor.Terminated:
		s.terminated(ctx, m.Who)
	case actors.CancelStep:
		if r := s.runs[m.ID]; r != nil {
			lost := errors.Is(m.Cause, fsm.ErrLeaseLost)
			r.suspected.CompareAndSwap(false, lost)
			if lost && !r.committing.Load() {
				r.lose(m.Cause)
			} else {
				// What made the row look lost may have been the commit of its outcome. The flusher's verdict tells.
				r.cancel(m.Cause)
			}
		}
	case abandon:
		for _, id := range m.ids {
			if r := s.runs[id]; r != nil {
				r.abandon(fsm.ErrDraining)
			}
		}
	case actors.ListRunning:
		ctx.Send(s.scheduler, s.running(m.Life))
		var wishes []core.ReturningRow
		for _, r := range s.runs {
			if w, waits := r.wish(); waits {
				wishes = append(wishes, w)
			}
		}
		if len(wishes) > 0 {
			ctx.Send(s.scheduler, returning{rows: wishes, life: m.Life}) // the scheduler that was asked may be gone
		}
	case resume:
		for _, a := range m.rows {
			if r := s.runs[a.ID]; r != nil {
				r.resume(a.Turn, !a.PutBack)
			}
		}
	case sweep:
		s.sweep(ctx)
	case *actor.Started:
		if s.life.steps.Add(1) > 1 {
			ctx.Send(s.scheduler, stepsRestarted{})
		}
	case *actor.Stopping:
		s.close(fsm.ErrDraining)
	case *actor.Restarting:
		s.close(fsm.ErrLeaseLost)
	case actors.Crash:
		panic("told to crash")
	}
}

func (s *steps) running(life int64) actors.Running {
	m := actors.Running{IDs: make([]int64, 0, len(s.runs)), Life: life}
	for id, r := range s.runs {
		m.IDs = append(m.IDs, id)
		if r.committing.Load() {
			m.Committing = append(m.Committing, id)
		}
	}
	return m
}

// close lets every step actor return: they are about to be stopped, and the library waits for them.
func (s *steps) close(cause error) {
	s.closing = true
	for _, r := range s.runs {
		r.abandon(cause)
	}
	if s.timer != nil {
		s.timer.Stop()
	}
}

func (s *steps) start(ctx actor.Context, m actors.RunStep) {
	if s.closing {
		return // the next scheduler gives the row back, or its lease ends
	}
	if s.runs[m.Claimed.ID] != nil {
		// The scheduler never asks for that; its row is left to the lease rather than run twice at once.
		s.cfg.Logger.Error("gendurable: a row was started while it runs, the second run is left out",
			"queue", s.cfg.Queue, "id", m.Claimed.ID)
		return
	}
	r := newRun(m)
	s.runs[m.Claimed.ID] = r
	w := s.take(ctx)
	w.run = r
	ctx.Send(w.pid, assignment{worker: w, run: r})
}

// take returns an idle step actor: the one that ended last, so that the others can grow old.
func (s *steps) take(ctx actor.Context) *worker {
	if n := len(s.idle); n > 0 {
		w := s.idle[n-1]
		s.idle[n-1] = nil
		s.idle = s.idle[:n-1]
		return w
	}
	pid := ctx.Spawn(s.props)
	w := &worker{pid: pid}
	s.workers[pid.GetId()] = w
	return w
}

// ended takes notice of the runs that have ended, and reports them together.
func (s *steps) ended(ctx actor.Context) {
	ends := s.ends.take()
	report := make([]actors.StepEnded, 0, len(ends))
	now := time.Now()
	for _, m := range ends {
		if m.worker.run != m.run || s.runs[m.run.row.ID] != m.run {
			continue // settled already
		}
		m.worker.run, m.worker.idle = nil, now
		if s.workers[m.worker.pid.GetId()] == m.worker {
			s.idle = append(s.idle, m.worker)
		}
		s.settle(ctx, m.run, m.ended.End)
		report = append(report, m.ended)
	}
	clear(ends)
	if len(report) == 0 {
		return // they were told of in a life before this one
	}
	s.armSweep(ctx)
	ctx.Send(s.scheduler, actors.StepsEnded{Ended: report})
}

// terminated takes the death of a step actor. If it had a run, that run's step may still be at work, and its row
// is left to the lease.
func (s *steps) terminated(ctx actor.Context, who *actor.PID) {
	w := s.workers[who.GetId()]
	if w == nil {
		return
	}
	s.ended(ctx) // what it may have said last
	delete(s.workers, who.GetId())
	s.idle = slices.DeleteFunc(s.idle, func(i *worker) bool { return i == w })
	if r := w.run; r != nil {
		w.run = nil
		r.abandon(fsm.ErrLeaseLost)
		s.settle(ctx, r, actors.EndAbandoned)
		ctx.Send(s.scheduler, actors.StepsEnded{Ended: []actors.StepEnded{r.ended(actors.EndAbandoned, -1)}})
	}
}

// settle closes the books of a run, exactly once.
func (s *steps) settle(ctx actor.Context, r *run, end actors.StepEnd) {
	delete(s.runs, r.row.ID)
	r.cancel(context.Canceled) // frees what hangs on the context
	countEnd(s.cfg.QueueCounters, end)
	s.leaveSlot(ctx, r, end)
}

// leaveSlot tells the limiter of a slot that whoever takes the row will give back: it is not renewed any more. The step actor
// is through with the run, or dead.
func (s *steps) leaveSlot(ctx actor.Context, r *run, end actors.StepEnd) {
	row := r.at
	lost := end == actors.EndVanished || end == actors.EndAbandoned
	select {
	case <-r.gone:
		lost = true
	default:
	}
	if s.cfg.Limiter == nil || !lost || row.ConcurrencyShard == nil || *row.ConcurrencyShard < 0 {
		return
	}
	ctx.Send(s.cfg.Limiter, actors.CreditSlots{Lost: []limiter.Slot{{ID: row.ID, Claim: row.Claim, Key: row.ConcurrencyKey, Shard: *row.ConcurrencyShard}}})
}

// countEnd counts an end by what it was, and then as one: whoever sees the sum finds its parts.
func countEnd(c *actors.QueueCounters, end actors.StepEnd) {
	defer c.Ended.Add(1)
	switch end {
	case actors.EndCommitted:
		c.Committed.Add(1)
	case actors.EndStale:
		c.Stale.Add(1)
	case actors.EndVanished:
		c.Vanished.Add(1)
	case actors.EndAbandoned:
		c.Abandoned.Add(1)
	case actors.EndUnknown, actors.EndDenied, actors.EndCrowded:
		c.GivenBack.Add(1)
	}
}

func (s *steps) armSweep(ctx actor.Context) {
	if s.timer != nil {
		return
	}
	root, self := ctx.ActorSystem().Root, ctx.Self()
	s.timer = time.AfterFunc(s.cfg.IdleSteps, func() { root.Send(self, sweep{}) })
}

// sweep stops the step actors that nobody needed for a while. They stay known until they have ended.
func (s *steps) sweep(ctx actor.Context) {
	s.timer = nil
	old := time.Now().Add(-s.cfg.IdleSteps)
	n := 0
	for n < len(s.idle) && !s.idle[n].idle.After(old) {
		ctx.Stop(s.idle[n].pid)
		n++
	}
	s.idle = slices.Delete(s.idle, 0, n)
	s.life.goroutines.trim()
	if len(s.idle) > 0 {
		s.armSweep(ctx)
	}
}
