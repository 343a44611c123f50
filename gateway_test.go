package gendurable_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/cluster"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/messages"
)

// caller is what code needs that does not care where the engine is.
type caller interface {
	Insert(ctx context.Context, inst fsm.Instance, opts ...fsm.InsertOption) (gendurable.ID, error)
	InsertMany(ctx context.Context, insts []fsm.Instance) ([]gendurable.InsertResult, error)
	Signal(ctx context.Context, to gendurable.Ref, name string, payload any, opts ...gendurable.SignalOption) error
	SignalMany(ctx context.Context, deliveries []gendurable.Delivery) ([]gendurable.SignalResult, error)
	Await(ctx context.Context, ref gendurable.Ref, opts ...gendurable.AwaitOption) (gendurable.Settled, error)
	Get(ctx context.Context, ref gendurable.Ref) (*gendurable.Instance, error)
	Cancel(ctx context.Context, ref gendurable.Ref, reason string, opts ...gendurable.CancelOption) (gendurable.Cancellation, error)
	Poke(queues ...string)
}

var (
	_ caller = (*gendurable.Client)(nil)
	_ caller = (*gendurable.Engine)(nil)
	_ caller = (*cluster.Client)(nil)
)

type parcel struct {
	To string `json:"to"`
}

// parcels are a machine that waits for a signal and ends with its payload, in two versions.
func parcels(version int) *fsm.Machine[parcel] {
	return fsm.New[parcel]("parcel", fsm.Version(version)).
		Step("pack", func(context.Context, *fsm.Call[parcel]) (fsm.Outcome, error) {
			return fsm.Await("sent").Then("track"), nil
		}).
		Step("track", func(_ context.Context, c *fsm.Call[parcel]) (fsm.Outcome, error) {
			var by string
			if err := c.Awaited[0].Decode(&by); err != nil {
				return nil, err
			}
			return fsm.Done(fmt.Sprintf("%s by %s, v%d", c.State.To, by, c.Version)), nil
		})
}

// behindGateway starts an engine in an actor system, and a client of its gateway there.
func behindGateway(t *testing.T, name string) (*gendurable.Engine, *cluster.Client, *actor.ActorSystem) {
	t.Helper()
	system := actors.NewSystem(quietly())
	engine := start(t, database(t), gendurable.Config{Name: name, ActorSystem: system,
		Machines: []fsm.Definition{parcels(1), parcels(2)}})
	client, err := cluster.NewClient(cluster.ClientConfig{Engine: name, System: system, Patience: patience, Try: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return engine, client, system
}

func TestGatewayDoesWhatTheEngineDoes(t *testing.T) {
	t.Parallel()
	engine, client, _ := behindGateway(t, "post/office")
	for place, c := range map[string]caller{"engine": engine, "gateway": client} {
		t.Run(place, func(t *testing.T) {
			ctx, machine := t.Context(), parcels(2)
			key := gendurable.Key("parcel:" + place)
			id, err := c.Insert(ctx, machine.New(parcel{To: "Ada"}), fsm.CorrelationKey(string(key)), fsm.Priority(-3))
			if err != nil {
				t.Fatal(err)
			}
			if again, err := c.Insert(ctx, machine.New(parcel{}), fsm.CorrelationKey(string(key))); again != id || !errors.Is(err, gendurable.ErrDuplicate) {
				t.Errorf("an occupied key: %v, %v", again, err)
			}
			if s, err := c.Await(ctx, key); err != nil || s.ID != id || s.Status != fsm.AwaitingSignal || s.Awaits[0] != "sent" {
				t.Errorf("parked: %+v, %v", s, err)
			}
			inst, err := c.Get(ctx, key)
			if err != nil || inst.ID != id || inst.Version != 2 || inst.Priority != -3 || string(inst.State) != `{"to": "Ada"}` ||
				inst.CorrelationKey != string(key) || inst.InsertedAt.IsZero() {
				t.Errorf("got %+v, %v", inst, err)
			}
			results, err := c.SignalMany(ctx, []gendurable.Delivery{
				{To: key, Name: "sent", Payload: "mail", DedupKey: "once"}, {To: id, Name: "sent", Payload: "mail", DedupKey: "once"},
				{To: gendurable.Key("nobody"), Name: "sent"}})
			if err != nil || results[0].Target != id || !results[1].Duplicate || !errors.Is(results[2].Err, gendurable.ErrNoTarget) {
				t.Errorf("signals: %+v, %v", results, err)
			}
			var text string
			s, err := c.Await(ctx, id, gendurable.UntilTerminal())
			if err := errors.Join(err, s.Decode(&text)); err != nil || text != "Ada by mail, v2" {
				t.Errorf("settled: %q, %v", text, err)
			}
			many, err := c.InsertMany(ctx, []fsm.Instance{machine.New(parcel{}, fsm.RequestID("r:"+place)),
				machine.New(parcel{}, fsm.RequestID("r:"+place)), machine.New(parcel{}, fsm.ScheduleIn(time.Hour))})
			if err != nil || !many[1].Repeated || many[1].ID != many[0].ID || many[2].ID == 0 {
				t.Fatalf("many: %+v, %v", many, err)
			}
			if later, err := c.Get(ctx, many[2].ID); err != nil || time.Until(later.EligibleAt) < 50*time.Minute {
				t.Errorf("scheduled: %+v, %v", later, err)
			}
			if how, err := c.Cancel(ctx, many[2].ID, "enough"); err != nil || how != gendurable.CancelEnded {
				t.Errorf("cancel: %v, %v", how, err)
			}
			if how, err := c.Cancel(ctx, many[2].ID, "enough"); err != nil || how != gendurable.CancelTooLate {
				t.Errorf("cancel again: %v, %v", how, err)
			}
			if s, err := c.Await(ctx, many[2].ID); err != nil || s.Error != "cancelled: enough" {
				t.Errorf("cancelled: %+v, %v", s, err)
			}
			c.Poke("default")
		})
	}
}

func TestGatewayRefusesAsTheEngineDoes(t *testing.T) {
	t.Parallel()
	engine, client, _ := behindGateway(t, "refusing")
	stranger := fsm.New[parcel]("stranger").Step("a", func(context.Context, *fsm.Call[parcel]) (fsm.Outcome, error) { return fsm.Done(nil), nil })
	for place, c := range map[string]caller{"engine": engine, "gateway": client} {
		for what, test := range map[string]struct {
			call func(ctx context.Context) error
			want error
		}{
			"machine": {func(ctx context.Context) error {
				_, err := c.Insert(ctx, stranger.New(parcel{}))
				return err
			}, gendurable.ErrUnknownMachine},
			"queue": {func(ctx context.Context) error {
				_, err := c.Insert(ctx, parcels(1).New(parcel{}), fsm.Queue("elsewhere"))
				return err
			}, gendurable.ErrUnknownQueue},
			"priority": {func(ctx context.Context) error {
				_, err := c.InsertMany(ctx, []fsm.Instance{parcels(1).New(parcel{}, fsm.Priority(1<<20))})
				return err
			}, gendurable.ErrInvalid},
			"limit": {func(ctx context.Context) error {
				_, err := c.Insert(ctx, parcels(1).New(parcel{}, fsm.RateLimit("undeclared")))
				return err
			}, gendurable.ErrInvalid},
			"target": {func(ctx context.Context) error { return c.Signal(ctx, gendurable.ID(1<<40), "sent", nil) }, gendurable.ErrNoTarget},
			"name":   {func(ctx context.Context) error { return c.Signal(ctx, gendurable.ID(1), "", nil) }, gendurable.ErrInvalid},
			"address": {func(ctx context.Context) error {
				_, err := c.Cancel(ctx, nil, "")
				return err
			}, gendurable.ErrInvalid},
			"get": {func(ctx context.Context) error {
				_, err := c.Get(ctx, gendurable.Key("nobody"))
				return err
			}, gendurable.ErrNotFound},
			"await": {func(ctx context.Context) error {
				_, err := c.Await(ctx, gendurable.ID(1<<40))
				return err
			}, gendurable.ErrNotFound},
			"busy": {func(ctx context.Context) error {
				id, err := c.Insert(ctx, parcels(1).New(parcel{}, fsm.ScheduleIn(time.Hour)))
				if err != nil {
					return err
				}
				ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
				defer cancel()
				_, err = c.Await(ctx, id)
				if !errors.Is(err, context.DeadlineExceeded) {
					return fmt.Errorf("not the context's: %w", err)
				}
				return err
			}, gendurable.ErrStillBusy},
		} {
			if err := test.call(t.Context()); !errors.Is(err, test.want) {
				t.Errorf("%s, %s: %v, want %v", place, what, err, test.want)
			}
		}
	}
}

// ask sends a message to the engine's gateway as any actor would.
func ask(t *testing.T, system *actor.ActorSystem, engine *gendurable.Engine, m messages.Request) messages.Reply {
	t.Helper()
	reply, err := system.Root.RequestFuture(engine.Gateway(), m, patience).Result()
	if err != nil {
		t.Fatalf("%T: %v", m, err)
	}
	r, ok := reply.(messages.Reply)
	if !ok || r.GetRequestId() != m.GetId() {
		t.Fatalf("%T %q was answered with %T %v", m, m.GetId(), reply, reply)
	}
	return r
}

// TestGatewayBearsRepetition sends every request that writes twice, as one does whose answer was lost.
func TestGatewayBearsRepetition(t *testing.T) {
	t.Parallel()
	engine, _, system := behindGateway(t, "repeating")
	insert := &messages.Insert{Id: "i1", Machine: "parcel", State: []byte(`{"to":"Bob"}`),
		Options: &messages.InsertOptions{CorrelationKey: new("parcel:b")}}
	first, second := ask(t, system, engine, insert).(*messages.Inserted), ask(t, system, engine, insert).(*messages.Inserted)
	if first.Id == 0 || first.Repeated || second.Id != first.Id || !second.Repeated {
		t.Errorf("inserted %v, then %v", first, second)
	}
	many := &messages.InsertMany{Id: "i2", Inserts: []*messages.Insert{{Machine: "parcel", Version: 1}, {Machine: "parcel"}}}
	one, two := ask(t, system, engine, many).(*messages.InsertedMany), ask(t, system, engine, many).(*messages.InsertedMany)
	for i := range one.Results {
		if one.Results[i].Repeated || !two.Results[i].Repeated || one.Results[i].Id != two.Results[i].Id {
			t.Errorf("instance %d: inserted %v, then %v", i, one.Results[i], two.Results[i])
		}
	}
	to := &messages.Target{Address: &messages.Target_Key{Key: "parcel:b"}}
	signal := &messages.Signal{Id: "s1", To: to, Name: "note", Payload: []byte(`"x"`)}
	if r := ask(t, system, engine, signal).(*messages.Signaled); r.Duplicate || r.Target != first.Id {
		t.Errorf("signaled %v", r)
	}
	if r := ask(t, system, engine, signal).(*messages.Signaled); !r.Duplicate {
		t.Errorf("signaled again: %v", r)
	}
	signals := &messages.SignalMany{Id: "s2", Signals: []*messages.Signal{{To: to, Name: "note"}, {To: to, Name: "note"}}}
	for i, want := range []bool{false, true} {
		for j, r := range ask(t, system, engine, signals).(*messages.SignaledMany).Results {
			if r.Duplicate != want {
				t.Errorf("signal %d, time %d: %v", j, i, r)
			}
		}
	}
	cancel := &messages.Cancel{Id: "c1", Target: to, Reason: "enough"}
	if r := ask(t, system, engine, cancel).(*messages.Cancelled); r.Result == messages.Cancelled_RESULT_UNSPECIFIED {
		t.Errorf("cancelled: %v", r)
	}
	info := ask(t, system, engine, &messages.Hello{Id: "h"}).(*messages.NodeInfo)
	if info.Level != messages.Level || info.Engine != "repeating" || len(info.Machines) != 2 || info.Queues[0] != "default" {
		t.Errorf("hello: %v", info)
	}
}

// TestGatewayRefusesNonsense sends what no client of ours would.
func TestGatewayRefusesNonsense(t *testing.T) {
	t.Parallel()
	engine, _, system := behindGateway(t, "nonsense")
	insertion := func(o *messages.InsertOptions, state string) *messages.Insert {
		return &messages.Insert{Id: "x", Machine: "parcel", State: []byte(state), Options: o}
	}
	to := &messages.Target{Address: &messages.Target_Id{Id: 1}}
	for what, test := range map[string]struct {
		send messages.Request
		want messages.Refused_Reason
	}{
		"no id":         {&messages.Insert{Machine: "parcel"}, messages.Refused_INVALID},
		"newer":         {&messages.Get{Id: "x", Target: to, Level: messages.Level + 1}, messages.Refused_UNSUPPORTED},
		"newer part":    {&messages.InsertMany{Id: "x", Inserts: []*messages.Insert{{Machine: "parcel", Level: 99}}}, messages.Refused_UNSUPPORTED},
		"empty":         {&messages.Insert{Id: "x"}, messages.Refused_UNKNOWN_MACHINE},
		"version":       {&messages.Insert{Id: "x", Machine: "parcel", Version: 77}, messages.Refused_UNKNOWN_MACHINE},
		"negative":      {&messages.Insert{Id: "x", Machine: "parcel", Version: -1}, messages.Refused_UNKNOWN_MACHINE},
		"state":         {insertion(nil, `{"to":`), messages.Refused_INVALID},
		"other state":   {insertion(nil, `{"to":7}`), messages.Refused_INVALID},
		"no object":     {insertion(nil, `[]`), messages.Refused_INVALID},
		"nul":           {insertion(nil, `{"to":"\u0000"}`), messages.Refused_INVALID},
		"scope":         {insertion(&messages.InsertOptions{CorrelationKey: new("k"), CorrelationScope: &messages.CorrelationScope{Statuses: []string{"what"}}}, ""), messages.Refused_INVALID},
		"past":          {insertion(&messages.InsertOptions{Eligible: &messages.InsertOptions_InMicros{InMicros: -1}}, ""), messages.Refused_INVALID},
		"weight":        {insertion(&messages.InsertOptions{RateLimit: new("l"), Weight: -1}, ""), messages.Refused_INVALID},
		"nobody":        {&messages.Signal{Id: "x", Name: "n"}, messages.Refused_INVALID},
		"payload":       {&messages.Signal{Id: "x", To: to, Name: "n", Payload: []byte("{")}, messages.Refused_INVALID},
		"empty target":  {&messages.Await{Id: "x", Target: new(messages.Target)}, messages.Refused_INVALID},
		"negative id":   {&messages.Cancel{Id: "x", Target: &messages.Target{Address: &messages.Target_Id{Id: -4}}}, messages.Refused_INVALID},
		"too long":      {&messages.Get{Id: "x", Target: &messages.Target{Address: &messages.Target_Key{Key: strings.Repeat("k", 5000)}}}, messages.Refused_INVALID},
		"unknown id":    {&messages.Get{Id: "x", Target: &messages.Target{Address: &messages.Target_Id{Id: 1 << 60}}}, messages.Refused_NOT_FOUND},
		"nil in a list": {&messages.SignalMany{Id: "x", Signals: []*messages.Signal{nil}}, messages.Refused_INVALID},
	} {
		reply := ask(t, system, engine, test.send)
		if r, ok := reply.(*messages.Refused); !ok || r.Reason != test.want || r.Text == "" {
			t.Errorf("%s: %v, want %v", what, reply, test.want)
		}
	}
	// An Await that is not answered in time tells by which id to go on.
	id := insert(t, engine, parcels(1).New(parcel{To: "Eve"}), fsm.CorrelationKey("slow"), fsm.ScheduleIn(time.Hour))
	eventually(t, "the refusal of an await names the instance", func() bool {
		r, ok := ask(t, system, engine, &messages.Await{Id: "x", TimeoutMicros: 100_000,
			Target: &messages.Target{Address: &messages.Target_Key{Key: "slow"}}}).(*messages.Refused)
		if !ok || r.Reason != messages.Refused_STILL_BUSY {
			t.Fatalf("await: %v", r)
		}
		return r.Instance == int64(id) // not when the time was over before the key was looked up
	})
}

func TestGatewayOutlivesItsCrash(t *testing.T) {
	t.Parallel()
	engine, client, system := behindGateway(t, "crashing")
	id := insert(t, engine, parcels(1).New(parcel{To: "Kay"}))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	settled := make(chan error, 1)
	go func() {
		_, err := client.Await(ctx, id, gendurable.UntilTerminal())
		settled <- err
	}()
	eventually(t, "the await is at the gateway", func() bool { return engine.Stats().GatewayInHandNow > 0 })
	system.Root.Send(engine.Gateway(), actors.Crash{})
	eventually(t, "the gateway was restarted", func() bool { return engine.Stats().Restarts > 0 })
	if err := client.Signal(ctx, id, "sent", "bike"); err != nil {
		t.Fatal(err)
	}
	if err := <-settled; err != nil {
		t.Fatal(err)
	}
	if s := engine.Stats(); s.GatewayRequests < 2 {
		t.Errorf("counted %+v", s)
	}
}

func TestClusterConfigIsValidated(t *testing.T) {
	t.Parallel()
	for text, bad := range map[string]cluster.Config{
		"needs TLS":         {Address: "192.0.2.1:7000"},
		"must be host:port": {Address: "localhost"},
		"all interfaces":    {Address: ":7000", Insecure: true},
		"under which peers": {Advertise: "me"},
	} {
		_, err := gendurable.Start(t.Context(), database(t), gendurable.Config{Cluster: &bad})
		if !errors.Is(err, gendurable.ErrInvalid) || !strings.Contains(err.Error(), text) {
			t.Errorf("%+v: %v, want %q", bad, err, text)
		}
	}
}
