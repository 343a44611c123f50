package gendurable

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// prober answers the Awaits of a client without actors: one goroutine while there are waiters, which probes
// for all of them with one statement a tick.
type prober struct {
	store interface {
		Settled(ctx context.Context, ids []int64) ([]pg.Settled, error)
	}
	tick time.Duration
	log  *slog.Logger

	mu      sync.Mutex
	waiters map[int64][]actors.AwaitInstance
	// running says that the goroutine is there. Invariant: it is true when waiters is not empty.
	running bool
}

func newProber(store *pg.Store, tick time.Duration, log *slog.Logger) *prober {
	return &prober{store: store, tick: tick, log: log, waiters: make(map[int64][]actors.AwaitInstance)}
}

// ended implements waiter: a client never ends.
func (p *prober) ended() <-chan struct{} { return nil }

// await implements waiter.
func (p *prober) await(m actors.AwaitInstance) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiters[m.ID] = append(p.waiters[m.ID], m)
	if !p.running {
		p.running = true
		go p.run()
	}
}

// run probes until nobody waits.
func (p *prober) run() {
	const probeTimeout = 10 * time.Second
	failing := false
	for {
		ids := p.waiting()
		if len(ids) == 0 {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
		settled, err := p.store.Settled(ctx, ids)
		cancel()
		if err != nil && !failing {
			p.log.Warn("gendurable: cannot look after awaited instances; trying on", "error", err)
		}
		failing = err != nil
		for _, s := range settled {
			p.answer(s)
		}
		<-time.After(p.tick)
	}
}

// waiting forgets the callers that gave up and lists the ids that the others wait for. When there are none, it
// takes the goroutine's leave, under the same lock under which await looks for it.
func (p *prober) waiting() []int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	ids := make([]int64, 0, len(p.waiters))
	for id, ms := range p.waiters {
		live := ms[:0]
		for _, m := range ms {
			select {
			case <-m.Done:
			default:
				live = append(live, m)
			}
		}
		if len(live) == 0 {
			delete(p.waiters, id)
			continue
		}
		p.waiters[id] = live
		ids = append(ids, id)
	}
	p.running = len(ids) > 0
	return ids
}

// answer tells the waiters for which s is an answer.
func (p *prober) answer(s pg.Settled) {
	p.mu.Lock()
	defer p.mu.Unlock()
	live := p.waiters[s.ID][:0]
	for _, m := range p.waiters[s.ID] {
		if m.AnsweredBy(s.Status) {
			m.Reply <- actors.AwaitReply{Settled: s}
		} else {
			live = append(live, m)
		}
	}
	p.waiters[s.ID] = live
	if len(live) == 0 {
		delete(p.waiters, s.ID)
	}
}
