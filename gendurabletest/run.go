package gendurabletest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/internal/stepping"
	"github.com/gendurable/gendurable/pg"
)

// Run runs steps until nothing is left to do: everything is terminal, or waits for a signal. Delays do not wait, unless
// Config.KeepDelays. It returns what ran.
func (r *Runner) Run() Tally {
	r.t.Helper()
	return r.during(func() {
		r.drain()
		for !r.cfg.KeepDelays && r.collapse() {
			r.drain()
		}
	})
}

// Advance moves time on by d and runs what becomes due on the way, in order: delays that end, timeouts of awaits. What
// is due now runs first; Advance(0) runs only that. It returns what ran.
func (r *Runner) Advance(d time.Duration) Tally {
	r.t.Helper()
	return r.during(func() {
		r.wake()
		r.drain()
		for d > 0 {
			went, met, err := r.rehearsal.Advance(r.t.Context(), d)
			r.must(err)
			if d -= went; !met {
				return
			}
			r.wake()
			r.drain()
		}
	})
}

// FireTimeouts lets the awaits of the instances time out, or with none given all awaits that have a timeout, however far
// away it is, and then runs on like Run. An instance that is given and does not await with a timeout fails the test.
func (r *Runner) FireTimeouts(refs ...gendurable.Ref) Tally {
	r.t.Helper()
	var ids []int64
	for _, ref := range refs {
		ids = append(ids, int64(r.Instance(ref).ID))
	}
	fired, err := r.rehearsal.FireTimeouts(r.t.Context(), ids)
	r.must(err)
	for _, id := range ids {
		if !slices.Contains(fired, id) {
			r.t.Fatalf("gendurabletest: no timeout to fire: %s", r.about(gendurable.ID(id)))
		}
	}
	return r.Run()
}

// Await runs what there is to run, and says where the instance came to rest. It stands in for Client.Await in code that
// awaits: in the test's goroutine nobody else would run the steps. An instance that still waits for its time, or its
// children, is gendurable.ErrStillBusy. The options do nothing.
func (r *Runner) Await(ctx context.Context, ref gendurable.Ref, _ ...gendurable.AwaitOption) (gendurable.Settled, error) {
	r.t.Helper()
	in, err := r.Get(ctx, ref)
	if err != nil {
		return gendurable.Settled{}, err
	}
	r.Run()
	if in, err = r.Get(ctx, in.ID); err != nil {
		return gendurable.Settled{}, err
	}
	s := gendurable.Settled{ID: in.ID, Status: in.Status, Result: in.Result, Awaits: in.Awaits}
	switch in.Status {
	case fsm.StatusFailed:
		s.Error = in.LastError
	case fsm.StatusDone, fsm.AwaitingSignal:
	default:
		return s, fmt.Errorf("%w: instance %d is %s", gendurable.ErrStillBusy, in.ID, in.Status)
	}
	return s, nil
}

// during is one call that runs steps: it has a budget, and counts them. Called by the code of a step, it is part of the call
// that runs the step.
func (r *Runner) during(run func()) Tally {
	r.t.Helper()
	if r.depth == 0 {
		r.tally, r.budget = Tally{}, r.cfg.MaxSteps
	}
	r.depth++
	defer func() { r.depth-- }()
	run()
	return r.tally
}

func (r *Runner) must(err error) {
	if err != nil {
		r.t.Helper()
		r.t.Fatalf("gendurabletest: %v", err)
	}
}

// drain runs steps until no row is eligible.
func (r *Runner) drain() {
	r.t.Helper()
	for ran := true; ran; {
		ran = false
		queues, err := r.rehearsal.Queues(r.t.Context())
		r.must(err)
		for _, queue := range queues {
			for r.one(queue) {
				ran = true
			}
		}
	}
}

// collapse ends the earliest delay, if there is one.
func (r *Runner) collapse() bool {
	r.t.Helper()
	id, err := r.rehearsal.Collapse(r.t.Context())
	r.must(err)
	return id != 0
}

func (r *Runner) wake() {
	r.t.Helper()
	r.must(r.rehearsal.Wake(r.t.Context()))
}

// one claims the most urgent row of a queue and runs its step. It reports whether there was one.
func (r *Runner) one(queue string) bool {
	r.t.Helper()
	worker := fmt.Sprintf("gendurabletest:%s@test-%s", queue, r.token)
	claimed, err := r.store.Claim(r.t.Context(), pg.ClaimRequest{
		Queue: queue, Worker: worker, Lease: time.Hour, Limit: 1, Skip: r.skip,
	})
	r.must(err)
	if len(claimed) == 0 {
		return false
	}
	row := &claimed[0]
	if r.budget--; r.budget < 0 {
		r.t.Fatalf("gendurabletest: %d steps ran, and there is still work: a machine that polls or retries without end "+
			"needs Config.KeepDelays and Advance, a long one a larger Config.MaxSteps. The last steps:\n%s",
			r.cfg.MaxSteps, lines(last(r.history, 10)))
	}
	s := Step{ID: gendurable.ID(row.ID), Machine: row.Machine, Version: row.Version, Step: row.Step, Attempt: row.Attempt}
	r.carryOut(worker, row, &s)
	r.history = append(r.history, s)
	*r.tally.of(s.Outcome)++
	return true
}

// carryOut runs the step of a claimed row and commits what comes of it, as a step actor does.
func (r *Runner) carryOut(worker string, row *pg.Claimed, s *Step) {
	r.t.Helper()
	spec := r.specs[machine{row.Machine, row.Version}]
	if spec == nil || !spec.HasStep(row.Step) {
		r.t.Logf("gendurabletest: instance %d is left alone: Config.Machines has no %q version %d with a step %q",
			row.ID, row.Machine, row.Version, row.Step)
		r.leave(worker, row, s)
		return
	}
	if reason := stepping.Refusal(row, spec); reason != "" {
		r.must(r.commit(worker, row, stepping.Failure(reason), s))
		s.Outcome = Refused
		return
	}
	in := stepping.Input(row, r.limits, r.store)
	in.Grace = r.cfg.StepGrace
	ctx := r.t.Context()
	res := fsm.Run(ctx, spec, in)
	if r.cfg.CrashSteps && row.Crashes == 0 && res.Ending == fsm.Finished {
		res = fsm.Result{Ending: fsm.Vanished}
	}
	err := r.conclude(worker, row, res, s)
	if blame := r.blame(err); blame != nil {
		err = r.conclude(worker, row, fsm.RunError(ctx, spec, in, blame), s)
	}
	r.must(err)
}

// conclude commits what a run came to.
func (r *Runner) conclude(worker string, row *pg.Claimed, res fsm.Result, s *Step) error {
	r.t.Helper()
	s.Err = res.Err
	switch res.Ending {
	case fsm.Finished:
		return r.commit(worker, row, res.Encoded, s)
	case fsm.Undecodable:
		r.t.Errorf("gendurabletest: the state of instance %d does not fit %q version %d: %v", row.ID, row.Machine, row.Version, res.Err)
		r.leave(worker, row, s)
		return nil
	case fsm.Abandoned:
		s.Err = errors.New("it ignored its timeout, and goes on running")
	}
	if r.t.Failed() {
		r.t.FailNow() // the step has ended its goroutine by t.FailNow or t.Fatal, which is meant to end the test
	}
	s.Outcome = Lost
	return r.rehearsal.Bury(r.t.Context(), worker)
}

// survives reports whether the database still takes statements after it has refused one: a transaction does not.
func (r *Runner) survives() bool {
	_, err := r.rehearsal.Queues(r.t.Context())
	return err == nil
}

// leave gives a row back that cannot be run here, and claims none of its kind any more.
func (r *Runner) leave(worker string, row *pg.Claimed, s *Step) {
	r.t.Helper()
	s.Outcome = Unknown
	r.skip = append(r.skip, pg.StepRef{Machine: row.Machine, Version: row.Version, Step: row.Step})
	_, err := r.store.Release(r.t.Context(), worker, []pg.ClaimRef{{ID: row.ID, Claim: row.Claim}})
	r.must(err)
}

// outcomes are the kinds of what a step returns.
var outcomes = map[fsm.Kind]Outcome{
	fsm.KindNext: Next, fsm.KindRetry: Retried, fsm.KindAwait: Parked, fsm.KindChildren: FannedOut,
	fsm.KindDone: Done, fsm.KindStop: Failed,
}

// commit makes an outcome durable.
func (r *Runner) commit(worker string, row *pg.Claimed, e *fsm.Encoded, s *Step) error {
	o := stepping.Outcome(worker, row, e)
	commit := func() (pg.Flushed, error) { return r.committer.Flush(r.t.Context(), []pg.Outcome{o}) }
	if e.Work != nil {
		commit = func() (pg.Flushed, error) { return r.commitTogether(o, e) }
	}
	flushed, err := commit()
	if err != nil {
		return err
	}
	s.Outcome = outcomes[e.Kind]
	switch flushed.Verdicts[0].Fate {
	case pg.Cancelled:
		s.Outcome = Cancelled
	case pg.Stale:
		s.Outcome = Lost
	default:
		if e.Kind != fsm.KindRetry {
			s.To = e.Step
		}
	}
	return nil
}

// checkChild refuses children that nobody here could run.
func (r *Runner) checkChild(in fsm.Insertion) error {
	spec := r.specs[machine{in.Machine, in.Version}]
	if spec == nil {
		return fmt.Errorf("%w: %q version %d; list it in Config.Machines", gendurable.ErrUnknownMachine, in.Machine, in.Version)
	}
	if !spec.HasStep(in.Step) {
		return fmt.Errorf("%w: machine %q has no step %q", gendurable.ErrInvalid, in.Machine, in.Step)
	}
	return nil
}
