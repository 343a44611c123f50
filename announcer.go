package gendurable

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/actors/poke"
	"github.com/gendurable/gendurable/pg"
)

// announcer sends the announcements of a client without actors: one goroutine while there are some, which sends all that
// there are in one statement, and what comes meanwhile in the next. What cannot be sent is dropped; it is a hint.
type announcer struct {
	notices sender
	log     *slog.Logger
	outage  actors.Outage

	mu  sync.Mutex
	due map[string]struct{}
	// told are cancels and pauses to be told. Invariant: at most maxTold; the others are found by heartbeats.
	told []pg.Notice
	// running says that the goroutine is there. Invariant: it is true when due or told is not empty.
	running bool
}

// sender is what an announcer needs of *pg.Notices.
type sender interface {
	Send(ctx context.Context, queues []string) error
	Tell(ctx context.Context, notices []pg.Notice) error
}

const maxTold = 1000

func newAnnouncer(notices sender, log *slog.Logger) *announcer {
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
	a.start()
}

// operator takes a cancel or a pause that other processes are to be told of. It never blocks.
func (a *announcer) operator(n pg.Notice, _ string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.told) < maxTold {
		a.told = append(a.told, n)
	}
	a.start()
}

// start is called with mu held.
func (a *announcer) start() {
	if !a.running && len(a.due)+len(a.told) > 0 {
		a.running = true
		go a.run()
	}
}

// run sends until there is nothing more.
func (a *announcer) run() {
	const sendTimeout = 10 * time.Second
	for queues, told := a.take(); len(queues)+len(told) > 0; queues, told = a.take() {
		ctx, cancel := context.WithTimeout(context.Background(), sendTimeout)
		err := a.notices.Tell(ctx, told)
		if err == nil {
			err = a.notices.Send(ctx, queues)
		}
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
func (a *announcer) take() (queues []string, told []pg.Notice) {
	a.mu.Lock()
	defer a.mu.Unlock()
	queues = make([]string, 0, len(a.due))
	for q := range a.due {
		queues = append(queues, q)
	}
	clear(a.due)
	told, a.told = a.told, nil
	a.running = len(queues)+len(told) > 0
	return queues, told
}
