package poke

import (
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/goleak"

	"github.com/gendurable/gendurable/actors"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// held blocks the poke actor in its first poke until it is released.
type held struct {
	entered, release chan struct{}
	once             sync.Once
	pokes            chan actors.Poke
}

func (h *held) Poke(queue string, in time.Duration) {
	h.once.Do(func() {
		close(h.entered)
		<-h.release
	})
	h.pokes <- actors.Poke{Queue: queue, In: in}
}

func start(t *testing.T, system *actor.ActorSystem, tr Transport) (*actor.PID, *actors.Counters) {
	t.Helper()
	c := new(actors.Counters)
	pid := system.Root.Spawn(Props(Config{Logger: slog.New(slog.DiscardHandler), Counters: c, Transport: tr}))
	t.Cleanup(func() {
		if err := system.Root.StopFuture(pid).Wait(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return pid, c
}

func TestAnnouncementsInTheMailboxBecomeOnePoke(t *testing.T) {
	t.Parallel()
	system := actors.NewSystem(slog.New(slog.DiscardHandler))
	h := &held{entered: make(chan struct{}), release: make(chan struct{}), pokes: make(chan actors.Poke, 100)}
	pid, c := start(t, system, h)
	system.Root.Send(pid, actors.Announce{Queues: []string{"first"}})
	<-h.entered
	for range 10 {
		system.Root.Send(pid, actors.Announce{Queues: []string{"a", "b"}})
	}
	system.Root.Send(pid, actors.Announce{Queues: []string{"a"}, In: 3 * time.Second})
	system.Root.Send(pid, actors.Announce{Queues: []string{"a"}, In: 2 * time.Second})
	close(h.release)
	var got []actors.Poke
	for range 4 {
		got = append(got, <-h.pokes)
	}
	want := []actors.Poke{{Queue: "first"}, {Queue: "a"}, {Queue: "a", In: 2 * time.Second}, {Queue: "b"}}
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("no %+v in %+v", w, got)
		}
	}
	// One more, alone, shows that nothing else was on its way.
	system.Root.Send(pid, actors.Announce{Queues: []string{"last"}})
	if p := <-h.pokes; p.Queue != "last" {
		t.Errorf("an extra poke: %+v", p)
	}
	if c.Pokes.Load() != 5 || c.PokesMerged.Load() == 0 {
		t.Errorf("pokes %d, merged %d", c.Pokes.Load(), c.PokesMerged.Load())
	}
}

func TestLocalReachesEverySchedulerOfTheQueue(t *testing.T) {
	t.Parallel()
	system := actors.NewSystem(slog.New(slog.DiscardHandler))
	got := make(chan actors.Poke, 10)
	spawn := func() *actor.PID {
		return system.Root.Spawn(actor.PropsFromFunc(func(ctx actor.Context) {
			if p, ok := ctx.Message().(actors.Poke); ok {
				got <- p
			}
		}))
	}
	pids := []*actor.PID{spawn(), spawn()}
	defer func() {
		for _, p := range pids {
			_ = system.Root.StopFuture(p).Wait()
		}
	}()
	pid, _ := start(t, system, Local(system, func(queue string) []*actor.PID {
		if queue == "here" {
			return pids
		}
		return nil
	}))
	system.Root.Send(pid, actors.Announce{Queues: []string{"elsewhere", "here"}})
	for range 2 {
		if p := <-got; p.Queue != "here" {
			t.Errorf("got %+v", p)
		}
	}
}

func TestNoneDropsEverything(t *testing.T) {
	t.Parallel()
	system := actors.NewSystem(slog.New(slog.DiscardHandler))
	pid, _ := start(t, system, None())
	system.Root.Send(pid, actors.Announce{Queues: []string{"a"}})
}
