package gendurable_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
)

// envCaptives makes a worker one that runs what these tests cancel from their own process, and nothing else.
const envCaptives = "GENDURABLE_TEST_CAPTIVES"

// The captives of a worker process, besides those of places.
const (
	captiveStubborn = "stubborn" // pays no heed to its context
	captiveFailing  = "failing"  // fails the first time, then runs until its context ends
	captivePressed  = "pressed"  // see pressed
)

// passing is how many of each thousand pressed instances pass at once.
const passing = 60

const captivesSchema = `CREATE TABLE inside (instance bigint NOT NULL);
	CREATE TABLE opened (upto int NOT NULL)`

func captives(pool *pgxpool.Pool) map[string]*fsm.Machine[number] {
	all := map[string]*fsm.Machine[number]{}
	for _, p := range places {
		all[p.name] = p.machine()
	}
	add := func(name string, step fsm.StepFunc[number]) {
		all[name] = place{name: name, step: step}.machine()
	}
	add(captiveStubborn, func(ctx context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
		if _, err := pool.Exec(context.WithoutCancel(ctx), `INSERT INTO inside VALUES ($1)`, c.ID); err != nil {
			return nil, err
		}
		select {}
	})
	add(captiveFailing, func(ctx context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
		var before bool
		err := pool.QueryRow(ctx, `WITH new AS (INSERT INTO inside VALUES ($1)) SELECT EXISTS (SELECT FROM inside WHERE instance = $1)`, c.ID).Scan(&before)
		if err != nil || !before {
			return fsm.Stop(errors.New("the first time")), err
		}
		<-ctx.Done()
		return fsm.Done("all the same"), nil
	})
	add(captivePressed, func(ctx context.Context, c *fsm.Call[number]) (fsm.Outcome, error) { return pressed(ctx, pool, c) })
	return all
}

// pressed passes at once, or holds its slot until its thousand is opened, or it is cancelled.
func pressed(ctx context.Context, pool *pgxpool.Pool, c *fsm.Call[number]) (fsm.Outcome, error) {
	if c.State.N%1000 < passing {
		return fsm.Done(1), nil
	}
	if _, err := pool.Exec(ctx, `INSERT INTO inside VALUES ($1)`, c.ID); err != nil {
		return nil, err
	}
	for {
		var upto int
		if err := pool.QueryRow(ctx, `SELECT coalesce(max(upto), 0) FROM opened`).Scan(&upto); err != nil || upto > c.State.N {
			return fsm.Done(1), err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return fsm.Done(1), nil
		}
	}
}

func configureCaptives(cfg *gendurable.Config, pool *pgxpool.Pool) {
	cfg.Machines = []fsm.Definition{never, double}
	for _, m := range captives(pool) {
		cfg.Machines = append(cfg.Machines, m)
	}
	cfg.NodeName = "captives-" + os.Getenv(envWorker) // nobody takes back what a predecessor had: it is to be reaped
	cfg.Queues, cfg.InsertQueues = map[string]gendurable.Queue{"work": {Concurrency: 12}}, []string{"families"}
	cfg.Gates = map[string]gendurable.Gate{"g": {Limit: 1}}
	cfg.Pokes, cfg.PollIdle = gendurable.PokePostgres, time.Second
}

// newCaptorOfAProcess is a captor whose work another process runs. Here the families run, and a client cancels as well. The
// child of a family is of the machine that childOf says.
func newCaptorOfAProcess(t *testing.T, childOf func(n int) string) *captor {
	t.Helper()
	c := &captor{t: t, pool: database(t)}
	if _, err := c.pool.Exec(t.Context(), captivesSchema); err != nil {
		t.Fatal(err)
	}
	work := captives(nil)
	c.family = familyOf(func(n int) *fsm.Machine[number] { return work[childOf(n)] })
	machines := []fsm.Definition{c.family, never, double}
	for _, m := range work {
		machines = append(machines, m)
	}
	c.runs = start(t, c.pool, gendurable.Config{
		Machines: machines, Gates: map[string]gendurable.Gate{"g": {Limit: 1}}, Pokes: gendurable.PokePostgres, PollIdle: time.Second,
		Queues: map[string]gendurable.Queue{"families": {}}, InsertQueues: []string{"work"},
		Lease: time.Hour, Heartbeat: time.Second, LeaseSweep: 50 * time.Millisecond,
	})
	c.breeds = c.runs
	c.everyone = []*gendurable.Client{c.runs.Client, announcing(t, c.pool, gendurable.ClientConfig{Machines: machines, Queues: []string{"work"}})}
	return c
}

// child is the id of the instance of a number.
func (c *captor) child(n int) gendurable.ID {
	c.t.Helper()
	key, _ := keysOf(n)
	in, err := c.runs.Get(c.t.Context(), gendurable.Key(key))
	if err != nil {
		c.t.Fatal(err)
	}
	return in.ID
}

// TestCancelAcrossProcesses: what is told in TestCancelWhereverItIs, of instances that another process runs, cancelled by an engine
// and a client of this one at the same time; and of one that failed and was retried.
func TestCancelAcrossProcesses(t *testing.T) {
	t.Parallel()
	c := newCaptorOfAProcess(t, func(n int) string { return places[n/2].name })
	worker(t, c.pool, 1, envCaptives+"=1")
	var families []gendurable.ID
	for n := range 2 * len(places) {
		families = append(families, insert(t, c.breeds, c.family.New(number{n})))
	}
	failing := insert(t, c.runs, captives(nil)[captiveFailing].New(number{}))
	for i, p := range places {
		p.reached(t, c.pool, 2)
		for n := 2 * i; n < 2*i+2; n++ {
			id := c.child(n)
			if err := c.breeds.Signal(t.Context(), id, "unasked", nil); err != nil {
				t.Fatal(err)
			}
			c.cancel(n, p.want)
			c.free(n, id, families[n])
		}
	}
	if s := await(t, c.runs, failing); s.Error != "the first time" {
		t.Errorf("it settled as %+v", s)
	}
	if err := c.runs.Retry(t.Context(), failing); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the retried one runs", func() bool {
		return count(t, c.pool, `SELECT count(*) FROM inside WHERE instance = $1`, int64(failing)) == 2
	})
	if got, err := c.everyone[1].Cancel(t.Context(), failing, "why"); err != nil || got != gendurable.CancelRequested {
		t.Errorf("the cancel of the retried one came to %q, %v", got, err)
	}
	if s := await(t, c.runs, failing, gendurable.UntilTerminal()); s.Error != "cancelled: why" {
		t.Errorf("the retried one settled as %+v", s)
	}
	c.ended(failing, "stop", "retried", "cancelled")
	c.rest()
}

// ended expects these outcomes in the history of an instance.
func (c *captor) ended(id gendurable.ID, want ...string) {
	c.t.Helper()
	transitions, err := c.runs.History(c.t.Context(), id, gendurable.HistoryPage{})
	var got []string
	for _, tr := range transitions {
		got = append(got, tr.Outcome)
	}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		c.t.Errorf("the history of %d is %q, %v; expected %q", id, got, err, want)
	}
}

// TestCancelOfWhatAKilledProcessHad: the process is killed between the requests and what they ask for, or before a request. What it
// had is reaped here; a second request ends an instance then, or else whoever claims it.
func TestCancelOfWhatAKilledProcessHad(t *testing.T) {
	t.Parallel()
	c := newCaptorOfAProcess(t, func(int) string { return captiveStubborn })
	w := worker(t, c.pool, 1, envCaptives+"=1")
	var families, ids []gendurable.ID
	for n := range 8 { // each case with the key of a gate, and with one that is none
		families = append(families, insert(t, c.breeds, c.family.New(number{n})))
	}
	eventually(t, "all run", func() bool { return count(t, c.pool, `SELECT count(*) FROM inside`) == len(families) })
	for n := range families {
		ids = append(ids, c.child(n))
	}
	for n := range 4 {
		c.cancel(n, gendurable.CancelRequested)
	}
	kill(t, w)
	for n := 4; n < 6; n++ {
		c.cancel(n, gendurable.CancelRequested)
	}
	if n := count(t, c.pool, `SELECT count(*) FROM gen_durable WHERE fsm = $1 AND status = 'executing'`, captiveStubborn); n != len(families) {
		t.Fatalf("%d still execute", n)
	}
	if _, err := c.pool.Exec(t.Context(), `UPDATE gen_durable SET lease_expires_at = now() - interval '1 s' WHERE fsm = $1`, captiveStubborn); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all are reaped", func() bool {
		return count(t, c.pool, `SELECT count(*) FROM gen_durable WHERE fsm = $1 AND status = 'runnable'`, captiveStubborn) == len(families)
	})
	for _, n := range []int{0, 1, 6, 7} { // requested a second time, and for the first time
		c.cancel(n, gendurable.CancelEnded)
	}
	worker(t, c.pool, 2, envCaptives+"=1") // ends the others
	for n, id := range ids {
		c.free(n, id, families[n])
		c.ended(id, "cancelled")
	}
	if n := count(t, c.pool, `SELECT count(*) FROM inside`); n != len(families) {
		t.Errorf("%d steps began, of %d instances that were cancelled in their first", n, len(families))
	}
	c.rest()
}

// TestCancelOfWhatAnotherProcessHasBuffered: rows that it has claimed ahead of a free slot.
func TestCancelOfWhatAnotherProcessHasBuffered(t *testing.T) {
	t.Parallel()
	c := newCaptorOfAProcess(t, func(int) string { return captivePressed })
	worker(t, c.pool, 1, envCaptives+"=1")
	const each = 120
	for round, buffered := 1, []int(nil); len(buffered) == 0; round++ {
		// How far a scheduler claims ahead follows from how fast it was. On a slow day it may take more than one round.
		if round > 30 {
			t.Fatal("in thirty rounds nothing was claimed ahead")
		}
		families := c.breedMore(round, each)
		eventually(t, "all slots are held up, or rows wait for one", func() bool {
			buffered = c.buffered()
			return len(buffered) > 0 || count(t, c.pool, `SELECT count(*) FROM gen_durable WHERE fsm = $1 AND status = 'executing'
				AND id IN (SELECT instance FROM inside)`, captivePressed) == 12
		})
		buffered = buffered[:min(len(buffered), 4)]
		ids := map[int]gendurable.ID{}
		for _, n := range buffered {
			ids[n] = c.child(n)
		}
		for _, n := range buffered {
			// They are given back when no slot comes free for a second, and may get one before.
			c.cancel(n, gendurable.CancelRequested, gendurable.CancelEnded)
		}
		if _, err := c.pool.Exec(t.Context(), `INSERT INTO opened VALUES ($1)`, 1000*(round+1)); err != nil {
			t.Fatal(err)
		}
		for _, n := range buffered {
			c.free(n, ids[n], families[n%1000])
			c.ended(ids[n], "cancelled")
		}
		eventually(t, "the rest is done", func() bool {
			return count(t, c.pool, `SELECT count(*) FROM gen_durable WHERE status NOT IN ('done', 'failed')`) == 0
		})
	}
	c.rest()
}

// breedMore makes the families of one more thousand, whose children may begin all at once.
func (c *captor) breedMore(round, n int) []gendurable.ID {
	c.t.Helper()
	if err := c.breeds.Pause(c.t.Context(), "work"); err != nil {
		c.t.Fatal(err)
	}
	insts := make([]fsm.Instance, n)
	for i := range insts {
		insts[i] = c.family.New(number{1000*round + i})
	}
	inserted, err := c.breeds.InsertMany(c.t.Context(), insts)
	if err != nil {
		c.t.Fatal(err)
	}
	eventually(c.t, "the families have their children", func() bool {
		return count(c.t, c.pool, `SELECT count(*) FROM gen_durable WHERE fsm = $1`, captivePressed) == round*n
	})
	if err := c.breeds.Resume(c.t.Context(), "work"); err != nil {
		c.t.Fatal(err)
	}
	ids := make([]gendurable.ID, n)
	for i := range inserted {
		ids[i] = inserted[i].ID
	}
	return ids
}

// buffered are the numbers of rows that were claimed and admitted, and of which no step has begun although all slots are taken.
func (c *captor) buffered() []int {
	c.t.Helper()
	rows, err := c.pool.Query(c.t.Context(), `SELECT (state->>'n')::int FROM gen_durable g
		WHERE fsm = $1 AND status = 'executing' AND concurrency_shard IS DISTINCT FROM -1 AND (state->>'n')::int % 1000 >= $2
		  AND NOT EXISTS (SELECT FROM inside i WHERE i.instance = g.id)
		  AND (SELECT count(*) FROM gen_durable h JOIN inside i ON i.instance = h.id WHERE h.status = 'executing') = 12`,
		captivePressed, passing)
	if err != nil {
		c.t.Fatal(err)
	}
	numbers, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		c.t.Fatal(err)
	}
	return numbers
}
