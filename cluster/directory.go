package cluster

import (
	"slices"
	"sync/atomic"

	"github.com/gendurable/gendurable/pg"
)

// Role says what a node is for.
type Role string

// The roles.
const (
	// RoleWorker runs queues, and does the maintenance as well. The default.
	RoleWorker Role = "worker"
	// RoleInsertOnly runs nothing and maintains nothing: it inserts, signals, awaits, and answers at its gateway.
	RoleInsertOnly Role = "insert-only"
	// RoleMaintenance runs no queue: it sweeps (expired leases, await timeouts, retention, limits).
	RoleMaintenance Role = "maintenance"
)

// Member is a node of the cluster as this node knows it.
type Member struct {
	// Node is the name of its row, Address where it is reached.
	Node, Address string
	Role          Role
	// Self says that it is the asking node.
	Self bool
	// Queues are those that it runs, Machines what it knows, as name/version.
	Queues, Machines []string
	// Lanes are the numbered lanes that it serves, as <queue>#<number>, and the queues that it serves without a number.
	Lanes []string
}

// Directory is what a node knows of the others: who is in the cluster, and serves what. It is read by any number of
// goroutines while the placer writes it. The zero value is empty.
type Directory struct{ p atomic.Pointer[directory] }

type directory struct {
	members []Member
	// nodes are the addresses of the other nodes that serve a queue, runners those of all that run it, whether they have a lane
	// of it just now or not. Read-only.
	nodes, runners map[string][]string
}

// Members returns the members of the cluster, by address: those that the provider names and that live by the database's
// clock. Empty before the node has joined.
func (d *Directory) Members() []Member {
	if now := d.p.Load(); now != nil {
		return slices.Clone(now.members)
	}
	return nil
}

// Nodes returns the addresses of the other nodes that serve a queue. The slice must not be changed.
func (d *Directory) Nodes(queue string) []string {
	if now := d.p.Load(); now != nil {
		return now.nodes[queue]
	}
	return nil
}

// Runners returns the addresses of the other nodes that run a queue, those included that serve no lane of it just now: steps of
// one that moved away may still run there. The slice must not be changed.
func (d *Directory) Runners(queue string) []string {
	if now := d.p.Load(); now != nil {
		return now.runners[queue]
	}
	return nil
}

// set replaces what is known.
func (d *Directory) set(members map[string]bool, rows []pg.Member) {
	now := &directory{nodes: map[string][]string{}, runners: map[string][]string{}}
	for _, r := range rows {
		if !members[r.Address] {
			continue
		}
		now.members = append(now.members, Member{
			Node: r.Node, Address: r.Address, Role: Role(r.Role), Self: r.Own, Queues: r.Queues, Machines: r.Machines, Lanes: r.Lanes,
		})
		if r.Own {
			continue
		}
		for queue := range queuesServed(r) {
			now.nodes[queue] = append(now.nodes[queue], r.Address)
		}
		for _, queue := range r.Queues {
			now.runners[queue] = append(now.runners[queue], r.Address)
		}
	}
	d.p.Store(now)
}

// queuesServed are the queues for which a node has at least one scheduler.
func queuesServed(r pg.Member) map[string]bool {
	out := map[string]bool{}
	for _, name := range r.Lanes {
		if queue, _, ok := laneOf(name); ok && r.Seats[queue] > 0 {
			out[queue] = true
		} else {
			out[name] = true
		}
	}
	return out
}
