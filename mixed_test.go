package gendurable_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
)

// envMixedSeed is the seed of the mixed run: what a failed one has printed.
const envMixedSeed = "GENDURABLE_TEST_MIXED_SEED"

// TestMixedRun does everything at once on two processes with one database: jobs, inline chains, keys, gates, rates, signals,
// timeouts, children, retries, effects in the outcome's transaction, cancels, retries by an operator, and pauses; meanwhile one
// process is killed and started again, and the other one stopped and started again. Then everything must have ended, nothing
// be taken any more, and every invariant hold in the ledger that the steps wrote. Besides those inserted here about 0.8
// instances each are children.
func TestMixedRun(t *testing.T) {
	t.Parallel()
	pool := database(t)
	r := newMixedRun(t, pool)
	roots := ifChaos(30_000, 480)
	batch := roots / 16
	a, b := r.worker("a1"), r.worker("b1")
	for i := range 16 {
		r.insert(i*batch, batch)
		r.signal(2)
		r.cancel(1 + batch/25)
		r.retry(1 + batch/50)
		switch i {
		case 2, 10:
			r.pause("side")
		case 4, 12:
			r.resume("side")
		case 6:
			kill(t, a)
			a = r.worker("a2")
		case 8:
			terminate(t, b)
			b = r.worker("b2")
		}
		r.catchUp(4 * batch)
	}
	r.signal(1)
	r.catchUp(1)
	atRest(t, pool)
	terminate(t, a)
	terminate(t, b)
	r.exec(mixedViews)
	r.check(mixedAtRest)
	r.check(mixedInvariants)
	r.sizes()
}

func kill(t *testing.T, w *exec.Cmd) {
	t.Helper()
	if err := w.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = w.Wait()
}

func terminate(t *testing.T, w *exec.Cmd) {
	t.Helper()
	if err := w.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := w.Wait(); err != nil {
		t.Fatalf("a worker did not end cleanly: %v", err)
	}
}

// mixedRun is what the test does itself: the client's side.
type mixedRun struct {
	t      *testing.T
	pool   *pgxpool.Pool
	client *gendurable.Client
	random *rand.Rand
	// The machines are only there to insert instances of them; their steps are the workers'.
	job                   *fsm.Job[mix, int]
	chain, waiter, parent *fsm.Machine[mix]

	ids   []gendurable.ID       // of all that was inserted here
	later []gendurable.Delivery // signals for the next time
}

func newMixedRun(t *testing.T, pool *pgxpool.Pool) *mixedRun {
	seed := rand.Uint64()
	if s, err := strconv.ParseUint(os.Getenv(envMixedSeed), 10, 64); err == nil {
		seed = s
	} else if !chaos {
		seed = 1
	}
	t.Logf("%s=%d", envMixedSeed, seed)
	d := diary{}
	client, err := gendurable.NewClient(t.Context(), pool, gendurable.ClientConfig{
		Machines: d.machines(), Queues: []string{"side"}, Pokes: gendurable.PokePostgres,
	})
	if err != nil {
		t.Fatal(err)
	}
	r := &mixedRun{
		t: t, pool: pool, client: client, random: rand.New(rand.NewPCG(seed, 0)),
		job: d.job(), chain: d.chain(), waiter: d.waiter(), parent: d.parent(),
	}
	r.exec(mixedSchema)
	return r
}

func (r *mixedRun) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.pool.Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
}

// note writes rows into a table of the ledger.
func (r *mixedRun) note(table string, columns []string, rows [][]any) {
	r.t.Helper()
	if _, err := r.pool.CopyFrom(r.t.Context(), pgx.Identifier{table}, columns, pgx.CopyFromRows(rows)); err != nil {
		r.t.Fatalf("%s: %v", table, err)
	}
}

func (r *mixedRun) worker(process string) *exec.Cmd {
	r.t.Helper()
	return worker(r.t, r.pool, 1, envMixed+"="+process)
}

// instance is number n of the mix.
func (r *mixedRun) instance(n int) fsm.Instance {
	anywhere := fsm.Priority(r.random.IntN(5))
	switch n % 10 {
	case 0: // half of them later
		delay := r.random.IntN(2) * r.random.IntN(500)
		return r.job.New(mix{N: n, Delay: delay}, anywhere, fsm.ScheduleIn(time.Duration(delay)*time.Millisecond))
	case 1:
		return r.job.New(mix{N: n, Fails: r.random.IntN(5)}, anywhere, fsm.ConcurrencyKey(fmt.Sprint("k:", n/100)), fsm.Queue("side"))
	case 2:
		return r.job.New(mix{N: n}, anywhere, fsm.ConcurrencyKey(fmt.Sprint("g:", n/100)), fsm.RateLimit(fmt.Sprint("r:", n/160)))
	case 3:
		return r.job.New(mix{N: n}, fsm.CorrelationKey(fmt.Sprint("solo:", n/100)))
	case 4:
		return r.chain.New(mix{N: n, Fails: r.random.IntN(2) * r.random.IntN(5)}, fsm.ConcurrencyKey(fmt.Sprint("g:", n/100)))
	case 5, 6:
		return r.chain.New(mix{N: n}, anywhere, fsm.ConcurrencyKey(fmt.Sprint("k:", n/100)))
	case 7:
		return r.waiter.New(mix{N: n, Timed: true}, fsm.CorrelationKey(fmt.Sprint("waiter:", n)))
	case 8:
		key := fmt.Sprint("waiter:", n)
		send := func(name string, s int) {
			r.later = append(r.later, gendurable.Delivery{To: gendurable.Key(key), Name: name, Payload: number{s}, DedupKey: fmt.Sprint(s)})
		}
		for range 2 { // all of them twice
			send("go", 0)
			send("go", 1)
			send("stop", 2)
		}
		return r.waiter.New(mix{N: n}, fsm.CorrelationKey(key), fsm.Queue([]string{"default", "side"}[n/10%2]))
	default:
		return r.parent.New(mix{N: n})
	}
}

func (r *mixedRun) insert(from, n int) {
	r.t.Helper()
	insts := make([]fsm.Instance, n)
	for i := range insts {
		insts[i] = r.instance(from + i)
	}
	results, err := r.client.InsertMany(r.t.Context(), insts)
	if err != nil {
		r.t.Fatal(err)
	}
	var rows [][]any
	for _, res := range results {
		if !res.Duplicate {
			r.ids = append(r.ids, res.ID)
			rows = append(rows, []any{int64(res.ID)})
		}
	}
	r.note("mixed_inserted", []string{"instance"}, rows)
	r.exec(`INSERT INTO mixed_ops (op) SELECT 'refuse a duplicate' FROM generate_series(1, $1)`, n-len(rows))
}

// signal sends one of so many parts of the signals that are due, in any order; the others stay for the next time.
func (r *mixedRun) signal(parts int) {
	r.t.Helper()
	r.random.Shuffle(len(r.later), func(i, j int) { r.later[i], r.later[j] = r.later[j], r.later[i] })
	n := (len(r.later) + parts - 1) / parts
	due := r.later[:n]
	r.later = r.later[n:]
	results, err := r.client.SignalMany(r.t.Context(), due)
	if err != nil {
		r.t.Fatal(err)
	}
	var rows [][]any
	for i, res := range results {
		switch {
		case res.Err == nil:
			rows = append(rows, []any{int64(res.Target), int32(due[i].Payload.(number).N), res.Duplicate})
		case !errors.Is(res.Err, gendurable.ErrNoTarget):
			r.t.Fatal(res.Err)
		}
	}
	r.note("mixed_sent", []string{"instance", "n", "repeated"}, rows)
}

// cancel cancels n of what was inserted so far, half of them with all below.
func (r *mixedRun) cancel(n int) {
	r.t.Helper()
	for i := range n {
		var opts []gendurable.CancelOption
		if i%2 == 0 {
			opts = append(opts, gendurable.Cascade())
		}
		// Mostly of the latest, which have not ended yet.
		id := r.ids[len(r.ids)-1-r.random.IntN(min(len(r.ids), 8*n))]
		how, err := r.client.Cancel(r.t.Context(), id, "as the test wants it", opts...)
		if err != nil {
			r.t.Fatal(err)
		}
		r.exec(`INSERT INTO mixed_ops (op, instance) VALUES ('cancel: ' || $1, $2)`, string(how), int64(id))
	}
}

// retry retries up to n that have failed, but neither waiters, whose signals are gone, nor parents, which would not wait again for
// children that go on.
func (r *mixedRun) retry(n int) {
	r.t.Helper()
	rows, err := r.pool.Query(r.t.Context(), `SELECT id FROM gen_durable WHERE status = 'failed' AND fsm IN ('mixed-job', 'mixed-chain')
		ORDER BY random() LIMIT $1`, n)
	if err != nil {
		r.t.Fatal(err)
	}
	failed, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		r.t.Fatal(err)
	}
	for _, id := range failed {
		err := r.client.Retry(r.t.Context(), gendurable.ID(id))
		switch {
		case err == nil:
			r.exec(`INSERT INTO mixed_ops (op, instance) VALUES ('retry', $1)`, id)
		case !errors.Is(err, gendurable.ErrDuplicate) && !errors.Is(err, gendurable.ErrNotFailed):
			r.t.Fatal(err)
		}
	}
}

func (r *mixedRun) pause(queue string) {
	r.t.Helper()
	if err := r.client.Pause(r.t.Context(), queue); err != nil {
		r.t.Fatal(err)
	}
	r.exec(`INSERT INTO mixed_ops (op) VALUES ('pause')`)
}

func (r *mixedRun) resume(queue string) {
	r.t.Helper()
	r.exec(`INSERT INTO mixed_ops (op) VALUES ('resume')`)
	if err := r.client.Resume(r.t.Context(), queue); err != nil {
		r.t.Fatal(err)
	}
}

// sqlMixedOpen counts the instances that have not ended, by three small indexes.
const sqlMixedOpen = `SELECT (SELECT count(*) FROM gen_durable WHERE status = 'runnable')
	+ (SELECT count(*) FROM gen_durable WHERE status = 'executing')
	+ (SELECT count(*) FROM gen_durable WHERE status IN ('awaiting_signal', 'awaiting_children'))`

// catchUp waits until fewer than so many instances are left, for as long as more and more steps run.
func (r *mixedRun) catchUp(left int) {
	r.t.Helper()
	for runs, open := -1, left; open >= left; {
		before := runs
		eventually(r.t, fmt.Sprintf("more steps, or fewer than %d instances left", left), func() bool {
			<-time.After(25 * time.Millisecond) // counting often would be the most of the work
			open = count(r.t, r.pool, sqlMixedOpen)
			runs = count(r.t, r.pool, `SELECT coalesce(max(id), 0) FROM mixed_runs`)
			return open < left || runs > before
		})
	}
}
