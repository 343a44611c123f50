// Package node keeps the engine's row in the table of nodes alive, finds out when the engine was replaced by
// another of the same name, and gives back what dead predecessors of an unnamed node had claimed.
package node

import (
	"context"
	"log/slog"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// Store is what the node actor needs of the database.
type Store interface {
	// BeatNode renews the node's row; replacedBy is not empty when another incarnation has taken the name.
	BeatNode(ctx context.Context, n pg.Node) (replacedBy string, err error)
	// Paused lists the queues that are paused.
	Paused(ctx context.Context) (queues []string, err error)
	// ReclaimStale gives back rows claimed under this node's names by other incarnations whose lease
	// is older than two missed beats.
	ReclaimStale(ctx context.Context, engine, node, incarnation string, lease, heartbeat time.Duration) (n int, queues []string, err error)
}

// Config describes the node actor. Logger, Store and Node are required; the node is registered already.
type Config struct {
	Logger   *slog.Logger
	Counters *actors.Counters
	Store    Store
	Node     pg.Node
	// Lease and Heartbeat are the engine's. Default 60 s and 20 s.
	Lease, Heartbeat time.Duration
	// Unfit lists the steps that this process leaves out of its claims, for the node's row. May be nil.
	Unfit func() []string
	// Poke learns of the queues that got work back. May be nil.
	Poke *actor.PID
	// Replaced is called once, on a goroutine of its own, when another incarnation has taken the node's name: it has
	// declared this one dead and given its claims back, so the engine must stop. The actor does nothing more then.
	Replaced func(by string)
	// Paused is called after each beat that finds queues paused. It must not block. May be nil.
	Paused func(queues []string)
}

// Props makes the Props of the node actor. It takes no messages.
func Props(c Config) *actor.Props {
	if c.Counters == nil {
		c.Counters = new(actors.Counters)
	}
	if c.Lease <= 0 {
		c.Lease = time.Minute
	}
	if c.Heartbeat <= 0 {
		c.Heartbeat = 20 * time.Second
	}
	outage := new(actors.Outage)
	return actors.NewProps(c.Logger, c.Counters, func() actor.Actor { return &node{Config: c, outage: outage} })
}

type node struct {
	Config
	life   actors.Life
	outage *actors.Outage
	// look is for how many more beats to look for rows of dead predecessors.
	look int
	// doubt: the last beat failed or was slow. Live processes that share this node's name could not extend their leases
	// either, so that at the next beat their rows would look stale.
	doubt bool
}

type (
	due  struct{}
	beat struct {
		replacedBy string
		reclaimed  int
		queues     []string
		paused     []string
		err        error
		slow       bool
	}
)

func (n *node) Receive(ctx actor.Context) {
	switch m := n.life.Open(ctx).(type) {
	case *actor.Started:
		n.expectMore()
		n.life.After(0, due{})
	case due:
		n.beat()
	case beat:
		n.beaten(m)
	}
}

// expectMore keeps the reclaim going until nothing was found for as many beats as a lease and two beats last: what a
// process that died before that had claimed is stale by then.
func (n *node) expectMore() {
	if !n.Node.Named {
		n.look = int(n.Lease/n.Heartbeat) + 3
	}
}

func (n *node) beat() {
	reclaim := n.look > 0 && !n.doubt
	row := n.Node
	if n.Unfit != nil {
		row.Unfit = n.Unfit()
	}
	n.life.GoFor(max(n.Heartbeat, 10*time.Second), func(ctx context.Context) any {
		begun := time.Now()
		var b beat
		b.replacedBy, b.err = n.Store.BeatNode(ctx, row)
		b.slow = time.Since(begun) > n.Heartbeat/2
		if b.err == nil && b.replacedBy == "" && n.Paused != nil {
			b.paused, b.err = n.Store.Paused(ctx)
		}
		if b.err != nil || b.replacedBy != "" || b.slow || !reclaim {
			return b
		}
		b.reclaimed, b.queues, b.err = n.Store.ReclaimStale(ctx, n.Node.Engine, n.Node.Name, n.Node.Incarnation, n.Lease, n.Heartbeat)
		return b
	})
}

func (n *node) beaten(b beat) {
	reclaimed := !n.doubt && !b.slow
	n.doubt = b.err != nil || b.slow
	switch {
	case b.err != nil:
		n.Counters.SweepErrors.Add(1)
		n.outage.Begin(n.Logger, "the node cannot renew its row in gen_durable_nodes just now", b.err)
	case b.replacedBy != "":
		n.Logger.Error("gendurable: another engine has started under this node's name, this one stops; give each process a node name of its own, or none",
			"engine", n.Node.Engine, "node", n.Node.Name, "incarnation", n.Node.Incarnation, "replaced by", b.replacedBy)
		if n.Replaced != nil {
			go n.Replaced(b.replacedBy)
		}
		return
	default:
		if reclaimed {
			n.look = max(n.look-1, 0)
		}
		n.outage.Over(n.Logger, "the node can renew its row again")
	}
	if len(b.paused) > 0 {
		n.Config.Paused(b.paused)
	}
	if b.reclaimed > 0 {
		n.expectMore()
		n.Counters.Reclaimed.Add(int64(b.reclaimed))
		n.Logger.Info("gendurable: gave back rows of a dead process of this node", "rows", b.reclaimed)
		if len(b.queues) > 0 {
			n.life.Send(n.Poke, actors.Announce{Queues: b.queues})
		}
	}
	n.life.After(n.Heartbeat, due{})
}
