package gendurable

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/actors/poke"
)

// announcer sends the announcements of a client without actors: one goroutine while there are some, which sends all that
// there are in one statement, and what comes meanwhile in the next. What cannot be sent is dropped; it is a hint.
type announcer struct {
	notices interface {
		Send(ctx context.Context, queues []string) error
	}
	log    *slog.Logger
	outage actors.Outage

	mu  sync.Mutex
	due map[string]struct{}
	// running says that the goroutine is there. Invariant: it is true when due is not empty.
	running bool
}

func newAnnouncer(notices interface {
	Send(ctx context.Context, queues []string) error
}, log *slog.Logger) *announcer {
	return &announcer{notices: notices, log: log, due: make(map[string]struct{})}
}

// announce takes queues that have runnable work; what becomes runnable later is left to the polls. It never blocks.
func (a *announcer) announce(queues []string, in time.Duration) {
	if in > 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, q := range queues {
		a.due[q] = struct{}{}
	}
	if !a.running && len(a.due) > 0 {
		a.running = true
		go a.run()
	}
}

// run sends until there is nothing more.
func (a *announcer) run() {
	const sendTimeout = 10 * time.Second
	for queues := a.take(); len(queues) > 0; queues = a.take() {
		ctx, cancel := context.WithTimeout(context.Background(), sendTimeout)
		err := a.notices.Send(ctx, queues)
		cancel()
		if err != nil {
			a.outage.Begin(a.log, "work cannot be announced to other processes just now; their polls find it", err)
		} else {
			a.outage.Over(a.log, "work can be announced to other processes again")
		}
		<-time.After(poke.Pace)
	}
}

// take takes what is due. When there is nothing, it takes the goroutine's leave, under the same lock under which announce
// looks for it.
func (a *announcer) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	queues := make([]string, 0, len(a.due))
	for q := range a.due {
		queues = append(queues, q)
	}
	clear(a.due)
	a.running = len(queues) > 0
	return queues
}
