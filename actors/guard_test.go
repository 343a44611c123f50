package actors_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/goleak"

	"github.com/gendurable/gendurable/actors"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// logs collects what is logged.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logs) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

type (
	explode struct{ actors.Quiet }
	ping    struct {
		actors.Quiet
		reply chan int
	}
)

// probe is an actor whose Receive is given by the test; it answers ping with its incarnation.
type probe struct {
	incarnation int
	hook        func(ctx actor.Context)
}

func (p *probe) Receive(ctx actor.Context) {
	if p.hook != nil {
		p.hook(ctx)
	}
	switch m := ctx.Message().(type) {
	case explode:
		panic("boom")
	case ping:
		m.reply <- p.incarnation
	}
}

func props(l *logs, c *actors.Counters, hook func(actor.Context), opts ...actor.PropsOption) *actor.Props {
	n := new(atomic.Int64)
	return actors.NewProps(l.logger(), c, func() actor.Actor { return &probe{int(n.Add(1)), hook} }, opts...)
}

func receive[T any](t *testing.T, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(time.Minute):
		t.Fatalf("timed out waiting for %s", what)
		panic("unreachable")
	}
}

func stop(t *testing.T, s *actor.ActorSystem, pid *actor.PID) {
	t.Helper()
	if err := s.Root.StopFuture(pid).Wait(); err != nil {
		t.Fatalf("stop %s: %v", pid, err)
	}
}

// family spawns a parent with the supervision and returns it with its child.
func family(t *testing.T, s *actor.ActorSystem, l *logs, sup actor.SupervisorStrategy, child *actor.Props, hook func(actor.Context)) (parent, kid *actor.PID) {
	t.Helper()
	spawned := make(chan *actor.PID, 10)
	p := props(l, nil, func(ctx actor.Context) {
		if _, ok := ctx.Message().(*actor.Started); ok {
			pid, err := ctx.SpawnNamed(child, "child")
			if err != nil {
				t.Error(err)
			}
			spawned <- pid
		}
		if hook != nil {
			hook(ctx)
		}
	}, actor.WithSupervisor(sup))
	parent, err := s.Root.SpawnNamed(p, "parent")
	if err != nil {
		t.Fatal(err)
	}
	return parent, receive(t, spawned, "the child")
}

func TestPanicIsLoggedAndTheActorRestarted(t *testing.T) {
	t.Parallel()
	var l logs
	var c actors.Counters
	s := actors.NewSystem(l.logger())
	sup := actors.NewSupervisor(actors.Supervision{First: time.Millisecond, Logger: l.logger(), Counters: &c})
	parent, kid := family(t, s, &l, sup, props(&l, &c, nil), nil)
	defer stop(t, s, parent)

	s.Root.Send(kid, explode{})
	reply := make(chan int, 1)
	s.Root.Send(kid, ping{reply: reply})
	if got := receive(t, reply, "an answer"); got != 2 {
		t.Fatalf("incarnation %d answered, want 2", got)
	}
	if c.Panics.Load() != 1 || c.Restarts.Load() != 1 {
		t.Errorf("panics %d, restarts %d, want 1 and 1", c.Panics.Load(), c.Restarts.Load())
	}
	if !strings.Contains(l.String(), "boom") || !strings.Contains(l.String(), "guard_test.go") {
		t.Errorf("no panic with a stack in the log:\n%s", l.String())
	}
}

func TestPanicsWhileStoppingDoNotHangTheParent(t *testing.T) {
	t.Parallel()
	for _, message := range []any{&actor.Stopping{}, &actor.Stopped{}} {
		var l logs
		s := actors.NewSystem(l.logger())
		child := props(&l, nil, func(ctx actor.Context) {
			switch ctx.Message().(type) {
			case *actor.Stopping:
				if _, ok := message.(*actor.Stopping); ok {
					panic("while stopping")
				}
			case *actor.Stopped:
				if _, ok := message.(*actor.Stopped); ok {
					panic("when stopped")
				}
			}
		})
		parent, _ := family(t, s, &l, actors.NewSupervisor(actors.Supervision{Logger: l.logger()}), child, nil)
		stop(t, s, parent)
		if !strings.Contains(l.String(), "panicked") {
			t.Errorf("%T: the panic is not in the log", message)
		}
	}
}

func TestPanicInRestartingStillRestarts(t *testing.T) {
	t.Parallel()
	var l logs
	s := actors.NewSystem(l.logger())
	child := props(&l, nil, func(ctx actor.Context) {
		if _, ok := ctx.Message().(*actor.Restarting); ok {
			panic("while restarting")
		}
	})
	sup := actors.NewSupervisor(actors.Supervision{First: time.Millisecond, Logger: l.logger()})
	parent, kid := family(t, s, &l, sup, child, nil)
	defer stop(t, s, parent)
	s.Root.Send(kid, explode{})
	reply := make(chan int, 1)
	s.Root.Send(kid, ping{reply: reply})
	if got := receive(t, reply, "an answer"); got != 2 {
		t.Fatalf("incarnation %d answered, want 2", got)
	}
}

// The parent must be told of a panic in Terminated, and must still get to the end of its own stop.
func TestPanicInTerminatedRestartsAndStops(t *testing.T) {
	t.Parallel()
	var l logs
	var c actors.Counters
	s := actors.NewSystem(l.logger())
	sup := actors.NewSupervisor(actors.Supervision{First: time.Millisecond, Logger: l.logger()})
	started := make(chan struct{}, 10)
	middle := props(&l, &c, func(ctx actor.Context) {
		switch ctx.Message().(type) {
		case *actor.Started:
			if _, err := ctx.SpawnNamed(props(&l, nil, nil), "leaf"); err != nil {
				t.Error(err)
			}
			started <- struct{}{}
		case *actor.Terminated:
			panic("in terminated")
		}
	})
	parent, kid := family(t, s, &l, sup, middle, nil)
	receive(t, started, "the first start")
	s.Root.Stop(s.NewLocalPID(kid.Id + "/leaf"))
	receive(t, started, "the restart")
	stop(t, s, parent)
}

func TestAnActorThatKeepsFailingIsGivenUpLoudly(t *testing.T) {
	t.Parallel()
	var l logs
	s := actors.NewSystem(l.logger())
	given := make(chan any, 1)
	sup := actors.NewSupervisor(actors.Supervision{
		First: time.Millisecond, Max: 2 * time.Millisecond, Failures: 3, Logger: l.logger(),
		GiveUp: func(child *actor.PID, reason any) { given <- child.Id + ": " + reason.(string) },
	})
	ended := make(chan struct{}, 1)
	parent, kid := family(t, s, &l, sup, props(&l, nil, nil), func(ctx actor.Context) {
		if _, ok := ctx.Message().(*actor.Terminated); ok {
			ended <- struct{}{}
		}
	})
	defer stop(t, s, parent)
	for range 4 {
		s.Root.Send(kid, explode{})
	}
	if got := receive(t, given, "GiveUp"); got != "parent/child: boom" {
		t.Errorf("GiveUp got %q", got)
	}
	receive(t, ended, "the child's end")
	if !strings.Contains(l.String(), "given up") {
		t.Error("nothing in the log")
	}
}

// A restart whose pause ends after the parent began to stop must not revive the child: the parent would wait
// for it for ever.
func TestStopDuringThePauseBeforeARestart(t *testing.T) {
	t.Parallel()
	var l logs
	s := actors.NewSystem(l.logger())
	failed := make(chan struct{}, 1)
	sup := actors.NewSupervisor(actors.Supervision{First: 5 * time.Millisecond, Logger: l.logger()})
	release := make(chan struct{})
	stopping := make(chan struct{}, 1)
	child := props(&l, nil, func(ctx actor.Context) {
		switch ctx.Message().(type) {
		case *actor.Started:
			// A grandchild that takes its time to stop holds the child in its stopping state.
			_, err := ctx.SpawnNamed(props(&l, nil, func(ctx actor.Context) {
				if _, ok := ctx.Message().(*actor.Stopping); ok {
					stopping <- struct{}{}
					<-release
				}
			}), "slow")
			if err != nil {
				t.Error(err)
			}
		case explode:
			failed <- struct{}{}
		}
	})
	parent, kid := family(t, s, &l, sup, child, nil)
	s.Root.Send(kid, explode{})
	receive(t, failed, "the failure")
	future := s.Root.StopFuture(parent)
	receive(t, stopping, "the stop of the grandchild")
	time.AfterFunc(20*time.Millisecond, func() { close(release) }) // the pause is over by then
	if err := future.Wait(); err != nil {
		t.Fatalf("the parent hangs: %v", err)
	}
}

func TestDeadLettersAreNotLogged(t *testing.T) {
	t.Parallel()
	var l logs
	s := actors.NewSystem(l.logger())
	pid := s.Root.Spawn(props(&l, nil, nil))
	stop(t, s, pid)
	for range 10 {
		s.Root.Send(pid, "a secret payload")
		s.Root.Send(pid, explode{})
	}
	if strings.Contains(l.String(), "secret") || strings.Contains(l.String(), "DeadLetter") {
		t.Errorf("dead letters in the log:\n%s", l.String())
	}
}

func TestLifeIgnoresWhatAnEarlierIncarnationStarted(t *testing.T) {
	t.Parallel()
	var l logs
	s := actors.NewSystem(l.logger())
	release, got := make(chan struct{}), make(chan any, 10)
	n := new(atomic.Int64)
	child := actors.NewProps(l.logger(), nil, func() actor.Actor {
		var life actors.Life
		me := n.Add(1)
		return actor.ReceiveFunc(func(ctx actor.Context) {
			switch m := life.Open(ctx).(type) {
			case *actor.Started:
				life.Go(func(ctx context.Context) any {
					<-ctx.Done()
					return errors.New("of an earlier life")
				})
				if me == 2 {
					life.Go(func(context.Context) any { <-release; return "mine" })
				}
			case explode:
				panic("boom")
			case string, error:
				got <- m
			}
		})
	})
	sup := actors.NewSupervisor(actors.Supervision{First: time.Millisecond, Logger: l.logger()})
	parent, kid := family(t, s, &l, sup, child, nil)
	s.Root.Send(kid, explode{})
	close(release)
	if m := receive(t, got, "the result"); m != "mine" {
		t.Errorf("got %v", m)
	}
	stop(t, s, parent)
	if len(got) > 0 {
		t.Errorf("got %v as well", <-got)
	}
}

func TestAPanicInACallRestartsTheActor(t *testing.T) {
	t.Parallel()
	var l logs
	s := actors.NewSystem(l.logger())
	starts := make(chan struct{}, 10)
	n := new(atomic.Int64)
	child := actors.NewProps(l.logger(), nil, func() actor.Actor {
		var life actors.Life
		return actor.ReceiveFunc(func(ctx actor.Context) {
			if _, ok := life.Open(ctx).(*actor.Started); ok {
				starts <- struct{}{}
				if n.Add(1) == 1 {
					life.Go(func(context.Context) any { panic("in a call") })
				}
			}
		})
	})
	sup := actors.NewSupervisor(actors.Supervision{First: time.Millisecond, Logger: l.logger()})
	parent, _ := family(t, s, &l, sup, child, nil)
	receive(t, starts, "the start")
	receive(t, starts, "the restart")
	stop(t, s, parent)
}

func TestNamesOfQueuesDoNotCollide(t *testing.T) {
	t.Parallel()
	if a, b := actors.NameQueue("a")+"/"+actors.NameScheduler, actors.NameQueue("a/scheduler"); a == b {
		t.Errorf("both are %q", a)
	}
}
