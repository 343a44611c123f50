package gendurable_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
)

// envMixed makes a worker one of the mixed run; its value is what the process is called in the ledger.
const envMixed = "GENDURABLE_TEST_MIXED"

// The limits of the mixed run: of the keys "g:…" and "r:…". Other keys let one step run at once.
const (
	mixedGate  = 3
	mixedRate  = 20 // a second
	mixedBurst = 5
)

// mixedSchema is the ledger. Nothing in it is unique but what the test itself numbers: what happens twice is there twice.
const mixedSchema = `
-- A run of a step: what the database said about it when it began, and that it has come to its end.
CREATE TABLE mixed_runs (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, began timestamptz NOT NULL DEFAULT clock_timestamp(),
	ended timestamptz, outcome text, process text NOT NULL,
	-- seq is how many transitions lie behind the instance, as the state that the step was given says.
	instance bigint NOT NULL, machine text NOT NULL, step text NOT NULL, seq int NOT NULL,
	status text NOT NULL, worker text, claim int NOT NULL, attempt int NOT NULL, claimed timestamptz NOT NULL, queue text NOT NULL,
	key text, gated bool NOT NULL, rate text, weight float8, correlation text,
	committed int NOT NULL,      -- transitions in the history
	open_children int NOT NULL); -- that have not ended
CREATE INDEX ON mixed_runs (instance, seq);
-- What steps did in the transaction of their outcome: that they ran, and which signals they took.
CREATE TABLE mixed_effects (instance bigint NOT NULL, step text NOT NULL, seq int NOT NULL);
CREATE INDEX ON mixed_effects (instance, step);
CREATE TABLE mixed_taken (instance bigint NOT NULL, n int NOT NULL);
CREATE INDEX ON mixed_taken (instance);
-- What the test did.
CREATE TABLE mixed_inserted (instance bigint NOT NULL);
CREATE TABLE mixed_sent (instance bigint NOT NULL, n int NOT NULL, repeated bool NOT NULL);
CREATE TABLE mixed_ops (op text NOT NULL, instance bigint NOT NULL DEFAULT 0, at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE INDEX ON mixed_ops (instance)`

const sqlMixedBegin = `
INSERT INTO mixed_runs (process, instance, machine, step, seq, status, worker, claim, attempt, claimed, queue, key, gated, rate, weight,
	correlation, committed, open_children)
SELECT $1, g.id, g.fsm, $3, $4, g.status, g.locked_by, g.claims, g.attempt, g.updated_at, g.queue, g.concurrency_key,
	g.concurrency_shard IS NOT NULL, g.rate_limit, g.weight, g.correlation_key,
	(SELECT count(*) FROM gen_durable_history h WHERE h.instance_id = g.id AND h.outcome IN ('next', 'await', 'children')),
	(SELECT count(*) FROM gen_durable c WHERE c.parent_id = g.id AND c.status NOT IN ('done', 'failed'))
  FROM gen_durable g WHERE g.id = $2
RETURNING id`

// mix is the state of all machines of the mixed run.
type mix struct {
	N     int  `json:"n"`
	Seq   int  `json:"seq"`             // transitions so far
	Fails int  `json:"fails,omitempty"` // how many attempts of a step that may fail do
	Delay int  `json:"delay,omitempty"` // after the insert, in ms: not before that
	Timed bool `json:"timed,omitempty"` // a waiter that nobody signals
	Round int  `json:"round,omitempty"` // of children
	Leaf  bool `json:"leaf,omitempty"`  // a parent without parents among its children
}

// diary writes the ledger of one process.
type diary struct {
	pool    *pgxpool.Pool
	process string
}

// run runs what a step does between two notes in the ledger. A context that ends is no reason not to write.
func (d diary) run(id int64, step string, seq int, do func() error) error {
	var run int64
	ctx := context.Background()
	if err := d.pool.QueryRow(ctx, sqlMixedBegin, d.process, id, step, seq).Scan(&run); err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	<-time.After(time.Duration(id%4) * time.Millisecond) // the work
	err := do()
	outcome := "ok"
	if err != nil {
		outcome = "error"
	}
	if _, lost := d.pool.Exec(ctx, `UPDATE mixed_runs SET ended = clock_timestamp(), outcome = $2 WHERE id = $1`, run, outcome); lost != nil {
		return fmt.Errorf("ledger: %w", lost)
	}
	return err
}

// step is a step in the ledger.
func (d diary) step(do func(c *fsm.Call[mix]) (fsm.Outcome, error)) fsm.StepFunc[mix] {
	return func(_ context.Context, c *fsm.Call[mix]) (outcome fsm.Outcome, err error) {
		err = d.run(c.ID, c.Step, c.State.Seq, func() error { outcome, err = do(c); return err })
		c.State.Seq++
		return outcome, err
	}
}

// exactly is a step in the ledger whose effects are written by InTx. If it is progress, the signals that it was handed are taken.
func (d diary) exactly(do func(c *fsm.Call[mix]) (fsm.Outcome, error)) fsm.StepFunc[mix] {
	inner := d.step(do)
	return func(ctx context.Context, c *fsm.Call[mix]) (fsm.Outcome, error) {
		seq := c.State.Seq
		outcome, err := inner(ctx, c)
		if err != nil {
			return nil, err
		}
		taken := []int{}
		if _, again := outcome.(fsm.AwaitOutcome); !again {
			for _, s := range c.Awaited {
				var p number
				if err := s.Decode(&p); err != nil {
					return nil, err
				}
				taken = append(taken, p.N)
			}
		}
		id, step := c.ID, c.Step
		return gendurable.InTx(outcome, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `WITH e AS (INSERT INTO mixed_effects (instance, step, seq) VALUES ($1, $2, $3))
				INSERT INTO mixed_taken (instance, n) SELECT $1, unnest($4::int[])`, id, step, seq, taken)
			return err
		}), nil
	}
}

// machines are those of the mixed run.
func (d diary) machines() []fsm.Definition {
	return []fsm.Definition{d.job(), d.chain(), d.waiter(), d.parent()}
}

var errMixed = errors.New("as the test wants it")

func (d diary) job() *fsm.Job[mix, int] {
	return fsm.NewJob("mixed-job", func(_ context.Context, j *fsm.JobCall[mix]) (int, error) {
		err := d.run(j.ID, fsm.JobStep, 0, func() error {
			if j.Attempt < j.Args.Fails {
				return errMixed
			}
			return nil
		})
		if err != nil && j.Args.N%2 == 0 {
			panic(err)
		}
		return j.Args.N, err
	}, fsm.History(), fsm.MaxAttempts(3), fsm.Backoff(func(int) time.Duration { return 10 * time.Millisecond }))
}

// chain is a machine that mostly runs in one task: errors, an exact effect, a durable sleep, a change of keys, and rates.
func (d diary) chain() *fsm.Machine[mix] {
	return fsm.New[mix]("mixed-chain", fsm.History(), fsm.Inline()).
		OnError(func(_ context.Context, c *fsm.Call[mix], err error) (fsm.Outcome, error) {
			if c.Attempt < 2 {
				return fsm.Retry(5 * time.Millisecond), nil
			}
			return fsm.Stop(err), nil
		}).
		Step("a", d.step(func(*fsm.Call[mix]) (fsm.Outcome, error) { return fsm.Next("b"), nil })).
		Step("b", d.exactly(func(c *fsm.Call[mix]) (fsm.Outcome, error) {
			if c.Attempt < c.State.Fails {
				return nil, errMixed
			}
			return fsm.Next("c"), nil
		})).
		Step("c", d.step(func(c *fsm.Call[mix]) (fsm.Outcome, error) {
			return fsm.Next("d").After(20 * time.Millisecond).ConcurrencyKey(fmt.Sprint("g:", c.State.N/100)), nil
		})).
		Step("d", d.step(func(c *fsm.Call[mix]) (fsm.Outcome, error) {
			next := fsm.Next("e").ReleaseKey()
			if c.State.N%4 == 0 {
				next = next.RateLimit(fmt.Sprint("r:", c.State.N/160), 2)
			}
			return next, nil
		})).
		Step("e", d.step(func(*fsm.Call[mix]) (fsm.Outcome, error) { return fsm.Next("f"), nil })).
		Step("f", d.step(func(c *fsm.Call[mix]) (fsm.Outcome, error) { return fsm.Done(c.State.N), nil }))
}

// waiter needs two signals "go", in one set, and then one "stop"; or it waits in vain until a timeout.
func (d diary) waiter() *fsm.Machine[mix] {
	wait := func(c *fsm.Call[mix]) (fsm.Outcome, error) {
		a := fsm.Await("go").Then("collect")
		if c.State.Timed {
			a = a.Timeout(200 * time.Millisecond)
		}
		return a, nil
	}
	return fsm.New[mix]("mixed-waiter", fsm.History()).
		Step("start", d.step(wait)).
		Step("collect", d.exactly(func(c *fsm.Call[mix]) (fsm.Outcome, error) {
			switch {
			case c.State.Timed:
				return fsm.Done("late"), nil
			case len(c.Awaited) < 2:
				return wait(c)
			}
			return fsm.Next("between"), nil
		})).
		Step("between", d.step(func(*fsm.Call[mix]) (fsm.Outcome, error) { return fsm.Await("stop").Then("finish"), nil })).
		Step("finish", d.exactly(func(*fsm.Call[mix]) (fsm.Outcome, error) { return fsm.Done("all"), nil }))
}

// parent has two rounds of children: jobs that end well and badly, one whose correlation key is likely to be taken, a chain, and
// sometimes another parent.
func (d diary) parent() *fsm.Machine[mix] {
	job, chain := d.job(), d.chain()
	spawn := func(c *fsm.Call[mix]) (fsm.Outcome, error) {
		c.State.Round++
		n := c.State.N
		children := []fsm.Instance{
			job.New(mix{N: n, Fails: n % 5}, fsm.ConcurrencyKey(fmt.Sprint("k:", n/100))),
			job.New(mix{N: n}, fsm.CorrelationKey(fmt.Sprint("solo:", n/100))),
			chain.New(mix{N: n}, fsm.Queue("side")),
		}
		if !c.State.Leaf && n%3 == 0 {
			children = append(children, c.New(mix{N: n, Leaf: true}))
		}
		return fsm.ScheduleChildren(children...).Then("joined"), nil
	}
	return fsm.New[mix]("mixed-parent", fsm.History()).
		Step("spawn", d.step(spawn)).
		Step("joined", d.exactly(func(c *fsm.Call[mix]) (fsm.Outcome, error) {
			if c.State.Round < 2 {
				return spawn(c)
			}
			return fsm.Done(c.ChildCounts), nil
		}))
}

// configureMixed makes the configuration of a worker that of one of the mixed run, whose two nodes are called by the first
// letter of the process.
func configureMixed(cfg *gendurable.Config, d diary) {
	cfg.NodeName = "mixed-" + d.process[:1]
	cfg.Machines = d.machines()
	cfg.Queues = map[string]gendurable.Queue{"default": {Concurrency: 20}, "side": {Concurrency: 4, Lanes: 2}}
	cfg.Gates = map[string]gendurable.Gate{"g": {Limit: mixedGate, Shards: 2}}
	cfg.RateLimits = map[string]gendurable.RateLimit{"r": {Allowed: mixedRate, Per: time.Second, Burst: mixedBurst, Shards: 2}}
	// A slot that was taken and whose row the killed process never got to run is found by the reconciler.
	cfg.GCInterval = time.Second
	cfg.DeadlineSweep = 100 * time.Millisecond
	cfg.Pokes = gendurable.PokePostgres
}
