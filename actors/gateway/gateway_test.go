package gateway

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/messages"
)

const patience = 60 * time.Second

// spawn starts a gateway and returns how to ask it.
func spawn(t *testing.T, c Config) func(m messages.Request) messages.Reply {
	t.Helper()
	c.Logger = slog.New(slog.DiscardHandler)
	system := actors.NewSystem(c.Logger)
	pid := system.Root.Spawn(Props(c))
	t.Cleanup(func() { _ = system.Root.StopFuture(pid).Wait() })
	return func(m messages.Request) messages.Reply {
		reply, err := system.Root.RequestFuture(pid, m, patience).Result()
		if err != nil {
			t.Errorf("%T: %v", m, err)
			return nil
		}
		return reply.(messages.Reply)
	}
}

func reason(r messages.Reply) messages.Refused_Reason {
	refused, _ := r.(*messages.Refused)
	return refused.GetReason()
}

// TestBoundedHands: beyond its bounds the gateway refuses at once, work and waits apart from each other.
func TestBoundedHands(t *testing.T) {
	t.Parallel()
	begun, goOn := make(chan struct{}, 10), make(chan struct{})
	counters := new(actors.Counters)
	ask := spawn(t, Config{Counters: counters, InFlight: 2, Awaiting: 1, Answer: func(_ context.Context, m messages.Request) messages.Reply {
		begun <- struct{}{}
		<-goOn
		return &messages.Inserted{RequestId: m.GetId(), Id: 1}
	}})
	replies := make(chan messages.Reply, 3)
	for _, m := range []messages.Request{&messages.Insert{Id: "1"}, &messages.Insert{Id: "2"}, &messages.Await{Id: "3"}} {
		go func() { replies <- ask(m) }()
		<-begun
	}
	for _, m := range []messages.Request{&messages.Get{Id: "4"}, &messages.Await{Id: "5"}} {
		if r := ask(m); reason(r) != messages.Refused_BUSY || r.GetRequestId() != m.GetId() {
			t.Errorf("%T: %v", m, r)
		}
	}
	if n := counters.GatewayInHandNow.Load(); n != 3 {
		t.Errorf("%d in hand", n)
	}
	close(goOn)
	for range 3 {
		if r, ok := (<-replies).(*messages.Inserted); !ok {
			t.Errorf("answered with %v", r)
		}
	}
	if counters.GatewayBusy.Load() != 2 || counters.GatewayRefused.Load() != 2 || counters.GatewayRequests.Load() != 5 {
		t.Errorf("counted %d busy, %d refused, %d requests",
			counters.GatewayBusy.Load(), counters.GatewayRefused.Load(), counters.GatewayRequests.Load())
	}
}

// TestPanicIsAnAnswer: a request under which the engine's code panics is refused, and its slot is free again.
func TestPanicIsAnAnswer(t *testing.T) {
	t.Parallel()
	ask := spawn(t, Config{InFlight: 1, Answer: func(_ context.Context, m messages.Request) messages.Reply { panic("bug") }})
	for range 3 {
		why := messages.Refused_BUSY
		for why == messages.Refused_BUSY { // the slot is freed after the answer
			why = reason(ask(&messages.Get{Id: "x"}))
		}
		if why != messages.Refused_FAILED {
			t.Errorf("a panic is answered with %v", why)
		}
		if r := ask(&messages.Hello{}); reason(r) != messages.Refused_INVALID {
			t.Errorf("without an id: %v", r)
		}
	}
}

// TestStopEndsRequests: what is in hand when the gateway stops is told so by its context.
func TestStopEndsRequests(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	system := actors.NewSystem(log)
	begun := make(chan struct{})
	pid := system.Root.Spawn(Props(Config{Logger: log, Answer: func(ctx context.Context, m messages.Request) messages.Reply {
		close(begun)
		<-ctx.Done()
		return &messages.Refused{RequestId: m.GetId(), Reason: messages.Refused_STOPPED}
	}}))
	reply := system.Root.RequestFuture(pid, &messages.Await{Id: "x"}, patience)
	<-begun
	system.Root.Stop(pid)
	if r, err := reply.Result(); err != nil || reason(r.(messages.Reply)) != messages.Refused_STOPPED {
		t.Errorf("%v, %v", r, err)
	}
}

// TestPokeIsPassedOn, with times that make no sense taken for now.
func TestPokeIsPassedOn(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	system := actors.NewSystem(log)
	got := make(chan time.Duration, 3)
	pid := system.Root.Spawn(Props(Config{Logger: log, Poke: func(_ []string, in time.Duration) { got <- in }}))
	defer func() { _ = system.Root.StopFuture(pid).Wait() }()
	for _, micros := range []int64{0, 1500, -1 << 63} {
		system.Root.Send(pid, &messages.Poke{Queues: []string{"q"}, InMicros: micros})
	}
	for _, want := range []time.Duration{0, 1500 * time.Microsecond, 0} {
		if in := <-got; in != want {
			t.Errorf("in %v, want %v", in, want)
		}
	}
}

// TestRepliesToOtherNodesAreBounded: what goes to another node passes by Outgoing. For an answer that it takes away the caller gets
// a refusal, if it lets that pass. What stays here does not pass by it.
func TestRepliesToOtherNodesAreBounded(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	system := actors.NewSystem(log)
	sent := make(chan any, 10)
	system.ProcessRegistry.RegisterAddressResolver(func(*actor.PID) (actor.Process, bool) { return outside(sent), true })
	counters := new(actors.Counters)
	pid := system.Root.Spawn(Props(Config{Logger: log, Counters: counters,
		Answer: func(_ context.Context, m messages.Request) messages.Reply {
			return &messages.Inserted{RequestId: m.GetId()}
		},
		Outgoing: func(_ *actor.PID, r messages.Reply) (any, bool) {
			_, refusal := r.(*messages.Refused)
			return r, r.GetRequestId() == "room" || r.GetRequestId() == "little room" && refusal
		},
	}))
	defer func() { _ = system.Root.StopFuture(pid).Wait() }()
	until := func(what string, ok func() bool) {
		t.Helper()
		for late := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(late) {
				t.Fatalf("in vain waited for %s", what)
			}
		}
	}
	for _, test := range []struct {
		id      string
		dropped int64
		sent    int
	}{{"none", 1, 0}, {"little room", 2, 1}, {"room", 2, 2}} {
		system.Root.RequestWithCustomSender(pid, &messages.Insert{Id: test.id}, actor.NewPID("192.0.2.1:1", "x"))
		until(test.id, func() bool { return counters.GatewayDropped.Load() == test.dropped && len(sent) == test.sent })
	}
	until("the end of all", func() bool { return counters.GatewayInHandNow.Load() == 0 })
	if n := counters.GatewayDropped.Load(); n != 2 || len(sent) != 2 {
		t.Fatalf("dropped %d, sent %d", n, len(sent))
	}
	if r := (<-sent).(messages.Reply); r.GetRequestId() != "little room" || reason(r) != messages.Refused_FAILED {
		t.Errorf("instead of an answer for which there is no room: %v", r)
	}
	if r := (<-sent).(messages.Reply); r.GetRequestId() != "room" || reason(r) != 0 {
		t.Errorf("an answer for which there is room: %v", r)
	}
	if r, err := system.Root.RequestFuture(pid, &messages.Insert{Id: "none"}, patience).Result(); err != nil || reason(r.(messages.Reply)) != 0 {
		t.Errorf("an answer that stays here: %v, %v", r, err)
	}
}

// outside takes what goes to other nodes.
type outside chan any

func (o outside) SendUserMessage(_ *actor.PID, message any) {
	_, m, _ := actor.UnwrapEnvelope(message)
	o <- m
}
func (outside) SendSystemMessage(*actor.PID, any) {}
func (outside) Stop(*actor.PID)                   {}

// TestReplyThatCannotBeSent: the actor library may panic under a reply to another node. It is counted, and the slot is free again.
func TestReplyThatCannotBeSent(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	system := actors.NewSystem(log)
	system.ProcessRegistry.RegisterAddressResolver(func(*actor.PID) (actor.Process, bool) { panic("no endpoint") })
	counters := new(actors.Counters)
	pid := system.Root.Spawn(Props(Config{Logger: log, Counters: counters, Answer: func(_ context.Context, m messages.Request) messages.Reply {
		return &messages.Inserted{RequestId: m.GetId(), Id: 1}
	}}))
	defer func() { _ = system.Root.StopFuture(pid).Wait() }()
	for _, m := range []messages.Request{&messages.Insert{Id: "1"}, &messages.Hello{}} {
		system.Root.RequestWithCustomSender(pid, m, actor.NewPID("192.0.2.1:1", "x"))
	}
	for late := time.Now().Add(patience); counters.Panics.Load() != 2 || counters.GatewayInHandNow.Load() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("counted %d panics, %d in hand", counters.Panics.Load(), counters.GatewayInHandNow.Load())
		}
	}
}
