package limiter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/goleak"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/limiter"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errAway = errors.New("database is away")

// backend is a fake limiter: it admits everything, and fails as it is told.
type backend struct {
	mu       sync.Mutex
	fail     map[string][]error // errors of the next calls, by method
	hold     chan struct{}      // when not nil, a Credit waits for it or its context
	credited []limiter.Release
	batches  int
	calls    []string
	renewed  []limiter.Slot
}

func (b *backend) call(name string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, name)
	errs := b.fail[name]
	if len(errs) == 0 {
		return nil
	}
	b.fail[name] = errs[1:]
	return errs[0]
}

func (b *backend) count(name string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.calls {
		if c == name {
			n++
		}
	}
	return n
}

func (b *backend) SyncConfig(_ context.Context, own limiter.Config) (limiter.Config, error) {
	if len(own.Gates) > 0 {
		return own, b.call("store")
	}
	return limiter.Config{Gates: []limiter.Gate{{Name: "read", Limit: 1}}}, b.call("read")
}

func (b *backend) RemoveConfig(context.Context, ...limiter.Name) error { return b.call("remove") }

func (b *backend) Admit(ctx context.Context, worker string, requests []limiter.Request) ([]limiter.Decision, error) {
	if worker == "slow" {
		_ = b.call("slow")
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if worker == "panic" {
		panic("as told")
	}
	d := make([]limiter.Decision, len(requests))
	for i, r := range requests {
		if r.Weight > 1 {
			d[i] = limiter.Decision{Verdict: limiter.Saturated, By: limiter.KindRate, Key: r.Rate}
		}
	}
	return d, b.call("admit")
}

func (b *backend) Credit(ctx context.Context, released []limiter.Release) error {
	if err := b.call("credit"); err != nil {
		return err
	}
	b.mu.Lock()
	hold := b.hold
	b.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", limiter.ErrUncertain, ctx.Err())
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.credited, b.batches = append(b.credited, released...), b.batches+1
	return nil
}

func (b *backend) Renew(_ context.Context, held []limiter.Slot, _ time.Duration) error {
	b.mu.Lock()
	b.renewed = slices.Clone(held)
	b.mu.Unlock()
	return b.call("renew")
}

func (b *backend) Reconcile(context.Context) (limiter.Reconciled, error) {
	return limiter.Reconciled{Healed: 1}, b.call("reconcile")
}

// stage is an actor on a fake backend.
type stage struct {
	t      *testing.T
	b      *backend
	system *actor.ActorSystem
	pid    *actor.PID
	n      *actors.LimitCounters
}

func start(t *testing.T, b *backend, c Config) *stage {
	t.Helper()
	c.Backend, c.Limits = b, new(actors.LimitCounters)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Every == 0 {
		c.Every = time.Hour
	}
	system := actors.NewSystem(c.Logger)
	// Under a supervisor, as in the engine, so that a panic leads to a restart.
	parent := system.Root.Spawn(actors.NewProps(c.Logger, nil, func() actor.Actor { return &parent{props: Props(c)} },
		actor.WithSupervisor(actor.NewOneForOneStrategy(1000, time.Minute, func(any) actor.Directive { return actor.RestartDirective }))))
	reply, err := system.Root.RequestFuture(parent, "child", time.Minute).Result()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := system.Root.StopFuture(parent).Wait(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return &stage{t: t, b: b, system: system, pid: reply.(*actor.PID), n: c.Limits}
}

type parent struct {
	props *actor.Props
	child *actor.PID
}

func (p *parent) Receive(ctx actor.Context) {
	switch ctx.Message().(type) {
	case *actor.Started:
		p.child = ctx.Spawn(p.props)
	case string:
		ctx.Respond(p.child)
	}
}

func (s *stage) send(m any) { s.system.Root.Send(s.pid, m) }

func (s *stage) admit(worker string, requests ...limiter.Request) actors.Admitted {
	s.t.Helper()
	reply := make(chan actors.Admitted, 1)
	s.send(actors.Admit{Worker: worker, Requests: requests, Reply: reply})
	select {
	case a := <-reply:
		return a
	case <-time.After(time.Minute):
		s.t.Fatal("no answer")
		return actors.Admitted{}
	}
}

func (s *stage) eventually(what string, ok func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); {
		if time.Now().After(deadline) {
			s.t.Fatalf("timed out waiting for %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func slot(id int64) limiter.Slot { return limiter.Slot{ID: id, Claim: 1, Key: "g"} }

func released(ids ...int64) actors.CreditSlots {
	var m actors.CreditSlots
	for _, id := range ids {
		m.Released = append(m.Released, limiter.Release{Slot: slot(id), Mark: uint64(id)})
	}
	return m
}

func TestAdmits(t *testing.T) {
	s := start(t, &backend{}, Config{})
	a := s.admit("w", limiter.Request{ID: 1, Claim: 1, Gate: "g"}, limiter.Request{ID: 2, Rate: "r", Weight: 2})
	if a.Err != nil || len(a.Decisions) != 2 || a.Decisions[0].Verdict != limiter.Admitted || a.Decisions[1].Verdict != limiter.Saturated {
		t.Errorf("%+v", a)
	}
	s.eventually("the counters", func() bool {
		return s.n.AdmittedRows.Load() == 1 && s.n.DeniedRows.Load() == 1 && s.n.HeldNow.Load() == 1
	})
	s.b.mu.Lock()
	s.b.fail = map[string][]error{"admit": {errAway}}
	s.b.mu.Unlock()
	if a = s.admit("w", limiter.Request{ID: 1, Gate: "g"}); !errors.Is(a.Err, errAway) {
		t.Errorf("%+v", a)
	}
}

func TestAnswersWhenItRestarts(t *testing.T) {
	s := start(t, &backend{}, Config{})
	if a := s.admit("panic", limiter.Request{ID: 1, Gate: "g"}); !errors.Is(a.Err, actors.ErrRestarting) {
		t.Errorf("a panic of the backend: %+v", a)
	}
	reply := make(chan actors.Admitted, 1)
	s.send(actors.Admit{Worker: "slow", Requests: []limiter.Request{{ID: 1, Gate: "g"}}, Reply: reply})
	s.eventually("the call", func() bool { return s.b.count("slow") == 1 })
	s.send(actors.Crash{})
	if a := <-reply; !errors.Is(a.Err, actors.ErrRestarting) {
		t.Errorf("an admission on its way: %+v", a)
	}
	if a := s.admit("w", limiter.Request{ID: 1, Gate: "g"}); a.Err != nil {
		t.Errorf("after the restart: %+v", a)
	}
}

func TestCreditsAreCoalesced(t *testing.T) {
	freed := make(chan []string, 10)
	hold := make(chan struct{})
	s := start(t, &backend{hold: hold}, Config{Freed: func(keys []string) { freed <- keys }})
	s.send(released(1))
	s.eventually("the first credit", func() bool { return s.b.count("credit") == 1 })
	for id := int64(2); id <= 100; id++ {
		s.send(released(id))
	}
	s.eventually("the others to wait", func() bool { return s.n.UncreditedNow.Load() == 100 })
	close(hold)
	s.eventually("all credits", func() bool { return s.n.CreditedSlots.Load() == 100 })
	if s.b.batches != 2 || s.n.UncreditedNow.Load() != 0 {
		t.Errorf("%d calls, %d left", s.b.batches, s.n.UncreditedNow.Load())
	}
	if keys := <-freed; !slices.Equal(keys, []string{"g"}) {
		t.Errorf("freed are %v", keys)
	}
}

func TestCreditsAreRepeated(t *testing.T) {
	s := start(t, &backend{fail: map[string][]error{"credit": {errAway, errAway}}}, Config{})
	s.send(released(1, 2))
	s.send(released(3))
	s.eventually("all credits", func() bool { return s.n.CreditedSlots.Load() == 3 })
	if n := s.n.CreditRetries.Load(); n != 2 {
		t.Errorf("%d retries", n)
	}
}

// TestContendedCreditsAreNoOutage: that others hold the counters for a moment is not worth a word; that they do for long is.
func TestContendedCreditsAreNoOutage(t *testing.T) {
	for tries, warned := range map[int]bool{1: false, quietly: false, quietly + 1: true} {
		var errs []error
		for range tries {
			errs = append(errs, fmt.Errorf("busy: %w", limiter.ErrContended))
		}
		var log lines
		s := start(t, &backend{fail: map[string][]error{"credit": errs}}, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		s.send(released(1, 2))
		s.eventually("the credits", func() bool { return s.n.CreditedSlots.Load() == 2 })
		if n := s.n.CreditRetries.Load(); n != int64(tries) || (s.n.Errors.Load() > 0) != warned {
			t.Errorf("%d retries, %d errors", n, s.n.Errors.Load())
		}
		if got := strings.Contains(log.String(), "cannot be given back"); got != warned {
			t.Errorf("after %d tries the log says %q", tries, log.String())
		}
	}
}

// TestUncertainCreditsAreNotRepeated: what may have arrived is left to a reconcile, which comes at once.
func TestUncertainCreditsAreNotRepeated(t *testing.T) {
	s := start(t, &backend{fail: map[string][]error{"credit": {fmt.Errorf("lost: %w", limiter.ErrUncertain)}}}, Config{})
	s.eventually("the reconcile of the start", func() bool { return s.n.Reconciles.Load() == 1 })
	s.send(released(1, 2))
	s.eventually("a reconcile", func() bool { return s.n.Reconciles.Load() == 2 })
	s.send(released(3))
	s.eventually("the next credit", func() bool { return s.n.CreditedSlots.Load() == 1 })
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if len(s.b.credited) != 1 || s.b.credited[0].ID != 3 {
		t.Errorf("credited are %+v", s.b.credited)
	}
}

func TestTooManyCreditsAreLeftToAReconcile(t *testing.T) {
	s := start(t, &backend{fail: map[string][]error{"credit": {errAway}}}, Config{MaxUncredited: 2})
	s.eventually("the reconcile of the start", func() bool { return s.n.Reconciles.Load() == 1 })
	s.send(released(1, 2, 3))
	s.eventually("a reconcile", func() bool { return s.n.Reconciles.Load() == 2 })
	if n := s.n.UncreditedNow.Load(); n != 0 {
		t.Errorf("%d are kept", n)
	}
}

func TestConfigAtStartAndWithEachReconcile(t *testing.T) {
	own := limiter.Config{Gates: []limiter.Gate{{Name: "own", Limit: 1}}}
	var mu sync.Mutex
	var seen []string
	s := start(t, &backend{fail: map[string][]error{"store": {errAway}, "reconcile": {errAway}}}, Config{
		Own: own, Every: time.Millisecond,
		InForce: func(c limiter.Config) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, c.Gates[0].Name)
		},
	})
	s.eventually("three reconciles", func() bool { return s.n.Reconciles.Load() >= 3 })
	mu.Lock()
	defer mu.Unlock()
	if seen[0] != "own" || seen[1] != "read" || s.b.count("store") != 2 {
		t.Errorf("in force were %v, stored %d times", seen, s.b.count("store"))
	}
}

func TestRenewsWhatIsHeld(t *testing.T) {
	s := start(t, &backend{}, Config{RenewEvery: time.Millisecond})
	for id := int64(1); id <= 3; id++ {
		s.admit("w", limiter.Request{ID: id, Claim: 1, Gate: "g"})
	}
	renewed := func(want ...int64) func() bool {
		return func() bool {
			s.b.mu.Lock()
			defer s.b.mu.Unlock()
			var ids []int64
			for _, held := range s.b.renewed {
				ids = append(ids, held.ID)
			}
			slices.Sort(ids)
			return slices.Equal(ids, want)
		}
	}
	s.eventually("three to be renewed", renewed(1, 2, 3))
	s.send(actors.Crash{})
	s.send(released(1))
	s.send(actors.CreditSlots{Lost: []limiter.Slot{slot(2)}})
	s.eventually("one to be renewed, also after a restart", renewed(3))
	s.eventually("the credit of the other", func() bool { return s.n.CreditedSlots.Load() == 1 })
}

// TestSlotsOfABackendWithoutStamps: of a row that was taken from its worker only the ledger knows whether it had a slot. The
// backend is told anyway, whoever waits only of what is known.
func TestSlotsOfABackendWithoutStamps(t *testing.T) {
	freed := make(chan []string, 10)
	s := start(t, &backend{}, Config{Freed: func(keys []string) { freed <- keys }})
	s.admit("w", limiter.Request{ID: 1, Claim: 1, Gate: "g"})
	taken := func(id int64, key string) actors.CreditSlots {
		return actors.CreditSlots{Released: []limiter.Release{{Slot: limiter.Slot{ID: id, Claim: 1, Key: key, Shard: -1}}}}
	}
	s.send(taken(2, "other"))
	s.eventually("the credit of what may have had one", func() bool { return s.n.Credits.Load() == 1 })
	s.send(taken(1, "g"))
	s.eventually("the credit of what had one", func() bool { return s.n.CreditedSlots.Load() == 1 && s.n.HeldNow.Load() == 0 })
	if keys := <-freed; !slices.Equal(keys, []string{"g"}) {
		t.Errorf("freed are %v", keys)
	}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if len(s.b.credited) != 2 || s.b.credited[1].Shard != 0 {
		t.Errorf("credited are %+v", s.b.credited)
	}
}

func TestFlush(t *testing.T) {
	hold := make(chan struct{})
	s := start(t, &backend{hold: hold}, Config{})
	s.send(released(1))
	s.send(released(2))
	done, early := make(chan struct{}), make(chan struct{})
	s.send(actors.Flush{Timeout: time.Millisecond, Done: early})
	<-early // in time, although the backend does not answer
	s.send(actors.Flush{Timeout: time.Hour, Done: done})
	close(hold)
	<-done
	if n := s.n.CreditedSlots.Load(); n != 2 {
		t.Errorf("%d slots were credited", n)
	}
}

// TestFlushAndRestart: the next incarnation knows of no Flush, so the one that ends answers it.
func TestFlushAndRestart(t *testing.T) {
	hold := make(chan struct{})
	s := start(t, &backend{hold: hold}, Config{})
	s.send(released(1))
	done := make(chan struct{})
	s.send(actors.Flush{Timeout: time.Hour, Done: done})
	s.send(actors.Crash{})
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("it is never answered")
	}
	close(hold)
}

// lines is a log's writer.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
