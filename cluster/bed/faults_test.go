//go:build unix

package bed

import (
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// envChaos makes the tests run for long; it may hold the number of faults. envSeed repeats a run.
const (
	envChaos = "GENDURABLE_CHAOS"
	envSeed  = "GENDURABLE_CHAOS_SEED"
)

// fault is something that happens to a fleet in the middle of a load, and what of it explains a step that ran again.
type fault struct {
	name    string
	happen  func(f *fleet, n *node)
	repeats func(f *fleet) int
}

// none and inFlight are the runs that a fault may repeat: none, or as many as one process has in its hands, which may have
// been all lanes' steps, and the outcomes that wait for their commit.
func none(*fleet) int       { return 0 }
func inFlight(f *fleet) int { return 5 * slots * f.lanes }

var faults = []fault{
	{"kill -9, and a restart in its place", func(f *fleet, n *node) {
		n.kill()
		killed := time.Now()
		alive := len(f.nodes) - 1
		eventually(f.t, "the lanes are served again", func() bool {
			each, nodes := f.served()
			return each && nodes == alive
		})
		f.t.Logf("the lanes of a killed node were served again after %v, with a TTL of %v", time.Since(killed).Round(time.Millisecond), f.ttl)
		f.start(n)
		f.t.Logf("the node was up again %v after the kill", time.Since(killed).Round(time.Millisecond))
	}, inFlight},
	{"a stop for longer than the TTL, and going on", func(f *fleet, n *node) {
		n.signal(syscall.SIGSTOP)
		eventually(f.t, "the others serve all lanes", func() bool {
			each, nodes := f.served()
			return each && nodes == len(f.nodes)-1
		})
		n.signal(syscall.SIGCONT)
	}, none},
	{"no database for longer than the TTL", func(f *fleet, n *node) {
		n.db.Refuse(true)
		n.db.Cut()
		eventually(f.t, "the others serve all lanes", func() bool {
			each, nodes := f.served()
			return each && nodes == len(f.nodes)-1
		})
		n.db.Refuse(false)
	}, none},
	{"no peers", func(f *fleet, n *node) {
		n.peers.cut(true)
		f.insert(40).check(0) // nothing depends on them
		n.peers.cut(false)
	}, none},
	{"a restart at another address", func(f *fleet, n *node) {
		f.terminate(n)
		n.peers.close()
		n.peers = newWire(f.t)
		n.config.Address, n.config.Advertise = n.peers.target, n.peers.address()
		f.start(n)
	}, none},
}

// TestFaults lets each fault happen once, to a fleet under load. With GENDURABLE_CHAOS it goes on with faults in random order.
func TestFaults(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3, 5)
	for i, fault := range faults {
		f.suffer(t, fault, f.nodes[i%len(f.nodes)], 60)
	}
	rounds, seed := chaos(t)
	random := rand.New(rand.NewPCG(seed, 0))
	for range rounds {
		f.suffer(t, faults[random.IntN(len(faults))], f.nodes[random.IntN(len(f.nodes))], 100+random.IntN(200))
	}
}

// chaos says how many faults are to happen in random order, and the seed.
func chaos(t *testing.T) (rounds int, seed uint64) {
	text, on := os.LookupEnv(envChaos)
	if !on {
		return 0, 0
	}
	rounds, err := strconv.Atoi(text)
	if err != nil || rounds <= 1 {
		rounds = 40
	}
	seed = rand.Uint64()
	if s := os.Getenv(envSeed); s != "" {
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("%s: %v", envSeed, err)
		}
	}
	t.Logf("%d faults; repeat with %s=%d", rounds, envSeed, seed)
	return rounds, seed
}

// suffer lets a fault happen in the middle of a load, and checks the ledger and the fleet after it.
func (f *fleet) suffer(t *testing.T, fault fault, n *node, load int) {
	t.Run(fault.name, func(t *testing.T) {
		outer := f.t
		defer func() { f.t = outer }()
		b := f.insert(load)
		b.finished(load / 2)
		fault.happen(f, n)
		f.converged("after the fault")
		b.check(fault.repeats(f))
	})
	if t.Failed() {
		t.FailNow()
	}
}

// TestRollingRestart restarts every node with SIGTERM under load: nothing is lost, nothing that ran runs again.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3, 5)
	rounds := 1
	if n, _ := chaos(t); n > 0 {
		rounds = 10
	}
	for range rounds {
		b := f.insert(150)
		for i, n := range f.nodes {
			b.finished(100 * (i + 1))
			f.terminate(n)
			f.start(n)
			f.converged("after a restart")
		}
		b.check(0)
	}
}
