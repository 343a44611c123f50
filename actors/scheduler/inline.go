package scheduler

import (
	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/pg"
)

// goesOn is how the run of a step "ends" when the row was kept for its next step: not at all. No message carries it.
const goesOn actors.StepEnd = -1

// inlines decides whether the row of a Next is kept for its next step.
func (s *step) inlines(r *run, e *fsm.Encoded) bool {
	if e.Kind != fsm.KindNext || !e.Inline || !s.admitted(r, e) {
		return false
	}
	if r.steps >= s.cfg.InlineLimit || s.interrupted(r) {
		s.cfg.QueueCounters.Yielded.Add(1)
		return false
	}
	return true
}

// admitted reports whether the next step needs the permission of nobody else. A claim gives it otherwise: a new
// concurrency key that is configured nowhere means one at a time, which only a claim decides without risk to the whole
// batch, and there are no rate limits yet. With a limiter this is where a chain asks it: the continuation is committed
// first, with the key and a provisional shard, or with the limit; then the limiter admits, and a row that it denies is
// put back.
func (s *step) admitted(r *run, e *fsm.Encoded) bool {
	return e.RateLimit == "" && (e.Key != fsm.SetKey || e.NewKey == r.at.ConcurrencyKey)
}

// interrupted reports whether the chain must not begin another step: its queue drains or is paused, or its context has ended.
func (s *step) interrupted(r *run) bool {
	return s.life.draining.Load() || s.life.paused.Load() || r.ctx.Err() != nil
}

// stay turns a Next into one that keeps the row claimed.
func stay(o *pg.Outcome, row *pg.Claimed) {
	o.Kind = pg.KindContinue
	if o.Key == pg.SetKey || row.ConcurrencyKey == "" {
		o.Key, o.NewKey = pg.KeepKey, "" // it is the key that the row has; a column that is not written breaks no HOT update
	}
}

// advance makes the row what its next step finds. The old one stays as it is: others may read it.
func (s *step) advance(r *run, o *pg.Outcome, answer actors.Committed) actors.StepEnded {
	s.cfg.QueueCounters.Continued.Add(1)
	row := *r.at
	row.Step, row.State, row.Attempt, row.Crashes, row.Awaits = o.Step, o.State, 0, 0, nil
	row.RateLimit, row.Weight = "", 1
	if o.Key == pg.ReleaseKey {
		row.ConcurrencyKey, row.ConcurrencyShard = "", nil
	}
	row.HasInbox, row.HasChildren = answer.Verdict.HasInbox, answer.Verdict.HasChildren
	var seen pg.Claimed
	if answer.Next != nil {
		seen = *answer.Next
	}
	row.Inbox, row.MoreInbox = seen.Inbox, seen.MoreInbox
	row.Children, row.MoreChildren, row.ChildCounts = seen.Children, seen.MoreChildren, seen.ChildCounts
	r.at = &row
	return actors.StepEnded{End: goesOn}
}

// putBack is the outcome of a step that is not begun: the row returns to its queue as it is.
func putBack(r *run) *fsm.Encoded {
	return &fsm.Encoded{Kind: fsm.KindRetry, Step: r.at.Step, State: r.at.State, Uncounted: true}
}
