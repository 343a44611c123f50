package reaper

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

// answer is what a fake sweep returns.
type answer struct {
	rows   int
	queues []string
	err    error
}

// store is a fake database: each sweep takes its next answer, then none; calls are sent when there is room.
type store struct {
	mu                sync.Mutex
	leases, deadlines []answer
	leaseAt           []time.Time
	called            chan string
	away              int           // so many looks fail
	lookAt            []time.Time   // the looks that did not
	stalled           chan struct{} // looks wait until it is closed; nil = they do not
	// from is where each sweep began. It answers with a Next that is so many seconds after 1970 as there were sweeps.
	from map[string][]time.Time
	// slow is how long a sweep takes that begins at the start.
	slow time.Duration
}

func (s *store) take(list *[]answer, name string, from time.Time) (pg.ReapResult, error) {
	if from.IsZero() {
		time.Sleep(s.slow)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.from == nil {
		s.from = map[string][]time.Time{}
	}
	s.from[name] = append(s.from[name], from)
	var a answer
	if len(*list) > 0 {
		a, *list = (*list)[0], (*list)[1:]
	}
	if name == "lease" {
		s.leaseAt = append(s.leaseAt, time.Now())
	}
	select {
	case s.called <- name:
	default:
	}
	return pg.ReapResult{Rows: a.rows, Queues: a.queues, Next: time.Unix(int64(len(s.from[name])), 0)}, a.err
}

func (s *store) ReapLeases(_ context.Context, from time.Time, limit int) (pg.ReapResult, error) {
	if limit > 0 {
		return s.take(&s.leases, "lease", from)
	}
	if s.stalled != nil {
		<-s.stalled
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away > 0 {
		s.away--
		return pg.ReapResult{}, errors.New("database is away")
	}
	s.lookAt = append(s.lookAt, time.Now())
	return pg.ReapResult{Next: looked0}, nil
}

func (s *store) WakeDeadlines(_ context.Context, from time.Time, _ int) (pg.ReapResult, error) {
	return s.take(&s.deadlines, "deadline", from)
}

func (s *store) times() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.leaseAt)
}

// looked0 is the time that looks tell.
var looked0 = time.Unix(1000, 0)

// start runs a reaper and returns its counters and what it announces.
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

func TestSweepsAndAnnounces(t *testing.T) {
	t.Parallel()
	s := &store{leases: []answer{{rows: 2, queues: []string{"a"}}}, deadlines: []answer{{rows: 3, queues: []string{"b"}}}}
	c, announced := start(t, Config{Store: s, Heartbeat: time.Millisecond, LeaseEvery: time.Millisecond, DeadlineEvery: time.Millisecond})
	got := append(<-announced, <-announced...)
	slices.Sort(got)
	if !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("announced %v", got)
	}
	if c.Reaped.Load() != 2 || c.DeadlinesWoken.Load() != 3 {
		t.Errorf("counted %d and %d", c.Reaped.Load(), c.DeadlinesWoken.Load())
	}
}

func TestAFullBatchIsFollowedAtOnce(t *testing.T) {
	t.Parallel()
	s := &store{
		leases:    []answer{{rows: 10}, {rows: 10}, {rows: 1}},
		deadlines: []answer{{rows: 10}, {rows: 10}, {rows: 1}},
	}
	c, _ := start(t, Config{Store: s, Heartbeat: time.Millisecond, LeaseEvery: time.Hour, DeadlineEvery: time.Hour, Batch: 10})
	eventually(t, "all to be swept", func() bool { return c.Reaped.Load() == 21 && c.DeadlinesWoken.Load() == 21 })
}

// The deadline sweep, which runs from the start, shows that the reaper is alive while the lease sweep waits.
func TestTheFirstLeaseSweepWaitsAHeartbeat(t *testing.T) {
	t.Parallel()
	s := &store{called: make(chan string)}
	begun := time.Now()
	const heartbeat = 50 * time.Millisecond
	start(t, Config{Store: s, Heartbeat: heartbeat, LeaseEvery: time.Hour, DeadlineEvery: time.Millisecond})
	eventually(t, "the lease sweep", func() bool { return len(s.times()) == 1 })
	if d := s.times()[0].Sub(begun); d < heartbeat {
		t.Errorf("swept leases %v after the start", d)
	}
}

func TestAFailedLeaseSweepIsFollowedAHeartbeatLater(t *testing.T) {
	t.Parallel()
	s := &store{leases: []answer{{err: errors.New("database is away")}, {rows: 1}}}
	const heartbeat = 50 * time.Millisecond
	c, _ := start(t, Config{Store: s, Heartbeat: heartbeat, LeaseEvery: time.Millisecond, DeadlineEvery: time.Hour})
	eventually(t, "the second lease sweep", func() bool { return c.Reaped.Load() == 1 })
	if at := s.times(); at[1].Sub(at[0]) < heartbeat {
		t.Errorf("swept %v after the failure", at[1].Sub(at[0]))
	}
	if c.SweepErrors.Load() != 1 {
		t.Errorf("%d errors", c.SweepErrors.Load())
	}
}

// A database that has just come back has leases that nobody could extend meanwhile.
func TestLeasesAreSweptAHeartbeatAfterTheDatabaseIsBack(t *testing.T) {
	t.Parallel()
	s := &store{away: 3, leases: []answer{{rows: 1}}}
	const heartbeat = 50 * time.Millisecond
	c, _ := start(t, Config{Store: s, Heartbeat: heartbeat, LeaseEvery: time.Millisecond, DeadlineEvery: time.Hour})
	eventually(t, "the lease sweep", func() bool { return c.Reaped.Load() == 1 })
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.leaseAt[0].Sub(s.lookAt[0]); d < heartbeat {
		t.Errorf("swept %v after the database was back", d)
	}
}

// A sweep that waits in the network for a database that stands still would be carried out when it goes on.
func TestNoSweepIsSentToADatabaseThatStandsStill(t *testing.T) {
	t.Parallel()
	s := &store{stalled: make(chan struct{}), called: make(chan string, 1000)}
	const heartbeat = 50 * time.Millisecond
	start(t, Config{Store: s, Heartbeat: heartbeat, LeaseEvery: time.Millisecond, DeadlineEvery: time.Millisecond})
	for range 3 {
		if name := <-s.called; name != "deadline" {
			t.Fatalf("a %s sweep", name)
		}
	}
	<-time.After(2 * heartbeat) // the length of the stall
	resumed := time.Now()       // not afterwards: the look that waits may return before this goroutine goes on
	close(s.stalled)
	eventually(t, "the lease sweep", func() bool { return len(s.times()) > 0 })
	if d := s.times()[0].Sub(resumed); d < heartbeat {
		t.Errorf("swept %v after the stall", d)
	}
}

// TestSlowSweepsGoOnWhereTheyEnded: what an open transaction keeps is walked over for a tenth of the time; in between, and when a
// sweep has failed, they begin where the last one ended.
func TestSlowSweepsGoOnWhereTheyEnded(t *testing.T) {
	t.Parallel()
	s := &store{slow: 50 * time.Millisecond, leases: []answer{{}, {}, {err: errors.New("database is away")}}}
	s.deadlines = s.leases
	start(t, Config{Store: s, Heartbeat: time.Millisecond, LeaseEvery: time.Millisecond, DeadlineEvery: time.Millisecond})
	for _, name := range []string{"lease", "deadline"} {
		from := func() []time.Time {
			s.mu.Lock()
			defer s.mu.Unlock()
			return slices.Clone(s.from[name])
		}
		partial := func(at time.Time) bool { return !at.IsZero() }
		eventually(t, name+" sweeps that go on", func() bool { return len(from()) > 4 && slices.ContainsFunc(from(), partial) })
		eventually(t, name+" sweeps that begin at the start", func() bool { return slices.ContainsFunc(from()[1:], time.Time.IsZero) })
		for i, at := range from() {
			want := time.Unix(int64(i), 0)
			if i == 3 { // after the one that failed
				want = time.Unix(2, 0)
			}
			if !at.Equal(want) && !at.IsZero() || i == 0 && !at.IsZero() {
				t.Errorf("%s sweep %d begins at %v, expected %v", name, i, at, want)
			}
		}
	}
}

// TestAFirstSweepMayFail: it begins at the start, and perhaps never comes to an end. The next ones begin where the look before it was.
func TestAFirstSweepMayFail(t *testing.T) {
	t.Parallel()
	s := &store{slow: 500 * time.Millisecond, leases: []answer{{err: errors.New("timeout")}}}
	start(t, Config{Store: s, Heartbeat: time.Millisecond, LeaseEvery: time.Millisecond, DeadlineEvery: time.Hour})
	eventually(t, "a sweep from there on", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return slices.ContainsFunc(s.from["lease"], looked0.Equal)
	})
}

// TestQuickSweepsLookAtEverything: nothing is left for later that costs nothing to look at.
func TestQuickSweepsLookAtEverything(t *testing.T) {
	t.Parallel()
	var s sweep
	for range 3 {
		if from := s.begins(); !from.IsZero() {
			t.Errorf("a sweep begins at %v", from)
		}
		s.swept(result{ReapResult: pg.ReapResult{Next: time.Now()}, full: true})
	}
}
