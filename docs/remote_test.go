package docs_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/remote"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/cluster"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/messages"
)

func startReachable(ctx context.Context, pool *pgxpool.Pool, certs *tls.Config) (*gendurable.Engine, error) {
	return gendurable.Start(ctx, pool, gendurable.Config{
		Machines: []fsm.Definition{Checkout},
		Cluster: &cluster.Config{
			Address:   "0.0.0.0:7400",
			Advertise: "worker-1.internal:7400",
			TLS:       certs,
		},
	})
}

func loadCertificates() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair("node.pem", "node.key")
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile("ca.pem")
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, errors.New("ca.pem has no certificate")
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots}, nil
}

func remoteInsert(ctx context.Context, certs *tls.Config) error {
	client, err := cluster.NewClient(cluster.ClientConfig{
		Config:   cluster.Config{Address: "0.0.0.0:7400", Advertise: "web-1.internal:7400", TLS: certs},
		Gateways: []string{"worker-1.internal:7400", "worker-2.internal:7400"},
	})
	if err != nil {
		return err
	}
	defer client.Close()
	id, err := client.Insert(ctx, Checkout.New(Order{ID: 42}), fsm.RequestID("order:42"))
	if err != nil {
		return err
	}
	settled, err := client.Await(ctx, id, gendurable.UntilTerminal())
	if err != nil {
		return err
	}
	return settled.Err()
}

// Till is an actor that orders a checkout.
type Till struct{ gateway *actor.PID }

func (t *Till) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *actor.Started:
		ctx.Request(t.gateway, &messages.Insert{
			Id: "order:42", Machine: "checkout", State: []byte(`{"id": 42}`),
		})
	case *messages.Inserted:
		ctx.Logger().Info("ordered", "instance", m.Id)
	case *messages.Refused:
		ctx.Logger().Warn("refused", "reason", m.Reason.String(), "text", m.Text)
	}
}

func spawnTill(engine *gendurable.Engine, system *actor.ActorSystem) *actor.PID {
	return system.Root.Spawn(actor.PropsFromProducer(func() actor.Actor {
		return &Till{gateway: engine.Gateway()}
	}))
}

func remoteTill(system *actor.ActorSystem) *Till {
	return &Till{gateway: cluster.GatewayPID("worker-1.internal:7400", "gendurable")}
}

func startInHostsSystem(ctx context.Context, pool *pgxpool.Pool, certs credentials.TransportCredentials) (*gendurable.Engine, error) {
	system := actor.NewActorSystem()
	firewall := cluster.NewFirewall(system, cluster.FirewallConfig{
		Allow: func(target, message string) bool { return target == "till" && message == "shop.v1.Sell" },
	})
	remote.NewRemote(system, remote.Configure("10.0.0.7", 7400,
		remote.WithServerOptions(append(firewall.ServerOptions(), grpc.Creds(certs))...),
		remote.WithDialOptions(append(firewall.DialOptions(), grpc.WithTransportCredentials(certs))...),
		remote.WithEndpointWriterBatchSize(64),
	)).Start()
	return gendurable.Start(ctx, pool, gendurable.Config{
		Machines:    []fsm.Definition{Checkout},
		ActorSystem: system,
		Cluster:     &cluster.Config{}, // the system's Remote
	})
}

var _ = []any{startReachable, loadCertificates, remoteInsert, spawnTill, remoteTill, startInHostsSystem}
