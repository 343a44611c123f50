package scheduler

import (
	"context"
	"errors"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/internal/stepping"
	"github.com/gendurable/gendurable/pg"
)

// joint is what became of an outcome that was committed together with work. The zero value is that of a goroutine which
// ended without a word.
type joint struct {
	verdict pg.Verdict
	err     error
	known   bool
}

// commitTogether commits an outcome that carries work. It never rides in a group commit, and its row is never kept for a
// next step: that is claimed anew.
func (s *step) commitTogether(r *run, refused func(error) actors.StepEnded, e *fsm.Encoded) actors.StepEnded {
	r.committing.Store(true)
	j, left := s.together(r, e)
	r.slot.ran() // the work is code of the step's
	blame := blamed(j.err)
	switch {
	case left != nil:
		s.awaitLeft(left)
		return r.worthless(r.why())
	case !j.known:
		return r.ended(actors.EndVanished, -1)
	case j.err == nil && j.verdict.Fate == pg.Stale:
		return r.ended(actors.EndStale, -1)
	case j.err == nil && j.verdict.Status == pg.Runnable:
		return r.ended(actors.EndCommitted, e.Delay)
	case j.err == nil:
		return r.ended(actors.EndCommitted, -1)
	case errors.Is(j.err, pg.ErrCancelRequested), errors.Is(context.Cause(r.ctx), fsm.ErrCancelled):
		return s.commit(r, nil, stepping.Failure("cancelled")) // the database knows the reason
	case r.ctx.Err() != nil && blame != nil:
		return s.commit(r, nil, putBack(r)) // interrupted by a drain, it did not fail
	case blame != nil && refused != nil:
		return refused(blame)
	case blame != nil:
		return s.commit(r, nil, stepping.Failure(blame.Error()))
	default:
		return r.worthless(r.why())
	}
}

// blamed is what the error handler of the step gets to see of an error; nil = nothing, it is not the step's fault.
func blamed(err error) error {
	var failed *pg.WorkError
	var no *actors.RefusedError
	switch {
	case errors.As(err, &failed):
		return failed.Err
	case errors.As(err, &no):
		return no
	}
	return nil
}

// together runs the commit on a goroutine of its own, because there is code of the user's in it. left is not nil when nobody
// waits for it any more; it is closed when the goroutine has ended.
func (s *step) together(r *run, e *fsm.Encoded) (j joint, left <-chan struct{}) {
	if s.cfg.Together == nil {
		return joint{known: true, err: &pg.WorkError{Err: errors.New("gendurable: this engine commits nothing together with an outcome")}}, nil
	}
	alive, cancel := context.WithCancel(context.Background())
	defer cancel()
	o := stepping.Outcome(s.cfg.Worker, r.at, e)
	r.note(&o, e)
	ended, done := make(chan struct{}), make(chan joint, 1)
	go func() {
		defer close(ended)
		var j joint
		defer func() { done <- j }()
		j.verdict, j.err = s.cfg.Together(alive, r.ctx, o, e.Work, e.WorkTimeout)
		j.known = true
	}()
	select {
	case j = <-done:
		return j, nil
	case <-r.gone:
	}
	select {
	case j = <-done: // known after all
		return j, nil
	default:
		return j, ended
	}
}
