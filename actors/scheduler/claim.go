package scheduler

import (
	"context"
	"errors"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/actors/scheduler/core"
	"github.com/gendurable/gendurable/limiter"
	"github.com/gendurable/gendurable/pg"
)

// claim claims rows and, if some of them name a limit, has these admitted. Those that name none are handed over before: they
// wait for nobody.
func (s *scheduler) claim(fx *core.Effects) {
	cfg := s.cfg
	report := pg.ClaimReport{Survey: fx.Survey, Horizon: fx.Ahead}
	request := pg.ClaimRequest{
		Queue: cfg.Queue, Worker: cfg.Worker, Lease: cfg.Lease, Limit: fx.Claim, Skip: fx.Skip, Limits: fx.Limits, Since: fx.Since, Others: fx.Others,
		Report: &report, Contended: &cfg.QueueCounters.Contended,
	}
	handed := false
	timeout := s.callTimeout()
	full, passed := request.Since == nil, fx.Passed
	if full {
		timeout = max(timeout, time.Duration(s.life.patience.Load()))
	}
	go s.do(timeout, func(ctx context.Context) core.Event {
		begun := time.Now()
		rows, err := cfg.Store.Claim(ctx, request)
		if full {
			s.life.patience.Store(int64(patience(timeout, time.Since(begun), ctx.Err(), cfg.Lease/2)))
		}
		countClaim(cfg.QueueCounters, len(rows), err)
		if cfg.Telemetry != nil && err == nil {
			cfg.Telemetry.Claimed(cfg.Queue, rows, time.Since(begun))
		}
		if err != nil {
			return core.ClaimResult{Err: err, Unknown: true}
		}
		result := core.ClaimResult{
			Rows: rows, Looked: report.Looked, Took: time.Since(begun), Priorities: report.Priorities, At: report.At,
			Ahead: report.Ahead, Gained: passed.Among(rows),
		}
		if n := len(rows); n > 0 {
			result.LastPriority, result.LastEligible = rows[n-1].Priority, rows[n-1].EligibleAt
		}
		var limited []pg.Claimed
		var requests []limiter.Request
		if cfg.Limiter != nil {
			result.Rows, limited, requests = core.Limited(rows)
		}
		if len(limited) == 0 {
			return result
		}
		result.Pending = len(limited)
		s.root.Send(s.self, answer{incarnation: s.incarnation, event: result})
		handed = true
		decisions, err := admit(ctx, s.root, cfg, requests, nil)
		for _, d := range decisions {
			if d.Verdict != limiter.Admitted {
				cfg.QueueCounters.Denied.Add(1)
			}
		}
		return core.AdmitResult{Rows: limited, Decisions: decisions, Err: err}
	}, func(err error) core.Event {
		if handed { // the rows are nowhere now: as if the claim had been lost
			return core.AdmitResult{Err: err}
		}
		return core.ClaimResult{Err: err, Unknown: true}
	})
}

// patience is how long the next claim that looks at everything may take, after one that has taken so long. It walks over whatever an
// open transaction keeps, which may be more than the usual timeout allows for; one that was cut off gets twice the time. It has an
// end, because the leases of what it brings begin with the statement.
func patience(timeout, took time.Duration, ended error, most time.Duration) time.Duration {
	if errors.Is(ended, context.DeadlineExceeded) {
		return min(2*timeout, most)
	}
	return min(4*took, most)
}

// admit asks the limiter. It returns actors.ErrStopped when gone is closed first. After an error the limiter may yet admit: the
// rows' claims must be given back, which gives back what slots they got.
func admit(ctx context.Context, root *actor.RootContext, cfg *Config, requests []limiter.Request, gone <-chan struct{}) ([]limiter.Decision, error) {
	reply := make(chan actors.Admitted, 1)
	root.Send(cfg.Limiter, actors.Admit{Worker: cfg.Worker, Requests: requests, Reply: reply})
	select {
	case a := <-reply:
		return a.Decisions, a.Err
	case <-gone: // never ready when nil
		return nil, actors.ErrStopped
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
