package gendurable_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
)

// turnstile counts who is inside, and the most that ever were.
type turnstile struct {
	mu           sync.Mutex
	inside, most map[string]int
	passed       int
}

func newTurnstile() *turnstile { return &turnstile{inside: map[string]int{}, most: map[string]int{}} }

func (s *turnstile) enter(key string) (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inside[key]++
	s.passed++
	s.most[key] = max(s.most[key], s.inside[key])
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.inside[key]--
	}
}

// terminal waits until so many instances are done.
func terminal(t *testing.T, pool *pgxpool.Pool, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d instances are done", n), func() bool {
		return count(t, pool, `SELECT count(*) FROM gen_durable WHERE status = 'done'`) == n
	})
}

// atRest waits until no slot is taken any more, as far as the counters show, and expects that nothing was lost on the way.
func atRest(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	eventually(t, "all slots are free", func() bool {
		return count(t, pool, `SELECT coalesce(sum(capacity - available), 0)::int FROM gen_durable_buckets WHERE kind = 'conc'`) == 0
	})
}

// TestAGateHolds: no key of a gate ever has more steps running than its limit, in two processes; each key has its own slots,
// and others' work runs meanwhile. Afterwards all slots are free, without the reconciler having to find any.
func TestAGateHolds(t *testing.T) {
	t.Parallel()
	pool := database(t)
	inside := newTurnstile()
	job := fsm.NewJob("job", func(_ context.Context, j *fsm.JobCall[number]) (int, error) {
		leave := inside.enter(fmt.Sprint("g:", j.Args.N%2))
		defer leave()
		return 0, nil
	})
	cfg := gendurable.Config{Machines: []fsm.Definition{job}, Gates: map[string]gendurable.Gate{"g": {Limit: 3, Shards: 2}}, GCInterval: time.Hour}
	one, two := start(t, pool, cfg), start(t, pool, cfg)
	// What they make at the start must not find slots that are just being given back.
	eventually(t, "the only reconcile of each", func() bool {
		return one.Stats().Limits.Reconciles == 1 && two.Stats().Limits.Reconciles == 1
	})
	var insts []fsm.Instance
	for i := range 200 {
		insts = append(insts, job.New(number{i}, fsm.ConcurrencyKey(fmt.Sprint("g:", i%2))))
	}
	if _, err := one.InsertMany(t.Context(), insts); err != nil {
		t.Fatal(err)
	}
	terminal(t, pool, 200)
	for key, most := range inside.most {
		if most > 3 {
			t.Errorf("%d steps of %s ran at once, the limit is 3", most, key)
		}
	}
	atRest(t, pool)
	// One of them may have had all the slots.
	a, b := one.Stats().Limits, two.Stats().Limits
	if a.AdmittedRows+b.AdmittedRows == 0 || a.CreditedSlots+b.CreditedSlots == 0 || a.Healed+b.Healed != 0 {
		t.Errorf("the limiters count %+v and %+v", a, b)
	}
}

// TestARateHolds: a bucket's tokens are what may begin; the rest waits, and what has no limit does not.
func TestARateHolds(t *testing.T) {
	t.Parallel()
	pool := database(t)
	var ran atomic.Int64
	limited := fsm.NewJob("limited", func(context.Context, *fsm.JobCall[number]) (int, error) { ran.Add(1); return 0, nil },
		fsm.RateLimit("r", 2))
	engine := start(t, pool, gendurable.Config{
		Machines: []fsm.Definition{limited, double}, RateLimits: map[string]gendurable.RateLimit{"r": {Allowed: 10, Per: 24 * time.Hour}},
	})
	var insts []fsm.Instance
	for i := range 50 {
		insts = append(insts, limited.New(number{i}))
	}
	if _, err := engine.InsertMany(t.Context(), insts); err != nil {
		t.Fatal(err)
	}
	eventually(t, "five begin", func() bool { return ran.Load() == 5 })
	await(t, engine, insert(t, engine, double.New(number{1})), gendurable.UntilTerminal())
	// A partition is a bucket of its own.
	await(t, engine, insert(t, engine, limited.New(number{1}, fsm.RateLimit("r:other", 10))), gendurable.UntilTerminal())
	if n := ran.Load(); n != 6 {
		t.Errorf("%d have begun, of which 5 and 1 had tokens", n)
	}
	// Those that were claimed with the five, and denied, may be on their way back.
	eventually(t, "45 wait untouched", func() bool {
		return count(t, pool, `SELECT count(*) FROM gen_durable WHERE status = 'runnable' AND attempt = 0`) == 45
	})
}

// TestARateGoesOn: what waits for tokens runs when they come, in order.
func TestARateGoesOn(t *testing.T) {
	t.Parallel()
	pool := database(t)
	var log journal
	limited := fsm.NewJob("limited", func(_ context.Context, j *fsm.JobCall[number]) (int, error) {
		log.note(fmt.Sprint(j.Args.N))
		return 0, nil
	})
	engine := start(t, pool, gendurable.Config{
		Machines: []fsm.Definition{limited}, Queues: map[string]gendurable.Queue{"default": {Concurrency: 1}},
		RateLimits: map[string]gendurable.RateLimit{"r": {Allowed: 100, Per: time.Second, Burst: 2}},
	})
	var insts []fsm.Instance
	for i := range 30 {
		// Heavy ones are not overtaken by the light ones behind them.
		insts = append(insts, limited.New(number{i}, fsm.RateLimit("r", float64(1+i%2)), fsm.Priority(i)))
	}
	if _, err := engine.InsertMany(t.Context(), insts); err != nil {
		t.Fatal(err)
	}
	terminal(t, pool, 30)
	if got := log.read(); !slices.IsSortedFunc(got, func(a, b string) int { return len(a)*100 - len(b)*100 + strings.Compare(a, b) }) {
		t.Errorf("they ran in the order %v", got)
	}
}

// TestUnknownLimits: what was never declared is refused where it is named; what was removed waits, and costs nothing.
func TestUnknownLimits(t *testing.T) {
	t.Parallel()
	pool := database(t)
	rate := map[string]gendurable.RateLimit{"r": {Allowed: 100, Per: time.Second, Burst: 5}}
	limited := fsm.NewJob("limited", func(context.Context, *fsm.JobCall[number]) (int, error) { return 0, nil }, fsm.RateLimit("r"))
	_, err := gendurable.Start(t.Context(), pool, gendurable.Config{Machines: []fsm.Definition{limited}})
	if err == nil || !errors.Is(err, gendurable.ErrInvalid) || !strings.Contains(err.Error(), `"r", which is not declared`) {
		t.Errorf("a machine with an undeclared limit: %v", err)
	}
	_, err = gendurable.Start(t.Context(), pool, gendurable.Config{
		RateLimits: map[string]gendurable.RateLimit{"a:b": {}, "c": {Allowed: -1, Per: 1}}, Gates: map[string]gendurable.Gate{"g": {}},
	})
	if err == nil || !strings.Contains(err.Error(), "3 problem(s)") {
		t.Errorf("bad limits: %v", err)
	}
	client, err := gendurable.NewClient(t.Context(), pool, gendurable.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Insert(t.Context(), limited.New(number{1})); !errors.Is(err, gendurable.ErrInvalid) {
		t.Errorf("a client inserts with an unknown limit: %v", err)
	}

	engine := start(t, pool, gendurable.Config{Machines: []fsm.Definition{limited}, RateLimits: rate})
	eventually(t, "the client learns of the limit", func() bool {
		_, err := client.Insert(t.Context(), limited.New(number{1}))
		return err == nil
	})
	for _, opt := range []fsm.InsertOption{fsm.RateLimit("nobody"), fsm.RateLimit("r", 6)} {
		if _, err := engine.Insert(t.Context(), limited.New(number{1}), opt); !errors.Is(err, gendurable.ErrInvalid) {
			t.Errorf("inserted with %v: %v", opt, err)
		}
	}
	terminal(t, pool, 1)
	if err := engine.RemoveRateLimits(t.Context(), "r", "never-was"); err != nil {
		t.Fatal(err)
	}
	if _, err := engine.Insert(t.Context(), limited.New(number{1})); !errors.Is(err, gendurable.ErrInvalid) {
		t.Errorf("inserted with a removed limit: %v", err)
	}
	// As another process may have written it that does not know of the removal yet.
	if _, err := pool.Exec(t.Context(), `INSERT INTO gen_durable (fsm, step, rate_limit, state) SELECT fsm, step, rate_limit, state FROM gen_durable`); err != nil {
		t.Fatal(err)
	}
	engine.Poke("default")
	eventually(t, "it is found to be unknown", func() bool { return engine.Stats().Limits.Unconfigured == 1 })
	await(t, start(t, pool, gendurable.Config{Machines: []fsm.Definition{limited}, RateLimits: rate}), gendurable.ID(2), gendurable.UntilTerminal())
	if n := engine.Stats().Limits.Unconfigured; n != 1 {
		t.Errorf("it was asked about %d times", n)
	}
}
