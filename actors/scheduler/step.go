package scheduler

import (
	"errors"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/internal/stepping"
	"github.com/gendurable/gendurable/pg"
)

// assignment gives a step actor its next run.
type assignment struct {
	actors.Quiet
	worker *worker
	run    *run
}

// step is a step actor: it carries out one run after the other, never two at once. It blocks in Receive; its
// parent ends the wait through the run, because a blocked Receive sees no message.
type step struct {
	cfg  *Config
	life *life
	ctx  actor.Context // of the message in hand
	// scheduler hears of slots that are given up.
	scheduler *actor.PID
	ends      *gathering[finished] // of its parent
	// reply is the channel for the next answer of a flusher; nil = the last one may still be answered.
	reply chan actors.Committed
}

func (s *step) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case assignment:
		s.ctx = ctx
		s.report(m, s.carryOut(m.run))
	case actors.Crash:
		panic("told to crash")
	}
}

// report tells the parent of the end of a run. It is no part of Receive, whose frame is there for as long as a step runs.
//
//go:noinline
func (s *step) report(m assignment, ended actors.StepEnded) {
	if s.ends.add(finished{worker: m.worker, run: m.run, ended: ended}) {
		s.ctx.Send(s.ctx.Parent(), runsEnded{})
	}
}

func (s *step) carryOut(r *run) actors.StepEnded {
	if reason := stepping.Refusal(r.row, r.spec); reason != "" {
		s.cfg.QueueCounters.NotRun.Add(1)
		return s.commit(r, nil, stepping.Failure(reason))
	}
	for {
		if e := s.carryOn(r); e.End != goesOn {
			return e
		}
	}
}

// carryOn runs the step that the row is at.
func (s *step) carryOn(r *run) actors.StepEnded {
	r.afterCommit() // before anything is asked, see steps
	select {
	case <-r.gone: // while it waited in the mailbox; somebody else may be running it by now
		return r.worthless(r.why())
	default:
	}
	if r.steps > 0 && !s.mayGoOn(r) {
		select {
		case <-r.gone:
			return r.worthless(r.why())
		default:
		}
		s.cfg.QueueCounters.Yielded.Add(1)
		if !s.interrupted(r) {
			return r.ended(actors.EndCrowded, -1)
		}
		r.watch = watch{skipped: true}
		return s.commit(r, nil, putBack(r))
	}
	r.steps++
	in := stepping.Input(r.at, s.cfg.Limits, s.cfg.Store)
	in.Grace, in.Abandon = s.cfg.StepGrace, r.abandoned
	r.slot.runs(time.Now())
	ctx := s.begin(r)
	res := fsm.Run(ctx, r.spec, in)
	if res.Ending != fsm.Undecodable {
		r.slot.ran()
	}
	r.watch.ran()
	e := s.conclude(r, in, res, func(err error) actors.StepEnded {
		// The database refused what the step came to: its error handler decides, as on any other error.
		r.afterCommit()
		if !s.regain(r, false) {
			return s.unheard(r)
		}
		r.slot.runs(time.Now())
		res := fsm.RunError(ctx, r.spec, in, err)
		r.slot.ran()
		return s.conclude(r, in, res, func(err error) actors.StepEnded {
			return s.commit(r, nil, stepping.Failure(err.Error()))
		})
	})
	r.watch.end(e)
	return e
}

// conclude commits what a run came to. refused decides when the database refuses it.
func (s *step) conclude(r *run, in *fsm.Input, res fsm.Result, refused func(error) actors.StepEnded) actors.StepEnded {
	switch res.Ending {
	case fsm.Finished:
		return s.commit(r, refused, res.Encoded)
	case fsm.Vanished:
		s.cfg.Logger.Warn("gendurable: a step ended its goroutine without an outcome (runtime.Goexit); it is run again when its lease is over",
			"queue", s.cfg.Queue, "id", r.at.ID, "machine", r.at.Machine, "step", r.at.Step)
		return r.ended(actors.EndVanished, -1)
	case fsm.Undecodable:
		e := r.ended(actors.EndUnknown, -1)
		e.Step = pg.StepRef{Machine: r.at.Machine, Version: r.at.Version, Step: r.at.Step}
		if s.life.sayUndecodable(e.Step, time.Now()) {
			s.cfg.Logger.Warn("gendurable: a state does not fit the type that this process has for it, or its codec fails",
				"queue", s.cfg.Queue, "id", r.at.ID, "machine", r.at.Machine, "version", r.at.Version, "step", r.at.Step, "error", res.Err)
		}
		return e
	default:
		s.left(r, res.Left)
		return r.ended(actors.EndAbandoned, -1)
	}
}

// left tells of an abandoned step.
func (s *step) left(r *run, left <-chan struct{}) {
	select {
	case <-r.abandoned: // on our own accord, at the end of a drain
	default:
		s.cfg.Logger.Warn("gendurable: a step ignored its timeout and was given up; it is run again when its lease is over",
			"queue", s.cfg.Queue, "id", r.at.ID, "machine", r.at.Machine, "step", r.at.Step)
	}
	s.awaitLeft(left)
}

// awaitLeft counts a goroutine of the user's code that nobody waits for until it ends.
func (s *step) awaitLeft(left <-chan struct{}) {
	c := s.cfg.QueueCounters
	c.AbandonedNow.Add(1)
	go func() {
		<-left
		c.AbandonedNow.Add(-1)
	}()
}

// commit makes an outcome durable, or finds out why that cannot be. With refused nil a refusal is final.
func (s *step) commit(r *run, refused func(error) actors.StepEnded, e *fsm.Encoded) actors.StepEnded {
	if e.Work != nil {
		return s.commitTogether(r, refused, e)
	}
	o := stepping.Outcome(s.cfg.Worker, r.at, e)
	if s.inlines(r, e) {
		stay(&o, r.at)
	}
	r.note(&o, e)
	answer, err := s.submit(r, o)
	var no *actors.RefusedError
	switch {
	case err == nil && answer.Verdict.Fate == pg.Stale:
		return r.ended(actors.EndStale, -1)
	case err == nil && answer.Verdict.Fate == pg.Committed && answer.Verdict.Status == pg.Executing:
		return s.advance(r, &o, answer)
	case err == nil && answer.Verdict.Fate == pg.Committed && answer.Verdict.Status == pg.Runnable:
		return r.ended(actors.EndCommitted, e.Delay)
	case err == nil:
		return r.ended(actors.EndCommitted, -1)
	case errors.As(err, &no) && refused != nil:
		return refused(no)
	case errors.As(err, &no):
		s.cfg.Logger.Error("gendurable: the database refuses even to fail an instance; it is run again when its lease is over",
			"queue", s.cfg.Queue, "id", r.at.ID, "machine", r.at.Machine, "step", r.at.Step, "error", err)
		return r.ended(actors.EndVanished, -1)
	default:
		return r.worthless(err)
	}
}

// worthless is the end of a run whose outcome does not matter any more, for the reason that why gives.
func (r *run) worthless(why error) actors.StepEnded {
	if errors.Is(why, fsm.ErrLeaseLost) {
		return r.ended(actors.EndStale, -1)
	}
	return r.ended(actors.EndAbandoned, -1)
}

// submit asks a flusher until it knows the answer, or nobody wants to know any more: then the error is
// fsm.ErrLeaseLost or actors.ErrStopped.
func (s *step) submit(r *run, o pg.Outcome) (actors.Committed, error) {
	r.committing.Store(true) // until the next code runs: whoever asks before the end is reported must hear of it
	for {
		select {
		case <-r.gone:
			return actors.Committed{}, r.why()
		default:
		}
		reply := s.reply
		if reply == nil {
			reply = make(chan actors.Committed, 1)
		}
		s.reply = nil
		s.ctx.Send(s.flusher(r.at), actors.Commit{Outcome: o, Queue: r.at.Queue, Gone: r.gone, Reply: reply})
		sent := time.Now()
		s.handOver(r, &o, sent)
		var answer actors.Committed
		select {
		case answer = <-reply:
		case <-r.gone:
			select {
			case answer = <-reply: // known after all
			default:
				return actors.Committed{}, r.why()
			}
		}
		s.reply = reply
		s.life.commitTook.Store(int64(time.Since(sent)))
		if !errors.Is(answer.Err, actors.ErrRestarting) {
			return answer, answer.Err
		}
	}
}

func (r *run) why() error {
	select {
	case <-r.abandoned:
		return actors.ErrStopped
	default:
		return fsm.ErrLeaseLost
	}
}

// flusher picks the flusher of a row. Siblings share one, so that one flush decrements their parent once.
func (s *step) flusher(row *pg.Claimed) *actor.PID {
	family := row.ParentID
	if family == 0 {
		family = row.ID
	}
	return s.cfg.Flushers[uint64(family)%uint64(len(s.cfg.Flushers))]
}
