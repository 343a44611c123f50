package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"google.golang.org/protobuf/proto"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/messages"
	"github.com/gendurable/gendurable/pg"
)

// post is a process that keeps what is sent to other nodes.
type post struct {
	mu   sync.Mutex
	sent map[string][]proto.Message // by address and name
}

func (p *post) SendUserMessage(to *actor.PID, message any) {
	_, m, _ := actor.UnwrapEnvelope(message)
	p.mu.Lock()
	defer p.mu.Unlock()
	key := to.Address + "/" + to.Id
	p.sent[key] = append(p.sent[key], m.(proto.Message))
}
func (p *post) SendSystemMessage(*actor.PID, any) {}
func (p *post) Stop(*actor.PID)                   {}

// TestNoticesGoToAllThatRunTheQueue, one message a queue and node, also to one whose lanes are elsewhere by now; work is announced
// only to those that serve it.
func TestNoticesGoToAllThatRunTheQueue(t *testing.T) {
	t.Parallel()
	system := actors.NewSystem(slog.New(slog.DiscardHandler))
	out := &post{sent: map[string][]proto.Message{}}
	system.ProcessRegistry.RegisterAddressResolver(func(*actor.PID) (actor.Process, bool) { return out, true })
	directory := new(Directory)
	pokes := NewPokes(system, "e", directory)
	notices := []pg.Notice{
		{Kind: pg.NoticeCancel, Queue: "q", ID: 4, Claim: 2}, {Kind: pg.NoticePause, Queue: "r"},
		{Kind: pg.NoticeCancel, Queue: "q", ID: 5, Claim: 1}, {Kind: pg.NoticePause, Queue: "nobody's"},
	}
	if err := pokes.Tell(context.Background(), notices); err != nil || len(out.sent) > 0 {
		t.Fatalf("before it knows anybody: %v, sent %v", err, out.sent)
	}
	seats := map[string]int{"q": 1}
	directory.set(map[string]bool{"a:1": true, "b:1": true, "c:1": true, "d:1": true}, []pg.Member{
		{Own: true, Address: "a:1", Queues: []string{"q", "r"}, Seats: seats, Lanes: []string{"r"}},
		{Address: "b:1", Queues: []string{"q", "r"}, Seats: seats, Lanes: []string{"q#0", "r"}},
		{Address: "c:1", Queues: []string{"q"}, Seats: seats},
		{Address: "d:1"},
		{Address: "e:1", Queues: []string{"q"}}, // lives, and is no member
	})
	if err := pokes.Tell(context.Background(), notices); err != nil {
		t.Fatal(err)
	}
	if err := pokes.Send(context.Background(), []string{"q"}); err != nil {
		t.Fatal(err)
	}
	cancels := &messages.Notice{Queue: "q", Cancels: []*messages.Notice_Cancel{{Instance: 4, Claim: 2}, {Instance: 5, Claim: 1}}}
	want := map[string][]proto.Message{
		"b:1/gendurable/e/queue/q": {cancels, &messages.Poke{Queues: []string{"q"}}},
		"b:1/gendurable/e/queue/r": {&messages.Notice{Queue: "r", Paused: true}},
		"c:1/gendurable/e/queue/q": {cancels},
	}
	if len(out.sent) != len(want) {
		t.Errorf("sent to %d actors, want %d", len(out.sent), len(want))
	}
	for to, list := range want {
		if !slices.EqualFunc(out.sent[to], list, proto.Equal) {
			t.Errorf("%s got %v, want %v", to, out.sent[to], list)
		}
	}
}

// TestLanesHandOnNotices, also to a lane that was let go of and still runs steps.
func TestLanesHandOnNotices(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	system := actors.NewSystem(log)
	heard, drains := make(chan string, 100), make(chan actors.Drain, 1)
	lane := func(identity string) *actor.Props {
		return actors.NewProps(log, nil, func() actor.Actor {
			return actor.ReceiveFunc(func(ctx actor.Context) {
				switch m := ctx.Message().(type) {
				case actors.Drain:
					drains <- m // and its steps go on
				case actors.QueuePaused, actors.CancelRequested, actors.CancelsRequested:
					heard <- fmt.Sprintf("%s: %T%v", identity, m, m)
				}
			})
		})
	}
	pid := system.Root.Spawn(Lanes(LanesConfig{Logger: log, Queue: "q", Lanes: 2, Lane: lane}))
	t.Cleanup(func() { _ = system.Root.StopFuture(pid).Wait() })
	system.Root.Send(pid, Serve{Lanes: []int{1}}) // lane 0 leaves
	drain := <-drains
	defer close(drain.Done)
	system.Root.Send(pid, &messages.Notice{Queue: "q", Paused: true, Cancels: []*messages.Notice_Cancel{{Instance: 4, Claim: 2}, {Instance: 5}}})
	system.Root.Send(pid, actors.CancelRequested{ID: 6}) // whatever came of the notice comes before
	var got []string
	for range 6 {
		select {
		case s := <-heard:
			got = append(got, s)
		case <-time.After(patience):
			t.Fatalf("heard only %v", got)
		}
	}
	slices.Sort(got)
	want := []string{}
	for _, identity := range []string{"q#0", "q#1"} {
		for _, m := range []any{actors.CancelsRequested{Cancels: []actors.CancelRequested{{ID: 4, Claim: 2}}}, actors.CancelRequested{ID: 6}, actors.QueuePaused{Queue: "q"}} {
			want = append(want, fmt.Sprintf("%s: %T%v", identity, m, m))
		}
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the lanes heard %v, want %v", got, want)
	}
}
