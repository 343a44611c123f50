package system

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cschleiden/go-workflows/backend"
	"github.com/cschleiden/go-workflows/backend/postgres"
	"github.com/cschleiden/go-workflows/client"
	"github.com/cschleiden/go-workflows/worker"
	"github.com/cschleiden/go-workflows/workflow"
)

// goWorkflowsContenders: the library's defaults; and more pollers, which poll faster.
var goWorkflowsContenders = []Contender{
	{
		System: "go-workflows", Config: "default", Role: Peer, Note: "the default options",
		Rates: Rates{Jobs: 200, Steps: 300, Signals: 400, Children: 300}, Drain: true,
		New: func(c Conf) System { return &goWorkflows{conf: c, options: worker.DefaultOptions} },
	},
	{
		System: "go-workflows", Config: "tuned", Role: Peer, Note: "4 pollers each, which poll every 5 ms, a large executor cache, 40 connections",
		Rates: Rates{Jobs: 400, Steps: 600, Signals: 800, Children: 400}, Drain: true,
		New: func(c Conf) System {
			o := worker.DefaultOptions
			o.WorkflowPollers, o.ActivityPollers = 4, 4
			o.WorkflowPollingInterval, o.ActivityPollingInterval = 5*time.Millisecond, 5*time.Millisecond
			o.WorkflowExecutorCacheSize = 10_000
			return &goWorkflows{conf: c, options: o, conns: 40}
		},
	},
}

// goWorkflows is go-workflows on its Postgres backend. Work is an activity, as workflow code must be deterministic.
type goWorkflows struct {
	conf     Conf
	options  worker.Options
	conns    int
	backend  backend.Backend
	client   *client.Client
	worker   *worker.Worker
	cancel   context.CancelFunc
	ended    atomic.Int64
	running  atomic.Int64
	release  chan struct{}
	released sync.Once
	next     atomic.Int64
}

func (g *goWorkflows) Setup(context.Context) (err error) {
	g.release = make(chan struct{})
	u, err := url.Parse(g.conf.DB.URL)
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		return err
	}
	defer func() {
		if r := recover(); r != nil { // how its constructor reports errors
			err = fmt.Errorf("go-workflows: %v", r)
		}
	}()
	g.backend = postgres.NewPostgresBackend(u.Hostname(), port, u.User.Username(), "x", g.conf.DB.Name,
		postgres.WithPostgresOptions(func(db *sql.DB) {
			if g.conns > 0 {
				db.SetMaxOpenConns(g.conns)
				db.SetMaxIdleConns(g.conns)
			}
		}),
		postgres.WithBackendOptions(backend.WithLogger(g.conf.Log)))
	g.client = client.New(g.backend)
	g.worker = worker.New(g.backend, &g.options)
	return errors.Join(g.worker.RegisterWorkflow(g.jobFlow), g.worker.RegisterWorkflow(g.chainFlow),
		g.worker.RegisterWorkflow(g.waiterFlow), g.worker.RegisterWorkflow(g.parentFlow),
		g.worker.RegisterWorkflow(g.occupiedFlow), g.worker.RegisterActivity(g.Work), g.worker.RegisterActivity(g.Long))
}

func (g *goWorkflows) Start(context.Context) error {
	run, cancel := context.WithCancel(context.Background())
	g.cancel = cancel
	return g.worker.Start(run)
}

func (g *goWorkflows) Stop(context.Context) (err error) {
	if g.release != nil {
		g.released.Do(func() { close(g.release) })
	}
	if g.cancel != nil {
		g.cancel()
		err = g.worker.WaitForCompletion()
	}
	if g.backend != nil {
		err = errors.Join(err, g.backend.Close())
	}
	return err
}

func (g *goWorkflows) Ended() string {
	return "SELECT completed_at AS at FROM instances WHERE completed_at IS NOT NULL"
}
func (g *goWorkflows) Progress() int64 { return g.ended.Load() }

// Work is the activity.
func (g *goWorkflows) Work(_ context.Context, in payload) (payload, error) { return in, nil }

// Long is the activity that keeps a slot busy.
func (g *goWorkflows) Long(ctx context.Context, in payload) (payload, error) {
	g.running.Add(1)
	select {
	case <-g.release:
	case <-ctx.Done():
	}
	return in, nil
}

func (g *goWorkflows) activity(ctx workflow.Context, fn workflow.Activity, in payload) (payload, error) {
	return workflow.ExecuteActivity[payload](ctx, workflow.DefaultActivityOptions, fn, in).Get(ctx)
}

func (g *goWorkflows) end(ctx workflow.Context) {
	if !workflow.Replaying(ctx) {
		g.ended.Add(1)
	}
}

func (g *goWorkflows) jobFlow(ctx workflow.Context, in payload) (payload, error) {
	out, err := g.activity(ctx, g.Work, in)
	g.end(ctx)
	return out, err
}

func (g *goWorkflows) occupiedFlow(ctx workflow.Context, in payload) (payload, error) {
	return g.activity(ctx, g.Long, in)
}

func (g *goWorkflows) chainFlow(ctx workflow.Context, in payload) (out payload, err error) {
	for range ChainLength {
		if in, err = g.activity(ctx, g.Work, in); err != nil {
			return in, err
		}
	}
	g.end(ctx)
	return in, nil
}

func (g *goWorkflows) waiterFlow(ctx workflow.Context, _ payload) (payload, error) {
	got, _ := workflow.NewSignalChannel[payload](ctx, "go").Receive(ctx)
	g.end(ctx)
	return got, nil
}

func (g *goWorkflows) parentFlow(ctx workflow.Context, children int) (payload, error) {
	futures := make([]workflow.Future[payload], children)
	for i := range futures {
		futures[i] = workflow.CreateSubWorkflowInstance[payload](ctx, workflow.DefaultSubWorkflowOptions, g.jobFlow, thePayload)
	}
	for _, f := range futures {
		if _, err := f.Get(ctx); err != nil {
			return payload{}, err
		}
	}
	g.end(ctx)
	return thePayload, nil
}

func (g *goWorkflows) create(ctx context.Context, id string, wf workflow.Workflow, in any) (*workflow.Instance, error) {
	if id == "" {
		id = "i" + strconv.FormatInt(g.next.Add(1), 10)
	}
	return g.client.CreateWorkflowInstance(ctx, client.WorkflowInstanceOptions{InstanceID: id}, wf, in)
}

func (g *goWorkflows) createAll(ctx context.Context, n int, wf workflow.Workflow) error {
	return inParallel(ctx, n, 16, func(ctx context.Context, _ int) error {
		_, err := g.create(ctx, "", wf, thePayload)
		return err
	})
}

func (g *goWorkflows) LoadJobs(ctx context.Context, n int) error {
	return g.createAll(ctx, n, g.jobFlow)
}

func (g *goWorkflows) LoadChains(ctx context.Context, n int) error {
	return g.createAll(ctx, n, g.chainFlow)
}

func (g *goWorkflows) Once(ctx context.Context) error {
	instance, err := g.create(ctx, "", g.jobFlow, thePayload)
	if err != nil {
		return err
	}
	_, err = client.GetWorkflowResult[payload](ctx, g.client, instance, 10*time.Second)
	return err
}

func (g *goWorkflows) Occupy(ctx context.Context, n int) (func(), error) {
	if err := g.createAll(ctx, n, g.occupiedFlow); err != nil {
		return nil, err
	}
	return func() { g.released.Do(func() { close(g.release) }) },
		until(ctx, func() bool { return g.running.Load() >= int64(n) })
}

func (g *goWorkflows) LoadWaiting(ctx context.Context, n int) error {
	return inParallel(ctx, n, 16, func(ctx context.Context, i int) error {
		_, err := g.create(ctx, goWorkflowsID(i), g.waiterFlow, thePayload)
		return err
	})
}

// Parked counts the instances without an event that waits for a worker: all of them have run as far as they can.
func (g *goWorkflows) Parked() string {
	return `SELECT count(*) FROM instances i WHERE i.completed_at IS NULL
	           AND NOT EXISTS (SELECT FROM pending_events p WHERE p.instance_id = i.instance_id)`
}

func (g *goWorkflows) Signal(ctx context.Context, i int) error {
	return g.client.SignalWorkflow(ctx, goWorkflowsID(i), "go", thePayload)
}

func (g *goWorkflows) Parent(ctx context.Context, n int) error {
	_, err := g.create(ctx, "", g.parentFlow, n)
	return err
}

func (g *goWorkflows) InsertOne(ctx context.Context) error {
	_, err := g.create(ctx, "", g.jobFlow, thePayload)
	return err
}

func (g *goWorkflows) Rows() string { return "SELECT count(*) FROM instances" }

func goWorkflowsID(i int) string { return "waiter-" + strconv.Itoa(i) }
