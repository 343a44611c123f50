package node

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/goleak"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// store is a fake database; a beat and a reclaim that find no error or rows left to give find nothing.
type store struct {
	mu       sync.Mutex
	errs     []error
	replaced string
	paused   []string
	stale    []int // rows of each reclaim
	beats    int
	reclaims int
	log      []string // beats, failed beats and reclaims in order
}

func (s *store) BeatNode(context.Context, pg.Node) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beats++
	if len(s.errs) > 0 {
		err := s.errs[0]
		s.errs = s.errs[1:]
		s.log = append(s.log, "failed")
		return "", err
	}
	s.log = append(s.log, "beat")
	return s.replaced, nil
}

func (s *store) Paused(context.Context) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.paused, nil
}

func (s *store) ReclaimStale(context.Context, string, string, string, time.Duration, time.Duration) (int, []string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reclaims++
	s.log = append(s.log, "reclaim")
	if len(s.stale) == 0 {
		return 0, nil, nil
	}
	n := s.stale[0]
	s.stale = s.stale[1:]
	return n, []string{"q"}, nil
}

func (s *store) counts() (beats, reclaims int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.beats, s.reclaims
}

func start(t *testing.T, c Config) (*actors.Counters, chan []string) {
	t.Helper()
	c.Logger, c.Counters = slog.New(slog.DiscardHandler), new(actors.Counters)
	system := actors.NewSystem(c.Logger)
	announced := make(chan []string, 100)
	c.Poke = system.Root.Spawn(actor.PropsFromFunc(func(ctx actor.Context) {
		if m, ok := ctx.Message().(actors.Announce); ok {
			announced <- m.Queues
		}
	}))
	pid := system.Root.Spawn(Props(c))
	t.Cleanup(func() {
		for _, p := range []*actor.PID{pid, c.Poke} {
			if err := system.Root.StopFuture(p).Wait(); err != nil {
				t.Errorf("stop: %v", err)
			}
		}
	})
	return c.Counters, announced
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting for %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestBeatsOnThroughErrors(t *testing.T) {
	t.Parallel()
	s := &store{errs: []error{errors.New("away"), errors.New("away")}}
	c, _ := start(t, Config{Store: s, Heartbeat: time.Millisecond, Node: pg.Node{Named: true}})
	eventually(t, "five beats", func() bool { b, _ := s.counts(); return b >= 5 })
	if c.SweepErrors.Load() != 2 {
		t.Errorf("%d errors, want 2", c.SweepErrors.Load())
	}
	if _, n := s.counts(); n != 0 {
		t.Error("a named node reclaimed: its start has done that")
	}
}

func TestAnUnnamedNodeReclaimsUntilNothingIsLeft(t *testing.T) {
	t.Parallel()
	s := &store{stale: []int{4, 0, 0, 3}}
	c, announced := start(t, Config{Store: s, Lease: 3 * time.Millisecond, Heartbeat: time.Millisecond})
	for range 2 {
		if got := <-announced; !slices.Equal(got, []string{"q"}) {
			t.Errorf("announced %v", got)
		}
	}
	if c.Reclaimed.Load() != 7 {
		t.Errorf("reclaimed %d, want 7", c.Reclaimed.Load())
	}
	// A beat that was slow, as it may be on a busy machine, is followed by one that does not look.
	eventually(t, "six looks after the last find", func() bool { _, n := s.counts(); return n >= 4+6 })
	before, _ := s.counts()
	eventually(t, "beats after the end of reclaiming", func() bool { b, _ := s.counts(); return b > before+5 })
	if _, n := s.counts(); n != 4+6 {
		t.Errorf("looked %d times, want 6 after the last find", n)
	}
}

func TestAReplacedNodeStops(t *testing.T) {
	t.Parallel()
	s := &store{replaced: "fedcba9876543210"}
	by := make(chan string, 10)
	start(t, Config{Store: s, Heartbeat: time.Millisecond, Node: pg.Node{Named: true}, Replaced: func(who string) { by <- who }})
	if got := <-by; got != s.replaced {
		t.Errorf("replaced by %q", got)
	}
	if b, _ := s.counts(); b != 1 {
		t.Errorf("%d beats, want one: it is not this node's row any more", b)
	}
}

// After an outage the rows of live processes under this node's name look stale until these have beaten.
func TestNothingIsReclaimedByTheFirstBeatAfterAnOutage(t *testing.T) {
	t.Parallel()
	away := errors.New("database is away")
	s := &store{errs: []error{away, away}}
	start(t, Config{Store: s, Node: pg.Node{Name: "n", Incarnation: "i"}, Lease: time.Second, Heartbeat: 100 * time.Millisecond})
	var log []string
	deadline := time.After(time.Minute)
	for !slices.Contains(log, "reclaim") {
		select {
		case <-deadline:
			t.Fatalf("nothing is reclaimed: %v", log)
		case <-time.After(time.Millisecond):
		}
		s.mu.Lock()
		log = slices.Clone(s.log)
		s.mu.Unlock()
	}
	// More beats may lie between: each that was slow, as it may be on a busy machine, is doubted as well.
	if want := []string{"failed", "failed", "beat", "beat"}; !slices.Equal(log[:min(len(log), len(want))], want) {
		t.Errorf("%v, want %v, and a reclaim after that", log, want)
	}
}

func TestABeatFindsPausedQueues(t *testing.T) {
	t.Parallel()
	s := &store{paused: []string{"q"}}
	found := make(chan []string, 1)
	start(t, Config{Store: s, Heartbeat: time.Millisecond, Node: pg.Node{Named: true}, Paused: func(queues []string) {
		select {
		case found <- queues:
		default:
		}
	}})
	for range 2 { // again with each beat
		select {
		case got := <-found:
			if !slices.Equal(got, []string{"q"}) {
				t.Errorf("paused are %v", got)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("nobody was told of the pause")
		}
	}
}
