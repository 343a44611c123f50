package gc

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
	failTerminal   int // so many calls for terminal instances fail
	calls          chan string
	from           []pg.Position // where each call for terminal instances began; it ends at the position of as many as there were
	slow           time.Duration // how long one takes that begins at the start
}

func (s *store) call(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case s.calls <- name:
	default:
	}
}

func (s *store) CollectTerminal(_ context.Context, done, failed time.Duration, from pg.Position, limit int) (int, pg.Position, error) {
	if from == (pg.Position{}) {
		time.Sleep(s.slow)
	}
	s.mu.Lock()
	s.from = append(s.from, from)
	fails := s.failTerminal > 0
	if fails {
		s.failTerminal--
	}
	next := pg.Position{EndedAt: time.Unix(int64(len(s.from)), 0), ID: int64(len(s.from))}
	s.mu.Unlock()
	if fails {
		return 0, next, errors.New("database is away")
	}
	s.call("terminal")
	n := min(s.terminal, limit)
	s.terminal -= n
	if n == 0 {
		next = from
	}
	return n, next, nil
}

func (s *store) CollectSideTables(_ context.Context, limit int) (int, error) {
	s.call("side")
	n := min(s.side, limit)
	s.side -= n
	return n, nil
}

func (s *store) VacuumStats(context.Context) (pg.VacuumStats, error) {
	s.call("stats")
	s.mu.Lock()
	defer s.mu.Unlock()
	return pg.VacuumStats{Dead: s.dead, Allowed: true}, nil
}

func (s *store) Vacuum(context.Context) error {
	s.call("vacuum")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead = 0
	return nil
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
	s := &store{terminal: 7, failTerminal: 3, calls: make(chan string, 1)}
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

// TestSlowCollectionsGoOnWhereTheyEnded: what an open transaction keeps is walked over for a tenth of the time. In between, after a full
// batch, and when a call has failed or found nothing, they begin where the last row was found.
func TestSlowCollectionsGoOnWhereTheyEnded(t *testing.T) {
	t.Parallel()
	s := &store{terminal: 25, slow: 100 * time.Millisecond, calls: make(chan string, 1)}
	c := start(t, Config{Store: s, Every: time.Millisecond, Batch: 10, LookEvery: -1})
	from := func() []pg.Position {
		s.mu.Lock()
		defer s.mu.Unlock()
		return slices.Clone(s.from)
	}
	began := func(after int, id int64) bool {
		return slices.ContainsFunc(from()[after:], func(p pg.Position) bool { return p.ID == id })
	}
	more := func(n int) bool { return len(from()) > n }
	eventually(t, "three batches", func() bool { return c.Collected.Load() == 25 })
	eventually(t, "a collection behind them", func() bool { return began(3, 3) })
	s.mu.Lock()
	failed := len(s.from)
	s.failTerminal = 2
	s.mu.Unlock()
	eventually(t, "two failures", func() bool { return c.SweepErrors.Load() == 2 })
	eventually(t, "a collection behind the last row that was found", func() bool { return more(failed+2) && began(failed+2, 3) })
	first := from()
	for i, want := range []int64{0, 1, 2} {
		if first[i].ID != want {
			t.Errorf("call %d begins at %v", i, first[i])
		}
	}
	for i, p := range first[3:] {
		if p.ID != 0 && p.ID != 3 {
			t.Errorf("call %d begins at %v", i+3, p)
		}
	}
	eventually(t, "another look at everything, which finds nothing", func() bool { return began(failed+2, 0) })
	eventually(t, "a collection behind the last row that was found", func() bool {
		all := from()
		return all[len(all)-1].ID == 3 && began(failed+2, 0)
	})
}

// TestAnEmptyStartIsNotRepeatedOutOfTurn: nothing was ever found, so nothing says where to go on.
func TestAnEmptyStartIsNotRepeatedOutOfTurn(t *testing.T) {
	t.Parallel()
	s := &store{slow: 300 * time.Millisecond, calls: make(chan string, 1)}
	start(t, Config{Store: s, Every: time.Millisecond, LookEvery: -1})
	begun := time.Now()
	for range 30 {
		<-s.calls // collections of the side tables go on
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n, most := len(s.from), 2+int(time.Since(begun)/(9*s.slow)); n > most {
		t.Errorf("%d collections began at the start, expected %d", n, most)
	}
}

// TestAFirstCollectionMayFail: it begins at the start, and perhaps never comes to an end. The next ones begin with what is due from now on.
func TestAFirstCollectionMayFail(t *testing.T) {
	t.Parallel()
	s := &store{slow: 500 * time.Millisecond, failTerminal: 1, calls: make(chan string, 1)}
	start(t, Config{Store: s, Every: time.Millisecond, LookEvery: -1, DoneAfter: time.Hour})
	eventually(t, "a collection from there on", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return slices.ContainsFunc(s.from, func(p pg.Position) bool { return p.ID == 0 && time.Since(p.EndedAt).Round(time.Hour) == time.Hour })
	})
}
