package cluster_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/remote"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/cluster"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/instance"
)

func TestConfigIsValidated(t *testing.T) {
	t.Parallel()
	cert := []tls.Certificate{{}}
	roots := x509.NewCertPool()
	for _, test := range []struct {
		cfg  cluster.Config
		want string // empty = good
	}{
		{cluster.Config{}, ""},
		{cluster.Config{Address: "localhost:7000"}, ""},
		{cluster.Config{Address: "127.8.8.8:7000"}, ""},
		{cluster.Config{Address: "[::1]:0"}, ""},
		{cluster.Config{Address: "192.0.2.1:7000"}, "needs TLS"},
		{cluster.Config{Address: "node-1.example:7000"}, "needs TLS"},
		{cluster.Config{Address: "192.0.2.1:7000", Insecure: true}, ""},
		{cluster.Config{Address: "192.0.2.1:7000", TLS: &tls.Config{Certificates: cert, RootCAs: roots}}, ""},
		{cluster.Config{Address: "192.0.2.1:7000", TLS: &tls.Config{Certificates: cert}}, "needs RootCAs"},
		{cluster.Config{Address: "192.0.2.1:7000", TLS: &tls.Config{RootCAs: roots}}, "certificate"},
		{cluster.Config{TLS: &tls.Config{Certificates: cert, RootCAs: roots, InsecureSkipVerify: true}}, "anybody"},
		{cluster.Config{TLS: &tls.Config{Certificates: cert, RootCAs: roots}, Insecure: true}, "contradicts"},
		{cluster.Config{TLS: &tls.Config{Certificates: cert, RootCAs: roots, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return nil, nil
		}}}, "GetCertificate"},
		{cluster.Config{Address: ":7000", Insecure: true}, "all interfaces"},
		{cluster.Config{Address: "[::]:7000", Insecure: true}, "all interfaces"},
		{cluster.Config{Address: "0.0.0.0:7000", Advertise: "node-1.example:7000"}, "needs TLS"},
		{cluster.Config{Address: "0.0.0.0:7000", Advertise: "node-1.example:7000", Insecure: true}, ""},
		{cluster.Config{Address: "7000"}, "host:port"},
		{cluster.Config{Address: "127.0.0.1:70000"}, "between 0 and 65535"},
		{cluster.Config{Advertise: "node-1.example"}, "under which peers"},
		{cluster.Config{Advertise: ":7000"}, "under which peers"},
	} {
		err := test.cfg.Validate()
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%+v: %v", test.cfg, err)
		case test.want != "" && (!errors.Is(err, instance.ErrInvalid) || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%+v: %v, want %q", test.cfg, err, test.want)
		}
	}
}

func TestPortThatIsTaken(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := cluster.OpenRemote(actors.NewSystem(quiet()), cluster.Config{Address: l.Addr().String()}, quiet()); err == nil ||
		!strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("opened, or the error does not name the address: %v", err)
	}
}

func TestClientConfigIsValidated(t *testing.T) {
	t.Parallel()
	for text, cfg := range map[string]cluster.ClientConfig{
		"at least one node": {},
		"must be host:port": {Gateways: []string{"node-1"}},
		"needs TLS":         {Gateways: []string{"127.0.0.1:1"}, Config: cluster.Config{Address: "192.0.2.1:1"}},
		"has no Remote":     {Gateways: []string{"127.0.0.1:1"}, System: actors.NewSystem(quiet())},
		"MaxPayload":        {System: actors.NewSystem(quiet()), MaxPayload: 1 << 30},
		"its own Remote":    {System: actors.NewSystem(quiet()), Config: cluster.Config{Address: "127.0.0.1:1"}},
		"must be positive":  {System: actors.NewSystem(quiet()), Patience: -1},
	} {
		if _, err := cluster.NewClient(cfg); !errors.Is(err, instance.ErrInvalid) || !strings.Contains(err.Error(), text) {
			t.Errorf("%+v: %v, want %q", cfg, err, text)
		}
	}
}

// TestNobodyAnswers: a client without a gateway gives up in time, and says that the fate is not known.
func TestNobodyAnswers(t *testing.T) {
	t.Parallel()
	client, err := cluster.NewClient(cluster.ClientConfig{System: actors.NewSystem(quiet()), Patience: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	machine := fsm.New[struct{}]("m").Step("a", func(context.Context, *fsm.Call[struct{}]) (fsm.Outcome, error) { return fsm.Done(nil), nil })
	if _, err := client.Insert(t.Context(), machine.New(struct{}{})); !errors.Is(err, cluster.ErrNoGateway) {
		t.Errorf("insert: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := client.Await(ctx, instance.ID(7)); !errors.Is(err, instance.ErrStillBusy) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("await: %v", err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := client.Await(context.Background(), instance.ID(7))
		ended <- err
	}()
	client.Close()
	if err := <-ended; !errors.Is(err, instance.ErrStopped) {
		t.Errorf("await after Close: %v", err)
	}
	client.Close()
	if _, err := client.Get(t.Context(), instance.ID(7)); !errors.Is(err, instance.ErrStopped) {
		t.Errorf("get after Close: %v", err)
	}
}

// TestOtherGatewaysAreAsked: a client goes on to the next gateway when one does not answer.
func TestOtherGatewaysAreAsked(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	client, err := cluster.NewClient(cluster.ClientConfig{System: n.system, Patience: patience, Try: patience,
		Gateways: []string{nowhere(), n.remote.Address()}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if info, err := client.Hello(t.Context()); err != nil || info.Engine != engine {
		t.Errorf("%v, %v", info, err)
	}
}

// mute is a peer that accepts streams: it greets or not, and reads nothing.
type mute struct {
	remote.UnimplementedRemotingServer
	greets bool
}

func (m mute) Receive(s remote.Remoting_ReceiveServer) error {
	if m.greets {
		if err := s.Send(&remote.RemoteMessage{}); err != nil {
			return err
		}
	}
	<-s.Context().Done()
	return nil
}

// TestPatienceEnds: the library waits for ever for a peer that does not greet, and for one that reads nothing. Our dial options
// end the stream.
func TestPatienceEnds(t *testing.T) {
	t.Parallel()
	for what, m := range map[string]mute{"that does not greet": {}, "that reads nothing": {greets: true}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			server := grpc.NewServer()
			remote.RegisterRemotingServer(server, m)
			go func() { _ = server.Serve(l) }()
			defer server.Stop()
			greet := patience
			if !m.greets {
				greet = 50 * time.Millisecond
			}
			conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), append(cluster.DialOptions(cluster.NewOutbox(1, 1), greet, 50*time.Millisecond),
				grpc.WithTransportCredentials(insecure.NewCredentials()))...)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			stream, err := remote.NewRemotingClient(conn).Receive(context.Background())
			if err == nil {
				_, err = stream.Recv()
			}
			if (err == nil) != m.greets {
				t.Fatalf("greeting: %v", err)
			}
			filler := hello(strings.Repeat("x", 1<<16))
			for err == nil { // until the flow control's window is full
				err = stream.Send(filler)
			}
		})
	}
}
