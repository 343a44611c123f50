package actors

import "github.com/gendurable/gendurable/pg"

// QueuePaused tells a queue's scheduler that its queue was paused: what it has claimed ahead goes back, and inline chains
// return to the queue. That nothing more is claimed is up to the claim itself, so nobody needs to hear of the end of a
// pause; a Poke shortens it. Senders: Engine.Pause, the poke actor (for other processes), node.
type QueuePaused struct {
	Quiet
	Queue string
}

// Tell asks the poke actor to tell other processes what an operator did here. A hint, as all that it sends.
// Sender: Engine.
type Tell struct {
	Quiet
	Notice pg.Notice
}
