//go:build unix

package bed

import (
	"net"
	"strconv"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	protocluster "github.com/asynkron/protoactor-go/cluster"
	"github.com/asynkron/protoactor-go/cluster/clusterproviders/automanaged"
	"github.com/asynkron/protoactor-go/cluster/identitylookup/disthash"
	"github.com/asynkron/protoactor-go/remote"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gendurable/gendurable/cluster"
)

// hostConfig is what a process is told that has a cluster of its own before it has an engine.
type hostConfig struct {
	// Port is that of its automanaged provider, Peers are those of all of them.
	Port  int
	Peers []string
}

// startHost starts a host's own cluster, as a service that uses the actor library for other things would: with its own system,
// and a Remote that has the firewall in it.
func startHost(h hostConfig, address string) (*protocluster.Cluster, error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return nil, err
	}
	system := actor.NewActorSystem()
	// The library's own messages between members are the host's business, so the host lets them through.
	firewall := cluster.NewFirewall(system, cluster.FirewallConfig{Allow: func(string, string) bool { return true }})
	c := protocluster.New(system, protocluster.Configure("theirs",
		automanaged.NewWithConfig(200*time.Millisecond, h.Port, h.Peers...), disthash.New(),
		remote.Configure(host, port,
			remote.WithServerOptions(firewall.ServerOptions()...),
			remote.WithDialOptions(append(firewall.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...))))
	c.StartMember()
	return c, nil
}
