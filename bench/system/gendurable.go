package system

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
)

// gendurableContenders: the default is what a user gets who sets Concurrency and nothing else.
var gendurableContenders = []Contender{
	{
		System: "gendurable", Config: "default", Role: Ours, Note: "Concurrency: 100, nothing else set",
		Rates: Rates{Jobs: 30_000, Steps: 25_000, Signals: 4_000, Children: 20_000},
		New:   func(c Conf) System { return newGendurable(c, gendurable.Queue{Concurrency: c.slots(100)}) },
	},
	{
		System: "gendurable", Config: "tuned", Role: Ours, Note: "Concurrency: 1000",
		Rates: Rates{Jobs: 45_000, Steps: 35_000, Signals: 4_000, Children: 25_000},
		New:   func(c Conf) System { return newGendurable(c, gendurable.Queue{Concurrency: c.slots(1000)}) },
	},
}

// ours is gendurable.
type ours struct {
	conf     Conf
	config   gendurable.Config
	pool     *pgxpool.Pool
	client   *gendurable.Client
	engine   *gendurable.Engine
	machines machines
	ids      []gendurable.ID
}

func newGendurable(c Conf, queue gendurable.Queue) *ours {
	o := &ours{conf: c}
	o.machines.define()
	o.config = gendurable.Config{
		Machines: o.machines.all(),
		Queues:   map[string]gendurable.Queue{"default": queue},
		NodeName: c.Node,
		Logger:   c.Log,
	}
	if c.Retain > 0 {
		o.config.RetainDone, o.config.RetainFailed, o.config.GCInterval = c.Retain, c.Retain, time.Second
	}
	return o
}

// machines are what the workloads run.
type machines struct {
	job      *fsm.Job[payload, payload]
	chain    *fsm.Machine[payload]
	inline   *fsm.Machine[payload]
	waiter   *fsm.Machine[payload]
	parent   *fsm.Machine[parentState]
	occupied *fsm.Job[payload, payload]

	ended    atomic.Int64
	running  atomic.Int64
	release  chan struct{}
	released sync.Once
}

type parentState struct {
	Children int `json:"children"`
}

func (m *machines) define() {
	m.release = make(chan struct{})
	m.job = fsm.NewJob("job", func(_ context.Context, j *fsm.JobCall[payload]) (payload, error) {
		m.ended.Add(1)
		return j.Args, nil
	})
	m.occupied = fsm.NewJob("occupied", func(ctx context.Context, j *fsm.JobCall[payload]) (payload, error) {
		m.running.Add(1)
		select {
		case <-m.release:
		case <-ctx.Done():
		}
		return j.Args, nil
	})
	m.chain = m.chainOf("chain")
	m.inline = m.chainOf("inline", fsm.Inline())
	m.waiter = fsm.New[payload]("waiter").
		Step("start", func(context.Context, *fsm.Call[payload]) (fsm.Outcome, error) {
			return fsm.Await("go").Then("woken"), nil
		}).
		Step("woken", func(_ context.Context, c *fsm.Call[payload]) (fsm.Outcome, error) {
			if len(c.Awaited) == 0 {
				return nil, errors.New("woken without a signal")
			}
			m.ended.Add(1)
			return fsm.Done(c.State), nil
		})
	m.parent = fsm.New[parentState]("parent").
		Step("start", func(_ context.Context, c *fsm.Call[parentState]) (fsm.Outcome, error) {
			children := make([]fsm.Instance, c.State.Children)
			for i := range children {
				children[i] = m.job.New(thePayload)
			}
			return fsm.ScheduleChildren(children...).Then("joined"), nil
		}).
		Step("joined", func(_ context.Context, c *fsm.Call[parentState]) (fsm.Outcome, error) {
			m.ended.Add(1)
			return fsm.Done(c.State), nil
		})
}

// chainOf is a machine of ten steps.
func (m *machines) chainOf(name string, opts ...fsm.Option) *fsm.Machine[payload] {
	chain := fsm.New[payload](name, append(opts, fsm.Initial(chainSteps[0]))...)
	for i, step := range chainSteps {
		chain.Step(step, func(_ context.Context, c *fsm.Call[payload]) (fsm.Outcome, error) {
			if i == ChainLength-1 {
				m.ended.Add(1)
				return fsm.Done(c.State), nil
			}
			return fsm.Next(chainSteps[i+1]), nil
		})
	}
	return chain
}

func (m *machines) all() []fsm.Definition {
	return []fsm.Definition{m.job, m.chain, m.inline, m.waiter, m.parent, m.occupied}
}

var chainSteps = [ChainLength]string{"s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9"}

func (o *ours) Setup(ctx context.Context) (err error) {
	if o.pool, err = o.conf.DB.Open(ctx, 20); err != nil {
		return err
	}
	if err := gendurable.Migrate(ctx, o.pool); err != nil {
		return err
	}
	o.client, err = gendurable.NewClient(ctx, o.pool, gendurable.ClientConfig{
		Machines: o.config.Machines, Queues: []string{"default"}, Logger: o.conf.Log,
	})
	return err
}

func (o *ours) Start(ctx context.Context) (err error) {
	if o.engine, err = gendurable.Start(ctx, o.pool, o.config); err == nil {
		o.client = o.engine.Client
	}
	return err
}

func (o *ours) Stop(ctx context.Context) (err error) {
	o.machines.released.Do(func() { close(o.machines.release) })
	if o.engine != nil {
		err = errors.Join(o.engine.Err(), o.engine.Stop(ctx))
	}
	if o.pool != nil {
		o.pool.Close()
	}
	return err
}

func (o *ours) Ended() string {
	return "SELECT updated_at AS at FROM gen_durable WHERE status = 'done'"
}
func (o *ours) Progress() int64 { return o.machines.ended.Load() }

func (o *ours) insert(ctx context.Context, n int, inst fsm.Instance) ([]gendurable.InsertResult, error) {
	batch := make([]fsm.Instance, n)
	for i := range batch {
		batch[i] = inst
	}
	return o.client.InsertMany(ctx, batch)
}

func (o *ours) load(ctx context.Context, n int, inst fsm.Instance) error {
	return inBatches(n, 1000, func(from, to int) error {
		_, err := o.insert(ctx, to-from, inst)
		return err
	})
}

func (o *ours) LoadJobs(ctx context.Context, n int) error {
	return o.load(ctx, n, o.machines.job.New(thePayload))
}

func (o *ours) LoadChains(ctx context.Context, n int) error {
	return o.load(ctx, n, o.machines.chain.New(thePayload))
}

func (o *ours) LoadInline(ctx context.Context, n int) error {
	return o.load(ctx, n, o.machines.inline.New(thePayload))
}

func (o *ours) Once(ctx context.Context) error {
	id, err := o.engine.Insert(ctx, o.machines.job.New(thePayload))
	if err != nil {
		return err
	}
	settled, err := o.engine.Await(ctx, id)
	if err != nil {
		return err
	}
	return settled.Err()
}

func (o *ours) Occupy(ctx context.Context, n int) (func(), error) {
	if err := o.load(ctx, n, o.machines.occupied.New(thePayload)); err != nil {
		return nil, err
	}
	o.client.Poke("default")
	return func() { o.machines.released.Do(func() { close(o.machines.release) }) },
		until(ctx, func() bool { return o.machines.running.Load() >= int64(n) })
}

func (o *ours) LoadWaiting(ctx context.Context, n int) error {
	return inBatches(n, 1000, func(from, to int) error {
		results, err := o.insert(ctx, to-from, o.machines.waiter.New(thePayload))
		for _, r := range results {
			o.ids = append(o.ids, r.ID)
		}
		return err
	})
}

func (o *ours) Parked() string {
	return "SELECT count(*) FROM gen_durable WHERE status = 'awaiting_signal'"
}

func (o *ours) Signal(ctx context.Context, i int) error {
	return o.client.Signal(ctx, o.ids[i], "go", thePayload)
}

func (o *ours) SignalMany(ctx context.Context, from, to int) error {
	deliveries := make([]gendurable.Delivery, 0, to-from)
	for _, id := range o.ids[from:to] {
		deliveries = append(deliveries, gendurable.Delivery{To: id, Name: "go", Payload: thePayload})
	}
	results, err := o.client.SignalMany(ctx, deliveries)
	for _, r := range results {
		err = errors.Join(err, r.Err)
	}
	return err
}

func (o *ours) Parent(ctx context.Context, n int) error {
	_, err := o.client.Insert(ctx, o.machines.parent.New(parentState{Children: n}))
	return err
}

func (o *ours) InsertOne(ctx context.Context) error {
	_, err := o.client.Insert(ctx, o.machines.job.New(thePayload))
	return err
}

func (o *ours) InsertMany(ctx context.Context, n int) error {
	_, err := o.insert(ctx, n, o.machines.job.New(thePayload))
	return err
}

func (o *ours) InsertBulk(ctx context.Context, n int) error {
	batch := make([]fsm.Instance, n)
	for i := range batch {
		batch[i] = o.machines.job.New(thePayload)
	}
	return o.client.InsertBulk(ctx, batch)
}

func (o *ours) Rows() string { return "SELECT count(*) FROM gen_durable" }
