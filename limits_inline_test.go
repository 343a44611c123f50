package gendurable_test

import (
	"context"
	"testing"
	"time"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
)

// TestAGateOfOneOverChains: chains that keep their key hold its one slot from the claim to the end; no two are ever inside,
// in two processes, not even between their steps.
func TestAGateOfOneOverChains(t *testing.T) {
	t.Parallel()
	pool := database(t)
	inside := newTurnstile()
	leave := map[int64]func(){}
	m := fsm.New[number]("m", fsm.Inline(), fsm.ConcurrencyKey("g:a")).
		Step("begin", func(_ context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			out := inside.enter("chain")
			inside.mu.Lock()
			defer inside.mu.Unlock()
			leave[c.ID] = out
			return fsm.Next("count"), nil
		}).
		Step("count", func(_ context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			defer inside.enter("step")()
			if c.State.N++; c.State.N < 5 {
				return fsm.Next("count"), nil
			}
			return fsm.Next("end"), nil
		}).
		Step("end", func(_ context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			inside.mu.Lock()
			out := leave[c.ID]
			inside.mu.Unlock()
			out()
			return fsm.Done(c.State.N), nil
		})
	cfg := gendurable.Config{Machines: []fsm.Definition{m}, Gates: map[string]gendurable.Gate{"g": {Limit: 1}}}
	one := start(t, pool, cfg)
	two := start(t, pool, cfg)
	for range 30 {
		insert(t, one, m.New(number{}))
	}
	two.Poke("default")
	terminal(t, pool, 30)
	if inside.most["chain"] != 1 || inside.most["step"] != 1 {
		t.Errorf("at most %v were inside at once", inside.most)
	}
	atRest(t, pool)
	claimed := one.Stats().Queues["default"].Continued + two.Stats().Queues["default"].Continued
	if claimed != 30*6 {
		t.Errorf("%d steps went on, expected all of 180", claimed)
	}
}

// TestChainsChangeGates: a chain that goes to another gate holds one slot of each at most, and gives the old one back; it is
// put back when the new one is full, or when its tokens are spent.
func TestChainsChangeGates(t *testing.T) {
	t.Parallel()
	pool := database(t)
	inside := newTurnstile()
	step := func(key string, next func() fsm.Outcome) func(context.Context, *fsm.Call[number]) (fsm.Outcome, error) {
		return func(context.Context, *fsm.Call[number]) (fsm.Outcome, error) {
			defer inside.enter(key)()
			return next(), nil
		}
	}
	m := fsm.New[number]("m", fsm.Inline(), fsm.ConcurrencyKey("wide")).
		Step("wide", step("wide", func() fsm.Outcome { return fsm.Next("narrow").ConcurrencyKey("narrow:x") })).
		Step("narrow", step("narrow", func() fsm.Outcome { return fsm.Next("rated").ReleaseKey().RateLimit("r") })).
		Step("rated", step("rated", func() fsm.Outcome { return fsm.Next("both").ConcurrencyKey("wide:y").RateLimit("r", 2) })).
		Step("both", step("both", func() fsm.Outcome { return fsm.Next("one").ConcurrencyKey("no-gate") })).
		Step("one", step("one", func() fsm.Outcome { return fsm.Done(1) }))
	cfg := gendurable.Config{
		Machines:   []fsm.Definition{m},
		Gates:      map[string]gendurable.Gate{"wide": {Limit: 6, Shards: 2}, "narrow": {Limit: 2}},
		RateLimits: map[string]gendurable.RateLimit{"r": {Allowed: 1000, Per: time.Second, Burst: 10, Shards: 2}},
	}
	one := start(t, pool, cfg)
	start(t, pool, cfg)
	for range 60 {
		insert(t, one, m.New(number{}))
	}
	terminal(t, pool, 60)
	for key, most := range map[string]int{"wide": 6, "narrow": 2, "both": 6, "one": 1} {
		if inside.most[key] > most {
			t.Errorf("%d steps of %s ran at once, the limit is %d", inside.most[key], key, most)
		}
	}
	if inside.passed != 300 {
		t.Errorf("%d steps ran, expected 300", inside.passed)
	}
	atRest(t, pool)
	if n := count(t, pool, `SELECT count(*) FROM gen_durable WHERE attempt > 0 OR concurrency_shard IS NOT NULL`); n != 0 {
		t.Errorf("%d rows count an attempt, or hold a slot", n)
	}
}

// TestStopGivesSlotsBack: a stop lets the last credits arrive.
func TestStopGivesSlotsBack(t *testing.T) {
	t.Parallel()
	pool := database(t)
	g := newGate()
	m := g.machine("m", fsm.ConcurrencyKey("g"))
	engine := start(t, pool, gendurable.Config{Machines: []fsm.Definition{m}, Gates: map[string]gendurable.Gate{"g": {Limit: 2}}})
	for range 4 {
		insert(t, engine, m.New(number{}))
	}
	<-g.entered
	<-g.entered
	close(g.open)
	stop(t, engine)
	if n := count(t, pool, `SELECT coalesce(sum(capacity - available), 0)::int FROM gen_durable_buckets`); n != 0 {
		t.Errorf("%d slots are taken after the stop", n)
	}
	if s := engine.Stats().Limits; s.UncreditedNow != 0 || s.HeldNow != 0 {
		t.Errorf("the limiter still counts %+v", s)
	}
}
