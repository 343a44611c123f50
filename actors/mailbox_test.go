package actors

import (
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"github.com/asynkron/protoactor-go/actor"
)

// TestMessagesToAnActorThatIsBeingSpawned: whoever knows the name may send as soon as the registry knows it, too.
// With the library's own mailbox this is a data race at least, and a nil dereference if it hits.
func TestMessagesToAnActorThatIsBeingSpawned(t *testing.T) {
	t.Parallel()
	system := NewSystem(slog.New(slog.DiscardHandler))
	for i := range 500 {
		name := fmt.Sprintf("late-%d", i)
		started, got := false, make(chan bool, 1)
		props := NewProps(slog.New(slog.DiscardHandler), nil, func() actor.Actor {
			return actor.ReceiveFunc(func(ctx actor.Context) {
				switch ctx.Message().(type) {
				case *actor.Started:
					started = true
				case string:
					got <- started
				}
			})
		})
		var wg sync.WaitGroup
		wg.Go(func() {
			pid := system.NewLocalPID(name)
			for {
				if process, known := system.ProcessRegistry.Get(pid); known {
					process.SendUserMessage(pid, "hello")
					return
				}
			}
		})
		pid, err := system.Root.SpawnNamed(props, name)
		if err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if !<-got {
			t.Fatal("the actor saw a message before it was started")
		}
		if err := system.Root.StopFuture(pid).Wait(); err != nil {
			t.Fatal(err)
		}
	}
}
