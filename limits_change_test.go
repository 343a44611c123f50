package gendurable_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
)

// doorway is a machine whose steps go in, say so, and stay until somebody lets one out.
type doorway struct {
	mu     sync.Mutex // guards all below
	inside int
	limit  int           // the most that may be inside from now on
	over   int           // the most that went in although the limit was reached
	out    chan struct{} // lets out who goes in from now on
}

func (d *doorway) machine() *fsm.Machine[number] {
	return fsm.New[number]("doorway", fsm.ConcurrencyKey("g")).Step("in", func(ctx context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
		d.mu.Lock()
		if d.inside++; d.inside > d.limit {
			d.over = max(d.over, d.inside)
		}
		out := d.out
		d.mu.Unlock()
		select {
		case <-out:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		d.mu.Lock()
		d.inside--
		d.mu.Unlock()
		return fsm.Done(nil), nil
	})
}

// allow sets the limit, and returns what lets out those who are inside.
func (d *doorway) allow(n int) (out chan<- struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.out
	d.limit, d.out = n, make(chan struct{})
	return before
}

// exit lets out who goes in from now on.
func (d *doorway) exit() chan<- struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.out
}

func (d *doorway) isInside(n int) func() bool {
	return func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.inside == n
	}
}

// TestChangedLimitsHealInOneSweep: engines of newer configurations join while steps hold slots of the older ones. The sweep
// that each makes when it starts, and there is no other, brings the new limit and its shards into force, for all engines.
func TestChangedLimitsHealInOneSweep(t *testing.T) {
	t.Parallel()
	pool := database(t)
	d := &doorway{out: make(chan struct{}), limit: 2}
	m := d.machine()
	limited := fsm.NewJob("limited", func(context.Context, *fsm.JobCall[number]) (int, error) { return 0, nil }, fsm.RateLimit("r"))
	var last *gendurable.Engine
	deploy := func(gate gendurable.Gate, rate gendurable.RateLimit) {
		t.Helper()
		rate.Per = 10_000 * time.Hour
		last = start(t, pool, gendurable.Config{
			Machines: []fsm.Definition{m, limited}, GCInterval: time.Hour, PollBusy: 20 * time.Millisecond, PollIdle: 50 * time.Millisecond,
			Gates: map[string]gendurable.Gate{"g": gate}, RateLimits: map[string]gendurable.RateLimit{"r": rate},
		})
		eventually(t, "the sweep of the start", func() bool { return last.Stats().Limits.Reconciles == 1 })
	}
	let := func(n int, out chan<- struct{}) {
		t.Helper()
		for range n {
			select {
			case out <- struct{}{}:
			case <-time.After(patience):
				t.Fatal("nobody is inside")
			}
		}
	}
	shards := func(kind string) int {
		return count(t, pool, `SELECT count(*) FROM gen_durable_buckets WHERE kind = $1`, kind)
	}
	ran := func() int {
		return count(t, pool, `SELECT count(*) FROM gen_durable WHERE fsm = 'limited' AND status = 'done'`)
	}

	deploy(gendurable.Gate{Limit: 2}, gendurable.RateLimit{Allowed: 4})
	const rows = 30
	var insts []fsm.Instance
	for i := range rows {
		insts = append(insts, m.New(number{i}), limited.New(number{i}))
	}
	if _, err := last.InsertMany(t.Context(), insts); err != nil {
		t.Fatal(err)
	}
	eventually(t, "two are inside", d.isInside(2))
	eventually(t, "four had tokens", func() bool { return ran() == 4 })

	// More, over more shards, while both slots are taken.
	first := d.allow(5)
	deploy(gendurable.Gate{Limit: 5, Shards: 3}, gendurable.RateLimit{Allowed: 9, Shards: 3})
	eventually(t, "a raised gate is filled up", d.isInside(5))
	if n := shards("conc"); n != 3 {
		t.Errorf("the gate has %d shards, expected 3", n)
	}
	if n := ran(); n != 4 {
		t.Errorf("%d had tokens: a raised burst gives none away", n)
	}

	// Fewer, in one shard, while five hold slots in three: nobody goes in before there is room.
	deploy(gendurable.Gate{Limit: 3}, gendurable.RateLimit{Allowed: 9})
	second := d.allow(3)
	let(2, first)
	let(3, second)
	eventually(t, "they have ended", func() bool {
		return count(t, pool, `SELECT count(*) FROM gen_durable WHERE fsm = 'doorway' AND status = 'done'`) >= 5
	})
	deploy(gendurable.Gate{Limit: 3}, gendurable.RateLimit{Allowed: 9}) // the sweep after the last of the old holders
	eventually(t, "a lowered gate is filled up", d.isInside(3))
	if n := shards("conc"); n != 1 {
		t.Errorf("the gate has %d shards, expected 1", n)
	}
	let(rows-5, d.exit())
	eventually(t, "all have ended", func() bool {
		return count(t, pool, `SELECT count(*) FROM gen_durable WHERE fsm = 'doorway' AND status = 'done'`) == rows
	})
	atRest(t, pool)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over != 0 {
		t.Errorf("%d were inside of a gate of fewer", d.over)
	}
}
