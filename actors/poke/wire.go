package poke

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

const (
	// sendTimeout bounds one call of Network.Send.
	sendTimeout = 10 * time.Second
	// Pace is the shortest time between two announcements to other processes. A lone one goes out at once; a storm costs
	// so many small commits a second and no more.
	Pace = 20 * time.Millisecond
	// retryMin and retryMax bound the pauses between tries while the network is away.
	retryMin, retryMax = 100 * time.Millisecond, 10 * time.Second
)

// wire is the side of the poke actor that faces other processes. Two goroutines at most belong to it: one that sends, and
// one that listens.
type wire struct {
	Config
	life   *actors.Life
	shared *shared
	// unsent are the queues that are to be announced. Invariant: when there are some, sending is true.
	unsent map[string]struct{}
	// sending: a call of Send is on its way, or the pause after one.
	sending       bool
	resend, again actors.Backoff
	notices       notices
}

// shared outlives the restarts of the actor.
type shared struct {
	sendOutage, listenOutage actors.Outage
	warned                   sync.Once
	// mine are the queues of this process; read-only.
	mine map[string]bool
}

func newShared(c Config) *shared {
	s := &shared{mine: make(map[string]bool, len(c.Queues))}
	for _, q := range c.Queues {
		s.mine[q] = true
	}
	return s
}

func newWire(c Config, life *actors.Life, s *shared) *wire {
	backoff := actors.Backoff{First: retryMin, Max: retryMax}
	return &wire{Config: c, life: life, shared: s, unsent: make(map[string]struct{}), resend: backoff, again: backoff}
}

type (
	// sent says what became of a call of Send.
	sent struct {
		queues []string
		err    error
	}
	// paused is the end of the pause after a call of Send.
	paused struct{}
	// ready says that the listener hears.
	ready struct{ proxied bool }
	// heard says that ears has new queues.
	heard struct{ ears *ears }
	// deaf says that the listener ended.
	deaf struct{ err error }
	// relisten begins a new one.
	relisten struct{}
)

func (w *wire) receive(message any) {
	switch m := message.(type) {
	case *actor.Started, relisten:
		if len(w.Queues) > 0 { // nobody here wants to hear anything otherwise
			w.listen()
		}
	case sent:
		w.sent(m)
	case paused:
		w.sending = false
		w.send()
	case ready:
		w.ready(m)
	case heard:
		w.pass(m.ears.take())
	case deaf:
		w.deaf(m)
	case told:
		w.toldOthers(m)
	case rested:
		w.notices.sending = false
		w.sendNotices()
	case heardNotice:
		w.passNotice(m.notice)
	}
}

// announce takes what is to be announced, except for delayed work.
func (w *wire) announce(pending map[string]due) {
	for q, d := range pending {
		if d.now {
			w.unsent[q] = struct{}{}
		}
	}
	w.send()
}

// send sends what there is in one call, unless one is on its way: what comes meanwhile is the next.
func (w *wire) send() {
	if w.sending || len(w.unsent) == 0 {
		return
	}
	w.sending = true
	queues := make([]string, 0, len(w.unsent))
	for q := range w.unsent {
		queues = append(queues, q)
	}
	clear(w.unsent)
	w.life.GoFor(sendTimeout, func(ctx context.Context) any {
		return sent{queues, w.Network.Send(ctx, queues)}
	})
}

func (w *wire) sent(m sent) {
	if m.err == nil {
		w.Counters.NoticesSent.Add(int64(len(m.queues)))
		w.shared.sendOutage.Over(w.Logger, "work can be announced to other processes again")
		w.resend.Reset()
		w.life.After(Pace, paused{})
		return
	}
	w.Counters.NoticeErrors.Add(1)
	w.shared.sendOutage.Begin(w.Logger, "work cannot be announced to other processes just now; their polls find it", m.err)
	for _, q := range m.queues {
		w.unsent[q] = struct{}{}
	}
	w.life.After(w.resend.Next(), paused{})
}

func (w *wire) listen() {
	e := &ears{tell: w.life.Tell}
	ear := pg.Ear{
		Ready: func(proxied bool) { w.life.Tell(ready{proxied}) },
		Heard: func(queue string) {
			w.Counters.NoticesHeard.Add(1)
			if w.shared.mine[queue] {
				e.add(queue)
			}
		},
		Told: func(n pg.Notice) {
			w.Counters.NoticesHeard.Add(1)
			w.life.Tell(heardNotice{n})
		},
		Refused: func() { w.Counters.NoticesRefused.Add(1) },
	}
	w.life.Go(func(ctx context.Context) any { return deaf{w.Network.Listen(ctx, ear)} })
}

// ready pokes all queues: what was announced while nobody listened is not announced again.
func (w *wire) ready(m ready) {
	w.again.Reset()
	w.shared.listenOutage.Over(w.Logger, "announcements of other processes are heard again")
	if m.proxied {
		w.shared.warned.Do(func() {
			w.Logger.Warn("gendurable: announcements of other processes come through a proxy; unless it keeps sessions apart they get lost, and Config.ListenURL should lead to the server itself")
		})
	}
	w.pass(w.Queues)
}

func (w *wire) deaf(m deaf) {
	w.Counters.ListenersLost.Add(1)
	err := m.err
	if err == nil {
		err = errors.New("the listener ended")
	}
	w.shared.listenOutage.Begin(w.Logger, "announcements of other processes are not heard just now; polls find their work", err)
	w.life.After(w.again.Next(), relisten{})
}

func (w *wire) pass(queues []string) {
	for _, q := range queues {
		w.Counters.Pokes.Add(1)
		w.Transport.Poke(q, 0)
	}
}

// ears collect what a listener hears until the actor takes it: however many announcements come in, at most one message is
// in the mailbox for them.
type ears struct {
	tell func(message any)

	mu     sync.Mutex
	queues []string // each once; there are no more than this process has
}

func (e *ears) add(queue string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, q := range e.queues {
		if q == queue {
			return
		}
	}
	if e.queues = append(e.queues, queue); len(e.queues) == 1 {
		e.tell(heard{e})
	}
}

func (e *ears) take() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	queues := e.queues
	e.queues = nil
	return queues
}
