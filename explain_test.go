package gendurable_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/gendurabletest"
	"github.com/gendurable/gendurable/limiter"
	"github.com/gendurable/gendurable/pg"
)

// The worker of the tests of Explain, its node, and that node's incarnation.
const (
	explainedWorker = "gendurable:default@alice-00000000000000aa"
	explainedNode   = "alice"
	incarnation     = "00000000000000aa"
)

// explained is a database with a client and one live node, which runs the queue "default" and knows the step "a" of the
// machine "m" in version 1.
type explained struct {
	t      *testing.T
	pool   *pgxpool.Pool
	store  *pg.Store
	client *gendurable.Client
}

func newExplained(t *testing.T) *explained {
	t.Helper()
	pool := database(t)
	store, err := pg.Open(t.Context(), pool, pg.Options{})
	if err != nil {
		t.Fatal(err)
	}
	client, err := gendurable.NewClient(t.Context(), pool, gendurable.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	x := &explained{t, pool, store, client}
	x.node(pg.Node{})
	return x
}

// node writes the row of the live node; what is given differs from the usual.
func (x *explained) node(n pg.Node) {
	x.t.Helper()
	n.Engine, n.Name, n.Incarnation, n.Named = "gendurable", explainedNode, incarnation, true
	if n.Queues == nil {
		n.Queues = []string{"default"}
	}
	if n.Machines == nil {
		n.Machines = []string{"m/1"}
	}
	if n.Steps == nil {
		n.Steps = []string{"m/1/a"}
	}
	if _, err := x.store.BeatNode(x.t.Context(), n); err != nil {
		x.t.Fatal(err)
	}
}

// put inserts an instance of the machine "m".
func (x *explained) put(change ...func(*pg.Insertion)) gendurable.ID {
	x.t.Helper()
	in := pg.Insertion{Machine: "m", Version: 1, Step: "a", State: []byte(`{}`), Queue: "default"}
	for _, f := range change {
		f(&in)
	}
	rows, err := x.store.Insert(x.t.Context(), x.pool, []pg.Insertion{in})
	if err != nil {
		x.t.Fatal(err)
	}
	return gendurable.ID(rows[0].ID)
}

func (x *explained) exec(sql string, args ...any) {
	x.t.Helper()
	if _, err := x.pool.Exec(x.t.Context(), sql, args...); err != nil {
		x.t.Fatal(err)
	}
}

// claim claims the most urgent row as the worker of the live node.
func (x *explained) claim() {
	x.t.Helper()
	rows, err := x.store.Claim(x.t.Context(), pg.ClaimRequest{Queue: "default", Worker: explainedWorker, Lease: time.Hour, Limit: 1})
	if err != nil || len(rows) != 1 {
		x.t.Fatalf("claimed %d rows, %v", len(rows), err)
	}
}

// want explains an instance, and expects exactly these reasons, and texts that a person reads. It returns the first cause.
func (x *explained) want(ref gendurable.Ref, reasons []gendurable.Reason, says ...string) gendurable.Cause {
	x.t.Helper()
	return wantExplained(x.t, x.client, ref, reasons, says...)
}

func wantExplained(t *testing.T, c *gendurable.Client, ref gendurable.Ref, reasons []gendurable.Reason, says ...string) gendurable.Cause {
	t.Helper()
	e, err := c.Explain(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	var got []gendurable.Reason
	for _, c := range e.Causes {
		got = append(got, c.Reason)
	}
	if !slices.Equal(got, reasons) {
		t.Fatalf("the reasons are %q, want %q:\n%v", got, reasons, e)
	}
	if e.Reason() != reasons[0] {
		t.Errorf("the first reason is %q", e.Reason())
	}
	for _, text := range says {
		if !strings.Contains(e.String(), text) {
			t.Errorf("%q is not in:\n%v", text, e)
		}
	}
	return e.Causes[0]
}

func only(r gendurable.Reason) []gendurable.Reason { return []gendurable.Reason{r} }

func TestExplainReady(t *testing.T) {
	t.Parallel()
	x := newExplained(t)
	x.put()
	x.put(func(in *pg.Insertion) { in.Priority = -1 })
	x.put(func(in *pg.Insertion) { in.Priority, in.Delay = -1, time.Hour })
	last := x.put(func(in *pg.Insertion) { in.Priority = 1 })
	c := x.want(last, only(gendurable.Ready), "is runnable", "nothing keeps it", "after 2 others", `on "alice"`)
	if c.Ahead != 2 || !slices.Equal(c.Nodes, []string{explainedNode}) || c.Since.IsZero() {
		t.Errorf("%+v", c)
	}
	if _, err := x.client.Explain(t.Context(), gendurable.ID(1<<40)); !errors.Is(err, gendurable.ErrNotFound) {
		t.Errorf("of nothing it says %v", err)
	}
	if _, err := x.client.Explain(t.Context(), gendurable.Key("nobody")); !errors.Is(err, gendurable.ErrNotFound) {
		t.Errorf("of nobody it says %v", err)
	}
}

func TestExplainNotEligible(t *testing.T) {
	t.Parallel()
	x := newExplained(t)
	id := x.put(func(in *pg.Insertion) {
		in.Delay, in.CorrelationKey = time.Hour, "k"
		in.CorrelationScope = []string{"runnable", "executing", "awaiting_signal", "awaiting_children"}
	})
	in, err := x.client.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	for _, ref := range []gendurable.Ref{id, gendurable.Key("k")} {
		if c := x.want(ref, only(gendurable.NotEligible), "not eligible before", "Z (in "); !c.Until.Equal(in.EligibleAt) {
			t.Errorf("until %v, want %v", c.Until, in.EligibleAt)
		}
	}
}

func TestExplainQueuePaused(t *testing.T) {
	t.Parallel()
	x := newExplained(t)
	id := x.put()
	since, err := x.store.PauseQueue(t.Context(), x.pool, "default")
	if err != nil {
		t.Fatal(err)
	}
	if c := x.want(id, only(gendurable.QueuePaused), "was paused", "Resume"); !c.Since.Equal(since) {
		t.Errorf("since %v, want %v", c.Since, since)
	}
	delayed := x.put(func(in *pg.Insertion) { in.Delay = time.Hour })
	x.want(delayed, []gendurable.Reason{gendurable.NotEligible, gendurable.QueuePaused})
}

func TestExplainNodes(t *testing.T) {
	t.Parallel()
	x := newExplained(t)
	id := x.put()
	elsewhere := x.put(func(in *pg.Insertion) { in.Queue = "other" })
	x.want(elsewhere, only(gendurable.NoNode), "no live process runs its queue", `queue "other"`)
	x.node(pg.Node{Machines: []string{"m/2", "n/1"}})
	if c := x.want(id, only(gendurable.UnknownMachine), "none knows its machine", `"alice"`); !slices.Equal(c.Nodes, []string{explainedNode}) {
		t.Errorf("%+v", c)
	}
	x.node(pg.Node{Steps: []string{"m/1/b"}})
	x.want(id, only(gendurable.UnknownMachine), "or its step")
	x.node(pg.Node{Unfit: []string{"m/1/a"}})
	x.want(id, only(gendurable.Undecodable), "did not fit", `"alice"`)
	x.node(pg.Node{SilentAfter: 24 * time.Hour})
	x.exec(`UPDATE gen_durable_nodes SET beat = now() - interval '1 hour'`)
	x.want(id, only(gendurable.Ready))
	x.node(pg.Node{SilentAfter: time.Minute})
	x.exec(`UPDATE gen_durable_nodes SET beat = now() - interval '1 hour'`)
	x.want(id, only(gendurable.NoNode))
}

func TestExplainKeyHeld(t *testing.T) {
	t.Parallel()
	x := newExplained(t)
	key := func(in *pg.Insertion) { in.ConcurrencyKey = "tenant:7" }
	holder := x.put(key)
	x.claim()
	c := x.want(x.put(key), only(gendurable.KeyHeld), `"tenant:7" is held`, `node "alice" (last heard of`)
	if c.Holder != holder || c.Node != explainedNode || c.Worker != explainedWorker || c.Key != "tenant:7" || c.Since.IsZero() || c.LastBeat.IsZero() {
		t.Errorf("%+v", c)
	}
	x.want(x.put(func(in *pg.Insertion) { in.ConcurrencyKey = "tenant:8" }), only(gendurable.Ready))
	x.exec(`DELETE FROM gen_durable_nodes`)
	id := x.put(key)
	x.want(id, []gendurable.Reason{gendurable.NoNode, gendurable.KeyHeld}, "has no row any more")
	x.exec(`UPDATE gen_durable SET cancel_requested = 'enough' WHERE id = $1`, id)
	x.want(id, only(gendurable.NoNode)) // it would be ended without its key
}

func TestExplainCorrelationHeld(t *testing.T) {
	t.Parallel()
	x := newExplained(t)
	occupant := x.put(func(in *pg.Insertion) {
		in.CorrelationKey, in.CorrelationScope = "k", []string{"runnable", "executing", "awaiting_signal", "awaiting_children"}
	})
	id := x.put()
	x.exec(`UPDATE gen_durable SET correlation_key = 'k', correlation_scope = '{executing}' WHERE id = $1`, id)
	if c := x.want(id, only(gendurable.CorrelationHeld), "is occupied by instance"); c.Holder != occupant {
		t.Errorf("%+v", c)
	}
}

func TestExplainLimits(t *testing.T) {
	t.Parallel()
	x := newExplained(t)
	limits := x.store.NewLimiter()
	_, err := limits.SyncConfig(t.Context(), limiter.Config{
		Gates: []limiter.Gate{{Name: "openai", Limit: 1}},
		Rates: []limiter.Rate{{Name: "mail", Allowed: 10, Per: time.Hour, Burst: 1}},
	})
	if err != nil {
		t.Fatal(err)
	}
	gated := func(in *pg.Insertion) { in.ConcurrencyKey = "openai:gpt" }
	rated := func(in *pg.Insertion) { in.RateLimit = "mail:de" }
	first, cold := x.put(gated), x.put(rated)
	x.want(first, only(gendurable.Ready))
	x.want(cold, only(gendurable.Ready))
	x.exec(`UPDATE gen_durable SET status = 'executing', claims = 1, concurrency_shard = $1, locked_by = $2,
	               lease_expires_at = now() + interval '1 hour' WHERE id = $3`, pg.ProvisionalShard, explainedWorker, first)
	decisions, err := limits.Admit(t.Context(), explainedWorker, []limiter.Request{
		{ID: int64(first), Claim: 1, Gate: "openai:gpt"}, {ID: int64(cold), Claim: 1, Rate: "mail:de", Weight: 1},
	})
	if err != nil || decisions[0].Verdict != limiter.Admitted || decisions[1].Verdict != limiter.Admitted {
		t.Fatalf("%+v, %v", decisions, err)
	}
	if c := x.want(x.put(gated), only(gendurable.GateFull), "all 1 slots", `"openai:gpt"`); c.Limit != 1 || c.Key != "openai:gpt" {
		t.Errorf("%+v", c)
	}
	x.want(x.put(func(in *pg.Insertion) { in.ConcurrencyKey = "openai:other" }), only(gendurable.Ready))
	c := x.want(x.put(rated), only(gendurable.BucketEmpty), `"mail:de" has too few tokens`)
	if wait := time.Until(c.Until); wait < time.Second || wait > 7*time.Minute { // a token comes every six minutes
		t.Errorf("the token comes in %v", wait)
	}
	both := x.put(gated, rated)
	x.want(both, []gendurable.Reason{gendurable.GateFull, gendurable.BucketEmpty})
	fax := x.put(func(in *pg.Insertion) { in.RateLimit = "fax" })
	x.want(fax, only(gendurable.UnknownLimit), `"fax", which is not configured`)
	for _, id := range []gendurable.ID{both, fax} { // neither waits for a limit to be ended
		x.exec(`UPDATE gen_durable SET cancel_requested = 'enough' WHERE id = $1`, id)
		x.want(id, only(gendurable.Ready))
	}
}

func TestExplainParked(t *testing.T) {
	t.Parallel()
	pool := database(t)
	child := fsm.NewJob("child", func(context.Context, *fsm.JobCall[number]) (int, error) { return 0, nil })
	m := fsm.New[number]("m").
		Step("a", func(_ context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			if c.State.N == 0 {
				return fsm.ScheduleChildren(child.New(number{1}), child.New(number{2}, fsm.ScheduleIn(time.Hour))).Then("a"), nil
			}
			return fsm.Await("payment", "cancel").Then("a").Timeout(time.Duration(c.State.N) * time.Hour), nil
		})
	r := gendurabletest.New(t, gendurabletest.Tx(t, pool), gendurabletest.Config{Machines: []fsm.Definition{m, child}, KeepDelays: true})
	parent, waiting, patient := r.MustInsert(m.New(number{0})), r.MustInsert(m.New(number{1})), r.MustInsert(m.New(number{1}))
	r.MustSignal(waiting, "paymnet", nil)
	r.Run()
	c := wantExplained(t, r.Client, waiting, only(gendurable.AwaitingSignals), `a signal "payment" or "cancel"`, `other signals: "paymnet"`, "the timeout is")
	if !slices.Equal(c.Names, []string{"payment", "cancel"}) || !slices.Equal(c.Other, []string{"paymnet"}) || c.Until.Before(c.Since.Add(time.Hour)) {
		t.Errorf("%+v", c)
	}
	if c := wantExplained(t, r.Client, patient, only(gendurable.AwaitingSignals)); len(c.Other) > 0 {
		t.Errorf("%+v", c)
	}
	c = wantExplained(t, r.Client, parent, only(gendurable.AwaitingChildren), "waits for 1 children", "among them")
	if children := r.Children(parent); c.Pending != 1 || len(c.Children) != 1 || c.Children[0] != children[1].ID {
		t.Errorf("%+v", c)
	}
	wantExplained(t, r.Client, r.Children(parent)[0].ID, only(gendurable.Ended), "is done", "it ended")
}

func TestExplainFailed(t *testing.T) {
	t.Parallel()
	x := newExplained(t)
	id := x.put()
	if _, err := x.client.Cancel(t.Context(), id, "enough"); err != nil {
		t.Fatal(err)
	}
	if c := x.want(id, only(gendurable.Ended), "is failed", "its error: cancelled: enough"); c.Since.IsZero() {
		t.Errorf("%+v", c)
	}
}

func TestExplainExecuting(t *testing.T) {
	t.Parallel()
	x := newExplained(t)
	id := x.put()
	x.claim()
	c := x.want(id, only(gendurable.Executing), `node "alice"`, "with a lease until")
	if c.Node != explainedNode || c.Worker != explainedWorker || c.Until.Before(c.Since.Add(time.Hour)) || c.LastBeat.IsZero() || c.Cancelling {
		t.Errorf("%+v", c)
	}
	if _, err := x.client.Cancel(t.Context(), id, "enough"); err != nil {
		t.Fatal(err)
	}
	if c := x.want(id, only(gendurable.Executing), "a cancel was requested"); !c.Cancelling {
		t.Errorf("%+v", c)
	}
	x.exec(`UPDATE gen_durable SET lease_expires_at = now() - interval '1 minute'`)
	x.want(id, only(gendurable.Executing), "its lease ended")
}

// What engines write of themselves is what Explain reads.
func TestExplainWithEngines(t *testing.T) {
	t.Parallel()
	pool := database(t)
	g := newGate()
	text := fsm.New[struct{ N string }]("double").Step("run", func(context.Context, *fsm.Call[struct{ N string }]) (fsm.Outcome, error) { return fsm.Done(nil), nil })
	engine := start(t, pool, gendurable.Config{
		NodeName: "bob", Lease: time.Minute, Heartbeat: time.Second, PollBusy: 20 * time.Millisecond, PollIdle: 20 * time.Millisecond,
		Machines: []fsm.Definition{g.machine("gate"), text}, InsertQueues: []string{"nowhere"}, Logger: quietly(),
	})
	id := insert(t, engine, g.machine("gate").New(number{}))
	<-g.entered
	if c := wantExplained(t, engine.Client, id, only(gendurable.Executing), `node "bob"`); c.Node != "bob" || c.LastBeat.IsZero() {
		t.Errorf("%+v", c)
	}
	nowhere := insert(t, engine, text.New(struct{ N string }{}), fsm.Queue("nowhere"))
	wantExplained(t, engine.Client, nowhere, only(gendurable.NoNode))
	other, err := gendurable.NewClient(t.Context(), pool, gendurable.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	unknown, err := other.Insert(t.Context(), double.New(number{1}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), `UPDATE gen_durable SET state = '{"N": 1}', step = 'run' WHERE id = $1`, unknown); err != nil {
		t.Fatal(err)
	}
	// Once it is found that the state does not decode, the next beat says so.
	eventually(t, "the engine says that it cannot read the state", func() bool {
		e, err := engine.Explain(t.Context(), unknown)
		return err == nil && e.Reason() == gendurable.Undecodable && slices.Equal(e.Causes[0].Nodes, []string{"bob"})
	})
	close(g.open)
}
