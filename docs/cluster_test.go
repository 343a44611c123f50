package docs_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	protocluster "github.com/asynkron/protoactor-go/cluster"
	"github.com/asynkron/protoactor-go/cluster/clusterproviders/automanaged"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/cluster"
	"github.com/gendurable/gendurable/fsm"
)

// cluster.md and cluster-providers.md

func startNode(ctx context.Context, pool *pgxpool.Pool, podName, podIP string, ours *tls.Config, machines []fsm.Definition) error {
	engine, err := gendurable.Start(ctx, pool, gendurable.Config{
		NodeName: podName, // kept across restarts, if yours is
		Machines: machines,
		Cluster:  &cluster.Config{Address: podIP + ":7070", TLS: ours},
		Queues: map[string]gendurable.Queue{
			"mail":    {Concurrency: 50},            // a scheduler on every node
			"orders":  {Concurrency: 20, Lanes: 12}, // twelve in the whole cluster
			"billing": {Concurrency: 10, Lanes: 1},  // one: strictly by priority
		},
	})
	if err != nil {
		return err
	}
	for _, m := range engine.Members() {
		fmt.Println(m.Address, m.Role, m.Lanes)
	}
	return engine.Stop(ctx)
}

func startThinNode(ctx context.Context, pool *pgxpool.Pool, machines []fsm.Definition) (*gendurable.Engine, error) {
	return gendurable.Start(ctx, pool, gendurable.Config{
		Machines: machines, InsertQueues: []string{"orders", "mail"},
		Role: cluster.RoleInsertOnly, Cluster: &cluster.Config{},
	})
}

func withAutomanaged() *cluster.Config {
	return &cluster.Config{
		Address: "127.0.0.1:7070",
		Provider: func() (protocluster.ClusterProvider, error) {
			return automanaged.NewWithConfig(2*time.Second, 6330, "127.0.0.1:6330", "127.0.0.1:6331", "127.0.0.1:6332"), nil
		},
	}
}

func withHost(ctx context.Context, pool *pgxpool.Pool, host *protocluster.Cluster, machines []fsm.Definition) (*gendurable.Engine, error) {
	return gendurable.Start(ctx, pool, gendurable.Config{
		Machines: machines,
		Cluster:  &cluster.Config{Host: host}, // started already; its ActorSystem and Remote are used
	})
}

func withSystem(ctx context.Context, pool *pgxpool.Pool, system *actor.ActorSystem, machines []fsm.Definition) (*gendurable.Engine, error) {
	return gendurable.Start(ctx, pool, gendurable.Config{Machines: machines, ActorSystem: system})
}

// What docs/cluster.md shows, so that it counts as used.
var _ = []any{startNode, startThinNode, withAutomanaged, withHost, withSystem}
