package cluster_test

import (
	"net"
	"runtime"
	"strings"
	"testing"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/remote"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/gendurable/gendurable/cluster"
	"github.com/gendurable/gendurable/messages"
)

// TestTheOutboxIsBounded, for a peer and for all, and what leaves it makes room: what is taken out to be sent, and what is
// thrown away.
func TestTheOutboxIsBounded(t *testing.T) {
	t.Parallel()
	reply := &messages.Got{RequestId: "r", State: make([]byte, 100_000)}
	o := cluster.NewOutbox(350_000, 500_000)
	slow, other := actor.NewPID("192.0.2.1:1", "future/x"), actor.NewPID("192.0.2.2:1", "future/x")
	var waiting []any
	take := func(to *actor.PID, times, want int) {
		t.Helper()
		taken := 0
		for range times {
			if m, ok := o.Reply(to, reply); ok {
				waiting = append(waiting, m)
				taken++
			}
		}
		if taken != want {
			t.Errorf("%d of %d replies to %s were taken, want %d", taken, times, to.Address, want)
		}
	}
	take(slow, 10, 3)
	take(other, 10, 1) // the bound for all
	little, ok := o.Reply(actor.NewPID("192.0.2.3:1", "future/x"), &messages.Got{RequestId: "r"})
	if waiting = append(waiting, little); !ok {
		t.Error("others that take all the room keep a little answer from a third peer")
	}
	// The library takes one out to send it: as the message that it is.
	w, err := waiting[0].(remote.RootSerializable).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	data, name, err := remote.Serialize(w, 0)
	if err != nil || name != "gendurable.v1.Got" {
		t.Fatalf("on the wire it is a %q, %v", name, err)
	}
	var got messages.Got
	if err := proto.Unmarshal(data, &got); err != nil || !proto.Equal(&got, reply) {
		t.Errorf("on the wire it says %v, %v", &got, err)
	}
	_, _ = waiting[0].(remote.RootSerializable).Serialize() // twice is once
	take(slow, 10, 1)
	// The library throws the rest away, and tells nobody.
	waiting = nil
	eventually(t, "what was thrown away makes room", func() bool {
		runtime.GC()
		_, held := o.Waiting(slow.Address)
		return held == 0
	})
	take(other, 10, 3)
	runtime.KeepAlive(waiting)
}

// TestAPeerThatDoesNotRead asks for more than it may have waiting. The rest is dropped and counted, others are served, and when
// its connection ends nothing is left of it.
func TestAPeerThatDoesNotRead(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	remote.RegisterRemotingServer(server, mute{greets: true})
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	a := attack(t, n, l.Addr().String())
	ask := a.to(gatewayName, &messages.Get{Id: "large"})
	ask.Senders, ask.Envelopes[0].Sender = []*actor.PID{actor.NewPID(a.address, "future/x")}, 1
	dropped := n.counts.GatewayDropped.Load()
	most := int64(0)
	eventually(t, "as much waits as there may, and replies are dropped", func() bool {
		for range 10 {
			a.send(batch(ask))
		}
		waiting, _ := n.remote.Outbox().Waiting(a.address)
		most = max(most, waiting)
		return n.counts.GatewayDropped.Load() > dropped+10 && most > cluster.MaxWaiting/2
	})
	if most > cluster.MaxWaiting {
		t.Errorf("%d bytes waited for the peer, and there may be %d", most, cluster.MaxWaiting)
	}
	attack(t, n, nowhere()).got("beside a peer that does not read")
	server.Stop()
	eventually(t, "nothing waits for the peer that has gone", func() bool {
		runtime.GC()
		waiting, _ := n.remote.Outbox().Waiting(a.address)
		return waiting == 0
	})
}

// large is the content of a large reply. It is there once, however many replies have it.
var large = strings.Repeat("x", 1<<20)
