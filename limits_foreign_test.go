package gendurable_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/limiter"
)

// inMemory is a limiter of gates that lives in this process and knows nothing of the database: nobody stamps a row with the
// slot that it has, and a slot that is not given back is renewed for ever, as one in Redis is. Its rates are never used up, or always.
type inMemory struct {
	mu      sync.Mutex // guards all below
	config  limiter.Config
	limits  map[string]int
	holders map[string]map[limiter.Slot]bool // by key
	granted int
	// spent are the names of rates that deny; denials when each key denied.
	spent   map[string]bool
	denials map[string][]time.Time
	// asked, when it is set before the engine starts, is told of each question before it is answered, which then waits for answer.
	asked, answer chan struct{}
}

func newInMemory() *inMemory {
	return &inMemory{
		limits: map[string]int{}, holders: map[string]map[limiter.Slot]bool{}, spent: map[string]bool{}, denials: map[string][]time.Time{},
	}
}

func (m *inMemory) SyncConfig(_ context.Context, own limiter.Config) (limiter.Config, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(own.Rates) > 0 {
		m.config.Rates = own.Rates
	}
	for _, g := range own.Gates {
		if _, known := m.limits[g.Name]; !known {
			m.config.Gates = append(m.config.Gates, g)
		}
		m.limits[g.Name] = g.Limit
	}
	return m.config, nil
}

func (m *inMemory) RemoveConfig(context.Context, ...limiter.Name) error {
	return errors.New("no test removes a limit")
}

func (m *inMemory) Admit(ctx context.Context, _ string, requests []limiter.Request) ([]limiter.Decision, error) {
	if m.asked != nil {
		select {
		case m.asked <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		select {
		case <-m.answer:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	decisions := make([]limiter.Decision, len(requests))
	for i, r := range requests {
		if m.spent[limiter.NameOf(r.Rate)] {
			m.denials[r.Rate] = append(m.denials[r.Rate], time.Now())
			decisions[i] = limiter.Decision{Verdict: limiter.Saturated, By: limiter.KindRate, Key: r.Rate, RetryIn: time.Hour}
			continue
		}
		if r.Gate == "" {
			continue
		}
		held := m.holders[r.Gate]
		if held == nil {
			held = map[limiter.Slot]bool{}
			m.holders[r.Gate] = held
		}
		slot := limiter.Slot{ID: r.ID, Claim: r.Claim, Key: r.Gate}
		if !held[slot] && len(held) >= m.limits[limiter.NameOf(r.Gate)] {
			m.denials[r.Gate] = append(m.denials[r.Gate], time.Now())
			decisions[i] = limiter.Decision{Verdict: limiter.Saturated, By: limiter.KindGate, Key: r.Gate, RetryIn: -1}
			continue
		}
		m.granted++
		held[slot] = true
	}
	return decisions, nil
}

func (m *inMemory) Credit(_ context.Context, released []limiter.Release) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range released {
		delete(m.holders[r.Key], limiter.Slot{ID: r.ID, Claim: r.Claim, Key: r.Key})
	}
	return nil
}

func (m *inMemory) Renew(context.Context, []limiter.Slot, time.Duration) error { return nil }

func (m *inMemory) Reconcile(context.Context) (limiter.Reconciled, error) {
	return limiter.Reconciled{}, nil
}

// taken is how many slots of a key are taken.
func (m *inMemory) taken(key string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.holders[key])
}

// TestGatesOfAnotherLimiter: with a limiter that is not the database's, gates hold over engines and chains, and all slots are
// free in the end.
func TestGatesOfAnotherLimiter(t *testing.T) {
	t.Parallel()
	pool := database(t)
	inside := newTurnstile()
	m := fsm.New[number]("m", fsm.Inline()).
		Step("keep", func(_ context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			defer inside.enter("g")()
			return fsm.Next("change"), nil
		}).
		Step("change", func(_ context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			defer inside.enter("g")()
			return fsm.Next("end").ConcurrencyKey("h:x"), nil
		}).
		Step("end", func(_ context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			defer inside.enter("h")()
			return fsm.Done(1), nil
		})
	memory := newInMemory()
	cfg := gendurable.Config{
		Machines: []fsm.Definition{m, double}, Limiter: memory, Gates: map[string]gendurable.Gate{"g": {Limit: 3}, "h": {Limit: 2}},
		RateLimits: map[string]gendurable.RateLimit{"r": {Allowed: 1, Per: time.Hour}},
		PollBusy:   20 * time.Millisecond, PollIdle: 50 * time.Millisecond,
	}
	one := start(t, pool, cfg)
	start(t, pool, cfg)
	for range 60 {
		insert(t, one, m.New(number{}, fsm.ConcurrencyKey("g")))
	}
	terminal(t, pool, 60)
	if inside.most["g"] > 3 || inside.most["h"] > 2 || inside.passed != 180 {
		t.Errorf("at most %v ran at once, of %d steps", inside.most, inside.passed)
	}
	client, err := gendurable.NewClient(t.Context(), pool, gendurable.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if s := settles(t, client, double.New(number{1}, fsm.RateLimit("r"))); !s.Done() { // a client has no limiter to ask
		t.Errorf("what a client inserted ended as %+v", s)
	}
	eventually(t, "all slots are free", func() bool { return memory.taken("g") == 0 && memory.taken("h:x") == 0 })
	if n := count(t, pool, `SELECT count(*) FROM gen_durable_buckets`); n != 0 {
		t.Errorf("the database counts %d slots", n)
	}
}

// TestSlotsOfRowsThatNeverRan: what is claimed and admitted, and given back without having run, gives its slot back: rows
// whose step this process does not know, rows that wait behind slow steps, and those of an engine that stops.
func TestSlotsOfRowsThatNeverRan(t *testing.T) {
	t.Parallel()
	pool := database(t)
	memory := newInMemory()
	g := newGate()
	slow := g.machine("slow")
	quick := fsm.NewJob("quick", func(context.Context, *fsm.JobCall[number]) (int, error) { return 0, nil })
	newer := fsm.NewJob("newer", func(context.Context, *fsm.JobCall[number]) (int, error) { return 0, nil })
	engine := start(t, pool, gendurable.Config{
		Machines: []fsm.Definition{slow, quick}, Limiter: memory, Gates: map[string]gendurable.Gate{"g": {Limit: 100}},
		Queues: map[string]gendurable.Queue{"default": {Concurrency: 2}}, DrainTimeout: time.Millisecond,
		PollBusy: 20 * time.Millisecond, PollIdle: 50 * time.Millisecond,
	})
	client, err := gendurable.NewClient(t.Context(), pool, gendurable.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	var unknown []fsm.Instance
	for i := range 5 {
		unknown = append(unknown, newer.New(number{i}, fsm.ConcurrencyKey("g")))
	}
	if _, err := client.InsertMany(t.Context(), unknown); err != nil {
		t.Fatal(err)
	}
	eventually(t, "rows that cannot run here are claimed, and give their slots back", func() bool {
		memory.mu.Lock()
		granted := memory.granted
		memory.mu.Unlock()
		return granted > 0 && memory.taken("g") == 0
	})

	var busy []fsm.Instance
	for i := range 400 { // so fast that the next rows are claimed ahead, until it is the turn of the slow ones
		busy = append(busy, quick.New(number{i}, fsm.ConcurrencyKey("g")))
	}
	for i := range 50 {
		busy = append(busy, slow.New(number{i}, fsm.ConcurrencyKey("g"), fsm.Priority(1)))
	}
	if _, err := engine.InsertMany(t.Context(), busy); err != nil {
		t.Fatal(err)
	}
	<-g.entered
	<-g.entered
	t.Logf("%d slots are taken by two steps and what was claimed ahead", memory.taken("g"))
	eventually(t, "only the two that run have a slot", func() bool { return memory.taken("g") == 2 })
	stop(t, engine) // which interrupts them
	if n := memory.taken("g"); n != 0 {
		t.Errorf("%d slots are taken after the stop", n)
	}
	if n := count(t, pool, `SELECT count(*) FROM gen_durable WHERE status = 'runnable' AND fsm <> 'quick'`); n != 55 {
		t.Errorf("%d rows wait, expected 55", n)
	}
}

// denied is how often each key denied, at least and all of them.
func (m *inMemory) denied(keys int) (least, all int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.denials) < keys {
		return 0, 0
	}
	least = math.MaxInt
	for _, d := range m.denials {
		least, all = min(least, len(d)), all+len(d)
	}
	return least, all
}

// TestManyExhaustedKeysOfAnotherLimiter: no claim can read how much they have left. They own the head of the queue, and are
// neither claimed and denied over and over nor delay what is behind them.
func TestManyExhaustedKeysOfAnotherLimiter(t *testing.T) {
	t.Parallel()
	const keys = 200
	cfg := func(m *inMemory) gendurable.Config {
		return gendurable.Config{
			Machines: []fsm.Definition{double}, Limiter: m, Gates: map[string]gendurable.Gate{"g": {Limit: 1}},
			RateLimits: map[string]gendurable.RateLimit{"r": {Allowed: 1, Per: time.Hour}},
			PollBusy:   20 * time.Millisecond, PollIdle: 20 * time.Millisecond,
		}
	}
	t.Run("of a rate", func(t *testing.T) {
		t.Parallel()
		pool := database(t)
		memory := newInMemory()
		memory.spent["r"] = true
		backlog(t, pool, double.New(number{}), keys, "NULL", `'r:' || i`)
		engine := start(t, pool, cfg(memory))
		await(t, engine, insert(t, engine, double.New(number{1})), gendurable.UntilTerminal())
		var settled int
		var since int64
		eventually(t, "all have been denied, and none is in twenty claims", func() bool {
			least, all := memory.denied(keys)
			if least == 0 || all != settled {
				settled, since = all, claims(engine)
			}
			return least > 0 && claims(engine) >= since+20
		})
		if settled > 2*keys { // once, and perhaps once more when the limits in force have become known
			t.Errorf("%d keys without tokens denied %d times", keys, settled)
		}
	})
	t.Run("of a gate", func(t *testing.T) {
		t.Parallel()
		pool := database(t)
		memory := newInMemory()
		for i := range keys + 1 {
			key := fmt.Sprint("g:", i)
			memory.holders[key] = map[limiter.Slot]bool{{ID: -1, Claim: 1, Key: key}: true}
		}
		backlog(t, pool, double.New(number{}), keys, `'g:' || i`, "NULL")
		engine := start(t, pool, cfg(memory))
		await(t, engine, insert(t, engine, double.New(number{1})), gendurable.UntilTerminal())
		eventually(t, "each key has been asked a fourth time", func() bool {
			least, _ := memory.denied(keys)
			return least >= 4
		})
		memory.mu.Lock()
		defer memory.mu.Unlock()
		for key, at := range memory.denials {
			// A full gate is left out for a tenth of a second, and twice as long each time, if a slow machine does not make it forgotten.
			if wait := at[1].Sub(at[0]); wait < 100*time.Millisecond {
				t.Errorf("the key %s was asked again %v after its denial", key, wait)
			}
		}
	})
}
