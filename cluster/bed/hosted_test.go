//go:build unix && !race

package bed

import (
	"fmt"
	"testing"

	"github.com/gendurable/gendurable/internal/devpg"
)

// The file is left out under the race detector: a host's cluster starts the library's gossip and pub/sub, which race with
// themselves. `make race` runs it by itself.

// TestAHostsOwnCluster: engines on clusters that their hosts have started spread the lanes over their members, and leave the
// cluster to the host when they stop.
func TestAHostsOwnCluster(t *testing.T) {
	t.Parallel()
	f := emptyFleet(t, 4)
	ports := make([]int, 2)
	var peers []string
	for i := range ports {
		ports[i] = devpg.FreePort()
		peers = append(peers, fmt.Sprintf("127.0.0.1:%d", ports[i]))
	}
	for i, port := range ports {
		n := f.add(fmt.Sprintf("hosted-%d", i))
		n.config.Host = &hostConfig{Port: port, Peers: peers}
		f.start(n)
	}
	f.converged("in the hosts' cluster")
	f.insert(40).check(0)
	f.terminate(f.nodes[1])
	f.converged("after one has left")
	f.insert(20).check(0)
}
