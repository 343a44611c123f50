package cluster

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	protocluster "github.com/asynkron/protoactor-go/cluster"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// DefaultTTL is how long a node is believed to live without a beat.
const DefaultTTL = 10 * time.Second

// PlacerConfig describes a node's placer. Logger, Store, Node (with its address) and Lanes are required.
type PlacerConfig struct {
	Logger   *slog.Logger
	Counters *actors.Counters
	Store    Store
	// Node is this node, registered already. Its Engine names the cluster, too.
	Node pg.Node
	Role Role
	// TTL is how long a node is believed to live without a beat; beats come ten times as often. All nodes need the same.
	// Default DefaultTTL.
	TTL time.Duration
	// Provider makes the source of the topology, anew for each membership. Default: the database.
	Provider func() (protocluster.ClusterProvider, error)
	// Host is the host's own cluster, which this node is a member of; then Provider is not used.
	Host *protocluster.Cluster
	// Queues are the queues that this node runs, and how many lanes each has; 0 = no numbered ones.
	Queues map[string]int
	// Lanes addresses the supervisor of a queue's lanes.
	Lanes func(queue string) *actor.PID
	// Directory is told who is there. May be nil.
	Directory *Directory

	outage, joining *actors.Outage
}

// Resign tells the placer that its node stops: it takes no lane any more, so that others take those which the drain sets
// free. Sender: the engine, before it drains its queues.
type Resign struct{ actors.Quiet }

// Leave tells the placer that its node has drained: it leaves the cluster, and closes Done when it has.
type Leave struct {
	actors.Quiet
	Done chan<- struct{}
}

// Placer makes the Props of a node's placer, for one spawn: it keeps the node a member of its cluster, and says which lanes
// the node serves. It takes Resign and Leave, and reports of lanes.
func Placer(c PlacerConfig) *actor.Props {
	if c.Counters == nil {
		c.Counters = new(actors.Counters)
	}
	if c.TTL <= 0 {
		c.TTL = DefaultTTL
	}
	if c.Role == "" {
		c.Role = RoleWorker
	}
	if c.Directory == nil {
		c.Directory = new(Directory)
	}
	c.outage, c.joining = new(actors.Outage), new(actors.Outage)
	return actors.NewProps(c.Logger, c.Counters, func() actor.Actor { return &placer{PlacerConfig: c} })
}

// placer is one incarnation of the actor. What its predecessor granted it learns from the lanes.
type placer struct {
	PlacerConfig
	life    actors.Life
	roster  *roster
	seating *seating
	// held are the lanes that each queue of this node holds, as it reported.
	held map[string][]string

	membership *membership
	// joins numbers the memberships: what an earlier one says is of no interest.
	joins   int
	pause   actors.Backoff
	rejoins rejoins
	over    bool
}

type (
	// rows is what the database said.
	rows struct{ living []pg.Member }
	// topology is who belongs to the cluster, according to one membership.
	topology struct {
		join      int
		addresses []string
	}
	// joined is the end of an attempt to join.
	joined struct {
		join       int
		membership *membership
		err        error
	}
	// rejoin begins another attempt.
	rejoin struct{ join int }
)

func (p *placer) Receive(ctx actor.Context) {
	switch m := p.life.Open(ctx).(type) {
	case *actor.Started:
		p.start()
	case rows:
		p.seating.read(m.living, time.Now())
		p.decide()
	case topology:
		if m.join == p.joins {
			p.seating.topology(m.addresses)
			p.decide()
		}
	case joined:
		p.joined(m)
	case rejoin:
		if m.join == p.joins {
			p.join()
		}
	case served:
		p.seating.adopt(m.queue, m.lanes)
		p.held[m.queue] = m.lanes
		p.roster.serve(slices.Sorted(maps.Keys(p.names())))
	case Resign:
		p.seating.resigned = true
		p.roster.resign()
	case Leave:
		p.leave(m)
	case *actor.Stopping, *actor.Restarting:
		p.abandon()
	}
}

func (p *placer) start() {
	p.held = make(map[string][]string)
	p.pause = actors.Backoff{First: p.TTL / 10, Max: p.TTL}
	p.rejoins.again = actors.Backoff{First: 2 * p.TTL, Max: 60 * p.TTL}
	numbered := make(map[string]int)
	for queue, n := range p.Queues {
		if n > 0 {
			numbered[queue] = n
		}
	}
	p.seating = newSeating(p.Node.Address, numbered, p.TTL, time.Now())
	tell := p.life.Tell
	p.roster = newRoster(&p.PlacerConfig, func(living []pg.Member) { tell(rows{living}) })
	roster := p.roster
	p.life.Go(func(ctx context.Context) any { roster.run(ctx); return nil })
	for queue := range p.Queues {
		p.life.Send(p.Lanes(queue), report{})
	}
	p.join()
}

// names are the lanes that this node holds.
func (p *placer) names() map[string]bool {
	out := make(map[string]bool)
	for _, lanes := range p.held {
		for _, name := range lanes {
			out[name] = true
		}
	}
	return out
}

// join begins a membership. A provider may take its time, so it is called on a goroutine.
func (p *placer) join() {
	p.joins++
	join, tell := p.joins, p.life.Tell
	heard := func(addresses []string) { tell(topology{join, addresses}) }
	if p.Host != nil {
		subscription := subscribe(p.Host.ActorSystem, heard)
		p.membership = &membership{subscription: subscription, cluster: p.Host}
		// The list is read without its lock, which only this call takes: it orders the read behind the last change.
		_ = p.Host.MemberList.GetActivatorMember("", "")
		heard(addressesOf(p.Host.MemberList.Members().Members()))
		return
	}
	provider := p.Provider
	if provider == nil {
		roster := p.roster
		provider = func() (protocluster.ClusterProvider, error) { return postgres{roster}, nil }
	}
	log, node := p.Logger, p.Node
	p.life.Go(func(ctx context.Context) any {
		m, err := joinCluster(log, node.Engine, node.Address, provider, heard)
		if err == nil && ctx.Err() != nil {
			m.leave(log) // the actor has ended meanwhile, and nobody else knows of it
		}
		return joined{join, m, err}
	})
}

func (p *placer) joined(m joined) {
	switch {
	case m.err != nil:
		p.joining.Begin(p.Logger, "the node cannot join its cluster just now; it runs what it has, and tries on", m.err)
		p.life.After(p.pause.Next(), rejoin{m.join})
	case m.join != p.joins || p.over:
		go m.membership.leave(p.Logger)
	default:
		p.joining.Over(p.Logger, "the node has joined its cluster")
		p.pause.Reset()
		p.membership = m.membership
	}
}

// decide acts on what is known now.
func (p *placer) decide() {
	now := time.Now()
	for queue, serve := range p.seating.decide(now) {
		p.life.Send(p.Lanes(queue), serve)
	}
	p.Directory.set(p.seating.members, p.seating.rows)
	if p.Host == nil && p.rejoins.due(p.seating, now) {
		p.Logger.Warn("gendurable: nodes live that the cluster does not know, or does not let in again; this node joins it anew",
			"members", len(p.seating.members), "living", len(p.seating.rows))
		p.seating.rejoined()
		old, log := p.membership, p.Logger
		p.membership = nil
		join := p.joins
		p.life.Go(func(context.Context) any {
			if old != nil {
				old.leave(log)
			}
			return rejoin{join}
		})
	}
}

// leave ends the membership before the engine ends.
func (p *placer) leave(m Leave) {
	p.over = true
	p.seating.resigned = true
	old, log, store, node := p.membership, p.Logger, p.Store, p.Node
	p.membership = nil
	roster := p.roster
	roster.stop()
	p.life.Go(func(ctx context.Context) any {
		defer close(m.Done)
		select {
		case <-roster.ended:
		case <-ctx.Done():
		}
		if p.Host == nil && old != nil {
			old.leave(log)
		}
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		if err := store.LeaveMember(ctx, node); err != nil {
			log.Warn("gendurable: the node could not say that it leaves the cluster; the others notice when it stops beating", "error", err)
		}
		return nil
	})
	if p.Host != nil {
		p.Host.ActorSystem.EventStream.Unsubscribe(old.subscription)
	}
}

// abandon ends the membership of an incarnation that is over. Its successor begins another.
func (p *placer) abandon() {
	old := p.membership
	p.membership, p.over = nil, true
	switch {
	case old == nil:
	case p.Host != nil:
		p.Host.ActorSystem.EventStream.Unsubscribe(old.subscription)
	default:
		go old.leave(p.Logger)
	}
}
