package gendurable

import (
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/actors/scheduler"
	"github.com/gendurable/gendurable/cluster"
)

// What makes an engine a node of a cluster.

// Members returns the nodes of the cluster as this node knows them, and which lanes each serves. It costs no query. Empty
// without a cluster, and until the node has joined it.
func (e *Engine) Members() []cluster.Member {
	if e.directory == nil {
		return nil
	}
	return e.directory.Members()
}

// hasLanes says whether a queue has a supervisor of lanes between it and its schedulers.
func (e *Engine) hasLanes(q Queue) bool { return e.cfg.Cluster != nil || q.Lanes > 0 }

// queueProps makes the actor of a queue.
func (e *Engine) queueProps(t *tree, queue string, q Queue) *actor.Props {
	lane := func(name string) *actor.Props { return scheduler.Props(e.laneConfig(t, queue, name, q)) }
	if !e.hasLanes(q) {
		return lane(queue)
	}
	c := cluster.LanesConfig{
		Logger: e.log, Counters: t.counters, Queue: queue, Lanes: q.Lanes, Lane: lane, GiveUp: e.giveUp,
	}
	if e.cfg.Cluster != nil {
		c.Placer = t.pid(cluster.NamePlacer)
	}
	return cluster.Lanes(c)
}

// placerConfig describes the placer.
func (e *Engine) placerConfig(t *tree) cluster.PlacerConfig {
	c := cluster.PlacerConfig{
		Logger: e.log, Counters: t.counters, Store: e.store, Node: e.node, Role: e.cfg.Role, TTL: e.cfg.Cluster.TTL,
		Provider: e.cfg.Cluster.Provider, Host: e.cfg.Cluster.Host, Queues: make(map[string]int), Directory: e.directory,
		Lanes: func(queue string) *actor.PID { return t.pid(actors.NameQueue(queue)) },
	}
	for queue, q := range e.cfg.Queues {
		c.Queues[queue] = q.Lanes
	}
	return c
}

// resign tells the cluster that this node stops, so that others take each lane as soon as it is drained.
func (e *Engine) resign() {
	if e.cfg.Cluster != nil {
		e.tree.system.Root.Send(e.tree.pid(cluster.NamePlacer), cluster.Resign{})
	}
}

// leaveCluster ends the membership of a node that has drained.
func (e *Engine) leaveCluster() {
	if e.cfg.Cluster == nil {
		return
	}
	left := make(chan struct{})
	e.tree.system.Root.Send(e.tree.pid(cluster.NamePlacer), cluster.Leave{Done: left})
	select {
	case <-left:
	case <-e.tree.gone:
	case <-time.After(removeTimeout): // the others miss it after a TTL
	}
}

// laneCounters are the counters of a queue's lanes in this process, by the lane's name. It is safe for concurrent use.
type laneCounters struct {
	mu    sync.Mutex
	lanes map[string]*actors.QueueCounters
}

// of returns the counters of a lane; one that moves away and comes back counts on.
func (l *laneCounters) of(lane string) *actors.QueueCounters {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lanes == nil {
		l.lanes = make(map[string]*actors.QueueCounters)
	}
	if l.lanes[lane] == nil {
		l.lanes[lane] = new(actors.QueueCounters)
	}
	return l.lanes[lane]
}

// all returns the counters of every lane that was here.
func (l *laneCounters) all() []*actors.QueueCounters {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Values(l.lanes))
}

// stats adds the lanes up.
func (l *laneCounters) stats() QueueStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	var sum QueueStats
	for _, counters := range l.lanes {
		var one QueueStats
		snapshot(&one, counters)
		largest := max(sum.LargestClaim, one.LargestClaim)
		to, from := reflect.ValueOf(&sum).Elem(), reflect.ValueOf(one)
		for i := range to.NumField() {
			to.Field(i).SetInt(to.Field(i).Int() + from.Field(i).Int())
		}
		sum.LargestClaim = largest
	}
	return sum
}

// schedulers is how many schedulers this process may run at once.
func (c Config) schedulers() int {
	n := 0
	for _, q := range c.Queues {
		n += max(1, q.Lanes)
		if q.Lanes > 0 && c.Cluster != nil {
			n++ // the sweeper
		}
	}
	if c.Cluster != nil {
		n++ // the placer
	}
	return n
}

// validateCluster checks what the cluster, the lanes and the role have to do with each other.
func (c Config) validateCluster(p *problems) {
	if c.Cluster != nil && c.Cluster.Host != nil && c.Cluster.Host.ActorSystem != c.ActorSystem {
		p.addf("ActorSystem: is another than that of Cluster.Host; leave it empty")
	}
	if c.Pokes == PokeCluster && c.Cluster == nil {
		p.addf("Pokes %q: needs Cluster", c.Pokes)
	}
	switch c.Role {
	case cluster.RoleWorker:
	case cluster.RoleInsertOnly, cluster.RoleMaintenance:
		if len(c.Queues) > 0 {
			p.addf("Role %q: runs no queue, but Queues has %d; name those that it inserts into in InsertQueues", c.Role, len(c.Queues))
		}
	default:
		p.addf("Role %q: must be %q, %q or %q", c.Role, cluster.RoleWorker, cluster.RoleInsertOnly, cluster.RoleMaintenance)
	}
	for name, q := range c.Queues {
		if q.Lanes < 0 || q.Lanes > 1000 {
			p.addf("Queues[%q].Lanes %d: must be between 0 and 1,000", name, q.Lanes)
			continue
		}
		for other := range c.Queues {
			if q.Lanes > 0 && cluster.NamesLane(name, other) {
				p.addf("Queues[%q]: is called like a lane of the queue %q, which has numbered lanes; name it otherwise", other, name)
			}
		}
	}
}
