package gendurable

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable/cluster"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/internal/telemetry"
	"github.com/gendurable/gendurable/limiter"
	"github.com/gendurable/gendurable/pg"
)

// Engine runs the machines of one process. It is a Client, too. All methods are safe for concurrent use.
type Engine struct {
	*Client
	cfg  Config
	log  *slog.Logger
	node pg.Node
	// notices reach other processes; nil unless Pokes is PokePostgres.
	notices *pg.Notices
	// limiter counts.
	limiter limiter.Limiter
	// directory is who is in the cluster; nil without Config.Cluster.
	directory *cluster.Directory
	// private is the engine's own pool; the host's is Client.pool.
	private *pgxpool.Pool
	// telemetry is nil unless there is a provider.
	telemetry *telemetry.Telemetry
	// remote makes the process reachable from others; nil without Config.Cluster.
	remote *cluster.Remote
	// tree is set before any actor exists, as actors may end the engine.
	tree *tree

	// ending is used once, by whoever ends the engine first.
	ending sync.Once
	// patience ends when the caller of Stop waits no longer for running steps.
	patience context.Context
	cut      context.CancelCauseFunc
	// done is closed when everything has ended; err is why, and readable from then on.
	done chan struct{}
	err  error
}

// Start validates the configuration, registers this process, takes back the claims of its predecessor, and runs the
// queues. It fails with every problem of the configuration at once, with ErrNotMigrated when the schema is not
// there (see Migrate), or with what the database says. ctx bounds only the start.
//
// The engine's statements run on a private pool that is derived from the host's configuration; Insert, Signal and
// the like use the host's. Stop it with Stop.
func Start(ctx context.Context, pool *pgxpool.Pool, cfg Config) (*Engine, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(pool); err != nil {
		return nil, err
	}
	orInt(&cfg.Connections, cfg.connections())
	for _, w := range cfg.warnings() {
		cfg.Logger.Warn("gendurable: " + w)
	}
	private, err := pg.EnginePool(ctx, pool, int32(cfg.Connections))
	if err != nil {
		return nil, fmt.Errorf("gendurable: open the engine's pool: %w", err)
	}
	e, err := start(ctx, pool, private, cfg)
	if err != nil {
		private.Close()
		return nil, err
	}
	return e, nil
}

func start(ctx context.Context, pool, private *pgxpool.Pool, cfg Config) (*Engine, error) {
	var e *Engine
	store, err := pg.Open(ctx, private, pg.Options{Schema: cfg.Schema, Engine: cfg.Name, Interoperable: cfg.Interoperable,
		Historic: historic(cfg.Machines), ForeignLimiter: cfg.Limiter != nil, Freed: func(slots []limiter.Release) { e.tree.credit(slots) }})
	if err != nil {
		return nil, fmt.Errorf("gendurable: open the database: %w", err)
	}
	queues := slices.Sorted(maps.Keys(cfg.Queues))
	reg := newRegistry(cfg.Machines, append(queues, cfg.InsertQueues...)...)
	e = &Engine{
		Client: newClient(pool, store, reg, fsm.Limits{MaxPayload: cfg.MaxPayload, Interoperable: cfg.Interoperable, Codec: cfg.Codec}),
		cfg:    cfg, log: cfg.Logger, private: private, done: make(chan struct{}),
	}
	e.patience, e.cut = context.WithCancelCause(context.Background())
	if e.node, err = newNode(cfg, queues, reg); err != nil {
		return nil, err
	}
	if cfg.Pokes == PokePostgres {
		if e.notices, err = store.Notices(e.node.Incarnation, pool, cfg.ListenURL); err != nil {
			return nil, fmt.Errorf("gendurable: announcements: %w", err)
		}
	}
	if err := e.syncLimits(ctx); err != nil {
		return nil, err
	}
	if err := e.openRemote(); err != nil {
		return nil, err
	}
	e.node.Address, e.directory = e.Address(), new(cluster.Directory)
	// The name first: to register the node declares its predecessor dead, and that may be an engine which is alive in
	// this very actor system.
	e.tree = newTree(e)
	if err := e.observe(); err != nil {
		e.closeRemote()
		return nil, err
	}
	if err := e.tree.takeName(e); err != nil {
		e.unobserve()
		e.closeRemote()
		return nil, err
	}
	registered, err := store.RegisterNode(ctx, e.node, cfg.Lease, cfg.Heartbeat)
	if err != nil {
		e.abort()
		return nil, fmt.Errorf("gendurable: register node %q: %w", e.node.Name, err)
	}
	if registered.Reclaimed > 0 {
		e.tree.counters.Reclaimed.Add(int64(registered.Reclaimed))
		e.log.Info("gendurable: took back the claims of a dead predecessor",
			"node", e.node.Name, "predecessor", registered.Replaced, "rows", registered.Reclaimed)
	}
	e.Client.announce = e.tree.announce
	e.Client.operator = e.tree.operator
	e.Client.waiter = e.tree
	if err := e.tree.plant(); err != nil {
		e.abort()
		return nil, errors.Join(err, e.leave())
	}
	return e, nil
}

// newNode makes this process's identity. Without a NodeName the host's name stands in, which other processes may
// share: it is then no proof that a predecessor is dead.
func newNode(cfg Config, queues []string, reg *registry) (pg.Node, error) {
	incarnation, err := uniqueToken()
	if err != nil {
		return pg.Node{}, err
	}
	name := cfg.NodeName
	if name == "" {
		host, err := os.Hostname()
		if err != nil || host == "" {
			host = "localhost"
		}
		name = strings.ReplaceAll(host, "@", "_")
	}
	return pg.Node{
		Engine: cfg.Name, Name: name, Incarnation: incarnation, Named: cfg.NodeName != "",
		Queues: queues, Machines: reg.machines(), Steps: reg.steps(), SilentAfter: 3 * cfg.Heartbeat,
	}, nil
}

// uniqueToken names this start of this process.
func uniqueToken() (string, error) {
	var unique [8]byte
	if _, err := rand.Read(unique[:]); err != nil {
		return "", fmt.Errorf("gendurable: make an incarnation id: %w", err)
	}
	return hex.EncodeToString(unique[:]), nil
}

// worker is the claim identity of one lane of this process; a queue without numbered lanes has one of its own name.
func (e *Engine) worker(lane string) string {
	return fmt.Sprintf("%s:%s@%s-%s", e.cfg.Name, lane, e.node.Name, e.node.Incarnation)
}

// Stop ends the engine gracefully: it claims nothing more, gives buffered rows back at once, lets running steps
// finish and commit for DrainTimeout, then cancels their contexts. What still runs after that is left to its lease, or
// to the next start under this NodeName. When ctx ends first, Stop leaves running steps as they are, ends the rest,
// and returns ctx's error within a second. Further calls wait for the first, or for their own ctx.
func (e *Engine) Stop(ctx context.Context) error {
	first := false
	e.ending.Do(func() {
		first = true
		go e.shutdown(nil)
	})
	select {
	case <-e.done:
		return e.err
	case <-ctx.Done():
	}
	if first {
		e.cut(context.Cause(ctx))
		select {
		case <-e.done:
			return e.err
		case <-time.After(time.Second): // the database does not answer
		}
	}
	return fmt.Errorf("gendurable: stop: %w", context.Cause(ctx))
}

// Done is closed when the engine has ended: stopped, or given up. See Err.
func (e *Engine) Done() <-chan struct{} { return e.done }

// Err says why the engine ended by itself: ErrReplaced, or the failure of an actor that could not be
// restarted. It is nil while the engine runs and after a clean Stop.
func (e *Engine) Err() error {
	select {
	case <-e.done:
		return e.err
	default:
		return nil
	}
}

// fail ends the engine loudly, unless it is ending already. It does not wait for the end.
func (e *Engine) fail(why error) {
	e.ending.Do(func() {
		e.log.Error("gendurable: the engine stops", "error", why)
		go e.shutdown(why)
	})
}

// removeTimeout bounds what is done after the drain: deleting the node row, ending the actors.
const removeTimeout = 5 * time.Second

// shutdown ends everything and closes done. why is nil for a requested stop.
func (e *Engine) shutdown(why error) {
	defer close(e.done)
	e.err = why
	e.resign()
	if why == nil {
		begun := time.Now()
		e.err = e.tree.drain(e.patience, e.cfg.DrainTimeout)
		e.telemetry.Drained(time.Since(begun), e.err)
	} else {
		// Steps are interrupted, and what is still claimed goes back now rather than when its lease ends. That is not
		// nothing when another process has taken the name: rows were claimed until this one learnt of it.
		ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
		_ = e.tree.drain(ctx, 0)
		cancel()
	}
	e.leaveCluster()
	e.tree.fell()
	e.closeRemote()
	e.hangUp()
	if e.err == nil {
		if err := e.leave(); err != nil {
			// The row only tells that the node lives; it ages away.
			e.log.Warn("gendurable: the node's row could not be removed", "node", e.node.Name, "error", err)
		}
	}
	e.unobserve()
	closePool(e.private)
	e.cut(nil)
}

// abort ends what a failed start has begun.
func (e *Engine) abort() {
	e.ending.Do(func() {}) // the end of the actors is no failure of theirs
	e.tree.fell()
	e.closeRemote()
	e.hangUp()
	e.unobserve()
	e.cut(nil)
}

// hangUp ends the announcements: other processes learn that there may be work which this one gave back, and the listener's
// connection is closed.
func (e *Engine) hangUp() {
	if e.notices == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
	defer cancel()
	e.notices.Wait(ctx)
	_ = e.notices.Send(ctx, e.node.Queues) // a hint; their polls find it anyway
}

// leave deletes the node's row, unless rows are still claimed under this incarnation (steps that were left running): the
// next start under the name finds by it whose claims it may take back at once.
func (e *Engine) leave() error {
	ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
	defer cancel()
	return e.store.RemoveNode(ctx, e.node)
}

// closePool closes a pool without waiting for ever for a connection that hangs in the network.
func closePool(pool *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		pool.Close()
	}()
	select {
	case <-closed:
	case <-time.After(removeTimeout):
	}
}
