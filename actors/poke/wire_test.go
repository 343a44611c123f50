package poke

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

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// net is a network whose calls of Send and Listen the test answers.
type net struct {
	sends   chan sending
	listens chan listening
}

type sending struct {
	queues []string
	answer chan<- error
}

type listening struct {
	ear pg.Ear
	ctx context.Context
	end chan<- error
}

func newNet() *net {
	return &net{sends: make(chan sending, 100), listens: make(chan listening, 100)}
}

func (n *net) Send(ctx context.Context, queues []string) error {
	slices.Sort(queues)
	answer := make(chan error, 1)
	n.sends <- sending{queues, answer}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (n *net) Listen(ctx context.Context, ear pg.Ear) error {
	end := make(chan error, 1)
	n.listens <- listening{ear, ctx, end}
	select {
	case err := <-end:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pokes records what the schedulers of this process are told.
type pokes chan actors.Poke

func (p pokes) Poke(queue string, in time.Duration) { p <- actors.Poke{Queue: queue, In: in} }

type rig struct {
	*net
	pokes  pokes
	log    *lines
	counts *actors.Counters
	pid    *actor.PID
	system *actor.ActorSystem
}

// lines collects a log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), what)
}

func wired(t *testing.T, queues ...string) *rig {
	t.Helper()
	r := &rig{net: newNet(), pokes: make(pokes, 1000), log: &lines{}, counts: new(actors.Counters)}
	r.system = actors.NewSystem(slog.New(slog.DiscardHandler))
	props := Props(Config{
		Logger: slog.New(slog.NewTextHandler(r.log, nil)), Counters: r.counts, Transport: r.pokes, Network: r.net, Queues: queues,
	})
	parent := r.system.Root.Spawn(actors.NewProps(slog.New(slog.DiscardHandler), nil, func() actor.Actor {
		return actor.ReceiveFunc(func(ctx actor.Context) {
			if _, ok := ctx.Message().(*actor.Started); ok {
				r.pid = ctx.Spawn(props)
			}
			if reply, ok := ctx.Message().(chan *actor.PID); ok {
				reply <- r.pid
			}
		})
	}, actor.WithSupervisor(actors.NewSupervisor(actors.Supervision{Logger: slog.New(slog.DiscardHandler)}))))
	reply := make(chan *actor.PID, 1)
	r.system.Root.Send(parent, reply)
	r.pid = <-reply
	t.Cleanup(func() {
		if err := r.system.Root.StopFuture(parent).Wait(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return r
}

func (r *rig) announce(in time.Duration, queues ...string) {
	r.system.Root.Send(r.pid, actors.Announce{Queues: queues, In: in})
}

func (r *rig) wantPokes(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for range want {
		select {
		case p := <-r.pokes:
			got = append(got, fmt.Sprint(p.Queue, p.In))
		case <-time.After(time.Minute):
			t.Fatalf("got %q, want %q", got, want)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("poked %q, want %q", got, want)
	}
}

func TestWhatComesWhileOneIsSentIsTheNext(t *testing.T) {
	r := wired(t)
	r.announce(0, "first")
	s := <-r.sends
	for range 1000 {
		r.announce(0, "a", "b")
	}
	r.announce(time.Hour, "later")
	r.announce(0, "c")
	for p := range r.pokes { // the last one of this process
		if p.Queue == "c" {
			break
		}
	}
	if len(r.sends) > 0 {
		t.Fatal("two statements at a time")
	}
	s.answer <- nil
	if s = <-r.sends; !slices.Equal(s.queues, []string{"a", "b", "c"}) {
		t.Errorf("sent %q", s.queues)
	}
	s.answer <- nil
	r.announce(0, "last")
	if s = <-r.sends; !slices.Equal(s.queues, []string{"last"}) {
		t.Errorf("sent %q: delayed work was announced, or something twice", s.queues)
	}
}

func TestWhatCannotBeSentIsSentLater(t *testing.T) {
	r := wired(t)
	r.announce(0, "a")
	for range 3 {
		s := <-r.sends
		s.answer <- errors.New("away")
	}
	s := <-r.sends
	r.announce(0, "b")
	s.answer <- nil
	if !slices.Equal(s.queues, []string{"a"}) {
		t.Errorf("sent %q", s.queues)
	}
	s = <-r.sends
	s.answer <- nil
	if !slices.Equal(s.queues, []string{"b"}) {
		t.Errorf("sent %q", s.queues)
	}
	if n := r.log.count("cannot be announced"); n != 1 {
		t.Errorf("%d lines about one outage", n)
	}
	if r.counts.NoticeErrors.Load() != 3 {
		t.Errorf("counted %d failures", r.counts.NoticeErrors.Load())
	}
}

func TestAnnouncementsOfOthersReachTheSchedulers(t *testing.T) {
	r := wired(t, "mine", "too")
	l := <-r.listens
	l.ear.Ready(false)
	r.wantPokes(t, "mine0s", "too0s")
	l.ear.Heard("theirs")
	l.ear.Refused()
	l.ear.Heard("mine")
	r.wantPokes(t, "mine0s")
	if h, m := r.counts.NoticesHeard.Load(), r.counts.NoticesRefused.Load(); h != 2 || m != 1 {
		t.Errorf("heard %d, refused %d", h, m)
	}
	if len(r.sends) > 0 {
		t.Error("what was heard was announced again")
	}
}

func TestAListenerThatEndsIsFollowedByOneThatPokesAll(t *testing.T) {
	r := wired(t, "mine")
	l := <-r.listens
	l.ear.Ready(true)
	r.wantPokes(t, "mine0s")
	l.end <- errors.New("cut")
	for range 2 {
		l = <-r.listens
		l.end <- errors.New("refused")
	}
	l = <-r.listens
	l.ear.Ready(true)
	r.wantPokes(t, "mine0s")
	if n := r.log.count("not heard just now"); n != 1 {
		t.Errorf("%d lines about one outage", n)
	}
	if n := r.log.count("through a proxy"); n != 1 {
		t.Errorf("%d lines about a proxy", n)
	}
	if n := r.counts.ListenersLost.Load(); n != 3 {
		t.Errorf("counted %d lost listeners", n)
	}
}

func TestARestartedActorListensAnew(t *testing.T) {
	r := wired(t, "mine")
	old := <-r.listens
	r.announce(0, "mine")
	s := <-r.sends
	r.wantPokes(t, "mine0s")
	r.system.Root.Send(r.pid, actors.Crash{})
	<-old.ctx.Done()
	s.answer <- nil
	l := <-r.listens
	old.ear.Ready(false) // says nothing any more
	old.ear.Heard("mine")
	l.ear.Ready(false)
	r.wantPokes(t, "mine0s")
	r.announce(0, "other")
	if s = <-r.sends; !slices.Equal(s.queues, []string{"other"}) {
		t.Errorf("sent %q", s.queues)
	}
	r.wantPokes(t, "other0s")
}

func TestAStormIsOneMessage(t *testing.T) {
	told := 0
	e := &ears{tell: func(any) { told++ }}
	for i := range 10_000 {
		e.add([]string{"a", "b", "c"}[i%3])
	}
	if got := e.take(); told != 1 || len(got) != 3 {
		t.Errorf("%d messages, %q", told, got)
	}
	if e.add("a"); told != 2 {
		t.Errorf("%d messages after the first was taken", told)
	}
}
