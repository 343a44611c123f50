package cluster_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/remote"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/actors/gateway"
	"github.com/gendurable/gendurable/cluster"
	"github.com/gendurable/gendurable/messages"
)

// patience is how long a test waits for what must happen. It says nothing about how long it should take.
const patience = 60 * time.Second

// node is the process under attack: a remote, and a gateway that counts. The tests of this binary share one, as the
// library's Start changes a global of gRPC without a lock, which the race detector rightly minds.
type node struct {
	system *actor.ActorSystem
	remote *cluster.Remote
	// inserts are requests that got through to the gateway, by id; each answered with its number.
	inserts sync.Map
	n       atomic.Int64
	counts  actors.Counters
	pokes   atomic.Int64
	// notices are what came to the actor of a queue.
	notices atomic.Int64
	// events are what was published on the event stream from outside.
	events atomic.Int64
	// stopped are system messages that ended an actor.
	stopped atomic.Int64
	// allowed are messages to the host's own actor.
	allowed atomic.Int64
}

const engine = "gendurable"

var theNode = sync.OnceValues(func() (*node, error) { return newNode(cluster.Config{}) })

func newNode(cfg cluster.Config) (*node, error) {
	n := &node{system: actors.NewSystem(quiet())}
	var err error
	cfg.Allow = func(target, message string) bool {
		return target == "host" && message == "gendurable.v1.Hello" || target == "panics"
	}
	n.remote, err = cluster.OpenRemote(n.system, cfg, quiet())
	if err != nil {
		return nil, err
	}
	n.system.EventStream.Subscribe(func(event any) {
		switch event.(type) { // what the attacks send; the library publishes of its own, too
		case *messages.Insert, *remote.ConnectRequest:
			n.events.Add(1)
		}
	})
	gate := gateway.Props(gateway.Config{Logger: quiet(), Counters: &n.counts, Answer: n.answer, Timeout: patience, Outgoing: n.remote.Outbox().Reply,
		Poke: func([]string, time.Duration) { n.pokes.Add(1) }})
	host := actor.PropsFromFunc(func(ctx actor.Context) {
		switch m := ctx.Message().(type) {
		case *messages.Hello:
			n.allowed.Add(1)
			ctx.Respond(&messages.NodeInfo{RequestId: m.Id})
		case *messages.Notice:
			n.notices.Add(1)
		case *actor.Stopped:
			n.stopped.Add(1)
		}
	})
	for name, props := range map[string]*actor.Props{actors.NameRoot(engine) + "/gateway": gate, actors.NameRoot(engine): host,
		actors.NameRoot(engine) + "/queue/orders": host, "host": host} {
		if _, err := n.system.Root.SpawnNamed(props, name); err != nil {
			return nil, fmt.Errorf("spawn %s: %w", name, err)
		}
	}
	return n, nil
}

// answer inserts each id once, as an engine does.
func (n *node) answer(ctx context.Context, request messages.Request) messages.Reply {
	switch m := request.(type) {
	case *messages.Insert:
		if m.Machine == "slow" {
			<-ctx.Done()
		}
		number, known := n.inserts.LoadOrStore(m.Id, n.n.Add(1))
		return &messages.Inserted{RequestId: m.Id, Id: number.(int64), Repeated: known}
	case *messages.Get:
		return &messages.Refused{RequestId: m.Id, Reason: messages.Refused_NOT_FOUND, Text: large}
	case *messages.Hello:
		return &messages.NodeInfo{RequestId: m.Id, Level: messages.Level, Engine: engine}
	}
	return &messages.Refused{RequestId: request.GetId(), Reason: messages.Refused_UNSUPPORTED, Text: "not in this test"}
}

func sharedNode(t *testing.T) *node {
	t.Helper()
	n, err := theNode()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// TestMain lets the test binary be another process, see process_test.go.
func TestMain(m *testing.M) {
	if role := os.Getenv(envRole); role != "" {
		os.Exit(play(role))
	}
	n, err := theNode() // before anything else of gRPC
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	for n.counts.GatewayInHandNow.Load() > 0 { // the library's end and a reply that is being sent are a race of its own
		runtime.Gosched()
	}
	n.remote.Close()
	os.Exit(code)
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	late := time.After(patience)
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for !ok() {
		select {
		case <-late:
			t.Fatalf("in vain waited for: %s", what)
		case <-look.C:
		}
	}
}
