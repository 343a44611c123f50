package cluster_test

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/remote"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/cluster"
	"github.com/gendurable/gendurable/messages"
)

// way carries connections to an address. When it goes dead, those that are there carry nothing any more and are never
// closed, as behind a firewall that has forgotten them or a machine that has lost its power; it takes new ones, which
// are dead, too, until it is repaired. Those of before stay dead.
type way struct {
	listener net.Listener
	target   string

	mu    sync.Mutex
	dead  bool
	taken int // connections that were made
	alive map[*carrier]bool
	all   []net.Conn
}

// carrier is one connection of a way.
type carrier struct{ dead chan struct{} }

func newWay(t *testing.T, target string) *way {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &way{listener: l, target: target, alive: map[*carrier]bool{}}
	go w.run()
	t.Cleanup(func() {
		_ = l.Close()
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, c := range w.all {
			_ = c.Close()
		}
	})
	return w
}

func (w *way) address() string { return w.listener.Addr().String() }

func (w *way) run() {
	for {
		from, err := w.listener.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", w.target)
		if err != nil {
			_ = from.Close()
			continue
		}
		w.carry(from, to)
	}
}

func (w *way) carry(from, to net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.taken++
	w.all = append(w.all, from, to)
	c := &carrier{make(chan struct{})}
	w.alive[c] = true
	if w.dead {
		w.kill(c)
	}
	go c.pass(from, to)
	go c.pass(to, from)
}

func (c *carrier) pass(from, to net.Conn) {
	buffer := make([]byte, 1<<16)
	for {
		n, err := from.Read(buffer)
		select {
		case <-c.dead:
			if err == nil {
				continue // read, and never heard of again
			}
			return
		default:
		}
		if n > 0 {
			_, _ = to.Write(buffer[:n])
		}
		if err != nil {
			_ = to.Close()
			return
		}
	}
}

func (w *way) kill(c *carrier) {
	close(c.dead)
	delete(w.alive, c)
}

// set makes the way dead, or repairs it. It returns how many connections were made so far.
func (w *way) set(dead bool) (taken int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = dead
	for c := range w.alive {
		if dead {
			w.kill(c)
		}
	}
	return w.taken
}

func (w *way) made() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.taken
}

// TestADeadConnectionIsNoticed: a connection that carries nothing any more, and that nobody closes, is given up, and another one
// made, which works as soon as the network does. Without keepalive the node would write into the dead one for ever.
func TestADeadConnectionIsNoticed(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	heard := make(chan struct{}, 1)
	road := newWay(t, serve(t, peer{heard: heard}))
	a := attack(t, n, road.address())
	ask := a.to(gatewayName, &messages.Hello{Id: "x"})
	ask.Senders, ask.Envelopes[0].Sender = []*actor.PID{actor.NewPID(a.address, "future$1")}, 1
	reply := func() bool {
		a.send(batch(ask))
		select {
		case <-heard:
			return true
		default:
			return false
		}
	}
	eventually(t, "a reply reaches the peer", reply)
	before := road.set(true)
	eventually(t, "the node makes another connection", func() bool {
		reply() // that is on its way; and the node has something to send
		return road.made() > before
	})
	road.set(false)
	eventually(t, "a reply reaches the peer again", reply)
}

// peer greets, and tells of each batch that it gets.
type peer struct {
	remote.UnimplementedRemotingServer
	heard chan<- struct{}
}

func (p peer) Receive(s remote.Remoting_ReceiveServer) error {
	if err := s.Send(&remote.RemoteMessage{MessageType: &remote.RemoteMessage_ConnectResponse{ConnectResponse: new(remote.ConnectResponse)}}); err != nil {
		return err
	}
	for {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		if m.GetMessageBatch() != nil {
			select {
			case p.heard <- struct{}{}:
			default:
			}
		}
	}
}

// TestADeadPeerIsNoticed by the node that it had connected to: its stream ends.
func TestADeadPeerIsNoticed(t *testing.T) {
	t.Parallel()
	firewall := cluster.NewFirewall(actors.NewSystem(quiet()), cluster.FirewallConfig{Logger: quiet()})
	road := newWay(t, serve(t, eager{}, firewall.ServerOptions()...))
	conn, err := grpc.NewClient("passthrough:///"+road.address(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := remote.NewRemotingClient(conn).Receive(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(hello(nowhere())); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the peer is there", func() bool { return firewall.Stats().PeersNow == 1 })
	road.set(true)
	eventually(t, "the node has noticed that it is not", func() bool { return firewall.Stats().PeersNow == 0 })
}

// serve runs a gRPC server with a peer's service until the end of the test, and returns its address.
func serve(t *testing.T, service remote.RemotingServer, options ...grpc.ServerOption) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(options...)
	remote.RegisterRemotingServer(server, service)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return l.Addr().String()
}

// TestPingsAreNotTooMany: a node takes the pings of a peer of ours for what they are, also on a connection without a stream, and
// shows the door to one that pings as fast as it can.
func TestPingsAreNotTooMany(t *testing.T) {
	t.Parallel()
	// gRPC raises the dialling side's interval to this without a word; then the guide would promise too much.
	if cluster.KeepaliveTime < 10*time.Second || cluster.KeepaliveTimeout >= cluster.KeepaliveTime {
		t.Errorf("pings every %v, which are waited for %v", cluster.KeepaliveTime, cluster.KeepaliveTimeout)
	}
	const interval = 100 * time.Millisecond
	firewall := cluster.NewFirewall(actors.NewSystem(quiet()), cluster.FirewallConfig{Logger: quiet()})
	address := serve(t, eager{}, cluster.ServerOptions(firewall, interval)...)
	// The next ping is sent an interval after the answer to the last one, so the node cannot see them closer together.
	if n := pings(t, address, 8, interval); n != 8 {
		t.Errorf("after %d pings, one an interval, the connection has ended", n)
	}
	if n := pings(t, address, 1000, 0); n == 1000 {
		t.Errorf("all of %d pings without a pause were answered", n)
	}
}

// pings speaks HTTP/2 by hand, as gRPC's client has a lowest interval: it sends so many pings, each so long after the answer to
// the one before, and returns how many were answered before the server said goodbye.
func pings(t *testing.T, address string, most int, pause time.Duration) int {
	t.Helper()
	const typePing, typeSettings, typeGoAway, ack = 0x6, 0x4, 0x7, 0x1
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	send := func(kind, flags byte, payload []byte) {
		_, _ = conn.Write(append([]byte{0, 0, byte(len(payload)), kind, flags, 0, 0, 0, 0}, payload...)) // reading tells of an end
	}
	_, _ = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	send(typeSettings, 0, nil)
	send(typePing, 0, make([]byte, 8))
	in := bufio.NewReader(conn)
	for answered := 0; ; {
		var head [9]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return answered
		}
		length := binary.BigEndian.Uint32(append([]byte{0}, head[:3]...))
		payload := make([]byte, length)
		if _, err := io.ReadFull(in, payload); err != nil {
			return answered
		}
		switch kind, flags := head[3], head[4]; {
		case kind == typeGoAway:
			return answered
		case kind == typeSettings && flags&ack == 0:
			send(typeSettings, ack, nil)
		case kind == typePing && flags&ack == 0:
			send(typePing, ack, payload)
		case kind == typePing:
			if answered++; answered == most {
				return answered
			}
			<-time.After(pause)
			send(typePing, 0, make([]byte, 8))
		}
	}
}
