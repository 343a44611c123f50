package gc

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/goleak"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestHealth(t *testing.T) {
	t.Parallel()
	const second = time.Second
	owner := func(dead int64) pg.VacuumStats { return pg.VacuumStats{Dead: dead, Allowed: true} }
	h := health{every: 5 * second, maxDead: 1000, maxPause: 60 * second}
	if h.wanted(owner(999)) {
		t.Error("too few dead rows are not worth a vacuum")
	}
	if h.wanted(pg.VacuumStats{Dead: 5000}) {
		t.Error("without owning the tables there is no vacuum")
	}
	if !h.wanted(owner(1000)) {
		t.Error("enough dead rows are worth one")
	}
	for _, c := range []struct {
		name string
		took time.Duration
		left int64
		want time.Duration
	}{
		{"short", second / 10, 0, 5 * second},
		{"pauses ten times the run", second, 100, 10 * second},
		{"futile", second / 10, 1000, 10 * second},
		{"futile again", second / 10, 900, 20 * second},
		{"and again", second / 10, 900, 40 * second},
		{"up to the longest pause", second / 10, 900, 60 * second},
		{"which is still ten times a long run", 7 * second, 900, 70 * second},
		{"worked", second / 10, 0, 5 * second},
	} {
		if got := h.vacuumed(c.took, owner(c.left)); got != c.want {
			t.Errorf("%s: pause %v, want %v", c.name, got, c.want)
		}
	}
}

// store is a fake database with so many rows to delete.
type store struct {
	mu             sync.Mutex
	terminal, side int
	dead           int64
	fail           int // so many calls fail
	calls          chan string
	from           []pg.Position // where each call for terminal instances began; it ends at the position of as many as there were
	slow           time.Duration // how long one takes that begins at the start
}

func (s *store) call(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case s.calls <- name:
	default:
	}
	if s.fail > 0 {
		s.fail--
		return errors.New("database is away")
	}
	return nil
}

func (s *store) CollectTerminal(_ context.Context, done, failed time.Duration, from pg.Position, limit int) (int, pg.Position, error) {
	if from == (pg.Position{}) {
		time.Sleep(s.slow)
	}
	s.mu.Lock()
	s.from = append(s.from, from)
	next := pg.Position{ID: int64(len(s.from))}
	s.mu.Unlock()
	if err := s.call("terminal"); err != nil {
		return 0, next, err
	}
	n := min(s.terminal, limit)
	s.terminal -= n
	return n, next, nil
}

func (s *store) CollectSideTables(_ context.Context, limit int) (int, error) {
	if err := s.call("side"); err != nil {
		return 0, err
	}
	n := min(s.side, limit)
	s.side -= n
	return n, nil
}

func (s *store) VacuumStats(context.Context) (pg.VacuumStats, error) {
	err := s.call("stats")
	s.mu.Lock()
	defer s.mu.Unlock()
	return pg.VacuumStats{Dead: s.dead, Allowed: true}, err
}

func (s *store) Vacuum(context.Context) error {
	err := s.call("vacuum")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead = 0
	return err
}

func start(t *testing.T, c Config) *actors.Counters {
	t.Helper()
	c.Logger = slog.New(slog.DiscardHandler)
	c.Counters = new(actors.Counters)
	system := actors.NewSystem(c.Logger)
	pid := system.Root.Spawn(Props(c))
	t.Cleanup(func() {
		if err := system.Root.StopFuture(pid).Wait(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return c.Counters
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

func TestCollectsUntilABatchIsShort(t *testing.T) {
	t.Parallel()
	s := &store{terminal: 7, side: 25, calls: make(chan string, 1)}
	c := start(t, Config{Store: s, Every: time.Millisecond, Batch: 10, LookEvery: -1})
	eventually(t, "all rows to be deleted", func() bool { return c.Collected.Load() == 7 && c.CollectedSide.Load() == 25 })
}

func TestGoesOnAfterErrors(t *testing.T) {
	t.Parallel()
	s := &store{terminal: 7, fail: 3, calls: make(chan string, 1)}
	c := start(t, Config{Store: s, Every: time.Millisecond, LookEvery: -1})
	eventually(t, "the rows to be deleted", func() bool { return c.Collected.Load() == 7 })
	if n := c.SweepErrors.Load(); n != 3 {
		t.Errorf("%d errors, want 3", n)
	}
}

func TestVacuumsWhenDeadRowsPileUp(t *testing.T) {
	t.Parallel()
	s := &store{dead: 100, calls: make(chan string, 1)}
	c := start(t, Config{Store: s, Every: time.Hour, LookEvery: time.Millisecond, MaxDead: 100})
	eventually(t, "a vacuum", func() bool { return c.Vacuums.Load() == 1 })
	for range 5 {
		if got := <-s.calls; got == "vacuum" && c.Vacuums.Load() > 1 {
			t.Error("vacuumed again without need")
		}
	}
}

func TestStopsDuringACollection(t *testing.T) {
	t.Parallel()
	s := &endless{begun: make(chan struct{}, 1)}
	log := slog.New(slog.DiscardHandler)
	system := actors.NewSystem(log)
	pid := system.Root.Spawn(Props(Config{Logger: log, Store: s, Every: time.Millisecond, LookEvery: -1}))
	<-s.begun
	if err := system.Root.StopFuture(pid).Wait(); err != nil {
		t.Fatal(err)
	}
}

// endless always has more to delete, and hangs until the context ends.
type endless struct {
	store
	begun chan struct{}
}

func (e *endless) CollectTerminal(ctx context.Context, _, _ time.Duration, from pg.Position, _ int) (int, pg.Position, error) {
	select {
	case e.begun <- struct{}{}:
	default:
	}
	<-ctx.Done()
	return 0, from, ctx.Err()
}

var _ actor.Actor = (*gc)(nil)

// TestSlowCollectionsGoOnWhereTheyEnded: what an open transaction keeps is walked over for a tenth of the time; in between, after a full
// batch and when a call has failed, they begin where the last one ended.
func TestSlowCollectionsGoOnWhereTheyEnded(t *testing.T) {
	t.Parallel()
	s := &store{terminal: 25, slow: 50 * time.Millisecond, calls: make(chan string, 1)}
	c := start(t, Config{Store: s, Every: time.Millisecond, Batch: 10, LookEvery: -1})
	eventually(t, "the first collection", func() bool { return c.Collected.Load() == 25 })
	s.mu.Lock()
	failed := len(s.from)
	s.fail = 1
	s.mu.Unlock()
	eventually(t, "a failure", func() bool { return c.SweepErrors.Load() == 1 })
	eventually(t, "another look at everything", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		last := s.from[len(s.from)-1]
		return len(s.from) > failed+2 && last == (pg.Position{})
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	stayed := 0
	for i, from := range s.from {
		switch {
		case from == (pg.Position{}):
		case i == 0:
			t.Errorf("the first collection begins at %v", from)
		case from.ID == int64(i-1) && i >= failed && stayed == 0: // after the one that failed
			stayed++
		case from.ID != int64(i):
			t.Errorf("call %d begins at %v, expected where the last one ended", i, from)
		}
	}
}
