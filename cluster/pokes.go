package cluster

import (
	"context"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/messages"
	"github.com/gendurable/gendurable/pg"
)

// Pokes carries announcements of runnable work to the nodes that serve the queue, as actor messages to the supervisor of its
// lanes. It is a network of the poke actor. Nothing is lost for good when a message is: it is a hint.
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
			id := actors.NameRoot(p.engine) + "/" + actors.NameQueue(queue)
			for _, address := range p.directory.Nodes(queue) {
				p.system.Root.Send(actor.NewPID(address, id), &messages.Poke{Queues: []string{queue}})
			}
		}
	})
}

// Tell tells nobody: of a cancel or a pause the other nodes learn from the database, with their next heartbeat.
func (p *Pokes) Tell(context.Context, []pg.Notice) error { return nil }

// Listen hears nothing: what other nodes send goes to the lanes themselves. It returns when ctx ends.
func (p *Pokes) Listen(ctx context.Context, ear pg.Ear) error {
	ear.Ready(false)
	<-ctx.Done()
	return ctx.Err()
}
