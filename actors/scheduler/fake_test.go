package scheduler

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/goleak"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/pg"
)

func TestMain(m *testing.M) {
	// The tests' own server ends with the process.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/gendurable/gendurable/internal/devpg.supervise"))
}

const identity = "test:q@n-0123456789abcdef"

// table is the Store of these tests: rows in memory, with the rules of the real one as far as a queue sees them.
type table struct {
	mu     sync.Mutex
	nextID int64
	rows   map[int64]*entry
	order  []int64 // runnable candidates, oldest first

	claims   []pg.ClaimRequest
	sizes    []int
	released int
	down     error // what every call answers
	// loseAnswer makes the next claim fail after it has claimed.
	loseAnswer bool
	// answers, when set before the queue starts, holds back each claim with rows until it gives a value.
	answers chan struct{}
}

type entry struct {
	pg.Claimed
	status  pg.Status
	owner   string
	lease   time.Time
	outcome *pg.Outcome // the last one committed
	commits int
	// continued are the outcomes that kept the row.
	continued []pg.Outcome
}

func newTable() *table { return &table{rows: map[int64]*entry{}} }

func (t *table) insert(rows ...pg.Claimed) []int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	var ids []int64
	for _, r := range rows {
		t.nextID++
		r.ID, r.Queue = t.nextID, "q"
		if r.State == nil {
			r.State = []byte(`{}`)
		}
		t.rows[r.ID] = &entry{Claimed: r, status: pg.Runnable}
		t.order = append(t.order, r.ID)
		ids = append(ids, r.ID)
	}
	return ids
}

// reap gives back what nobody has beaten, as another node's reaper would.
func (t *table) reap(now time.Time) {
	for id, e := range t.rows {
		if e.status == pg.Executing && e.lease.Before(now) {
			e.Attempt++
			t.giveBack(id, e)
		}
	}
}

func (t *table) giveBack(id int64, e *entry) {
	e.status, e.owner = pg.Runnable, ""
	t.order = append(t.order, id)
}

func (t *table) Claim(_ context.Context, r pg.ClaimRequest) ([]pg.Claimed, error) {
	rows, err := t.claim(r)
	if len(rows) > 0 && t.answers != nil {
		<-t.answers
	}
	return rows, err
}

func (t *table) claim(r pg.ClaimRequest) ([]pg.Claimed, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.down != nil {
		return nil, t.down
	}
	now := time.Now()
	t.reap(now)
	var out []pg.Claimed
	var rest []int64
	for _, id := range t.order {
		e := t.rows[id]
		skip := slices.Contains(r.Skip, pg.StepRef{Machine: e.Machine, Version: e.Version, Step: e.Step})
		if len(out) == r.Limit || skip || e.EligibleAt.After(now) {
			rest = append(rest, id)
			continue
		}
		e.status, e.owner, e.lease = pg.Executing, r.Worker, now.Add(r.Lease)
		e.Claim++
		out = append(out, e.Claimed)
	}
	t.order = rest
	t.claims = append(t.claims, r)
	t.sizes = append(t.sizes, len(out))
	if t.loseAnswer && len(out) > 0 {
		t.loseAnswer = false
		return nil, errors.New("connection reset by peer")
	}
	return out, nil
}

func (t *table) Heartbeat(_ context.Context, w string, lease time.Duration, ids []int64) ([]pg.Beat, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.down != nil {
		return nil, t.down
	}
	var beats []pg.Beat
	for _, id := range ids {
		b := pg.Beat{ID: id, State: pg.Lost}
		if e := t.rows[id]; e.status == pg.Executing && e.owner == w {
			b.State, b.CancelReason = pg.Extended, e.CancelReason
			e.lease = time.Now().Add(lease)
		}
		beats = append(beats, b)
	}
	return beats, nil
}

func (t *table) ExtendOne(ctx context.Context, w string, lease time.Duration, id int64) (pg.Beat, error) {
	b, err := t.Heartbeat(ctx, w, lease, []int64{id})
	if err != nil {
		return pg.Beat{}, err
	}
	return b[0], nil
}

func (t *table) Release(_ context.Context, w string, claims []pg.ClaimRef) (ending int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.down != nil {
		return 0, t.down
	}
	for _, c := range claims {
		if e := t.rows[c.ID]; e.status == pg.Executing && e.owner == w && e.Claim == c.Claim {
			t.giveBack(c.ID, e)
			t.released++
			if e.CancelReason != nil {
				ending++
			}
		}
	}
	return ending, nil
}

func (t *table) ReleaseUnheld(ctx context.Context, w string, held []int64) (int, error) {
	t.mu.Lock()
	var unheld []pg.ClaimRef
	for id, e := range t.rows {
		if e.status == pg.Executing && e.owner == w && !slices.Contains(held, id) {
			unheld = append(unheld, pg.ClaimRef{ID: id, Claim: e.Claim})
		}
	}
	t.mu.Unlock()
	_, err := t.Release(ctx, w, unheld)
	return len(unheld), err
}

func (t *table) InboxPage(context.Context, int64, []int64, int) ([]pg.Signal, error) {
	return []pg.Signal{{ID: 77, Name: "late", Payload: []byte(`1`)}}, nil
}

func (t *table) ChildrenPage(context.Context, int64, int64, int) ([]pg.Child, error) { return nil, nil }

// flush commits one outcome under the guard.
func (t *table) flush(o pg.Outcome) pg.Verdict {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.rows[o.ID]
	if e.status != pg.Executing || e.owner != o.Worker || e.Claim != o.Claim {
		return pg.Verdict{ID: o.ID, Fate: pg.Stale}
	}
	e.commits++
	if o.Kind == pg.KindContinue && e.CancelReason == nil {
		e.Step, e.State, e.Attempt, e.continued = o.Step, o.State, 0, append(e.continued, o)
		return pg.Verdict{ID: o.ID, Status: pg.Executing, HasInbox: len(e.Inbox) > 0}
	}
	e.outcome, e.owner = &o, ""
	fate := pg.Committed
	switch o.Kind {
	case pg.KindDone:
		e.status = pg.Done
	case pg.KindFailed:
		e.status = pg.Failed
	case pg.KindAwait:
		e.status = pg.AwaitingSignal
	default:
		e.Step, e.State, e.EligibleAt = o.Step, o.State, time.Now().Add(o.Delay)
		if o.Kind == pg.KindRetry && !o.Uncounted {
			e.Attempt++
		}
		t.giveBack(o.ID, e)
	}
	if e.CancelReason != nil {
		e.status, fate = pg.Failed, pg.Cancelled
	}
	return pg.Verdict{ID: o.ID, Fate: fate, Status: e.status}
}

// next is what the next step of a continued row sees.
func (t *table) next(v pg.Verdict) *pg.Claimed {
	if !v.HasInbox {
		return nil
	}
	return &pg.Claimed{ID: v.ID, Inbox: t.look(v.ID).Inbox}
}

func (t *table) look(id int64) entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	return *t.rows[id]
}

func (t *table) count(s pg.Status) (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.rows {
		if e.status == s {
			n++
		}
	}
	return n
}

func (t *table) with(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f()
}

// house is a queue under test with what surrounds it.
type house struct {
	t      *testing.T
	system *actor.ActorSystem
	table  *table
	queue  *actor.PID
	// flusher is a fake over the table.
	flusher *actor.PID
	counts  *actors.QueueCounters
	// refuse, when set, decides about each commit before the table sees it; nil = let it through.
	refuse func(pg.Outcome) error
	// held, when set, is given each commit to make it when it likes, on any goroutine.
	held func(commit func())
	// written, when set, is called between each commit and its answer.
	written func(pg.Outcome)
}

func open(t *testing.T, change func(*Config), defs ...fsm.Definition) *house {
	t.Helper()
	return openWith(t, func(_ *house, c *Config) {
		if change != nil {
			change(c)
		}
	}, defs...)
}

// openWith is open for changes that need the actor system.
func openWith(t *testing.T, change func(*house, *Config), defs ...fsm.Definition) *house {
	t.Helper()
	logger := slog.New(slog.NewTextHandler(io.Discard, nil))
	h := &house{t: t, system: actors.NewSystem(logger), table: newTable(), counts: new(actors.QueueCounters)}
	specs := map[string]*fsm.Spec{}
	for _, d := range defs {
		if s := d.Spec(); len(s.Problems) > 0 {
			t.Fatal(s.Problems)
		}
		specs[d.Spec().Name] = d.Spec()
	}
	flusher := h.system.Root.Spawn(actor.PropsFromFunc(func(ctx actor.Context) {
		if m, ok := ctx.Message().(actors.Commit); ok {
			if h.held != nil {
				h.held(func() { h.commit(m) })
			} else {
				h.commit(m)
			}
		}
	}))
	h.flusher = flusher
	cfg := Config{
		Queue: "q", Worker: identity, Store: h.table, Logger: logger, QueueCounters: h.counts, Concurrency: 10,
		Specs: func(machine string, version int) *fsm.Spec {
			if s := specs[machine]; s != nil && s.Version == version {
				return s
			}
			return nil
		},
		Flushers: []*actor.PID{flusher}, DrainGrace: time.Minute,
	}
	change(h, &cfg)
	h.queue = h.system.Root.Spawn(Props(cfg))
	t.Cleanup(func() {
		h.stop(h.queue)
		h.stop(flusher)
	})
	return h
}

func (h *house) commit(m actors.Commit) {
	if h.refuse != nil {
		if err := h.refuse(m.Outcome); err != nil {
			m.Reply <- actors.Committed{Err: err}
			return
		}
	}
	v := h.table.flush(m.Outcome)
	if h.written != nil {
		h.written(m.Outcome)
	}
	m.Reply <- actors.Committed{Verdict: v, Next: h.table.next(v)}
}

// stop stops an actor and waits for its end.
func (h *house) stop(pid *actor.PID) {
	ended := make(chan struct{})
	watcher := h.system.Root.Spawn(actor.PropsFromFunc(func(ctx actor.Context) {
		switch ctx.Message().(type) {
		case *actor.Started:
			ctx.Watch(pid)
			ctx.Stop(pid)
		case *actor.Terminated:
			close(ended)
		}
	}))
	select {
	case <-ended:
	case <-time.After(time.Minute):
		h.t.Errorf("%s does not end", pid.GetId())
	}
	_ = h.system.Root.StopFuture(watcher).Wait()
}

func (h *house) child(name string) *actor.PID {
	return h.system.NewLocalPID(h.queue.GetId() + "/" + name)
}

func (h *house) send(message any) { h.system.Root.Send(h.queue, message) }

func (h *house) add(machine string, n int) []int64 {
	rows := make([]pg.Claimed, n)
	for i := range rows {
		rows[i] = pg.Claimed{Machine: machine, Version: 1, Step: fsm.JobStep}
	}
	ids := h.table.insert(rows...)
	h.send(actors.Poke{Queue: "q"})
	return ids
}

func (h *house) until(what string, cond func() bool) {
	h.t.Helper()
	eventually(h.t, what, cond)
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func receive[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(time.Minute):
		t.Fatalf("waited in vain: %s", what)
		panic("unreachable")
	}
}
