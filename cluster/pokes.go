package cluster

import (
	"context"

	"github.com/asynkron/protoactor-go/actor"
	"google.golang.org/protobuf/proto"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/messages"
	"github.com/gendurable/gendurable/pg"
)

// Pokes carries announcements of runnable work, and of what an operator did, to the nodes that they concern, as actor messages
// to the supervisor of the queue's lanes. It is a network of the poke actor. Nothing is lost for good when a message is: it is a
// hint.
type Pokes struct {
	system    *actor.ActorSystem
	engine    string
	directory *Directory
}

// NewPokes makes the network of an engine. The system has a Remote, and the directory is kept by the engine's placer.
func NewPokes(system *actor.ActorSystem, engine string, directory *Directory) *Pokes {
	return &Pokes{system, engine, directory}
}

// Send tells the other nodes that serve the queues that there is work. It waits for nobody. It fails when the Remote has just
// been closed.
func (p *Pokes) Send(_ context.Context, queues []string) error {
	return guarded(func() {
		for _, queue := range queues {
			p.send(queue, p.directory.Nodes(queue), &messages.Poke{Queues: []string{queue}})
		}
	})
}

// Tell tells the other nodes that run the queues of cancels and pauses, all of a queue in one message. These are more nodes than
// Send's: one that serves no lane any more may still have steps of a lane that moved. It waits for nobody; what is lost the
// other nodes learn from the database, with their next heartbeat. It fails when the Remote has just been closed.
func (p *Pokes) Tell(_ context.Context, notices []pg.Notice) error {
	told := make(map[string]*messages.Notice)
	for _, n := range notices {
		m := told[n.Queue]
		if m == nil {
			m = &messages.Notice{Queue: n.Queue}
			told[n.Queue] = m
		}
		switch n.Kind {
		case pg.NoticePause:
			m.Paused = true
		case pg.NoticeCancel:
			m.Cancels = append(m.Cancels, &messages.Notice_Cancel{Instance: n.ID, Claim: int32(n.Claim)})
		}
	}
	return guarded(func() {
		for queue, m := range told {
			p.send(queue, p.directory.Runners(queue), m)
		}
	})
}

// send sends a message about a queue to its supervisors on the nodes.
func (p *Pokes) send(queue string, addresses []string, m proto.Message) {
	id := actors.NameRoot(p.engine) + "/" + actors.NameQueue(queue)
	for _, address := range addresses {
		p.system.Root.Send(actor.NewPID(address, id), m)
	}
}

// Listen hears nothing: what other nodes send goes to the lanes themselves. It returns when ctx ends.
func (p *Pokes) Listen(ctx context.Context, ear pg.Ear) error {
	ear.Ready(false)
	<-ctx.Done()
	return ctx.Err()
}
