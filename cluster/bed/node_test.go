//go:build unix

package bed

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/cluster"
	"github.com/gendurable/gendurable/fsm"
)

// envNode makes the test binary a node of a fleet; it holds a nodeConfig.
const envNode = "GENDURABLE_BED_NODE"

// nodeConfig is what a process of the fleet is told.
type nodeConfig struct {
	// URL is the engine's way to the database, which the test can cut; Ledger is the one that it does not.
	URL, Ledger string
	// Number names this start of a process in the ledger; Name is the node's, kept across restarts.
	Number             int
	Name               string
	Address, Advertise string
	Lanes              int
	TTL                time.Duration
	Role               cluster.Role
	// Deaf: no poll and no heartbeat happens within the life of a test, so only what others send brings work, and tells of
	// cancels and pauses.
	Deaf bool
	// Host, if not nil, has the process start a cluster of its own first.
	Host *hostConfig
}

func TestMain(m *testing.M) {
	if text := os.Getenv(envNode); text != "" {
		var cfg nodeConfig
		err := json.Unmarshal([]byte(text), &cfg)
		if err == nil {
			err = runNode(cfg)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "node:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const ledgerSchema = `CREATE TABLE ledger (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	instance bigint NOT NULL, step text NOT NULL, event text NOT NULL, key text NOT NULL, worker int NOT NULL)`

type job struct {
	Key string `json:"key"`
}

// chain is a machine of three steps, each of which writes to the ledger when it starts and when it has finished.
func chain(ledger *pgxpool.Pool, worker int) *fsm.Machine[job] {
	step := func(next string) fsm.StepFunc[job] {
		return func(ctx context.Context, c *fsm.Call[job]) (fsm.Outcome, error) {
			// The ledger must know of every run, whatever happens to the step's context.
			ctx = context.WithoutCancel(ctx)
			note := func(event string) error {
				_, err := ledger.Exec(ctx, `INSERT INTO ledger (instance, step, event, key, worker) VALUES ($1, $2, $3, $4, $5)`,
					c.ID, c.Step, event, c.State.Key, worker)
				return err
			}
			if err := note("started"); err != nil {
				return nil, err
			}
			<-time.After(time.Duration(5+c.ID%20) * time.Millisecond) // the work
			if err := note("finished"); err != nil {
				return nil, err
			}
			if next == "" {
				return fsm.Done(nil), nil
			}
			return fsm.Next(next), nil
		}
	}
	return fsm.New[job]("chain", fsm.Queue("q")).Step("a", step("b")).Step("b", step("c")).Step("c", step(""))
}

// slots is how many steps a lane runs at once.
const slots = 4

// narrow is a gate that all nodes share, and how many may pass it at once for each of its keys.
const (
	narrow      = "narrow"
	narrowLimit = 2
)

// runNode runs a node until SIGTERM, or until its parent is gone.
func runNode(cfg nodeConfig) error {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	orders := make(chan string)
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			select {
			case orders <- in.Text():
			case <-ctx.Done():
			}
		}
		cancel()
	}()
	ledger, err := pgxpool.New(ctx, cfg.Ledger)
	if err != nil {
		return err
	}
	defer ledger.Close()
	pool, err := pgxpool.New(ctx, cfg.URL)
	if err != nil {
		return err
	}
	defer pool.Close()
	c := gendurable.Config{
		NodeName: cfg.Name, Machines: []fsm.Definition{chain(ledger, cfg.Number), endless(ledger, cfg.Number)}, Role: cfg.Role,
		Gates:   map[string]gendurable.Gate{narrow: {Limit: narrowLimit}},
		Cluster: &cluster.Config{Address: cfg.Address, Advertise: cfg.Advertise, TTL: cfg.TTL},
		// So long that nothing in these tests can be due to a lease that ran out.
		Lease: time.Hour, Heartbeat: time.Second, DrainTimeout: time.Minute,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	if cfg.Host != nil {
		host, err := startHost(*cfg.Host, cfg.Address)
		if err != nil {
			return err
		}
		defer host.Shutdown(true)
		c.ActorSystem, c.Cluster = host.ActorSystem, &cluster.Config{Host: host, TTL: cfg.TTL}
	}
	if cfg.Deaf {
		c.PollBusy, c.PollIdle, c.Heartbeat, c.Lease = time.Hour, time.Hour, time.Hour, 3*time.Hour
		c.InlineLimit = 1 << 30
	}
	if cfg.Role == cluster.RoleWorker {
		c.Queues = map[string]gendurable.Queue{"q": {Concurrency: slots, Lanes: cfg.Lanes}}
	} else {
		c.InsertQueues = []string{"q"}
	}
	engine, err := gendurable.Start(ctx, pool, c)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for {
		select {
		case order := <-orders:
			if err := obey(ctx, engine, order); err != nil && ctx.Err() == nil {
				return fmt.Errorf("%s: %w", order, err)
			}
		case <-ctx.Done():
			return engine.Stop(context.Background())
		case <-engine.Done():
			return engine.Err()
		}
	}
}

// obey does what the test wants done at this node: "cancel <id>", "pause <queue>", or "poke <queue>".
func obey(ctx context.Context, engine *gendurable.Engine, order string) error {
	what, whom, _ := strings.Cut(order, " ")
	switch what {
	case "cancel":
		id, err := strconv.ParseInt(whom, 10, 64)
		if err == nil {
			_, err = engine.Cancel(ctx, gendurable.ID(id), "enough")
		}
		return err
	case "poke":
		engine.Poke(whom)
		return nil
	case "pause":
		return engine.Pause(ctx, whom)
	}
	return fmt.Errorf("no such order: %q", what)
}

// endless is a machine that never ends by itself: with a key one step of it runs until its context ends, without one it goes
// from step to step in one claim. It writes to the ledger when it has begun, and when the context of the step has ended.
func endless(ledger *pgxpool.Pool, worker int) *fsm.Machine[job] {
	note := func(c *fsm.Call[job], event string) error {
		_, err := ledger.Exec(context.Background(), `INSERT INTO ledger (instance, step, event, key, worker) VALUES ($1, $2, $3, $4, $5)`,
			c.ID, c.Step, event, c.State.Key, worker)
		return err
	}
	return fsm.New[job]("endless", fsm.Queue("q"), fsm.Inline()).
		Step("begin", func(ctx context.Context, c *fsm.Call[job]) (fsm.Outcome, error) {
			if err := note(c, "started"); err != nil || c.State.Key == "" {
				return fsm.Next("turn"), err
			}
			<-ctx.Done()
			return nil, errors.Join(context.Cause(ctx), note(c, "ended"))
		}).
		Step("turn", func(ctx context.Context, c *fsm.Call[job]) (fsm.Outcome, error) {
			return fsm.Next("turn"), nil
		})
}
