package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	protocluster "github.com/asynkron/protoactor-go/cluster"
	"github.com/asynkron/protoactor-go/cluster/clusterproviders/automanaged"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/internal/devpg"
	"github.com/gendurable/gendurable/pg"
)

const patience = 60 * time.Second

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	late := time.After(patience)
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for !ok() {
		select {
		case <-late:
			t.Fatalf("in vain waited for: %s", what)
		case <-look.C:
		}
	}
}

func openStore(t *testing.T) *pg.Store {
	t.Helper()
	s, err := pg.Open(t.Context(), devpg.Database(t, pg.Migrate), pg.Options{Engine: "e"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// faulty is a store that can be cut off, as by a network.
type faulty struct {
	*pg.Store
	mu  sync.Mutex
	cut bool
}

func (f *faulty) set(cut bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut = cut
}

func (f *faulty) BeatMember(ctx context.Context, n pg.Node, b pg.MemberBeat) ([]pg.Member, error) {
	f.mu.Lock()
	cut := f.cut
	f.mu.Unlock()
	if cut {
		return nil, errors.New("the network is away")
	}
	return f.Store.BeatMember(ctx, n, b)
}

// station is the cluster's part of one node, without an engine: a placer, and the lanes of the queue "q" with actors that do
// nothing. The address is one that nobody listens at: membership needs none.
type station struct {
	t         *testing.T
	store     *faulty
	node      pg.Node
	system    *actor.ActorSystem
	placer    *actor.PID
	lanes     *actor.PID
	directory *Directory
	counters  *actors.Counters

	mu      sync.Mutex
	running map[string]int // lanes that claim, by identity
	started int            // lanes, ever
	busy    bool           // drains are held up until released
	held    []chan<- struct{}
}

var stations = struct {
	sync.Mutex
	n int
}{}

func newStation(t *testing.T, store *pg.Store, lanes int, change ...func(*PlacerConfig)) *station {
	t.Helper()
	stations.Lock()
	stations.n++
	n := stations.n
	stations.Unlock()
	s := &station{
		t: t, store: &faulty{Store: store}, system: actors.NewSystem(slog.New(slog.DiscardHandler)), directory: new(Directory), running: map[string]int{},
		counters: new(actors.Counters),
		node:     pg.Node{Engine: "e", Name: "host", Incarnation: fmt.Sprintf("%016x", n), Address: fmt.Sprintf("127.0.0.1:%d", n), Queues: []string{"q"}},
	}
	s.system.ProcessRegistry.Address = s.node.Address
	s.placer, s.lanes = s.system.NewLocalPID("placer"), s.system.NewLocalPID("lanes")
	if _, err := store.RegisterNode(t.Context(), s.node, time.Minute, 20*time.Second); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	c := PlacerConfig{
		Logger: log, Counters: s.counters, Store: s.store, Node: s.node, TTL: 2 * time.Second, Queues: map[string]int{"q": lanes},
		Lanes: func(string) *actor.PID { return s.lanes }, Directory: s.directory,
	}
	for _, f := range change {
		f(&c)
	}
	s.spawn("lanes", Lanes(LanesConfig{
		Logger: log, Counters: s.counters, Queue: "q", Lanes: lanes, Placer: s.placer, Lane: s.lane, Handover: 50 * time.Millisecond,
	}))
	s.spawn("placer", Placer(c))
	t.Cleanup(func() {
		s.release()
		for _, pid := range []*actor.PID{s.placer, s.lanes} {
			_ = s.system.Root.StopFuture(pid).Wait()
		}
	})
	return s
}

func (s *station) spawn(name string, props *actor.Props) {
	s.t.Helper()
	if _, err := s.system.Root.SpawnNamed(props, name); err != nil {
		s.t.Fatal(err)
	}
}

// lane makes an actor that stands for a scheduler: it claims until it is drained.
func (s *station) lane(identity string) *actor.Props {
	return actors.NewProps(slog.New(slog.DiscardHandler), nil, func() actor.Actor {
		return actor.ReceiveFunc(func(ctx actor.Context) {
			s.mu.Lock()
			defer s.mu.Unlock()
			switch m := ctx.Message().(type) {
			case *actor.Started:
				s.running[identity]++
				s.started++
			case actors.Drain:
				delete(s.running, identity)
				if s.busy {
					s.held = append(s.held, m.Done)
				} else {
					close(m.Done)
				}
			case *actor.Stopped:
				delete(s.running, identity)
			}
		})
	})
}

func (s *station) starts() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.started
}

func (s *station) setBusy() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = true
}

func (s *station) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, done := range s.held {
		close(done)
	}
	s.held, s.busy = nil, false
}

func (s *station) serving() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.running))
}

// leave ends a station as an engine's stop does.
func (s *station) leave() {
	s.t.Helper()
	s.system.Root.Send(s.placer, Resign{})
	done := make(chan struct{})
	s.system.Root.Send(s.lanes, actors.Drain{Timeout: time.Second, Done: done})
	left := make(chan struct{})
	<-done
	s.system.Root.Send(s.placer, Leave{Done: left})
	<-left
}

// die ends a station as kill -9 does: nothing of it is told to anybody.
func (s *station) die() {
	s.store.set(true)
	for _, pid := range []*actor.PID{s.placer, s.lanes} {
		_ = s.system.Root.StopFuture(pid).Wait()
	}
}

// shared waits until each lane is served where placement puts it, and nowhere else, and all stations know it. That each is served
// once is not enough: so it is too when a station that was alone is about to give lanes to one that just joined.
func shared(t *testing.T, when string, lanes int, among ...*station) {
	t.Helper()
	var addresses []string
	for _, s := range among {
		addresses = append(addresses, s.node.Address)
	}
	slices.Sort(addresses)
	ok := func() bool {
		n := map[string]int{}
		for _, s := range among {
			for _, identity := range s.serving() {
				lane, _, _ := strings.Cut(identity, ".")
				if owner(lane, addresses) != s.node.Address {
					return false
				}
				n[lane]++
			}
			var members, known []string
			for _, m := range s.directory.Members() {
				members = append(members, m.Address)
				known = append(known, m.Lanes...)
			}
			slices.Sort(members)
			if !slices.Equal(members, addresses) || len(known) != lanes {
				return false
			}
		}
		for lane, times := range n {
			if _, _, numbered := laneOf(lane); !numbered || times != 1 {
				return false
			}
		}
		return len(n) == lanes
	}
	defer func() {
		if t.Failed() {
			for _, s := range among {
				t.Logf("%s serves %v, knows %+v", s.node.Address, s.serving(), s.directory.Members())
			}
		}
	}()
	eventually(t, fmt.Sprintf("%s: %d lanes on %v", when, lanes, addresses), ok)
}

func TestLanesAreSharedOutAndMove(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	const lanes = 12
	a, b := newStation(t, store, lanes), newStation(t, store, lanes)
	shared(t, "two", lanes, a, b)
	c := newStation(t, store, lanes)
	shared(t, "a third joined", lanes, a, b, c)
	b.leave()
	shared(t, "one left", lanes, a, c)
	c.die()
	shared(t, "one died", lanes, a)
	if nodes := a.directory.Nodes("q"); len(nodes) != 0 {
		t.Errorf("pokes still go to %v", nodes)
	}
}

// TestALaneMovesWhileItsStepsRun, and comes back while they still do.
func TestALaneMovesWhileItsStepsRun(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	const lanes = 12
	a := newStation(t, store, lanes)
	shared(t, "alone", lanes, a)
	a.setBusy()
	b := newStation(t, store, lanes)
	shared(t, "while steps run", lanes, a, b)
	b.leave()
	shared(t, "back while steps run", lanes, a)
	if again := slices.ContainsFunc(a.serving(), func(identity string) bool { return strings.Contains(identity, ".") }); !again {
		t.Errorf("the lanes that came back have the identities of those that still run: %v", a.serving())
	}
	a.release()
	shared(t, "after the steps", lanes, a)
}

// TestANodeWithoutItsDatabaseIsMissedAndComesBack: it was silent for longer than a TTL, so the others have blocked its id.
func TestANodeWithoutItsDatabaseIsMissedAndComesBack(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	const lanes = 6
	a, b := newStation(t, store, lanes), newStation(t, store, lanes)
	shared(t, "at first", lanes, a, b)
	before := b.serving()
	b.store.set(true)
	eventually(t, "a serves all", func() bool { return len(a.serving()) == lanes })
	// It may have got some more in the meantime: on a busy machine a, too, may have been silent for a TTL just before the cut.
	now := b.serving()
	if lost := slices.DeleteFunc(before, func(identity string) bool { return slices.Contains(now, identity) }); len(lost) > 0 {
		t.Errorf("without its database b has let go of %v", lost)
	}
	b.store.set(false)
	shared(t, "b is back", lanes, a, b) // so each has the lanes of before
}

// TestARestartedPlacerGoesOn: its crash ends the membership, not the lanes.
func TestARestartedPlacerGoesOn(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	const lanes = 6
	a, b := newStation(t, store, lanes), newStation(t, store, lanes)
	shared(t, "at first", lanes, a, b)
	a.system.Root.Send(a.placer, actors.Crash{})
	eventually(t, "the crash", func() bool { return a.counters.Panics.Load() == 1 })
	shared(t, "after the crash", lanes, a, b)
	b.leave()
	shared(t, "b left", lanes, a)
	before := a.starts()
	a.system.Root.Send(a.lanes, actors.Crash{})
	eventually(t, "the lanes start again", func() bool { return a.starts() >= before+lanes })
	shared(t, "the lanes crashed", lanes, a)
}

// mute is a provider that names nobody.
type mute struct{}

func (mute) StartMember(*protocluster.Cluster) error { return nil }
func (mute) StartClient(*protocluster.Cluster) error { return nil }
func (mute) Shutdown(bool) error                     { return nil }

// TestAQueueIsSweptWhenNobodyJoins: liveness does not depend on the cluster.
func TestAQueueIsSweptWhenNobodyJoins(t *testing.T) {
	t.Parallel()
	broken := func(c *PlacerConfig) {
		c.Provider = func() (protocluster.ClusterProvider, error) { return mute{}, nil }
	}
	a := newStation(t, openStore(t), 3, broken)
	eventually(t, "a sweep", func() bool { return slices.Equal(a.serving(), []string{sweeper("q")}) })
}

// panicking is a provider as bad as can be.
type panicking struct{ mute }

func (panicking) StartMember(*protocluster.Cluster) error { panic("no") }
func (panicking) Shutdown(bool) error                     { panic("never") }

// TestAProviderThatFailsIsTriedAgain, also one that panics.
func TestAProviderThatFailsIsTriedAgain(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	tries := 0
	flaky := func(c *PlacerConfig) {
		c.Provider = func() (protocluster.ClusterProvider, error) {
			mu.Lock()
			defer mu.Unlock()
			switch tries++; tries {
			case 1:
				return nil, errors.New("not yet")
			case 2:
				return panicking{}, nil
			case 3:
				panic("nor now")
			}
			return fixed{[]string{c.Node.Address}}, nil
		}
	}
	a := newStation(t, openStore(t), 3, flaky)
	shared(t, "the fourth try", 3, a)
}

// fixed is a provider that names the same members for ever.
type fixed struct{ addresses []string }

func (f fixed) StartMember(c *protocluster.Cluster) error {
	var members protocluster.Members
	for _, a := range f.addresses {
		host, port, _ := hostPort(a)
		members = append(members, &protocluster.Member{Id: "m-" + a, Host: host, Port: int32(port)})
	}
	c.MemberList.UpdateClusterTopology(members)
	return nil
}
func (fixed) StartClient(*protocluster.Cluster) error { return nil }
func (fixed) Shutdown(bool) error                     { return nil }

// TestASplitOfTheProviderHeals: each side has missed, and so blocked, the other; the rows say that both live.
func TestASplitOfTheProviderHeals(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	const lanes = 6
	var mu sync.Mutex
	var everybody []string
	memberships := map[string]int{}
	split := func(c *PlacerConfig) {
		address := c.Node.Address
		mu.Lock()
		everybody = append(everybody, address)
		mu.Unlock()
		c.Provider = func() (protocluster.ClusterProvider, error) {
			mu.Lock()
			defer mu.Unlock()
			if memberships[address]++; memberships[address] == 1 {
				return fixed{[]string{address}}, nil
			}
			return fixed{slices.Clone(everybody)}, nil
		}
	}
	a, b := newStation(t, store, lanes, split), newStation(t, store, lanes, split)
	shared(t, "after the split", lanes, a, b)
}

// TestAHostsClusterIsTheTopology, and is left alone.
func TestAHostsClusterIsTheTopology(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	var host *protocluster.Cluster
	a := newStation(t, store, 3, func(c *PlacerConfig) {
		m, err := joinCluster(c.Logger, "theirs", c.Node.Address, func() (protocluster.ClusterProvider, error) {
			return fixed{[]string{c.Node.Address}}, nil
		}, func([]string) {})
		if err != nil {
			t.Fatal(err)
		}
		host = m.cluster
		c.Host = host
	})
	shared(t, "in the host's cluster", 3, a)
	a.leave()
	if host.ActorSystem.IsStopped() {
		t.Error("the host's system was stopped")
	}
}

// TestAutomanagedProvider uses a provider of the actor library in the place of the database.
func TestAutomanagedProvider(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	ports := []int{devpg.FreePort(), devpg.FreePort(), devpg.FreePort()}
	var hosts []string
	for _, p := range ports {
		hosts = append(hosts, fmt.Sprintf("127.0.0.1:%d", p))
	}
	node := func(i int) *station {
		return newStation(t, store, 6, func(c *PlacerConfig) {
			c.Provider = func() (protocluster.ClusterProvider, error) {
				return automanaged.NewWithConfig(100*time.Millisecond, ports[i], hosts...), nil
			}
		})
	}
	a, b, c := node(0), node(1), node(2)
	shared(t, "three", 6, a, b, c)
	a.leave()
	shared(t, "two", 6, b, c)
}
