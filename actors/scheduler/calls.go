package scheduler

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/actors/scheduler/core"
	"github.com/gendurable/gendurable/pg"
)

// call starts the calls to the database that the core asks for.
func (s *scheduler) call(fx *core.Effects) {
	cfg := s.cfg
	if claims := fx.Release; len(claims) > 0 {
		cfg.QueueCounters.Released.Add(int64(len(claims)))
		s.ask(func(ctx context.Context) core.Event {
			ending, err := cfg.Store.Release(ctx, cfg.Worker, claims)
			kept, err := split(err)
			return core.ReleaseResult{Ending: ending, Kept: kept, Err: err}
		}, func(err error) core.Event { return core.ReleaseResult{Err: err} })
	}
	if ids := fx.Beat; len(ids) > 0 {
		s.ask(func(ctx context.Context) core.Event {
			beats, err := cfg.Store.Heartbeat(ctx, cfg.Worker, cfg.Lease, ids)
			return core.BeatResult{Beats: beats, Err: err}
		}, func(err error) core.Event { return core.BeatResult{Err: err} })
	}
	if ids := fx.Extend; len(ids) > 0 {
		go s.extend(ids)
	}
	if held := fx.Held; fx.ReleaseUnheld {
		s.life.looking.Store(s.incarnation)
		s.ask(func(ctx context.Context) core.Event {
			defer s.life.looking.CompareAndSwap(s.incarnation, 0) // before the answer is sent: a life that begins in between does not wait for it
			n, err := cfg.Store.ReleaseUnheld(ctx, cfg.Worker, held)
			cfg.QueueCounters.Unheld.Add(int64(n))
			kept, err := split(err)
			return core.UnheldResult{Released: n, Kept: kept, Err: err}
		}, func(err error) core.Event { return core.UnheldResult{Err: err} })
	}
	if fx.Claim > 0 {
		s.claim(fx)
	}
}

// extend waits for the rows one after the other: whoever locked them may have locked hundreds, and as many calls that
// wait would take all connections from claims and outcomes. Once the locks are gone, the rest takes no time.
func (s *scheduler) extend(ids []int64) {
	cfg := s.cfg
	for _, id := range ids {
		s.do(s.callTimeout(), func(ctx context.Context) core.Event {
			beat, err := cfg.Store.ExtendOne(ctx, cfg.Worker, cfg.Lease, id)
			beat.ID = id // also when the call failed
			return core.ExtendResult{Beat: beat, Err: err}
		}, func(err error) core.Event { return core.ExtendResult{Beat: pg.Beat{ID: id}, Err: err} })
	}
}

// split tells rows that somebody holds locked from a call that failed.
func split(err error) (kept bool, _ error) {
	if errors.Is(err, pg.ErrNotReleased) {
		return true, nil
	}
	return false, err
}

func countClaim(c *actors.QueueCounters, rows int, err error) {
	if err != nil {
		c.ClaimErrors.Add(1)
		return
	}
	c.Claims.Add(1)
	c.ClaimedRows.Add(int64(rows))
	actors.Max(&c.LargestClaim, int64(rows))
	if rows == 0 {
		c.EmptyClaims.Add(1)
	}
}

// ask runs a call on a goroutine, see do.
func (s *scheduler) ask(call func(context.Context) core.Event, failed func(error) core.Event) {
	go s.do(s.callTimeout(), call, failed)
}

// do runs a call and sends its event back. failed makes the event of a call that panicked: the core waits for an
// answer to everything it asks.
func (s *scheduler) do(timeout time.Duration, call func(context.Context) core.Event, failed func(error) core.Event) {
	var event core.Event
	defer func() {
		if r := recover(); r != nil {
			s.cfg.Logger.Error("gendurable: a call to the database panicked",
				"queue", s.cfg.Queue, "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			event = failed(fmt.Errorf("gendurable: a call to the database panicked: %v", r))
		}
		s.root.Send(s.self, answer{incarnation: s.incarnation, event: event})
	}()
	ctx, cancel := context.WithTimeout(s.life.ctx, timeout)
	defer cancel()
	event = call(ctx)
}

// callTimeout bounds a call whose connection is silently dead: several fit into a lease.
func (s *scheduler) callTimeout() time.Duration { return max(s.cfg.Lease/4, time.Second) }
