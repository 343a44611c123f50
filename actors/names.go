package actors

import (
	"net/url"
	"strconv"

	"github.com/asynkron/protoactor-go/actor"
)

// The names of the engine's actors below its root, and of a queue's actors below the queue's.
const (
	NamePoke      = "poke"
	NameAwait     = "await"
	NameReaper    = "reaper"
	NameGC        = "gc"
	NameNode      = "node"
	NameCron      = "cron"
	NameGateway   = "gateway"
	NameScheduler = "scheduler"
	NameSteps     = "steps"
)

// NameRoot is the name of an engine's root actor. Engines of different names may share one ActorSystem.
func NameRoot(engine string) string { return "gendurable/" + url.PathEscape(engine) }

// NameFlusher is the name of the n-th flusher below the root.
func NameFlusher(n int) string { return "flusher/" + strconv.Itoa(n) }

// NameQueue is the name of a queue's supervisor below the root. The queue's name is escaped, so that one that
// contains a slash cannot meet the name of another queue's child.
func NameQueue(queue string) string { return "queue/" + url.PathEscape(queue) }

// PID addresses the local actor that is found by following names down from an engine's root. It does not
// check that the actor exists.
func PID(system *actor.ActorSystem, engine string, names ...string) *actor.PID {
	id := NameRoot(engine)
	for _, n := range names {
		id += "/" + n
	}
	return system.NewLocalPID(id)
}
