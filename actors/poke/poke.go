// Package poke carries announcements of runnable work to the schedulers that may want it, in this process and in others. A
// poke is a hint: schedulers find all work without one, only later.
package poke

import (
	"context"
	"log/slog"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// Transport carries a poke to this process's schedulers. It must not block.
type Transport interface {
	// Poke says that the queue has runnable work now (in 0) or will have some in that time.
	Poke(queue string, in time.Duration)
}

// Network carries announcements to other processes and back. *pg.Notices satisfies it. Its methods are called from several
// goroutines at once.
type Network interface {
	// Send announces that the queues have runnable work now.
	Send(ctx context.Context, queues []string) error
	// Tell says what an operator did to rows that others may hold.
	Tell(ctx context.Context, notices []pg.Notice) error
	// Listen hears the announcements of others until ctx ends or it cannot go on.
	Listen(ctx context.Context, ear pg.Ear) error
}

// Config describes the poke actor. Logger and Transport are required.
type Config struct {
	Logger    *slog.Logger
	Counters  *actors.Counters
	Transport Transport
	// Network reaches other processes; nil = none are told, and none is heard.
	Network Network
	// Queues are those that this process runs: what others announce of them is passed on to Transport.
	Queues []string
	// Told takes the notices of other processes that are about one of Queues. It must not block. May be nil.
	Told func(pg.Notice)
}

// Props makes the Props of the poke actor. It takes actors.Tell, which goes to other processes, and actors.Announce. It passes each queue on at once; what is
// announced of one queue while its mailbox is not empty becomes one poke (and one more for the earliest delayed work).
// Delayed work is not announced to other processes: their polls find it in time, and so does whoever wrote it.
func Props(c Config) *actor.Props {
	if c.Counters == nil {
		c.Counters = new(actors.Counters)
	}
	shared := newShared(c)
	return actors.NewProps(c.Logger, c.Counters, func() actor.Actor {
		p := &poker{Config: c, pending: make(map[string]due)}
		if c.Network != nil {
			p.wire = newWire(c, &p.life, shared)
		}
		return p
	})
}

// Local pokes the schedulers in this process. lookup returns those of a queue; it may be called from any goroutine.
func Local(system *actor.ActorSystem, lookup func(queue string) []*actor.PID) Transport {
	return local{system.Root, lookup}
}

type local struct {
	root   *actor.RootContext
	lookup func(queue string) []*actor.PID
}

func (l local) Poke(queue string, in time.Duration) {
	for _, pid := range l.lookup(queue) {
		l.root.Send(pid, actors.Poke{Queue: queue, In: in})
	}
}

// None drops every announcement, those of this very process included: all work is found by polling.
func None() Transport { return none{} }

type none struct{}

func (none) Poke(string, time.Duration) {}

// due is what was announced of a queue and not passed on yet.
type due struct {
	now   bool
	later time.Duration // the earliest delayed work; 0 = none
}

type poker struct {
	Config
	life    actors.Life
	pending map[string]due
	wire    *wire // nil without a Network
}

// passOn is sent by the actor to itself, so that it comes behind the announcements that are in the mailbox already.
type passOn struct{ actors.Quiet }

func (p *poker) Receive(ctx actor.Context) {
	switch m := p.life.Open(ctx).(type) {
	case actors.Announce:
		p.announce(ctx, m)
	case actors.Tell:
		if p.wire != nil {
			p.wire.tell(m.Notice)
		}
	case passOn:
		p.passOn()
	case nil:
	default:
		if p.wire != nil {
			p.wire.receive(m)
		}
	}
}

func (p *poker) announce(ctx actor.Context, m actors.Announce) {
	if len(m.Queues) == 0 {
		return
	}
	if len(p.pending) == 0 {
		ctx.Send(ctx.Self(), passOn{})
	}
	for _, q := range m.Queues {
		d, known := p.pending[q]
		if known {
			p.Counters.PokesMerged.Add(1)
		}
		switch {
		case m.In <= 0:
			d.now = true
		case d.later == 0 || m.In < d.later:
			d.later = m.In
		}
		p.pending[q] = d
	}
}

func (p *poker) passOn() {
	for q, d := range p.pending {
		if d.now {
			p.Counters.Pokes.Add(1)
			p.Transport.Poke(q, 0)
		}
		if d.later > 0 {
			p.Counters.Pokes.Add(1)
			p.Transport.Poke(q, d.later)
		}
	}
	if p.wire != nil {
		p.wire.announce(p.pending)
	}
	clear(p.pending)
}
