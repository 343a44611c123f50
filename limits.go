package gendurable

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	limits "github.com/gendurable/gendurable/actors/limiter"
	"github.com/gendurable/gendurable/limiter"
)

// RateLimit says how many steps may begin in a time. See docs/rate-limits.md.
type RateLimit struct {
	// Allowed is how many tokens come in Per, evenly. Both are required.
	Allowed float64
	Per     time.Duration
	// Burst is how many tokens may be saved up, and so be taken at once. Default Allowed.
	Burst float64
	// Shards is over how many counters each key is spread, for as many processes to ask at the same time. Default 1, at
	// most Burst.
	Shards int
}

// Gate says how many steps of one concurrency key may run at once. See docs/concurrency.md.
type Gate struct {
	// Limit is how many. Required.
	Limit int
	// Shards is as in RateLimit, at most Limit. Default 1.
	Shards int
}

// ownLimits are the limits of a configuration as a backend takes them.
func (c Config) ownLimits() (own limiter.Config) {
	for _, name := range slices.Sorted(maps.Keys(c.RateLimits)) {
		r := c.RateLimits[name]
		own.Rates = append(own.Rates, limiter.Rate{Name: name, Allowed: r.Allowed, Per: r.Per, Burst: r.Burst, Shards: r.Shards})
	}
	for _, name := range slices.Sorted(maps.Keys(c.Gates)) {
		g := c.Gates[name]
		own.Gates = append(own.Gates, limiter.Gate{Name: name, Limit: g.Limit, Shards: g.Shards})
	}
	return own
}

// validateLimits checks the limits, and that machines name declared ones only.
func (c Config) validateLimits(p *problems) {
	own := c.ownLimits()
	for _, r := range own.Rates {
		p.limit(r.Validate())
	}
	for _, g := range own.Gates {
		p.limit(g.Validate())
	}
	for _, def := range c.Machines {
		if def == nil {
			continue
		}
		spec := def.Spec()
		for _, name := range spec.RateLimits {
			if _, declared := c.RateLimits[name]; !declared {
				p.addf("machine %q uses the rate limit %q, which is not declared; add it to RateLimits", spec.Name, name)
			}
		}
	}
}

func (p *problems) limit(err error) {
	if err != nil {
		p.addf("%w", err)
	}
}

// inForce are the limits that hold, as far as this process knows. Safe for concurrent use.
type inForce struct {
	bursts atomic.Pointer[map[string]float64] // of rates, by name; nil = not known yet
	names  atomic.Pointer[[]string]           // of gates; nil = not known yet
	// reload asks the backend, for a client that nobody tells of changes; nil in an engine. It is called when a name is not
	// known, at most once a second.
	reload func(context.Context, limiter.Config) (limiter.Config, error)
	mu     sync.Mutex
	asked  time.Time // guarded by mu
}

// set takes over what a backend says.
func (f *inForce) set(c limiter.Config) {
	bursts := make(map[string]float64, len(c.Rates))
	for _, r := range c.Rates {
		bursts[r.Name] = r.Normalize().Burst
	}
	gates := c.GateNames()
	f.bursts.Store(&bursts)
	f.names.Store(&gates)
}

// gates are the names of the gates in force.
func (f *inForce) gates() []string {
	if p := f.names.Load(); p != nil {
		return *p
	}
	return nil
}

// burst returns that of a rate limit.
func (f *inForce) burst(name string) (burst float64, known bool) {
	if p := f.bursts.Load(); p != nil {
		burst, known = (*p)[name]
	}
	return burst, known
}

// ask reads the limits anew, unless that was done just now. What cannot be read is not known.
func (f *inForce) ask() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.asked) < time.Second {
		return
	}
	f.asked = time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
	defer cancel()
	if c, err := f.reload(ctx, limiter.Config{}); err == nil {
		f.set(c)
	}
}

// check refuses a rate limit that does not exist, and a weight that its bucket can never hold.
func (f *inForce) check(name string, weight float64) error {
	burst, known := f.burst(name)
	if !known && f.reload != nil {
		f.ask()
		burst, known = f.burst(name)
	}
	switch {
	case !known:
		return fmt.Errorf("%w: rate limit %q is not declared; add it to Config.RateLimits", ErrInvalid, name)
	case weight > burst:
		return fmt.Errorf("%w: the weight %v of rate limit %q is more than its burst, %v", ErrInvalid, weight, name, burst)
	}
	return nil
}

// RemoveRateLimits removes rate limits for all processes; those that do not exist are passed over. Steps that name a removed one
// wait until it is declared again. A process that declares it stores it again when it starts.
func (e *Engine) RemoveRateLimits(ctx context.Context, names ...string) error {
	return e.removeLimits(ctx, limiter.KindRate, names)
}

// RemoveGates removes gates for all processes; those that do not exist are passed over. Their keys then allow one step at a time, as keys
// without a gate do; what runs goes on. A process that declares one stores it again when it starts.
func (e *Engine) RemoveGates(ctx context.Context, names ...string) error {
	return e.removeLimits(ctx, limiter.KindGate, names)
}

func (e *Engine) removeLimits(ctx context.Context, kind limiter.Kind, names []string) error {
	list := make([]limiter.Name, len(names))
	for i, n := range names {
		list[i] = limiter.Name{Kind: kind, Name: n}
	}
	if e.cfg.Limiter != nil {
		if err := e.store.NewLimiter().RemoveConfig(ctx, list...); err != nil {
			return fmt.Errorf("gendurable: remove limits: %w", err)
		}
	}
	if err := e.limiter.RemoveConfig(ctx, list...); err != nil {
		return fmt.Errorf("gendurable: remove limits: %w", err)
	}
	now, err := e.limiter.SyncConfig(ctx, limiter.Config{})
	if err != nil {
		return fmt.Errorf("gendurable: the limits were removed, but this process learns of it only later: %w", err)
	}
	e.tree.limitsInForce(now)
	return nil
}

// syncLimits stores the limits of this process and learns which are in force. Nothing is claimed before: whether a key
// belongs to a gate must be known.
func (e *Engine) syncLimits(ctx context.Context) error {
	e.limiter = e.cfg.Limiter
	if e.limiter == nil {
		e.limiter = e.store.NewLimiter()
	} else if _, err := e.store.NewLimiter().SyncConfig(ctx, e.cfg.ownLimits()); err != nil {
		// Clients, which have no limiter, and Explain read the names and sizes here.
		return fmt.Errorf("gendurable: store the limits: %w", err)
	}
	c, err := e.limiter.SyncConfig(ctx, e.cfg.ownLimits())
	if err != nil {
		return fmt.Errorf("gendurable: store the limits: %w", err)
	}
	e.inForce.set(c)
	return nil
}

// limiterConfig describes the limiter actor.
func (e *Engine) limiterConfig(t *tree) limits.Config {
	return limits.Config{
		Logger: e.log, Counters: t.counters, Limits: t.limitCounters, Backend: e.limiter, Own: e.cfg.ownLimits(),
		InForce: t.limitsInForce, Freed: t.slotsFreed, Every: e.cfg.GCInterval, Lease: e.cfg.Lease, RenewEvery: e.cfg.Heartbeat,
	}
}

// limitsInForce tells whoever needs to know which limits there are.
func (t *tree) limitsInForce(c limiter.Config) {
	t.inForce.set(c)
	t.tellQueues(actors.LimitsInForce{Config: c})
}

// slotsFreed tells the queues of slots that were given back here.
func (t *tree) slotsFreed(keys []string) { t.tellQueues(actors.SlotsFreed{Keys: keys}) }

func (t *tree) tellQueues(message any) {
	for _, q := range t.queues {
		t.system.Root.Send(q.pid, message)
	}
}

// credit gives back slots of rows that sweeps took from their workers. Before the actors exist it is lost; the first thing
// that the limiter does is to reconcile.
func (t *tree) credit(released []limiter.Release) {
	t.system.Root.Send(t.limiterPID(), actors.CreditSlots{Released: released})
}

func (t *tree) limiterPID() *actor.PID { return t.pid(actors.NameLimiter) }
