package cluster

import (
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	protocluster "github.com/asynkron/protoactor-go/cluster"
	"github.com/asynkron/protoactor-go/eventstream"
	"github.com/asynkron/protoactor-go/remote"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// membership is one membership of this node in a cluster: the library's member list, and the provider that feeds it.
//
// It lives in an ActorSystem of its own, which listens nowhere. So nothing that comes over the network can reach the
// member list's event stream, a member that the list has blocked for ever can still exchange messages with this node, and when
// the two sides of a split have blocked each other, this node begins a new membership, with a new id and an empty block
// list, without anything else being restarted. None of the library's gossip, pub/sub and grains is ever started.
type membership struct {
	provider     protocluster.ClusterProvider
	cluster      *protocluster.Cluster
	subscription *eventstream.Subscription
	leaving      sync.Once
}

// joinCluster begins a membership, with a provider of its own. tell gets the addresses of the members whenever they change; it is called under a lock of the
// library, so it only sends a message.
func joinCluster(log *slog.Logger, name, address string, makeProvider func() (protocluster.ClusterProvider, error), tell func(addresses []string)) (m *membership, err error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("cluster: the address %q: %w", address, err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return nil, fmt.Errorf("cluster: the port of %q: %w", address, err)
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("cluster: the provider panicked: %v", r)
		}
		if err != nil && m != nil {
			m.leave(log)
		}
	}()
	provider, err := makeProvider()
	if err != nil {
		return nil, fmt.Errorf("cluster: make the provider: %w", err)
	}
	system := actors.NewSystem(log)
	system.ProcessRegistry.Address = address
	day := 24 * time.Hour // never, as far as a membership is concerned; 0 would be a panic
	config := protocluster.Configure(name, provider, nil, remote.Configure(host, number), func(c *protocluster.Config) {
		c.GossipInterval, c.HeartbeatExpiration = day, day
	})
	c := protocluster.New(system, config)
	c.Remote = remote.NewRemote(system, config.RemoteConfig) // for its block list; it is never started
	m = &membership{provider: provider, cluster: c, subscription: subscribe(system, tell)}
	if err := provider.StartMember(c); err != nil {
		return m, fmt.Errorf("cluster: start the provider: %w", err)
	}
	return m, nil
}

// subscribe passes on the addresses of each topology.
func subscribe(system *actor.ActorSystem, tell func(addresses []string)) *eventstream.Subscription {
	return system.EventStream.Subscribe(func(event any) {
		if t, ok := event.(*protocluster.ClusterTopology); ok {
			tell(addressesOf(t.Members))
		}
	})
}

func addressesOf(members []*protocluster.Member) []string {
	out := make([]string, 0, len(members))
	for _, m := range members {
		out = append(out, m.Address())
	}
	slices.Sort(out)
	return out
}

// leave ends the membership. It may take as long as the provider does.
func (m *membership) leave(log *slog.Logger) {
	m.leaving.Do(func() {
		m.cluster.ActorSystem.EventStream.Unsubscribe(m.subscription)
		defer func() {
			if r := recover(); r != nil {
				log.Warn("gendurable: the cluster's provider panicked when this node left", "panic", fmt.Sprint(r))
			}
		}()
		if err := m.provider.Shutdown(true); err != nil {
			log.Warn("gendurable: the cluster's provider failed when this node left", "error", err)
		}
	})
}

// postgres is the default provider: who belongs to the cluster is who beats in gen_durable_nodes.
type postgres struct{ roster *roster }

// StartMember implements the library's ClusterProvider.
func (p postgres) StartMember(c *protocluster.Cluster) error {
	p.roster.rename(c.ActorSystem.ID)
	p.roster.listen(func(rows []pg.Member) {
		members := make(protocluster.Members, 0, len(rows))
		for _, r := range rows {
			host, port, err := net.SplitHostPort(r.Address)
			number, err2 := strconv.Atoi(port)
			if err != nil || err2 != nil {
				continue // a row that nobody of ours wrote
			}
			members = append(members, &protocluster.Member{Id: r.ID, Host: host, Port: int32(number)})
		}
		c.MemberList.UpdateClusterTopology(members)
	})
	p.roster.now()
	return nil
}

// StartClient implements the library's ClusterProvider: a client would read without beating, and nobody here is one.
func (postgres) StartClient(*protocluster.Cluster) error {
	return fmt.Errorf("cluster: a node is a member, never a client")
}

// Shutdown implements the library's ClusterProvider; the placer deletes the membership from the row.
func (p postgres) Shutdown(bool) error {
	p.roster.listen(nil)
	return nil
}
