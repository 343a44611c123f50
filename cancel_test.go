package gendurable_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
)

// TestCancelReachesAnotherProcess: the context of a step ends although its node's next heartbeat is far away, and although
// who cancels runs nothing.
func TestCancelReachesAnotherProcess(t *testing.T) {
	t.Parallel()
	pool := database(t)
	g := newGate()
	m := g.machine("m")
	engine := start(t, pool, pollless(gendurable.Config{Machines: []fsm.Definition{m}, Heartbeat: time.Hour, Lease: 3 * time.Hour}))
	client := announcing(t, pool, gendurable.ClientConfig{Machines: []fsm.Definition{m}})
	settles := func(id gendurable.ID) {
		t.Helper()
		eventually(t, "the end of the cancelled step", func() bool {
			// Again and again: the first notice may have been sent before the engine listened.
			if _, err := client.Cancel(t.Context(), id, "enough"); err != nil {
				t.Fatal(err)
			}
			inst, err := client.Get(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			return inst.Status == fsm.StatusFailed && inst.LastError == "cancelled: enough"
		})
	}
	id := insert(t, engine, m.New(number{}))
	<-g.entered
	settles(id)
	// Another engine tells it as well, and one that hears nothing has the heartbeat.
	other := start(t, pool, pollless(gendurable.Config{Machines: []fsm.Definition{m}, Queues: map[string]gendurable.Queue{}}))
	id = insert(t, engine, m.New(number{}))
	<-g.entered
	if got, err := other.Cancel(t.Context(), id, "enough"); err != nil || got != gendurable.CancelRequested {
		t.Errorf("%v, %v", got, err)
	}
	if s := await(t, engine, id); s.Error != "cancelled: enough" {
		t.Errorf("it settled as %+v", s)
	}
}

func TestCancelIsFoundByTheHeartbeat(t *testing.T) {
	t.Parallel()
	pool := database(t)
	g := newGate()
	m := g.machine("m")
	engine := start(t, pool, gendurable.Config{Machines: []fsm.Definition{m}, Heartbeat: 50 * time.Millisecond, Lease: time.Minute})
	deaf := start(t, pool, gendurable.Config{Machines: []fsm.Definition{m}, Queues: map[string]gendurable.Queue{}})
	id := insert(t, engine, m.New(number{}))
	<-g.entered
	if _, err := deaf.Cancel(t.Context(), id, "enough"); err != nil {
		t.Fatal(err)
	}
	if s := await(t, engine, id); s.Error != "cancelled: enough" {
		t.Errorf("it settled as %+v", s)
	}
}

// tree is a machine that fans out into so many of itself, to a depth; the leaves wait.
func treeMachine(name string, width int, leaves *atomic.Int64) *fsm.Machine[number] {
	var m *fsm.Machine[number]
	m = fsm.New[number](name).
		Step("grow", func(_ context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			if c.State.N == 0 {
				leaves.Add(1)
				return fsm.Await("never").Then("end"), nil
			}
			var children []fsm.Instance
			for range width {
				children = append(children, m.New(number{c.State.N - 1}))
			}
			return fsm.ScheduleChildren(children...).Then("end"), nil
		}).
		Step("end", func(_ context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			return fsm.Done(c.State.N), nil
		})
	return m
}

// TestCascade: the whole tree below ends, and nothing above or beside it; below one that has ended already as well.
func TestCascade(t *testing.T) {
	t.Parallel()
	pool := database(t)
	var leaves atomic.Int64
	m := treeMachine("tree", 3, &leaves)
	engine := start(t, pool, gendurable.Config{Machines: []fsm.Definition{m}})
	top := insert(t, engine, m.New(number{3}))
	eventually(t, "27 leaves that wait", func() bool {
		return count(t, pool, `SELECT count(*) FROM gen_durable WHERE status = 'awaiting_signal'`) == 27
	})
	var branches []int64
	if err := pool.QueryRow(t.Context(), `SELECT array_agg(id ORDER BY id) FROM gen_durable WHERE parent_id = $1`, top).Scan(&branches); err != nil {
		t.Fatal(err)
	}
	first, second := gendurable.ID(branches[0]), gendurable.ID(branches[1])
	if got, err := engine.Cancel(t.Context(), first, "pruned", gendurable.Cascade()); err != nil || got != gendurable.CancelEnded {
		t.Fatalf("%v, %v", got, err)
	}
	below := func(id gendurable.ID, status string) int {
		return count(t, pool, `WITH RECURSIVE t AS (SELECT id, status FROM gen_durable WHERE id = $1
			UNION ALL SELECT c.id, c.status FROM gen_durable c JOIN t ON c.parent_id = t.id)
			SELECT count(*) FROM t WHERE status = $2::text::durable_status`, id, status)
	}
	if n := below(first, "failed"); n != 1+3+9 {
		t.Errorf("%d of the branch have failed, expected all 13", n)
	}
	if n := below(second, "failed"); n != 0 {
		t.Errorf("%d of another branch have failed", n)
	}
	// Without Cascade the children go on, and a second cancel with it finds them.
	if _, err := engine.Cancel(t.Context(), second, "pruned"); err != nil {
		t.Fatal(err)
	}
	if n := below(second, "failed"); n != 1 {
		t.Errorf("%d of the second branch have failed, expected its root", n)
	}
	if got, err := engine.Cancel(t.Context(), second, "pruned", gendurable.Cascade()); err != nil || got != gendurable.CancelTooLate {
		t.Errorf("%v, %v", got, err)
	}
	if n := below(second, "failed"); n != 13 {
		t.Errorf("%d of the second branch have failed, expected all 13", n)
	}
	if _, err := engine.Cancel(t.Context(), gendurable.ID(branches[2]), "pruned", gendurable.Cascade()); err != nil {
		t.Fatal(err)
	}
	if s := await(t, engine, top, gendurable.UntilTerminal()); string(s.Result) != "3" {
		t.Errorf("the root, released by its children, settled as %+v", s)
	}
	if n := count(t, pool, `SELECT count(*) FROM gen_durable WHERE children_pending <> 0 OR status NOT IN ('done', 'failed')`); n != 0 {
		t.Errorf("%d instances are left", n)
	}
}

// TestCancelOfWhatFansOut: a step that is cancelled while it runs brings no children into the world.
func TestCancelOfWhatFansOut(t *testing.T) {
	t.Parallel()
	pool := database(t)
	entered, open := make(chan struct{}), make(chan struct{})
	m := fsm.New[number]("m").
		Step("split", func(context.Context, *fsm.Call[number]) (fsm.Outcome, error) {
			close(entered)
			<-open
			return fsm.ScheduleChildren(double.New(number{1}), double.New(number{2})).Then("end"), nil
		}).
		Step("end", func(context.Context, *fsm.Call[number]) (fsm.Outcome, error) { return fsm.Done(nil), nil })
	engine := start(t, pool, gendurable.Config{Machines: []fsm.Definition{m, double}})
	id := insert(t, engine, m.New(number{}), fsm.CorrelationKey("k"))
	<-entered
	if got, err := engine.Cancel(t.Context(), gendurable.Key("k"), "no", gendurable.Cascade()); err != nil || got != gendurable.CancelRequested {
		t.Errorf("%v, %v", got, err)
	}
	close(open)
	if s := await(t, engine, id); s.Error != "cancelled: no" {
		t.Errorf("it settled as %+v", s)
	}
	if n := count(t, pool, `SELECT count(*) FROM gen_durable`); n != 1 {
		t.Errorf("there are %d instances", n)
	}
	insert(t, engine, double.New(number{}), fsm.CorrelationKey("k")) // the key is free
}

// TestRetry: a failed instance runs its last step again, and ends well this time.
func TestRetry(t *testing.T) {
	t.Parallel()
	pool := database(t)
	var good atomic.Bool
	var engine *gendurable.Engine
	kid := fsm.NewJob("kid", func(context.Context, *fsm.JobCall[number]) (string, error) {
		if !good.Load() {
			return "", fsm.Cancel(errors.New("not today"))
		}
		return "grown", nil
	})
	other := newGate()
	sibling := other.machine("sibling")
	m := fsm.New[number]("m").
		Step("split", func(context.Context, *fsm.Call[number]) (fsm.Outcome, error) {
			return fsm.ScheduleChildren(kid.New(number{}).With(fsm.CorrelationKey("kid")), sibling.New(number{})).Then("end"), nil
		}).
		Step("end", func(_ context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			var results []string
			for _, child := range c.Children {
				results = append(results, string(child.Status)+string(child.Result))
			}
			return fsm.Done(strings.Join(results, " ")), nil
		})
	engine = start(t, pool, gendurable.Config{Machines: []fsm.Definition{m, kid, sibling}})
	top := insert(t, engine, m.New(number{}))
	<-other.entered
	var child int64
	if err := pool.QueryRow(t.Context(), `SELECT id FROM gen_durable WHERE fsm = 'kid'`).Scan(&child); err != nil {
		t.Fatal(err)
	}
	id := gendurable.ID(child)
	if s := await(t, engine, id); s.Error != "not today" {
		t.Fatalf("%+v", s)
	}
	rival := insert(t, engine, sibling.New(number{}), fsm.CorrelationKey("kid"))
	var duplicate *gendurable.DuplicateError
	if err := engine.Retry(t.Context(), id); !errors.As(err, &duplicate) || !errors.Is(err, gendurable.ErrDuplicate) || duplicate.Occupant != rival || duplicate.Key != "kid" {
		t.Errorf("with its key taken: %v", err)
	}
	for target, want := range map[gendurable.ID]error{top: gendurable.ErrNotFailed, 1 << 40: gendurable.ErrNotFound, 0: gendurable.ErrInvalid} {
		if err := engine.Retry(t.Context(), target); !errors.Is(err, want) {
			t.Errorf("instance %d: %v, want %v", target, err, want)
		}
	}
	if _, err := engine.Cancel(t.Context(), rival, "make room"); err != nil {
		t.Fatal(err)
	}
	await(t, engine, rival)
	good.Store(true)
	if err := engine.Retry(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if s := await(t, engine, id); string(s.Result) != `"grown"` {
		t.Errorf("retried it settled as %+v", s)
	}
	close(other.open)
	if s := await(t, engine, top, gendurable.UntilTerminal()); string(s.Result) != `"done\"grown\" done0"` {
		t.Errorf("the parent settled as %+v", s)
	}
}
