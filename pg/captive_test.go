package pg

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable/limiter"
)

// captive is an instance with everything that its end has to let go of: a correlation key, a concurrency key (of a gate with
// one slot, or of none), a place in the count of its parent, and an inbox. Its moves keep account of what was answered.
type captive struct {
	t    *testing.T
	s    *Store
	host *pgxpool.Pool
	key  string // the concurrency key: "one", or "g:x" of the gate g

	row    Claimed // as its worker has it
	worker string
	signal int64 // in its inbox
	// The parent waits for the captive and its sibling, so that an end that counts twice would release it too early.
	parent, sibling int64
	// before is alice's, too, and older than the captive: a flush of both stops there, with the captive locked, while
	// somebody holds it.
	before  Claimed
	flushes int // how many have a name

	mu      sync.Mutex // of the account: two moves may come to their ends at once
	cancels []Cancellation
	fates   []Fate
	retries []Retrial
	// ends is how many answers said that the instance ended, less the retries that said that it lives again.
	ends     int
	admitted int // slots of the gate that were taken
	reaped   slots
	released []limiter.Release
	credited int // of released
}

// capture makes a captive in empty tables, claimed by alice. The Store is of this test alone.
func capture(t *testing.T, s *Store, host *pgxpool.Pool, key string) *captive {
	t.Helper()
	unanalyzed(t, s)
	exec(t, s, `TRUNCATE gen_durable, gen_durable_buckets CASCADE`) // which forgets the statistics, too
	c := &captive{t: t, s: s, host: host, key: key}
	s.freed = func(r []limiter.Release) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.released = append(c.released, r...)
	}
	put(t, s, 1)
	parent := claimOne(t, s, alice)
	put(t, s, 1)
	c.parent, c.before = parent.ID, claimOne(t, s, alice)
	fan := outcome(parent, alice, KindChildren)
	for _, queue := range []string{"default", "aside"} {
		fan.Children = append(fan.Children, Insertion{Machine: "c", Version: 1, Step: "a", Queue: queue})
	}
	fan.Children[0].CorrelationKey, fan.Children[0].CorrelationScope, fan.Children[0].ConcurrencyKey = "k", liveScope, key
	commitAll(t, s.NewCommitter("capture"), fan)
	c.sibling = value[int64](t, s, `SELECT id FROM gen_durable WHERE parent_id = $1 AND queue = 'aside'`, parent.ID)
	c.signal = signal(t, s, value[int64](t, s, `SELECT id FROM gen_durable WHERE correlation_key = 'k'`), "go")
	c.now(c.claim(alice))
	return c
}

// now makes a move outside of any script.
func (c *captive) now(m move) {
	c.t.Helper()
	if err := m(testContext(c.t), c.s, c.s.pool); err != nil {
		c.t.Fatal(err)
	}
}

func (c *captive) request(worker, queue string) ClaimRequest {
	r := gated(10)
	r.Worker, r.Queue = worker, queue
	return r
}

// claim is the move that claims the captive and has it admitted.
func (c *captive) claim(worker string) move {
	return func(ctx context.Context, own *Store, _ DB) error {
		if err := c.credit(ctx, own); err != nil {
			return err
		}
		rows, err := own.Claim(ctx, c.request(worker, "default"))
		if err != nil {
			return err
		}
		if len(rows) != 1 {
			return fmt.Errorf("claimed %d rows, expected the captive", len(rows))
		}
		c.row, c.worker = rows[0], worker
		if c.row.ConcurrencyShard == nil || c.row.CancelReason != nil { // which is to be ended
			return nil
		}
		c.admitted++
		return c.admit(ctx, own, worker, &c.row)
	}
}

// take is the claim alone, as part of a transaction.
func (c *captive) take(ctx context.Context, own *Store, db DB) error {
	_, err := db.Exec(ctx, own.sql("claim"), claimArgs(c.request(bob, "default"))...)
	return err
}

func (c *captive) admit(ctx context.Context, own *Store, worker string, row *Claimed) error {
	d, err := own.NewLimiter().Admit(ctx, worker, []limiter.Request{{ID: row.ID, Claim: row.Claim, Gate: c.key}})
	if err == nil && d[0].Verdict != limiter.Admitted {
		err = fmt.Errorf("the gate answers %+v", d[0])
	}
	if err == nil {
		row.ConcurrencyShard = &d[0].Shard
	}
	return err
}

// credit gives back what was released since the last time.
func (c *captive) credit(ctx context.Context, own *Store) error {
	own.credit(c.reaped, nil)
	c.reaped.clear()
	c.mu.Lock()
	defer c.mu.Unlock()
	fresh := c.released[c.credited:]
	c.credited = len(c.released)
	return own.NewLimiter().Credit(ctx, fresh)
}

func (c *captive) cancel(ctx context.Context, own *Store, db DB) error {
	r, err := own.Cancel(ctx, db, c.row.ID, "why")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancels = append(c.cancels, r.Result)
	if r.Result == Ended {
		c.ends++
	}
	return err
}

func (c *captive) retry(ctx context.Context, own *Store, db DB) error {
	r, err := own.Retry(ctx, db, c.row.ID)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.retries = append(c.retries, r.Result)
	if r.Result == Retried {
		c.ends--
	}
	return err
}

// reaping is the move that reaps expired leases and expects so many.
func (c *captive) reaping(want int) move {
	return func(ctx context.Context, own *Store, db DB) (err error) {
		var r ReapResult
		if _, inside := db.(pgx.Tx); inside {
			err = db.QueryRow(ctx, own.sql("reap"), 100, nil).Scan(c.reaped.after(&r.Rows, &r.Queues, new(time.Time))...)
		} else {
			r, err = own.ReapLeases(ctx, time.Time{}, 100)
		}
		if err == nil && r.Rows != want {
			err = fmt.Errorf("reaped %d rows, expected %d", r.Rows, want)
		}
		return err
	}
}

// flush is the move that commits an outcome of the captive as its worker has it by then, with the others given.
func (c *captive) flush(kind Kind, others ...Outcome) move {
	c.flushes++
	opened := c.s.NewCommitter(fmt.Sprint("captive ", c.flushes))
	if err := opened.open(testContext(c.t)); err != nil {
		c.t.Fatal(err)
	}
	return func(ctx context.Context, own *Store, _ DB) error {
		o := everyKind(c.row, c.worker, []int64{c.signal})[kind]
		if shard := c.row.ConcurrencyShard; shard != nil && *shard >= 0 {
			o.SlotKey, o.SlotShard = c.key, *shard
		}
		committer := own.NewCommitter(opened.name)
		committer.seq = opened.seq
		f, err := committer.Flush(ctx, append([]Outcome{o}, others...))
		opened.seq = committer.seq
		if err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		v := f.Verdicts[0]
		c.fates = append(c.fates, v.Fate)
		if v.Fate != Stale && (v.Status == Failed || v.Status == Done) {
			c.ends++
		}
		if v.Mark != 0 {
			c.released = append(c.released, limiter.Release{
				Slot: limiter.Slot{ID: o.ID, Claim: o.Claim, Key: o.SlotKey, Shard: o.SlotShard}, Mark: v.Mark})
		}
		return nil
	}
}

// withBefore is flush that can be held up, see before.
func (c *captive) withBefore(kind Kind) move {
	return c.flush(kind, outcome(c.before, alice, KindDone))
}

// finish lets whoever has to do it end the captive: its worker by the next outcome, or the worker that claims it next.
func (c *captive) finish() {
	c.t.Helper()
	in := get(c.t, c.s, c.row.ID)
	if in.Status == Runnable {
		c.now(c.claim(bob))
		if c.row.CancelReason == nil || *c.row.CancelReason != "why" {
			c.t.Errorf("the next claim does not know of the request: %+v", c.row)
		}
		in = get(c.t, c.s, c.row.ID)
	}
	if in.Status != Executing {
		return
	}
	c.worker = in.LockedBy
	c.row.Claim = value[int](c.t, c.s, `SELECT claims FROM gen_durable WHERE id = $1`, c.row.ID)
	c.row.ConcurrencyShard = value[*int16](c.t, c.s, `SELECT concurrency_shard FROM gen_durable WHERE id = $1`, c.row.ID)
	c.now(c.flush(KindNext))
	if last := c.fates[len(c.fates)-1]; last != Cancelled {
		c.t.Errorf("the outcome of a requested row came to %d", last)
	}
}

// expect compares what the cancels, flushes and retries of a script were answered.
func (c *captive) expect(cancels []Cancellation, fates []Fate, retries ...Retrial) {
	c.t.Helper()
	if !slices.Equal(c.cancels, cancels) || !slices.Equal(c.fates, fates) || !slices.Equal(c.retries, retries) {
		c.t.Errorf("cancels came to %v, flushes to %v, retries to %v; expected %v, %v and %v",
			c.cancels, c.fates, c.retries, cancels, fates, retries)
	}
}

// free expects that the captive has ended, exactly once, and holds nothing any more.
func (c *captive) free(want Status, why string) {
	c.t.Helper()
	if in := get(c.t, c.s, c.row.ID); in.Status != want || in.LastError != why || in.LockedBy != "" || in.LeaseExpiresAt != nil {
		c.t.Errorf("the captive is %+v", *in)
	}
	if c.ends != 1 {
		c.t.Errorf("the answers say that it ended %d times more than it was retried", c.ends)
	}
	wantInbox(c.t, c.s, c.row.ID)
	if p := get(c.t, c.s, c.parent); p.Status != AwaitingChildren || p.ChildrenPending != 1 {
		c.t.Errorf("the parent is %+v, expected it to wait for the other child alone", *p)
	}
	before := snapshot(c.t, c.s)
	for _, kind := range []Kind{KindNext, KindContinue, KindFailed} {
		c.now(c.flush(kind))
	}
	cancelled(c.t, c.s, c.host, c.row.ID, AlreadyTerminal)
	if after := snapshot(c.t, c.s); after != before {
		c.t.Errorf("what came late changed something:\n%s\nbefore:\n%s", after, before)
	}
	c.keysAreFree()
	if r := cancelled(c.t, c.s, c.host, c.sibling, Ended); !slices.Equal(r.Woken, []string{"default"}) {
		c.t.Errorf("the end of the other child woke %v", r.Woken)
	}
	wantStatus(c.t, c.s, Runnable, c.parent)
}

// keysAreFree expects that each admission was released once, that the counters are at rest after the credits, and that
// others can have the captive's keys.
func (c *captive) keysAreFree() {
	c.t.Helper()
	ctx := testContext(c.t)
	err := c.credit(ctx, c.s)
	if len(c.released) != c.admitted {
		c.t.Errorf("%d slots were taken, released were %+v", c.admitted, c.released)
	}
	if n := value[int](c.t, c.s, `SELECT count(*)::int FROM gen_durable_buckets WHERE available <> capacity`); n != 0 {
		c.t.Error("the counters of the gate are not at rest")
	}
	r, rerr := c.s.NewLimiter().Reconcile(ctx)
	if err := errors.Join(err, rerr); err != nil || r.Healed+r.Taken != 0 {
		c.t.Errorf("the reconcile had something to correct: %+v, %v", r, err)
	}
	id := put(c.t, c.s, 1, withKey(c.key), func(i *Insertion) { i.Queue = "rival" })[0]
	rows := claimWith(c.t, c.s, c.request(bob, "rival"))
	if len(rows) != 1 || rows[0].ID != id {
		c.t.Fatalf("the next of its concurrency key is not claimed: %+v", rows)
	}
	if rows[0].ConcurrencyShard != nil {
		if err := c.admit(ctx, c.s, bob, &rows[0]); err != nil {
			c.t.Error(err)
		}
	}
	if in := insert(c.t, c.s, c.host, keyed("k"))[0]; in.Duplicate {
		c.t.Error("the correlation key is not free")
	}
}

// eachKey runs a test for a key that allows one at a time, and for a gate's.
func eachKey(t *testing.T, run func(t *testing.T, captured func(t *testing.T) *captive)) {
	for _, key := range []string{"one", "g:x"} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			s, host := openWithHost(t, Options{})
			configure(t, s, limiter.Config{Gates: []limiter.Gate{{Name: "g", Limit: 1}}})
			run(t, func(t *testing.T) *captive { return capture(t, s, host, key) })
		})
	}
}
