package core

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/limiter"
	"github.com/gendurable/gendurable/pg"
)

// TestNoRowIsLost: whatever happens in whatever order, at most Concurrency rows run, and MaxUncommitted beside them wait for
// their commit; one that has to run again gets a slot; none runs twice at once, none without the
// consent of its limits, and none that was claimed before a pause once that has begun; a key of which a slot came free is
// claimed again; and in the end every row that was claimed has ended, was given back, or is left to its lease on purpose. 100 cases, about 0.1 s on a quiet machine.
func TestNoRowIsLost(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := &world{
			t: t, slots: rapid.IntRange(1, 5).Draw(t, "slots"), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
			owned: map[int64]bool{}, claims: map[int64]int{}, ran: map[int64]int{}, runs: map[int64]bool{}, left: map[int64]bool{}, most: rapid.IntRange(1, 5).Draw(t, "uncommitted"),
			handed: map[int64]bool{}, wants: map[int64]wish{}, resumed: map[int64]bool{}, turns: map[int64]int{}, wished: map[int64]int{},
			admitted: map[int64]bool{}, askedIn: map[int64]int{}, freed: map[string]bool{},
		}
		w.core = New(Config{
			Concurrency: w.slots, MaxUncommitted: w.most, Gates: []string{"g"},
			Knows: func(s pg.StepRef) bool { return s.Machine != "strange" },
		}, rapid.Bool().Draw(t, "resumed"), w.now)
		// As if it had been busy before: rows are claimed ahead.
		w.core.demand.perSecond, w.core.demand.lastEnd = rapid.SampledFrom([]float64{0, 300, 3000}).Draw(t, "rate"), w.now
		w.on(Tick{})
		t.Repeat(map[string]func(*rapid.T){
			"claim answers":   w.answerClaim,
			"run ends":        w.endRun,
			"handed over":     w.handOver,
			"refused":         w.comeBack,
			"release answers": func(*rapid.T) { w.answerRelease() },
			"release fails": func(*rapid.T) {
				if len(w.releases) > 0 {
					w.releases = w.releases[1:]
					w.on(ReleaseResult{Err: errors.New("no")})
				}
			},
			"beat answers":   w.answerBeat,
			"extend answers": func(*rapid.T) { w.answerExtend() },
			"unheld answers": func(t *rapid.T) { w.answerUnheld(rapid.Bool().Draw(t, "fails")) },
			"steps answer":   func(*rapid.T) { w.answerRunning() },
			"steps restart": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "really") > 0 {
					return
				}
				for id := range w.runs {
					w.left[id] = true
				}
				for id := range w.runs {
					w.forgetRun(id)
				}
				w.on(StepsRestarted{})
			},
			"poke":       func(*rapid.T) { w.on(Poked{}) },
			"poke later": func(*rapid.T) { w.on(Poked{In: 30 * time.Millisecond}) },
			"pause": func(*rapid.T) {
				w.paused = w.asks
				w.on(Paused{})
			},
			"admission answers":  w.answerAdmission,
			"admission answers ": w.answerAdmission, // twice as often
			"slots come free": func(t *rapid.T) {
				key := rapid.SampledFrom([]string{"g:a", "g:b"}).Draw(t, "of")
				w.freed[key] = true
				w.on(Freed{Keys: []string{key}})
			},
			"limits change": func(t *rapid.T) {
				var c limiter.Config
				if rapid.Bool().Draw(t, "with the gate") {
					c.Gates = []limiter.Gate{{Name: "g", Limit: 1}}
				}
				if rapid.Bool().Draw(t, "with the rate") {
					c.Rates = []limiter.Rate{{Name: "r", Allowed: 1, Per: time.Second}}
				}
				w.on(InForce{Config: c})
			},
			"cancel": func(t *rapid.T) {
				w.on(CancelRequested{ID: rapid.Int64Range(1, w.nextID+1).Draw(t, "id"), Reason: "r"})
			},
			"commit before the report": func(t *rapid.T) {
				if id, ok := w.someRun(t); ok && !w.runs[id] && w.owned[id] && w.core.running[id] != nil && !w.core.running[id].lost {
					w.runs[id] = true
					w.disown(id)
				}
			},
			"time passes": func(t *rapid.T) {
				w.now = w.now.Add(time.Duration(rapid.IntRange(0, 50).Draw(t, "ms")) * time.Millisecond)
				w.on(Tick{})
			},
			"time passes to the next wake": func(*rapid.T) {
				// The database answers or fails, and a message arrives, long before a lease is over.
				if !w.unheld && !slices.Contains(slices.Collect(maps.Values(w.runs)), true) {
					w.now = later(w.now, w.wake)
					w.on(Tick{})
				}
			},
			"drain": func(t *rapid.T) {
				if rapid.IntRange(0, 19).Draw(t, "really") == 0 {
					w.draining = true
					w.on(Drain{Timeout: time.Second})
				}
			},
			"": func(t *rapid.T) {
				if n := w.core.Running() + w.core.Handed(); len(w.runs) != n && w.core.known && !w.asked {
					t.Fatalf("%d rows run, the core counts %d", len(w.runs), n)
				}
				if len(w.handed) != w.core.Handed() && w.core.known && !w.asked {
					t.Fatalf("%d rows are handed over, the core counts %d", len(w.handed), w.core.Handed())
				}
				if len(w.wants) > 0 && w.core.Running() < w.slots {
					t.Fatalf("%d rows want a slot, and %d of %d are taken", len(w.wants), w.core.Running(), w.slots)
				}
			},
		})
		w.settle(t)
		if w.drained && w.now.Before(w.core.unheld.until) {
			return // it ended while rows may have been claimed of which nobody knows
		}
		for id := range w.owned {
			if !w.left[id] {
				t.Fatalf("row %d is claimed, and nobody looks after it", id)
			}
		}
		if w.draining && !w.drained {
			t.Fatal("the drain never ended")
		}
	})
}

func TestTheFutureIsBounded(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := New(Config{}, false, now)
	for i := range 10_000 {
		c.On(Poked{In: time.Duration(10_000-i) * time.Second}, now)
	}
	if n := len(c.supply.future); n != maxFuture {
		t.Fatalf("%d wakes are remembered", n)
	}
	if first := c.supply.future[0].Sub(now); first > 2*time.Second {
		t.Fatalf("the nearest of them was forgotten: the first is in %v", first)
	}
}

func TestSkippedStepsAreBounded(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := New(Config{Knows: func(pg.StepRef) bool { return false }}, false, now)
	c.On(Tick{}, now)
	for i := range maxMisfits + 100 {
		c.supply.claim.inFlight, c.supply.claim.asked = true, 1
		c.On(ClaimResult{Rows: []pg.Claimed{{ID: int64(i + 1), Version: i}}}, now)
	}
	if m := c.misfits; len(m.skip) != maxMisfits || len(m.list) != maxMisfits || len(m.steps) != maxMisfits {
		t.Fatalf("%d steps are left out, %d in the list, %d in the set", len(m.skip), len(m.list), len(m.steps))
	}
}

func TestCancelledOnce(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := New(Config{}, false, now)
	c.On(Tick{}, now)
	c.On(ClaimResult{Rows: []pg.Claimed{{ID: 1}}}, now)
	if fx := c.On(CancelRequested{ID: 1, Reason: "r"}, now); len(fx.Cancel) != 1 || fx.Cancel[0].Cause != fsm.ErrCancelled {
		t.Fatalf("%v", fx.Cancel)
	}
	if fx := c.On(CancelRequested{ID: 1, Reason: "r"}, now); len(fx.Cancel) != 0 {
		t.Fatalf("cancelled twice: %v", fx.Cancel)
	}
}
