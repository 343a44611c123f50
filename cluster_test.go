package gendurable_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	protocluster "github.com/asynkron/protoactor-go/cluster"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/cluster"
	"github.com/gendurable/gendurable/fsm"
)

// Engines that are nodes of one cluster are tested in cluster/bed, each in a process of its own: whenever the actor library
// starts a remote it replaces gRPC's logger, a plain variable, which is a data race with another remote in the process.

// TestLanesWithoutACluster: a node by itself has them all, under identities that do not meet.
func TestLanesWithoutACluster(t *testing.T) {
	t.Parallel()
	pool := database(t)
	g := newGate()
	m := g.machine("wait", fsm.Queue("q"))
	e := start(t, pool, gendurable.Config{Machines: []fsm.Definition{m}, Queues: map[string]gendurable.Queue{"q": {Concurrency: 1, Lanes: 3}}})
	for i := range 3 {
		insert(t, e, m.New(number{i}))
	}
	for range 3 {
		<-g.entered // one slot a lane, so each runs one
	}
	if n := count(t, pool, `SELECT count(DISTINCT locked_by) FROM gen_durable WHERE locked_by LIKE '%:q#%@%'`); n != 3 {
		t.Errorf("%d identities, want one for each lane", n)
	}
	if q := e.Stats().Queues["q"]; q.RunningNow != 3 {
		t.Errorf("RunningNow is %d, want the sum of the lanes", q.RunningNow)
	}
	restarts := e.Stats().Restarts
	e.Crash(actors.NameQueue("q"), "lane", "q%231", actors.NameScheduler)
	eventually(t, "the lane's scheduler starts anew", func() bool { return e.Stats().Restarts > restarts })
	id := insert(t, e, m.New(number{4}))
	close(g.open)
	await(t, e, id, gendurable.UntilTerminal())
	eventually(t, "all done", func() bool { return count(t, pool, `SELECT count(*) FROM gen_durable WHERE status = 'done'`) == 4 })
	if n := g.runs.Load(); n != 4 {
		t.Errorf("%d runs of 4 steps: a lane's start took its own rows, or its neighbour's, for orphans", n)
	}
}

// TestRoles: an insert-only process runs nothing and sweeps nothing, a maintenance process sweeps what others run.
func TestRoles(t *testing.T) {
	t.Parallel()
	pool := database(t)
	m := fsm.New[number]("patient").
		Step("wait", fsmAwait).
		Step("late", func(context.Context, *fsm.Call[number]) (fsm.Outcome, error) { return fsm.Done("late"), nil })
	role := func(r cluster.Role) *gendurable.Engine {
		return start(t, pool, gendurable.Config{
			Machines: []fsm.Definition{m}, Role: r, InsertQueues: []string{"default"}, DeadlineSweep: 5 * time.Millisecond, Pokes: gendurable.PokePostgres,
		})
	}
	thin, keeper := role(cluster.RoleInsertOnly), role(cluster.RoleMaintenance)
	id := insert(t, thin, m.New(number{}))
	worker := role(cluster.RoleWorker)
	if s := await(t, thin, id, gendurable.UntilTerminal()); string(s.Result) != `"late"` {
		t.Errorf("the instance: %+v", s)
	}
	if n := thin.Stats().DeadlinesWoken; n != 0 || len(thin.Stats().Queues) != 0 {
		t.Errorf("an insert-only process woke %d and has queues %v", n, thin.Stats().Queues)
	}
	woken := func() int64 { return keeper.Stats().DeadlinesWoken + worker.Stats().DeadlinesWoken }
	eventually(t, "the wake is counted", func() bool { return woken() > 0 }) // a poll may have found the row before
	if n := woken(); n != 1 {
		t.Errorf("the others woke %d", n)
	}
}

func fsmAwait(context.Context, *fsm.Call[number]) (fsm.Outcome, error) {
	return fsm.Await("never").Then("late").Timeout(50 * time.Millisecond), nil
}

func TestClusterConfigIsChecked(t *testing.T) {
	t.Parallel()
	pool := database(t)
	for want, cfg := range map[string]gendurable.Config{
		`Lanes -1: must be between 0 and 1,000`:        {Queues: map[string]gendurable.Queue{"q": {Lanes: -1}}},
		`Queues["q#1"]: is called like a lane`:         {Queues: map[string]gendurable.Queue{"q": {Lanes: 2}, "q#1": {}}},
		`Role "boss": must be`:                         {Role: "boss"},
		`Role "maintenance": runs no queue`:            {Role: cluster.RoleMaintenance, Queues: map[string]gendurable.Queue{"q": {}}},
		`Pokes "cluster": needs Cluster`:               {Pokes: gendurable.PokeCluster},
		`Cluster.TTL 1ms: must be between 1s and 10m`:  {Cluster: &cluster.Config{TTL: time.Millisecond}},
		`ActorSystem: is another than that of Cluster`: {ActorSystem: actor.NewActorSystem(), Cluster: &cluster.Config{Host: &protocluster.Cluster{}}},
	} {
		if _, err := gendurable.Start(t.Context(), pool, cfg); !errors.Is(err, gendurable.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}
