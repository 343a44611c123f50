package gendurable_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
)

// The worker process of these tests is the test binary itself, told by its environment what to do.
const (
	envWorker = "GENDURABLE_TEST_WORKER" // the number of the worker
	envURL    = "GENDURABLE_TEST_URL"
	envListen = "GENDURABLE_TEST_LISTEN_URL"
	envLease  = "GENDURABLE_TEST_LEASE" // of the worker's claims; default an hour
	envDeaf   = "GENDURABLE_TEST_DEAF"  // set: no poll within the life of a test, announcements only
)

const ledgerSchema = `CREATE TABLE ledger (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	instance bigint NOT NULL, step text NOT NULL, event text NOT NULL, worker text NOT NULL)`

// chains are the machines of these tests, by how their steps follow each other: claimed anew, or in one task.
var chains = map[string][]fsm.Option{"requeued": nil, "inline": {fsm.Inline()}}

// chain is a machine of three steps, each of which writes to a ledger when it starts and when it has finished.
func chain(pool *pgxpool.Pool, worker, name string) *fsm.Machine[number] {
	step := func(next string) fsm.StepFunc[number] {
		return func(ctx context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			// The ledger must know of every run, whatever happens to the step's context.
			ctx = context.WithoutCancel(ctx)
			note := func(event string) error {
				_, err := pool.Exec(ctx, `INSERT INTO ledger (instance, step, event, worker) VALUES ($1, $2, $3, $4)`, c.ID, c.Step, event, worker)
				return err
			}
			if err := note("started"); err != nil {
				return nil, err
			}
			<-time.After(time.Duration(c.ID%20) * time.Millisecond) // the work
			if err := note("finished"); err != nil {
				return nil, err
			}
			if next == "" {
				return fsm.Done(nil), nil
			}
			return fsm.Next(next), nil
		}
	}
	return fsm.New[number](name, chains[name]...).Step("a", step("b")).Step("b", step("c")).Step("c", step(""))
}

// runWorker is the worker process: it runs chains until SIGTERM, or until its parent is gone.
func runWorker() int {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if err := work(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		return 1
	}
	return 0
}

func work(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Getenv(envURL))
	if err != nil {
		return err
	}
	defer pool.Close()
	machines := []fsm.Definition{exact, double}
	for name := range chains {
		machines = append(machines, chain(pool, os.Getenv(envWorker), name))
	}
	cfg := gendurable.Config{
		NodeName: "the-node",
		Machines: machines,
		Queues:   map[string]gendurable.Queue{"default": {Concurrency: 20}},
		// So long that nothing in these tests can be due to a lease that ran out.
		Lease: time.Hour, Heartbeat: time.Second,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	if lease, err := time.ParseDuration(os.Getenv(envLease)); err == nil {
		cfg.Lease = lease
	}
	if os.Getenv(envDeaf) != "" {
		cfg.Pokes, cfg.PollBusy, cfg.PollIdle = gendurable.PokePostgres, time.Hour, time.Hour
		cfg.ListenURL = os.Getenv(envListen)
	}
	if process := os.Getenv(envMixed); process != "" {
		configureMixed(&cfg, diary{pool, process})
		cfg.ListenURL = os.Getenv(envListen)
	}
	if os.Getenv(envCaptives) != "" {
		configureCaptives(&cfg, pool)
		cfg.ListenURL = os.Getenv(envListen)
	}
	engine, err := gendurable.Start(ctx, pool, withTestPokes(cfg))
	if err != nil {
		return err
	}
	fmt.Println("ready")
	<-ctx.Done()
	return engine.Stop(context.Background())
}

// worker starts a worker process and waits until its engine runs. The process ends with the test at the latest.
func worker(t *testing.T, pool *pgxpool.Pool, number int, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", envWorker, number), envURL+"="+pool.Config().ConnString(), envListen+"="+direct(pool))
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr = t.Output()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the worker says %q, %v", line, err)
	}
	return cmd
}

func insertChains(t *testing.T, pool *pgxpool.Pool, name string, n int) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), ledgerSchema); err != nil {
		t.Fatal(err)
	}
	client, err := gendurable.NewClient(t.Context(), pool, gendurable.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	m := chain(pool, "", name)
	insts := make([]fsm.Instance, n)
	for i := range insts {
		insts[i] = m.New(number{i})
	}
	if _, err := client.InsertMany(t.Context(), insts); err != nil {
		t.Fatal(err)
	}
}

const sqlFinished = `SELECT count(*) FROM ledger WHERE event = 'finished'`

// checkLedger: each step of each instance ran to its end, none began before its predecessor was through for
// good, and there are at most allowed runs beyond one a step.
func checkLedger(t *testing.T, pool *pgxpool.Pool, instances, allowed int) {
	t.Helper()
	if n := count(t, pool, `SELECT count(DISTINCT (instance, step)) FROM ledger WHERE event = 'finished'`); n != 3*instances {
		t.Errorf("%d steps finished, want %d", n, 3*instances)
	}
	if n := count(t, pool, `SELECT count(*) FROM (SELECT step < max(step) OVER (PARTITION BY instance ORDER BY id) AS back FROM ledger) l WHERE back`); n != 0 {
		t.Errorf("%d times a committed step ran again", n)
	}
	if n := count(t, pool, `SELECT count(*) FROM ledger WHERE event = 'started'`); n < 3*instances || n > 3*instances+allowed {
		t.Errorf("%d runs of %d steps; %d more are explained by the fault", n, 3*instances, allowed)
	}
	if n := count(t, pool, `SELECT count(*) FROM (SELECT FROM ledger WHERE event = 'started' GROUP BY instance, step, worker HAVING count(*) > 1) l`); n != 0 {
		t.Errorf("%d steps ran twice in one process", n)
	}
}

func TestKill9AndRestartGoesOn(t *testing.T) {
	t.Parallel()
	for name := range chains {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			killAndRestart(t, name)
		})
	}
}

func killAndRestart(t *testing.T, name string) {
	pool := database(t)
	const instances = 400
	insertChains(t, pool, name, instances)
	kills := []int{300, 700}
	for i, after := range kills {
		w := worker(t, pool, i)
		eventually(t, "some steps", func() bool { return count(t, pool, sqlFinished) >= after })
		if err := w.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = w.Wait()
	}
	worker(t, pool, len(kills))
	eventually(t, "all done", func() bool {
		return count(t, pool, `SELECT count(*) FROM gen_durable WHERE status = 'done'`) == instances
	})
	checkLedger(t, pool, instances, 5*20*len(kills)) // a slot's step, and four that wait for their commit
}

func TestSIGTERMLosesAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	for name := range chains {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			terminateAndRestart(t, name)
		})
	}
}

func terminateAndRestart(t *testing.T, name string) {
	pool := database(t)
	const instances = 300
	insertChains(t, pool, name, instances)
	for i := range 2 {
		w := worker(t, pool, i)
		eventually(t, "some steps", func() bool { return count(t, pool, sqlFinished) >= 200*(i+1) })
		if err := w.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := w.Wait(); err != nil {
			t.Fatalf("the worker did not end cleanly: %v", err)
		}
		if n := count(t, pool, `SELECT count(*) FROM gen_durable WHERE status = 'executing'`); n != 0 {
			t.Errorf("%d rows are still claimed", n)
		}
	}
	worker(t, pool, 2)
	eventually(t, "all done", func() bool {
		return count(t, pool, `SELECT count(*) FROM gen_durable WHERE status = 'done'`) == instances
	})
	checkLedger(t, pool, instances, 0)
}
