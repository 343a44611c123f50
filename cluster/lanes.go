package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/messages"
)

// Serve tells the lanes of a queue which of them this node serves from now on. Sender: the placer.
type Serve struct {
	actors.Quiet
	// Lanes are the numbers of the lanes, in order.
	Lanes []int
	// Sweep adds a scheduler that is no lane: no lane of the queue beats anywhere.
	Sweep bool
}

// served tells the placer which lanes this node holds: those it serves, and those it is still letting go of.
type served struct {
	actors.Quiet
	queue string
	lanes []string
}

// report asks the lanes for a served.
type report struct{ actors.Quiet }

// LanesConfig describes the lanes of one queue on one node. Queue, Lane and Logger are required.
type LanesConfig struct {
	Logger   *slog.Logger
	Counters *actors.Counters
	Queue    string
	// Lanes are how many numbered lanes the queue has in the cluster; 0 = one scheduler on every node that runs it, which has
	// no number and is always there.
	Lanes int
	// Placer grants numbered lanes and is told of them; nil = there is no cluster, all lanes are here.
	Placer *actor.PID
	// Lane makes the queue's actors for one lane, for one spawn. identity is the lane's name in claims, which no other lane
	// of this node has just now: the queue's own for a queue without numbered lanes, else <queue>#<number> or <queue>#sweep,
	// and something behind that if steps of an earlier time still run under it.
	Lane func(identity string) *actor.Props
	// Handover is how long a lane that is let go of is held while its last steps end; after that another node may take it,
	// and the steps end here all the same. Default 5 s.
	Handover time.Duration
	// GiveUp is called when a lane keeps failing and was given up. On a goroutine of its own; may be nil.
	GiveUp func(child *actor.PID, reason any)
}

// Lanes makes the Props of the supervisor of a queue's lanes, for one spawn. It takes actors.Poke, actors.CancelRequested,
// actors.QueuePaused, actors.LimitsInForce, actors.SlotsFreed, and messages.Poke and messages.Notice of other nodes, which it
// hands to all its lanes, Serve, and actors.Drain, which ends them all.
func Lanes(c LanesConfig) *actor.Props {
	if c.Counters == nil {
		c.Counters = new(actors.Counters)
	}
	if c.Handover <= 0 {
		c.Handover = 5 * time.Second
	}
	shared := &lanesShared{}
	switch {
	case c.Lanes == 0:
		shared.want = []string{c.Queue}
	case c.Placer == nil:
		for i := range c.Lanes {
			shared.want = append(shared.want, laneName(c.Queue, i))
		}
	}
	supervision := actors.NewSupervisor(actors.Supervision{Logger: c.Logger, Counters: c.Counters, GiveUp: c.GiveUp})
	return actors.NewProps(c.Logger, c.Counters, func() actor.Actor {
		return &lanes{LanesConfig: c, shared: shared, here: make(map[string]*lane)}
	}, actor.WithSupervisor(supervision))
}

// lanesShared outlives restarts of the supervisor. Its mailbox alone uses it.
type lanesShared struct {
	want     []string // the names of the lanes to serve, in order
	draining bool     // the engine ends: nothing starts any more
}

type lanes struct {
	LanesConfig
	shared *lanesShared
	life   actors.Life
	here   map[string]*lane // by identity
	// closing: this incarnation ends, and a lane that was started now would keep it from ending.
	closing bool
}

// lane is one lane of this node, from its spawn until its actor has ended.
type lane struct {
	name string
	// identity is the name in claims: the lane's own, unless the lane came back while its steps of before still run under that.
	identity string
	pid      *actor.PID
	// leaving: it was told to drain. free: another node may take it.
	leaving, free bool
	gone          chan struct{} // closed when the actor has ended
}

type (
	// drained says that a lane that was let go of runs nothing more.
	drained struct{ lane *lane }
	// overdue says that a lane was held long enough.
	overdue struct{ lane *lane }
)

func (l *lanes) Receive(ctx actor.Context) {
	switch m := l.life.Open(ctx).(type) {
	case *actor.Started:
		l.settle(ctx)
	case *actor.Stopping, *actor.Restarting:
		l.closing = true
	case Serve:
		l.shared.want = l.names(m)
		l.settle(ctx)
	case report:
		l.report()
	case drained:
		ctx.Stop(m.lane.pid)
		l.free(m.lane)
	case overdue:
		l.free(m.lane)
	case *actor.Terminated:
		l.terminated(ctx, m.Who)
	case actors.Poke, actors.CancelRequested, actors.QueuePaused, actors.LimitsInForce, actors.SlotsFreed:
		l.pass(ctx, m)
	case *messages.Poke:
		l.pass(ctx, actors.Poke{Queue: l.Queue})
	case *messages.Notice:
		l.notice(ctx, m)
	case actors.Drain:
		l.drain(ctx, m)
	}
}

func (l *lanes) names(m Serve) []string {
	var out []string
	for _, n := range m.Lanes {
		out = append(out, laneName(l.Queue, n))
	}
	if m.Sweep {
		out = append(out, sweeper(l.Queue))
	}
	return out
}

// sweeper is the name of what serves a queue whose lanes do not beat. It is no lane's.
func sweeper(queue string) string { return queue + "#sweep" }

// settle starts the lanes that are wanted and missing, and lets go of those that are here and not wanted. A lane that comes
// back while its last steps still run starts under another identity, so that neither takes the other's claims for its own.
func (l *lanes) settle(ctx actor.Context) {
	if l.shared.draining || l.closing {
		return
	}
	served := map[string]bool{}
	for _, here := range l.here {
		served[here.name] = served[here.name] || !here.leaving
	}
	for _, name := range l.shared.want {
		if !served[name] {
			l.start(ctx, name)
		}
	}
	for _, here := range l.here {
		if !here.leaving && !slices.Contains(l.shared.want, here.name) {
			l.Logger.Info("gendurable: this node lets go of a lane", "lane", here.name)
			l.letGo(ctx, here, noHurry)
		}
	}
	l.report()
}

func (l *lanes) start(ctx actor.Context, name string) {
	identity := name
	for n := 2; l.here[identity] != nil; n++ {
		identity = name + "." + strconv.Itoa(n)
	}
	pid, err := ctx.SpawnNamed(l.Lane(identity), "lane/"+url.PathEscape(identity))
	if err != nil {
		panic(fmt.Errorf("gendurable: start lane %q: %w", name, err))
	}
	l.here[identity] = &lane{name: name, identity: identity, pid: pid, gone: make(chan struct{})}
	if name != l.Queue {
		l.Logger.Info("gendurable: this node serves a lane", "lane", name)
	}
}

// noHurry is the time that the steps of a lane have when it moves: as long as they need. An end of the engine is sooner.
const noHurry = 10 * 365 * 24 * time.Hour

// letGo ends a lane: it claims nothing more from now on, and its steps have so long to end. It returns what is closed then.
func (l *lanes) letGo(ctx actor.Context, here *lane, timeout time.Duration) <-chan struct{} {
	if !here.leaving {
		here.leaving = true
		l.life.After(l.Handover, overdue{here})
	}
	done, ended := make(chan struct{}), make(chan struct{})
	ctx.Send(here.pid, actors.Drain{Timeout: timeout, Done: done})
	l.life.Go(func(ctx context.Context) any {
		defer close(ended)
		select {
		case <-done:
		case <-here.gone:
		case <-ctx.Done(): // the lanes end with this life
		}
		return drained{here}
	})
	return ended
}

func (l *lanes) terminated(ctx actor.Context, who *actor.PID) {
	for identity, here := range l.here {
		if here.pid.GetId() == who.GetId() {
			close(here.gone)
			delete(l.here, identity)
		}
	}
	l.settle(ctx)
}

// free lets others have a lane.
func (l *lanes) free(here *lane) {
	if !here.free {
		here.free = true
		l.report()
	}
}

// report tells the placer what this node holds.
func (l *lanes) report() {
	if l.Placer == nil {
		return
	}
	held := []string{}
	for _, here := range l.here {
		if !here.free {
			held = append(held, here.name)
		}
	}
	slices.Sort(held)
	l.life.Send(l.Placer, served{queue: l.Queue, lanes: slices.Compact(held)})
}

func (l *lanes) pass(ctx actor.Context, message any) {
	for _, here := range l.here {
		ctx.Send(here.pid, message)
	}
}

// notice hands on what an operator did at another node, also to lanes that are leaving: their steps still run. The database
// knows the reason of a cancel. All cancels are one message for each lane: a peer may put a million into a batch.
func (l *lanes) notice(ctx actor.Context, m *messages.Notice) {
	if m.GetPaused() {
		l.pass(ctx, actors.QueuePaused{Queue: l.Queue})
	}
	var cancels []actors.CancelRequested
	for _, c := range m.GetCancels() {
		if c.GetClaim() > 0 { // 0 would be whichever claim there is
			cancels = append(cancels, actors.CancelRequested{ID: c.GetInstance(), Claim: int(c.GetClaim())})
		}
	}
	if len(cancels) > 0 {
		l.pass(ctx, actors.CancelsRequested{Cancels: cancels})
	}
}

// drain ends all lanes, also those that are leaving already: the earlier end counts. Done is closed when none runs anything.
func (l *lanes) drain(ctx actor.Context, m actors.Drain) {
	l.shared.draining = true
	var ends []<-chan struct{}
	for _, here := range l.here {
		ends = append(ends, l.letGo(ctx, here, m.Timeout))
	}
	go func() {
		for _, end := range ends {
			<-end
		}
		if m.Done != nil {
			close(m.Done)
		}
	}()
}
