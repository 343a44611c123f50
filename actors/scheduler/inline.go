package scheduler

import (
	"context"
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/actors/scheduler/core"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/limiter"
	"github.com/gendurable/gendurable/pg"
)

// goesOn is how the run of a step "ends" when the row was kept for its next step: not at all. No message carries it.
const goesOn actors.StepEnd = -1

// inlines decides whether the row of a Next is kept for its next step.
func (s *step) inlines(r *run, e *fsm.Encoded) bool {
	if e.Kind != fsm.KindNext || !e.Inline || !s.admissible(r, e) {
		return false
	}
	if r.steps >= s.cfg.InlineLimit || s.interrupted(r) {
		s.cfg.QueueCounters.Yielded.Add(1)
		return false
	}
	return true
}

// admissible reports whether the next step needs nothing that only a claim decides. A new key of no gate means one at a time:
// its continuation could meet another row in the index, which would fail the whole batch. What a gate or a rate limit says is
// asked after the commit, see admitted.
func (s *step) admissible(r *run, e *fsm.Encoded) bool {
	newKey := e.Key == fsm.SetKey && e.NewKey != r.at.ConcurrencyKey
	if newKey && !s.life.gated(e.NewKey) {
		return false
	}
	return !newKey && e.RateLimit == "" || s.cfg.Limiter != nil
}

// admitted asks the limiter about the next step of a row that was continued. It comes after the commit, which proves the
// ownership: asked before, a worker that has lost its row would put its stamp on that of another. A denied row is given
// back as a claimed one is.
func (s *step) admitted(r *run) (denied *actors.StepEnded) {
	row := r.at
	_, limited, requests := core.Limited([]pg.Claimed{*row})
	if len(limited) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(s.life.ctx, max(s.cfg.Lease/4, time.Second))
	defer cancel()
	decisions, err := admit(ctx, s.ctx.ActorSystem().Root, s.cfg, requests, r.gone)
	r.afterCommit()
	select {
	case <-r.gone:
		e := r.worthless(r.why())
		return &e
	default:
	}
	e := r.ended(actors.EndDenied, -1)
	switch {
	case err != nil || len(decisions) != 1:
	case decisions[0].Verdict == limiter.Admitted:
		if requests[0].Gate != "" {
			row.ConcurrencyShard = &decisions[0].Shard
		}
		return nil
	default:
		s.cfg.QueueCounters.Denied.Add(1)
		e.Denied = decisions[0]
	}
	return &e
}

// interrupted reports whether the chain must not begin another step: its queue drains or is paused, or its context has ended.
func (s *step) interrupted(r *run) bool {
	return s.life.draining.Load() || s.life.paused.Load() || r.ctx.Err() != nil
}

// mayGoOn reports whether the chain may begin another step, once it has a slot for it.
func (s *step) mayGoOn(r *run) bool {
	return !s.interrupted(r) && s.regain(r, true) && !s.interrupted(r) // it may have waited
}

// stay turns a Next into one that keeps the row claimed.
func stay(o *pg.Outcome, row *pg.Claimed) {
	o.Kind = pg.KindContinue
	if o.Key == pg.SetKey && o.NewKey == row.ConcurrencyKey || o.Key == pg.ReleaseKey && row.ConcurrencyKey == "" {
		o.Key, o.NewKey = pg.KeepKey, "" // it is the key that the row has; a column that is not written breaks no HOT update
	}
}

// advance makes the row what its next step finds. The old one stays as it is: others may read it.
func (s *step) advance(r *run, o *pg.Outcome, answer actors.Committed) actors.StepEnded {
	s.cfg.QueueCounters.Continued.Add(1)
	row := *r.at
	row.Step, row.State, row.Attempt, row.Crashes, row.Awaits = o.Step, o.State, 0, 0, nil
	if row.RateLimit, row.Weight = o.RateLimit, o.Weight; row.Weight == 0 {
		row.Weight = 1
	}
	row.TraceContext, row.Waited = r.watch.goOn(row.TraceContext), 0
	switch o.Key {
	case pg.ReleaseKey:
		row.ConcurrencyKey, row.ConcurrencyShard = "", nil
	case pg.SetKey:
		provisional := int16(pg.ProvisionalShard)
		row.ConcurrencyKey, row.ConcurrencyShard = o.NewKey, &provisional
	}
	row.HasInbox, row.HasChildren = answer.Verdict.HasInbox, answer.Verdict.HasChildren
	var seen pg.Claimed
	if answer.Next != nil {
		seen = *answer.Next
	}
	row.Inbox, row.MoreInbox = seen.Inbox, seen.MoreInbox
	row.Children, row.MoreChildren, row.ChildCounts = seen.Children, seen.MoreChildren, seen.ChildCounts
	r.at = &row
	if denied := s.admitted(r); denied != nil {
		return *denied
	}
	return actors.StepEnded{End: goesOn}
}

// putBack is the outcome of a step that is not begun: the row returns to its queue as it is.
func putBack(r *run) *fsm.Encoded {
	return &fsm.Encoded{Kind: fsm.KindRetry, Step: r.at.Step, State: r.at.State, Uncounted: true}
}
