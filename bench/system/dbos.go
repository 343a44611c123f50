package system

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
)

// dbosContenders: the default is a queue as registered without options, which polls once a second. Tuned is a queue
// that polls as fast as it may. Direct is the documentation's quick start, where the workflow runs in the process that
// calls it, without a queue; it has no backlog to work off.
var dbosContenders = []Contender{
	{
		System: "dbos", Config: "default", Role: Peer, Note: "a queue without options",
		Rates: Rates{Jobs: 150, Steps: 1_500},
		New:   func(c Conf) System { return &dbosQueued{dbosSystem: dbosSystem{conf: c, conns: 20}} },
	},
	{
		System: "dbos", Config: "tuned", Role: Peer, Note: "a queue that polls each ms, WorkerConcurrency 1000, 40 connections",
		Rates: Rates{Jobs: 5_000, Steps: 5_000},
		New: func(c Conf) System {
			return &dbosQueued{dbosSystem: dbosSystem{conf: c, conns: 40, queue: []dbos.QueueOption{
				dbos.WithWorkerConcurrency(c.slots(1000)), dbos.WithQueueBasePollingInterval(time.Millisecond),
			}}}
		},
	},
	{
		System: "dbos", Config: "direct", Role: Peer, Note: "RunWorkflow without a queue",
		Rates: Rates{Signals: 2_500, Children: 800},
		Leave: map[string]bool{"insert-single": true, "memory": true},
		New:   func(c Conf) System { return &dbosDirect{dbosSystem: dbosSystem{conf: c, conns: 40}} },
	},
}

// dbosSystem is what both ways to use DBOS Transact have in common.
type dbosSystem struct {
	conf     Conf
	conns    int
	queue    []dbos.QueueOption
	ctx      dbos.Context
	launched bool
	ended    atomic.Int64
	running  atomic.Int64
	release  chan struct{}
	released sync.Once
}

const dbosQueue = "bench"

func (d *dbosSystem) Setup(ctx context.Context) (err error) {
	d.release = make(chan struct{})
	d.ctx, err = dbos.NewContext(context.WithoutCancel(ctx), dbos.Config{
		AppName:            "bench",
		DatabaseURL:        d.conf.DB.URL + "&pool_max_conns=" + strconv.Itoa(d.conns),
		Logger:             d.conf.Log,
		ApplicationVersion: "1",
	})
	if err != nil {
		return err
	}
	dbos.RegisterWorkflow(d.ctx, d.job, dbos.WithWorkflowName("job"))
	dbos.RegisterWorkflow(d.ctx, d.chain, dbos.WithWorkflowName("chain"))
	dbos.RegisterWorkflow(d.ctx, d.waiter, dbos.WithWorkflowName("waiter"))
	dbos.RegisterWorkflow(d.ctx, d.parent, dbos.WithWorkflowName("parent"))
	dbos.RegisterWorkflow(d.ctx, d.occupied, dbos.WithWorkflowName("occupied"))
	_, err = dbos.RegisterQueue(d.ctx, dbosQueue, d.queue...)
	return err
}

func (d *dbosSystem) Start(context.Context) error {
	d.launched = true
	return dbos.Launch(d.ctx)
}

func (d *dbosSystem) Stop(context.Context) error {
	if d.ctx == nil {
		return nil
	}
	d.released.Do(func() { close(d.release) })
	// Workflows that are left over are interrupted by design: nobody waits for them.
	_ = dbos.Shutdown(d.ctx, 2*time.Second)
	return nil
}

func (d *dbosSystem) Ended() string {
	return "SELECT to_timestamp(completed_at / 1000.0) AS at FROM dbos.workflow_status WHERE status = 'SUCCESS'"
}
func (d *dbosSystem) Progress() int64 { return d.ended.Load() }

// job has no step of its own: the result of a workflow is committed anyway, and this spares DBOS a write.
func (d *dbosSystem) job(_ dbos.Context, in payload) (payload, error) {
	d.ended.Add(1)
	return in, nil
}

func (d *dbosSystem) chain(ctx dbos.Context, in payload) (payload, error) {
	for range ChainLength {
		var err error
		if in, err = dbos.RunAsStep(ctx, func(context.Context) (payload, error) { return in, nil }); err != nil {
			return in, err
		}
	}
	d.ended.Add(1)
	return in, nil
}

func (d *dbosSystem) waiter(ctx dbos.Context, in payload) (payload, error) {
	d.running.Add(1)
	got, err := dbos.Recv[payload](ctx, "go", time.Minute)
	if err != nil {
		return got, err
	}
	if got != in {
		return got, errors.New("no signal came in time")
	}
	d.ended.Add(1)
	return got, nil
}

func (d *dbosSystem) parent(ctx dbos.Context, children int) (payload, error) {
	handles := make([]dbos.WorkflowHandle[payload], children)
	for i := range handles {
		h, err := dbos.RunWorkflow(ctx, d.job, thePayload)
		if err != nil {
			return payload{}, err
		}
		handles[i] = h
	}
	for _, h := range handles {
		if _, err := h.GetResult(); err != nil {
			return payload{}, err
		}
	}
	d.ended.Add(1)
	return thePayload, nil
}

func (d *dbosSystem) occupied(ctx dbos.Context, in payload) (payload, error) {
	d.running.Add(1)
	select {
	case <-d.release:
	case <-ctx.Done():
	}
	return in, nil
}

func (d *dbosSystem) InsertOne(context.Context) error { return d.enqueue("job") }

func (d *dbosSystem) Rows() string { return "SELECT count(*) FROM dbos.workflow_status" }

func (d *dbosSystem) enqueue(workflow string) error {
	_, err := dbos.Enqueue[payload](d.ctx, dbosQueue, workflow, thePayload)
	return err
}

func (d *dbosSystem) enqueueAll(ctx context.Context, n int, workflow string) error {
	return inParallel(ctx, n, 16, func(context.Context, int) error { return d.enqueue(workflow) })
}

// dbosQueued goes through a queue.
type dbosQueued struct{ dbosSystem }

func (d *dbosQueued) LoadJobs(ctx context.Context, n int) error { return d.enqueueAll(ctx, n, "job") }

func (d *dbosQueued) LoadChains(ctx context.Context, n int) error {
	return d.enqueueAll(ctx, n, "chain")
}

func (d *dbosQueued) Once(context.Context) error {
	h, err := dbos.Enqueue[payload](d.ctx, dbosQueue, "job", thePayload)
	if err != nil {
		return err
	}
	_, err = h.GetResult(dbos.WithHandlePollingInterval(time.Millisecond))
	return err
}

func (d *dbosQueued) Occupy(ctx context.Context, n int) (func(), error) {
	if err := d.enqueueAll(ctx, n, "occupied"); err != nil {
		return nil, err
	}
	return func() { d.released.Do(func() { close(d.release) }) },
		until(ctx, func() bool { return d.running.Load() >= int64(n) })
}

// dbosDirect runs workflows where they are called.
type dbosDirect struct{ dbosSystem }

func (d *dbosDirect) Once(context.Context) error {
	h, err := dbos.RunWorkflow(d.ctx, d.job, thePayload)
	if err != nil {
		return err
	}
	_, err = h.GetResult()
	return err
}

func (d *dbosDirect) Occupy(ctx context.Context, n int) (func(), error) {
	for range n {
		if _, err := dbos.RunWorkflow(d.ctx, d.occupied, thePayload); err != nil {
			return nil, err
		}
	}
	return func() { d.released.Do(func() { close(d.release) }) },
		until(ctx, func() bool { return d.running.Load() >= int64(n) })
}

func (d *dbosDirect) LoadWaiting(ctx context.Context, n int) error {
	return inParallel(ctx, n, 16, func(_ context.Context, i int) error {
		_, err := dbos.RunWorkflow(d.ctx, d.waiter, thePayload, dbos.WithWorkflowID(dbosID(i)))
		return err
	})
}

// Parked counts running workflows: one that waits looks like any other in the tables. That they have come as far as to
// wait is not needed, as DBOS keeps messages that come early.
func (d *dbosDirect) Parked() string {
	return "SELECT count(*) FROM dbos.workflow_status WHERE name = 'waiter' AND status = 'PENDING'"
}

func (d *dbosDirect) Signal(_ context.Context, i int) error {
	return dbos.Send(d.ctx, dbosID(i), thePayload, "go")
}

func (d *dbosDirect) SignalMany(_ context.Context, from, to int) error {
	messages := make([]dbos.SendMessage, 0, to-from)
	for i := from; i < to; i++ {
		messages = append(messages, dbos.SendMessage{DestinationID: dbosID(i), Message: thePayload, Topic: "go"})
	}
	return dbos.SendBulk(d.ctx, messages)
}

func (d *dbosDirect) Parent(_ context.Context, n int) error {
	_, err := dbos.RunWorkflow(d.ctx, d.parent, n)
	return err
}

func dbosID(i int) string { return fmt.Sprintf("waiter-%d", i) }
