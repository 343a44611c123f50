package gendurable_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
)

func TestBatchesGrowByThemselves(t *testing.T) {
	t.Parallel()
	const jobs = 20_000
	engine := start(t, database(t), gendurable.Config{
		Machines: []fsm.Definition{double},
		Queues:   map[string]gendurable.Queue{"default": {Concurrency: 100}},
	})
	if _, err := engine.InsertMany(t.Context(), doubles(jobs)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all jobs committed", func() bool { return engine.Stats().Outcomes == jobs })
	s := engine.Stats()
	q := s.Queues["default"]
	t.Logf("%d flushes (largest %d), %d claims (largest %d)", s.Flushes, s.LargestFlush, q.Claims, q.LargestClaim)
	if s.Flushes > jobs/10 {
		t.Errorf("%d flushes for %d jobs: batches did not grow", s.Flushes, jobs)
	}
	if q.Claims > jobs/10 {
		t.Errorf("%d claims for %d jobs: demand did not adapt", q.Claims, jobs)
	}
}

func TestEverythingThatAMachineDoes(t *testing.T) {
	t.Parallel()
	for _, pokes := range []gendurable.PokeTransport{gendurable.PokeLocal, gendurable.PokePostgres, gendurable.PokeNone} {
		t.Run(string(pokes), func(t *testing.T) {
			t.Parallel()
			child := fsm.NewJob("child", func(_ context.Context, j *fsm.JobCall[number]) (int, error) {
				if j.Args.N == 3 && j.Attempt == 0 {
					return 0, errors.New("once more")
				}
				return j.Args.N * j.Args.N, nil
			}, fsm.Backoff(func(int) time.Duration { return 10 * time.Millisecond }))
			parent := fsm.New[number]("parent").
				Step("split", func(_ context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
					return fsm.ScheduleChildren(child.New(number{1}), child.New(number{2}), child.New(number{3})).Then("sum"), nil
				}).
				Step("sum", func(_ context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
					for _, ch := range c.Children {
						var n int
						if err := ch.DecodeResult(&n); err != nil {
							return nil, err
						}
						c.State.N += n
					}
					return fsm.Next("nap").After(20 * time.Millisecond), nil
				}).
				Step("nap", func(_ context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
					return fsm.Await("go", "stop").Then("end"), nil
				}).
				Step("end", func(_ context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
					return fsm.Done(map[string]any{"n": c.State.N, "signal": c.Awaited[0].Name}), nil
				})
			engine := start(t, database(t), gendurable.Config{
				Machines: []fsm.Definition{parent, child}, Pokes: pokes,
				PollBusy: 50 * time.Millisecond, PollIdle: 100 * time.Millisecond,
			})
			id := insert(t, engine, parent.New(number{100}), fsm.CorrelationKey("p"))
			if s := await(t, engine, id); s.Status != fsm.AwaitingSignal {
				t.Fatalf("settled as %+v, want parked", s)
			}
			if err := engine.Signal(t.Context(), gendurable.Key("p"), "other", nil); err != nil {
				t.Fatal(err)
			}
			if err := engine.Signal(t.Context(), gendurable.Key("p"), "go", nil, gendurable.DedupKey("1")); err != nil {
				t.Fatal(err)
			}
			s := await(t, engine, id, gendurable.UntilTerminal())
			var got struct {
				N      int
				Signal string
			}
			if err := s.Decode(&got); err != nil || got.N != 114 || got.Signal != "go" {
				t.Errorf("ended as %+v (%s), %v", got, s.Result, err)
			}
			if err := engine.Signal(t.Context(), id, "go", nil); !errors.Is(err, gendurable.ErrNoTarget) {
				t.Errorf("a signal to an ended instance: %v, want ErrNoTarget", err)
			}
		})
	}
}

func TestLongTimesAndLargeBatches(t *testing.T) {
	t.Parallel()
	pool := database(t)
	const quarter = 90 * 24 * time.Hour
	machine := fsm.New[number]("patient").
		Step("start", func(_ context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			if c.State.N == 1 {
				return fsm.Retry(quarter), nil
			}
			return fsm.Await("never").Then("start").Timeout(quarter), nil
		})
	engine := start(t, pool, gendurable.Config{
		Machines: []fsm.Definition{machine, double},
		Queues:   map[string]gendurable.Queue{"default": {Concurrency: 50}},
	})
	parked, retried := insert(t, engine, machine.New(number{0})), insert(t, engine, machine.New(number{1}))
	await(t, engine, parked)
	eventually(t, "the retry", func() bool {
		inst, err := engine.Get(t.Context(), retried)
		return err == nil && inst.Attempt == 1 && inst.Status == fsm.Runnable
	})
	if n := count(t, pool, `SELECT count(*) FROM gen_durable WHERE (id = $1 AND await_deadline BETWEEN now() + interval '89 days' AND now() + interval '91 days')
		OR (id = $2 AND eligible_at BETWEEN now() + interval '89 days' AND now() + interval '91 days')`, parked, retried); n != 2 {
		t.Errorf("%d of 2 instances wait for 90 days", n)
	}
	const many = 60_000
	batch := doubles(many)
	batch[many-1] = double.New(number{many - 1}, fsm.Priority(-1)) // the only one that this test waits for
	results, err := engine.InsertMany(t.Context(), batch)
	if err != nil || len(results) != many {
		t.Fatalf("%d answers, %v", len(results), err)
	}
	last := await(t, engine, results[many-1].ID)
	if string(last.Result) != fmt.Sprint(2*(many-1)) {
		t.Errorf("the last of the batch answers %s: answers are not in the order of the instances", last.Result)
	}
}

func TestWhatPostgresRefusesFailsAlone(t *testing.T) {
	t.Parallel()
	// A number whose text is legal JSON and fits a numeric, but not an index: Postgres alone can tell. A concurrency
	// key is such a place: it is indexed while the row executes.
	huge := strings.Repeat("k", 1024)
	poison := fsm.NewJob("poison", func(_ context.Context, j *fsm.JobCall[number]) (json.RawMessage, error) {
		switch j.Args.N % 4 {
		case 0:
			return json.RawMessage(`"\u0000"`), nil
		case 1:
			return json.RawMessage(`"\ud800"`), nil
		case 2:
			return json.RawMessage(`1e999999`), nil
		default:
			return json.RawMessage(`"` + strings.Repeat("x", 2<<20) + `"`), nil
		}
	}, fsm.MaxAttempts(1))
	engine := start(t, database(t), gendurable.Config{
		Machines: []fsm.Definition{poison, double}, Logger: quietly(),
		Queues: map[string]gendurable.Queue{"default": {Concurrency: 50}},
	})
	var bad []gendurable.ID
	for i := range 40 {
		bad = append(bad, insert(t, engine, poison.New(number{i})))
	}
	good, err := engine.InsertMany(t.Context(), doubles(500))
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range good {
		if s := await(t, engine, g.ID); !s.Done() {
			t.Fatalf("an innocent job: %+v", s)
		}
	}
	for _, id := range bad {
		if s := await(t, engine, id); s.Status != fsm.StatusFailed || s.Error == "" {
			t.Fatalf("a poisoned job: %+v, want failed with a reason", s)
		}
	}
	// Keys and payloads are refused where they enter.
	for name, call := range map[string]func() error{
		"key with NUL": func() error {
			_, err := engine.Insert(t.Context(), double.New(number{1}), fsm.CorrelationKey("a\x00b"))
			return err
		},
		"key too long": func() error {
			_, err := engine.Insert(t.Context(), double.New(number{1}), fsm.CorrelationKey(huge+"k"))
			return err
		},
		"key not UTF-8": func() error {
			_, err := engine.Insert(t.Context(), double.New(number{1}), fsm.ConcurrencyKey("\xff"))
			return err
		},
		"signal payload":    func() error { return engine.Signal(t.Context(), good[0].ID, "x", json.RawMessage(`"\u0000"`)) },
		"signal name":       func() error { return engine.Signal(t.Context(), good[0].ID, "", nil) },
		"dedup key":         func() error { return engine.Signal(t.Context(), good[0].ID, "x", nil, gendurable.DedupKey("\x00")) },
		"payload too large": func() error { return engine.Signal(t.Context(), good[0].ID, "x", strings.Repeat("x", 2<<20)) },
		"priority": func() error {
			_, err := engine.Insert(t.Context(), double.New(number{1}), fsm.Priority(40_000))
			return err
		},
		"undeclared limit": func() error {
			_, err := engine.Insert(t.Context(), double.New(number{1}), fsm.RateLimit("stripe"))
			return err
		},
		"negative delay": func() error {
			_, err := engine.Insert(t.Context(), double.New(number{1}), fsm.ScheduleIn(-1))
			return err
		},
		"time out of range": func() error {
			_, err := engine.Insert(t.Context(), double.New(number{1}), fsm.ScheduleAt(time.Unix(1<<55, 0)))
			return err
		},
		"non-positive id":  func() error { _, err := engine.Get(t.Context(), gendurable.ID(0)); return err },
		"empty key":        func() error { _, err := engine.Await(t.Context(), gendurable.Key("")); return err },
		"no signal target": func() error { return engine.Signal(t.Context(), nil, "x", nil) },
		"scope not allowed": func() error {
			_, err := engine.Insert(t.Context(), double.New(number{1}), fsm.CorrelationKey("x"), fsm.CorrelationScope(fsm.StatusDone))
			return err
		},
		"request id not UTF": func() error {
			_, err := engine.Insert(t.Context(), double.New(number{1}), fsm.RequestID("\xff"))
			return err
		},
	} {
		if err := call(); !errors.Is(err, gendurable.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	// The longest key that is allowed is one that the indexes hold.
	insert(t, engine, double.New(number{1}), fsm.CorrelationKey(huge), fsm.ConcurrencyKey("n:"+huge[:1022]), fsm.RequestID(huge))
}

func TestALockedRowDelaysNobodyElse(t *testing.T) {
	t.Parallel()
	pool := database(t)
	g := newGate()
	locked := g.machine("locked")
	engine := start(t, pool, gendurable.Config{
		Machines: []fsm.Definition{locked, double}, Lease: time.Hour, // which cannot be extended while the row is locked
		Queues: map[string]gendurable.Queue{"default": {Concurrency: 20}},
	})
	id := insert(t, engine, locked.New(number{7}))
	<-g.entered
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if err := engine.SignalTx(t.Context(), tx, id, "hold", nil); err != nil {
		t.Fatal(err)
	}
	close(g.open) // now its outcome waits for the host's transaction
	results, err := engine.InsertMany(t.Context(), doubles(5_000))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		await(t, engine, r.ID)
	}
	if inst, err := engine.Get(t.Context(), id); err != nil || inst.Status != fsm.Executing {
		t.Fatalf("the locked instance: %+v, %v: it should still wait", inst, err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := await(t, engine, id); string(s.Result) != "7" || g.runs.Load() != 1 {
		t.Errorf("the locked instance ended as %+v after %d runs", s, g.runs.Load())
	}
}

func TestStopDrains(t *testing.T) {
	t.Parallel()
	pool := database(t)
	g := newGate()
	slow := g.machine("slow")
	engine := start(t, pool, gendurable.Config{
		Machines: []fsm.Definition{slow, double},
		Queues:   map[string]gendurable.Queue{"default": {Concurrency: 4}},
	})
	for i := range 50 {
		insert(t, engine, slow.New(number{i}))
	}
	for range 4 {
		<-g.entered
	}
	// Nobody can tell when the drain has begun. What a claim before that would take is locked.
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `SELECT FROM gen_durable WHERE status = 'runnable' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop(t, engine)
	}()
	eventually(t, "buffered rows given back", func() bool {
		return count(t, pool, `SELECT count(*) FROM gen_durable WHERE status = 'executing'`) == 4
	})
	close(g.open)
	<-stopped
	if done := count(t, pool, `SELECT count(*) FROM gen_durable WHERE status = 'done'`); done != 4 {
		t.Errorf("%d steps finished and were committed, want the 4 that ran", done)
	}
	if n := count(t, pool, `SELECT count(*) FROM gen_durable WHERE status = 'runnable' AND attempt = 0 AND locked_by IS NULL`); n != 46 {
		t.Errorf("%d rows are runnable and untouched, want 46", n)
	}
	if g.runs.Load() != 4 {
		t.Errorf("%d runs, want 4", g.runs.Load())
	}
	if n := count(t, pool, `SELECT count(*) FROM gen_durable_nodes`); n != 0 {
		t.Errorf("%d node rows are left", n)
	}
	if _, err := engine.Await(t.Context(), gendurable.ID(1)); !errors.Is(err, gendurable.ErrStopped) {
		t.Errorf("Await on a stopped engine: %v, want ErrStopped", err)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	pool := database(t)
	g := newGate()
	slow := g.machine("slow")
	parked := fsm.New[number]("parked").Step("park", func(context.Context, *fsm.Call[number]) (fsm.Outcome, error) {
		return fsm.Await("x").Then("park"), nil
	})
	engine := start(t, pool, gendurable.Config{Machines: []fsm.Definition{slow, parked}})
	running := insert(t, engine, slow.New(number{}), fsm.CorrelationKey("running"))
	<-g.entered
	waiting := insert(t, engine, parked.New(number{}))
	await(t, engine, waiting)
	for ref, want := range map[gendurable.Ref]gendurable.Cancellation{
		waiting:                   gendurable.CancelEnded,
		gendurable.Key("running"): gendurable.CancelRequested,
	} {
		if got, err := engine.Cancel(t.Context(), ref, "changed my mind"); got != want || err != nil {
			t.Errorf("cancel %v: %v, %v; want %v", ref, got, err, want)
		}
	}
	for _, id := range []gendurable.ID{running, waiting} {
		if s := await(t, engine, id, gendurable.UntilTerminal()); s.Status != fsm.StatusFailed || !strings.Contains(s.Error, "changed my mind") {
			t.Errorf("a cancelled instance ended as %+v", s)
		}
		if got, err := engine.Cancel(t.Context(), id, ""); got != gendurable.CancelTooLate || err != nil {
			t.Errorf("cancel again: %v, %v", got, err)
		}
	}
	if _, err := engine.Cancel(t.Context(), gendurable.ID(1<<40), ""); !errors.Is(err, gendurable.ErrNotFound) {
		t.Errorf("cancel of nobody: %v", err)
	}
}

func TestTwoEnginesInOneProcess(t *testing.T) {
	t.Parallel()
	pool := database(t)
	one := start(t, pool, gendurable.Config{Name: "one", Machines: []fsm.Definition{double}, Queues: map[string]gendurable.Queue{"default": {}, "a": {}}})
	two := start(t, pool, gendurable.Config{Name: "two", Machines: []fsm.Definition{double}, Queues: map[string]gendurable.Queue{"default": {}, "b": {}}})
	for _, c := range []struct {
		engine *gendurable.Engine
		queue  string
	}{{one, "a"}, {two, "b"}} {
		id := insert(t, c.engine, double.New(number{4}), fsm.Queue(c.queue))
		if s := await(t, c.engine, id); string(s.Result) != "8" {
			t.Errorf("queue %s: %+v", c.queue, s)
		}
	}
	if _, err := one.Insert(t.Context(), double.New(number{4}), fsm.Queue("b")); !errors.Is(err, gendurable.ErrUnknownQueue) {
		t.Errorf("insert into a queue that this engine does not know: %v", err)
	}
}

func TestAwaitByManyCallers(t *testing.T) {
	t.Parallel()
	pool := database(t)
	g := newGate()
	slow := g.machine("slow")
	engine := start(t, pool, gendurable.Config{Machines: []fsm.Definition{slow}})
	client, err := gendurable.NewClient(t.Context(), pool, gendurable.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	id := insert(t, engine, slow.New(number{5}))
	<-g.entered
	short, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := engine.Await(short, id); !errors.Is(err, gendurable.ErrStillBusy) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("await of a busy instance: %v", err)
	}
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			c := engine.Client
			if i%2 == 0 {
				c = client
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if s, err := c.Await(ctx, id); err != nil || string(s.Result) != "5" {
				t.Errorf("await: %+v, %v", s, err)
			}
		})
	}
	close(g.open)
	wg.Wait()
	if _, err := engine.Await(t.Context(), gendurable.ID(1<<40)); !errors.Is(err, gendurable.ErrNotFound) {
		t.Errorf("await of nobody: %v", err)
	}
}
