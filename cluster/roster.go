package cluster

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// Store is what a node of a cluster needs of the database. *pg.Store satisfies it.
type Store interface {
	// BeatMember writes this node's beat and reads who lives.
	BeatMember(ctx context.Context, n pg.Node, b pg.MemberBeat) ([]pg.Member, error)
	// LeaveMember says that this node is no member any more.
	LeaveMember(ctx context.Context, n pg.Node) error
	// BeatNode brings back the node's row when it is gone.
	BeatNode(ctx context.Context, n pg.Node) (replacedBy string, err error)
}

// roster beats this node's row once a second and reads those of the others. One goroutine, run, does it; the other methods may
// be called from any.
type roster struct {
	store   Store
	log     *slog.Logger
	node    pg.Node
	ttl     time.Duration
	every   time.Duration
	heard   func(rows []pg.Member) // called by run with each successful read
	outage  *actors.Outage
	hurry   chan struct{} // capacity 1: beat now
	over    chan struct{} // closed by stop
	ended   chan struct{} // closed when run has ended
	counter int           // of the member ids; under mu

	mu sync.Mutex
	// beat is what the next beat says, and Late and TTL. Invariant: its slices and maps are replaced, not changed.
	beat pg.MemberBeat
	// prefix is that of the member ids.
	prefix string
	// ear is that of the membership in force; nil = the topology comes from elsewhere.
	ear func(rows []pg.Member)
}

// late is how long a member may be silent before it takes another id. Others miss it after a whole ttl; what lies between is
// for a beat that the server sees late.
func late(ttl time.Duration) time.Duration { return ttl * 7 / 10 }

func newRoster(c *PlacerConfig, heard func(rows []pg.Member)) *roster {
	seats := map[string]int{}
	for q, n := range c.Queues {
		if n > 0 {
			seats[q] = n
		}
	}
	r := &roster{
		store: c.Store, log: c.Logger, node: c.Node, ttl: c.TTL, every: c.TTL / 10, heard: heard, outage: c.outage,
		hurry: make(chan struct{}, 1), over: make(chan struct{}), ended: make(chan struct{}),
		beat: pg.MemberBeat{Late: late(c.TTL), TTL: c.TTL, Address: c.Node.Address, Role: string(c.Role), Seats: seats},
	}
	r.rename(c.Node.Incarnation)
	return r
}

// run beats until ctx ends.
func (r *roster) run(ctx context.Context) {
	defer close(r.ended)
	tick := time.NewTicker(r.every)
	defer tick.Stop()
	for {
		r.once(ctx)
		select {
		case <-ctx.Done():
			return
		case <-r.over:
			return
		case <-tick.C:
		case <-r.hurry:
		}
	}
}

// once beats and passes on who lives. On an error it passes on nothing: what was known stands.
func (r *roster) once(ctx context.Context) {
	// A connection that is silently dead must not cost the membership.
	ctx, cancel := context.WithTimeout(ctx, max(r.ttl/4, time.Second))
	defer cancel()
	r.mu.Lock()
	beat := r.beat
	r.mu.Unlock()
	rows, err := r.store.BeatMember(ctx, r.node, beat)
	if errors.Is(err, pg.ErrNoNodeRow) {
		// Swept away after a long outage; whoever was replaced learns it from the node actor.
		_, err = r.store.BeatNode(ctx, r.node)
		if err == nil {
			beat = r.anew() // whoever was away for so long is dead to the others under the old id
			rows, err = r.store.BeatMember(ctx, r.node, beat)
		}
	}
	if ctx.Err() != nil && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			r.outage.Begin(r.log, "the node cannot tell the cluster that it lives just now", err)
		}
		return
	}
	r.outage.Over(r.log, "the node can tell the cluster again that it lives")
	r.took(beat.Next, rows)
	r.mu.Lock()
	ear := r.ear
	r.mu.Unlock()
	if ear != nil {
		ear(rows)
	}
	r.heard(rows)
}

// took looks whether this node had to take its next id.
func (r *roster) took(next string, rows []pg.Member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range rows {
		if m.Own && m.ID == next && r.beat.Next == next {
			r.log.Warn("gendurable: the node was silent for too long and joins its cluster anew", "member", next)
			r.beat.ID, r.beat.Next = next, r.newID()
		}
	}
}

// anew gives up the member's id for the next one, for good: the answer to the beat that follows may be lost.
func (r *roster) anew() pg.MemberBeat {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.beat.ID, r.beat.Next = r.beat.Next, r.newID()
	return r.beat
}

// newID mints a member id; r.mu is held.
func (r *roster) newID() string {
	r.counter++
	return r.prefix + "-" + strconv.Itoa(r.counter)
}

// rename makes the next beat that of a new member.
func (r *roster) rename(prefix string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.prefix = prefix
	r.beat.ID = r.newID()
	r.beat.Next = r.newID()
}

// listen gives every successful read to the ear, and to none that listened before.
func (r *roster) listen(ear func(rows []pg.Member)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ear = ear
}

// serve says which lanes this node serves from now on, and does so at once.
func (r *roster) serve(lanes []string) {
	r.mu.Lock()
	r.beat.Lanes = lanes
	r.mu.Unlock()
	r.now()
}

// resign says that this node could serve nothing any more.
func (r *roster) resign() {
	r.mu.Lock()
	r.beat.Seats = map[string]int{}
	r.mu.Unlock()
	r.now()
}

// stop ends run after the beat on its way: a beat after the node has left would make it a member again.
func (r *roster) stop() { close(r.over) }

func (r *roster) now() {
	select {
	case r.hurry <- struct{}{}:
	default:
	}
}
