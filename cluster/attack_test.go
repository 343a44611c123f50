package cluster_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/remote"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/cluster"
	"github.com/gendurable/gendurable/messages"
)

// attacker is a peer that speaks the library's protocol by hand.
type attacker struct {
	t      *testing.T
	node   *node
	conn   *grpc.ClientConn
	stream remote.Remoting_ReceiveClient
	// address is where it says that it is; nobody is there unless a test listens.
	address string
}

var attackers atomic.Int64

// attack connects, and introduces itself unless the address is empty.
func attack(t *testing.T, n *node, address string) *attacker {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+n.remote.Address(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(256<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	stream, err := remote.NewRemotingClient(conn).Receive(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a := &attacker{t: t, node: n, conn: conn, stream: stream, address: address}
	if address != "" {
		a.send(hello(address))
	}
	return a
}

// nowhere is an address of this machine where nobody listens.
func nowhere() string { return fmt.Sprintf("127.0.0.1:%d", 1+attackers.Add(1)) }

func hello(address string) *remote.RemoteMessage {
	return &remote.RemoteMessage{MessageType: &remote.RemoteMessage_ConnectRequest{ConnectRequest: &remote.ConnectRequest{
		ConnectionType: &remote.ConnectRequest_ServerConnection{ServerConnection: &remote.ServerConnection{
			SystemId: "attacker", Address: address}}}}}
}

func batch(b *remote.MessageBatch) *remote.RemoteMessage {
	return &remote.RemoteMessage{MessageType: &remote.RemoteMessage_MessageBatch{MessageBatch: b}}
}

func (a *attacker) send(m *remote.RemoteMessage) {
	a.t.Helper()
	if err := a.stream.Send(m); err != nil {
		a.t.Fatalf("the stream has ended: %v", err)
	}
}

// to is a batch of one message to an actor of the node.
func (a *attacker) to(target string, m proto.Message) *remote.MessageBatch {
	data, err := proto.Marshal(m)
	if err != nil {
		a.t.Fatal(err)
	}
	return &remote.MessageBatch{
		TypeNames: []string{string(messages.NameOf(m))},
		Targets:   []*actor.PID{actor.NewPID(a.node.remote.Address(), target)},
		Envelopes: []*remote.MessageEnvelope{{MessageData: data}},
	}
}

// got waits until a good message on the same stream arrives: the stream lives, and all that was sent before was dealt with.
func (a *attacker) got(id string) {
	a.t.Helper()
	id = fmt.Sprint(id, " ", attackers.Add(1)) // also new when the tests run again
	a.send(batch(a.to(gatewayName, &messages.Insert{Id: id, Machine: "m"})))
	eventually(a.t, "a good message after the attack arrives", func() bool {
		_, ok := a.node.inserts.Load(id)
		return ok
	})
}

const gatewayName = "gendurable/gendurable/gateway"

// TestAttacks sends what no peer of ours sends. The node must drop it and count it as what it is, keep the stream, and take the
// good message that follows.
func TestAttacks(t *testing.T) {
	n := sharedNode(t)
	before := n.events.Load()
	insert := &messages.Insert{Id: "evil", Machine: "m"}
	self := n.remote.Address()
	for what, test := range map[string]struct {
		make  func(a *attacker) *remote.MessageBatch
		count func(s cluster.FirewallStats) int64
	}{
		"unknown type to the gateway": {func(a *attacker) *remote.MessageBatch {
			b := a.to(gatewayName, insert)
			b.TypeNames[0] = "gendurable.v2.Insert"
			return b
		}, denied},
		"unknown type to the host": {func(a *attacker) *remote.MessageBatch {
			b := a.to("panics", insert)
			b.TypeNames[0] = "not.there"
			return b
		}, unknown},
		"empty type": {func(a *attacker) *remote.MessageBatch {
			b := a.to("panics", insert)
			b.TypeNames[0] = ""
			return b
		}, unknown},
		"type index": {func(a *attacker) *remote.MessageBatch {
			b := a.to(gatewayName, insert)
			b.Envelopes[0].TypeId = 1
			return b
		}, malformed},
		"negative target index": {func(a *attacker) *remote.MessageBatch {
			b := a.to(gatewayName, insert)
			b.Envelopes[0].Target = -1
			return b
		}, malformed},
		"target index": {func(a *attacker) *remote.MessageBatch {
			b := a.to(gatewayName, insert)
			b.Targets = nil
			return b
		}, malformed},
		"sender index": {func(a *attacker) *remote.MessageBatch {
			b := a.to(gatewayName, insert)
			b.Envelopes[0].Sender = 2
			return b
		}, malformed},
		"negative sender index": {func(a *attacker) *remote.MessageBatch {
			b := a.to(gatewayName, insert)
			b.Envelopes[0].Sender = -5
			return b
		}, malformed},
		"serializer": {func(a *attacker) *remote.MessageBatch {
			b := a.to(gatewayName, insert)
			b.Envelopes[0].SerializerId = 77
			return b
		}, malformed},
		"the other serializer": {func(a *attacker) *remote.MessageBatch {
			b := a.to(gatewayName, insert)
			b.Envelopes[0].SerializerId = 1
			return b
		}, malformed},
		"garbage bytes": {func(a *attacker) *remote.MessageBatch {
			b := a.to(gatewayName, insert)
			b.Envelopes[0].MessageData = bytes.Repeat([]byte{0xff}, 100)
			return b
		}, malformed},
		"stop the gateway":     {to(gatewayName, new(actor.Stop)), denied},
		"poison the gateway":   {to(gatewayName, new(actor.PoisonPill)), denied},
		"watch the gateway":    {to(gatewayName, &actor.Watch{Watcher: actor.NewPID(self, "host")}), denied},
		"terminated":           {to(gatewayName, &actor.Terminated{}), denied},
		"stop the engine":      {to("gendurable/gendurable", new(actor.Stop)), denied},
		"insert to the engine": {to("gendurable/gendurable", insert), denied},
		"insert to a queue":    {to("gendurable/gendurable/queue/orders", insert), denied},
		"poke the flusher":     {to("gendurable/gendurable/flusher/0", new(messages.Poke)), denied},
		"notice to a gateway":  {to(gatewayName, new(messages.Notice)), denied},
		"notice to the steps":  {to("gendurable/gendurable/queue/orders/steps", new(messages.Notice)), denied},
		"poke the steps":       {to("gendurable/gendurable/queue/orders/steps", new(messages.Poke)), denied},
		"reply to a future":    {to("future$1", &messages.Inserted{RequestId: "x", Id: 1}), denied},
		"answer to a future":   {to("future$1", new(actor.DeadLetterResponse)), denied},
		"stop a future":        {to("future$1", new(actor.Stop)), denied},
		"request to a future":  {to("future$1", insert), denied},
		"stop the host":        {to("host", new(actor.Stop)), denied},
		"spawn":                {to("activator", &remote.ActorPidRequest{Kind: "none"}), denied},
		"forged topology":      {to("eventstream", &remote.ConnectRequest{}), denied},
		"forged event":         {to("eventstream", insert), denied},
		"end a connection":     {to("EndpointSupervisor", new(actor.Stop)), denied},
		"another node": {func(a *attacker) *remote.MessageBatch {
			b := a.to(gatewayName, insert)
			b.Targets[0].Address = "192.0.2.1:1"
			return b
		}, forged},
		"no node": {func(a *attacker) *remote.MessageBatch {
			b := a.to(gatewayName, insert)
			b.Targets[0].Address = ""
			return b
		}, forged},
		"in our name": {func(a *attacker) *remote.MessageBatch {
			b := a.to(gatewayName, insert)
			b.Senders, b.Envelopes[0].Sender = []*actor.PID{actor.NewPID(self, "gendurable/gendurable/queue/orders")}, 1
			return b
		}, forged},
		"in a third one's name": {func(a *attacker) *remote.MessageBatch {
			b := a.to(gatewayName, insert)
			b.Senders, b.Envelopes[0].Sender = []*actor.PID{actor.NewPID("192.0.2.1:80", "x")}, 1
			return b
		}, forged},
		"too many messages": {func(a *attacker) *remote.MessageBatch {
			b := a.to(gatewayName, insert)
			for range 5000 {
				b.Envelopes = append(b.Envelopes, b.Envelopes[0])
			}
			return b
		}, oversized},
		"far too many messages": {func(a *attacker) *remote.MessageBatch {
			b := a.to(gatewayName, insert)
			b.Envelopes = slices.Repeat(b.Envelopes, 100_000)
			return b
		}, oversized},
		"far too many names": {func(a *attacker) *remote.MessageBatch {
			b := a.to(gatewayName, insert)
			b.TypeNames = append(b.TypeNames, make([]string, 1_000_000)...)
			return b
		}, oversized},
		"far too many headers": {func(a *attacker) *remote.MessageBatch {
			b := a.to(gatewayName, insert)
			header := make(map[string]string)
			for i := range 20_000 {
				header[fmt.Sprint(i)] = ""
			}
			b.Envelopes[0].MessageHeader = &remote.MessageHeader{HeaderData: header}
			return b
		}, oversized},
		"far too many parts": {to(gatewayName, &messages.InsertMany{Id: "evil",
			Inserts: slices.Repeat([]*messages.Insert{{}}, 300_000)}), oversized},
		"far too many parts inside": {to(gatewayName, &messages.InsertMany{Id: "evil", Inserts: []*messages.Insert{{Options: &messages.InsertOptions{
			CorrelationScope: &messages.CorrelationScope{Statuses: make([]string, 300_000)}}}}}), oversized},
	} {
		t.Run(what, func(t *testing.T) {
			a := attack(t, n, nowhere())
			counted := test.count(n.remote.Firewall().Stats())
			a.send(batch(test.make(a)))
			a.got("after " + what)
			if now := test.count(n.remote.Firewall().Stats()); now != counted+1 {
				t.Errorf("counted %d of this kind: %+v", now-counted, n.remote.Firewall().Stats())
			}
		})
	}
	if _, evil := n.inserts.Load("evil"); evil {
		t.Error("an attack got through to the gateway")
	}
	if n.stopped.Load() > 0 {
		t.Error("an actor was stopped from outside")
	}
	if now := n.events.Load(); now != before {
		t.Errorf("%d events were published", now-before)
	}
}

func to(target string, m proto.Message) func(a *attacker) *remote.MessageBatch {
	return func(a *attacker) *remote.MessageBatch { return a.to(target, m) }
}

func denied(s cluster.FirewallStats) int64    { return s.Denied }
func unknown(s cluster.FirewallStats) int64   { return s.Unknown }
func malformed(s cluster.FirewallStats) int64 { return s.Malformed }
func forged(s cluster.FirewallStats) int64    { return s.Forged }
func oversized(s cluster.FirewallStats) int64 { return s.Oversized }

// TestGoodMessagesBesideAnAttack: of a batch, only what is bad is dropped.
func TestGoodMessagesBesideAnAttack(t *testing.T) {
	n := sharedNode(t)
	a := attack(t, n, nowhere())
	b := a.to(gatewayName, &messages.Insert{Id: "beside", Machine: "m"})
	b.Envelopes = []*remote.MessageEnvelope{{TypeId: 9}, b.Envelopes[0], {Target: 9}, {MessageData: []byte{0xff}}}
	a.send(batch(b))
	eventually(t, "the good one", func() bool { _, ok := n.inserts.Load("beside"); return ok })
}

// TestWhatMayComeIn: pokes, what the host allows, and a request of the next version of the protocol, with fields that are new.
func TestWhatMayComeIn(t *testing.T) {
	n := sharedNode(t)
	a := attack(t, n, nowhere())
	a.send(batch(a.to(gatewayName, &messages.Poke{Queues: []string{"orders"}})))
	a.send(batch(a.to("host", &messages.Hello{Id: "h"})))
	eventually(t, "a poke and a message to the host", func() bool { return n.pokes.Load() > 0 && n.allowed.Load() > 0 })
	passed := n.remote.Firewall().Stats().Passed
	a.send(batch(a.to("gendurable/gendurable/queue/steps", new(messages.Poke)))) // a name like any other
	eventually(t, "a poke of a queue", func() bool { return n.remote.Firewall().Stats().Passed > passed })
	a.send(batch(a.to("gendurable/gendurable/queue/orders", &messages.Notice{Queue: "orders", Paused: true})))
	eventually(t, "a notice to a queue", func() bool { return n.notices.Load() > 0 })
	newer := a.to(gatewayName, &messages.Insert{Id: "of the next version", Machine: "m"})
	data := protowire.AppendTag(newer.Envelopes[0].MessageData, 5000, protowire.BytesType)
	newer.Envelopes[0].MessageData = protowire.AppendString(data, "what this version has never heard of")
	a.send(batch(newer))
	eventually(t, "a request with new fields", func() bool { _, ok := n.inserts.Load("of the next version"); return ok })
	// A message that is new is dropped; what is old in the same batch arrives.
	mixed := a.to(gatewayName, &messages.Insert{Id: "with news", Machine: "m"})
	mixed.TypeNames = append(mixed.TypeNames, "gendurable.v1.Pause")
	mixed.Envelopes = append([]*remote.MessageEnvelope{{TypeId: 1}}, mixed.Envelopes...)
	a.send(batch(mixed))
	eventually(t, "a request beside a new message", func() bool { _, ok := n.inserts.Load("with news"); return ok })
}

// TestStreamsOutOfTurn: streams that do not begin with an introduction, or lie in it.
func TestStreamsOutOfTurn(t *testing.T) {
	n := sharedNode(t)
	stats := func() cluster.FirewallStats { return n.remote.Firewall().Stats() }
	before := stats()
	a := attack(t, n, "")
	a.send(batch(a.to(gatewayName, &messages.Insert{Id: "evil", Machine: "m"})))
	a.send(&remote.RemoteMessage{})
	a.send(&remote.RemoteMessage{MessageType: &remote.RemoteMessage_DisconnectRequest{DisconnectRequest: new(remote.DisconnectRequest)}})
	a.send(&remote.RemoteMessage{MessageType: &remote.RemoteMessage_ConnectRequest{ConnectRequest: new(remote.ConnectRequest)}})
	a.send(&remote.RemoteMessage{MessageType: &remote.RemoteMessage_ConnectRequest{ConnectRequest: &remote.ConnectRequest{
		ConnectionType: &remote.ConnectRequest_ServerConnection{}}}})
	a.send(&remote.RemoteMessage{MessageType: &remote.RemoteMessage_ConnectRequest{ConnectRequest: &remote.ConnectRequest{
		ConnectionType: &remote.ConnectRequest_ClientConnection{ClientConnection: new(remote.ClientConnection)}}}})
	a.send(hello(n.remote.Address()))
	a.send(hello("nonhost")) // which the library takes for this node, too
	a.send(hello(nowhere()))
	a.send(hello(nowhere())) // twice
	a.got("in turn at last")
	if now := stats(); now.Malformed != before.Malformed+7 || now.Forged != before.Forged+2 {
		t.Errorf("counted %+v, before %+v", now, before)
	}
	if _, evil := n.inserts.Load("evil"); evil {
		t.Error("a message without an introduction got through")
	}
}

// TestUnaryCallsAreDenied: the library's implementations of them panic.
func TestUnaryCallsAreDenied(t *testing.T) {
	n := sharedNode(t)
	a := attack(t, n, nowhere())
	before := n.remote.Firewall().Stats().Calls
	client := remote.NewRemotingClient(a.conn)
	_, err1 := client.ListProcesses(t.Context(), new(remote.ListProcessesRequest))
	_, err2 := client.GetProcessDiagnostics(t.Context(), new(remote.GetProcessDiagnosticsRequest))
	if status.Code(err1) != codes.PermissionDenied || status.Code(err2) != codes.PermissionDenied {
		t.Errorf("%v; %v", err1, err2)
	}
	if n.remote.Firewall().Stats().Calls != before+2 {
		t.Errorf("counted %+v", n.remote.Firewall().Stats())
	}
	a.got("after the calls")
}

// TestOversizedBatches: more bytes than a message may have end the stream, and nothing else. The bound is lower here than a
// node's, for the sake of slow machines.
func TestOversizedBatches(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	firewall := cluster.NewFirewall(actors.NewSystem(quiet()), cluster.FirewallConfig{Logger: quiet()})
	server := grpc.NewServer(append(firewall.ServerOptions(), grpc.MaxRecvMsgSize(1<<20))...)
	remote.RegisterRemotingServer(server, eager{})
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for range 2 {
		stream, err := remote.NewRemotingClient(conn).Receive(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.Send(hello(nowhere()))
		_ = stream.Send(batch(&remote.MessageBatch{Envelopes: []*remote.MessageEnvelope{{MessageData: make([]byte, 1<<20+1)}}}))
		if _, err := stream.Recv(); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("the stream ended with %v", err)
		}
	}
	if s := firewall.Stats(); s.Oversized != 2 {
		t.Errorf("counted %+v", s)
	}
	eventually(t, "no peer is left", func() bool { return firewall.Stats().PeersNow == 0 })
}

// eager reads everything, as the library does.
type eager struct {
	remote.UnimplementedRemotingServer
}

func (eager) Receive(s remote.Remoting_ReceiveServer) error {
	for {
		if _, err := s.Recv(); err != nil {
			return err
		}
	}
}

// TestPanicUnderAMessage: should the library panic after all, the stream ends and the process does not.
func TestPanicUnderAMessage(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	firewall := cluster.NewFirewall(actors.NewSystem(quiet()), cluster.FirewallConfig{Logger: quiet()})
	server := grpc.NewServer(firewall.ServerOptions()...)
	remote.RegisterRemotingServer(server, fragile{})
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := remote.NewRemotingClient(conn).Receive(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.Send(hello(nowhere()))
	if _, err := stream.Recv(); status.Code(err) != codes.Internal {
		t.Errorf("the stream ended with %v", err)
	}
	if s := firewall.Stats(); s.Panics != 1 {
		t.Errorf("counted %+v", s)
	}
}

type fragile struct {
	remote.UnimplementedRemotingServer
}

func (fragile) Receive(s remote.Remoting_ReceiveServer) error {
	_, _ = s.Recv()
	panic("bug")
}

// TestGarbageOnTheSocket: bytes that are no gRPC, and gRPC frames that hold no message.
func TestGarbageOnTheSocket(t *testing.T) {
	n := sharedNode(t)
	for i := range 20 {
		conn, err := net.Dial("tcp", n.remote.Address())
		if err != nil {
			t.Fatal(err)
		}
		noise := make([]byte, 10_000)
		_, _ = rand.Read(noise)
		if i%2 == 0 {
			noise = append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), noise...)
		}
		_, _ = conn.Write(noise)
		_ = conn.Close()
	}
	before := n.remote.Firewall().Stats().Malformed
	a := attack(t, n, nowhere())
	raw, err := a.conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true},
		"/remote.Remoting/Receive", grpc.ForceCodec(rawCodec{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.SendMsg(bytes.Repeat([]byte{0xfe}, 1000)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the garbage is counted", func() bool { return n.remote.Firewall().Stats().Malformed > before })
	a.got("after the garbage")
}

// rawCodec sends bytes as they are.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error)      { return v.([]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error { return nil }
func (rawCodec) Name() string                       { return "proto" }

// TestFrozenPeers: peers that ask and then read nothing. Others are served meanwhile.
func TestFrozenPeers(t *testing.T) {
	n := sharedNode(t)
	for range 5 {
		// It accepts the connection for its replies, and is never heard of again.
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		a := attack(t, n, l.Addr().String())
		b := a.to(gatewayName, &messages.Hello{Id: "x"})
		b.Senders, b.Envelopes[0].Sender = []*actor.PID{actor.NewPID(a.address, "future$1")}, 1
		for range 100 {
			b.Envelopes = append(b.Envelopes, b.Envelopes[0])
		}
		a.send(batch(b))
	}
	attack(t, n, nowhere()).got("beside the frozen ones")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	client, err := cluster.NewClient(cluster.ClientConfig{System: n.system, Patience: patience})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Hello(ctx); err != nil {
		t.Errorf("the gateway does not answer beside frozen peers: %v", err)
	}
}
