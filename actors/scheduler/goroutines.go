package scheduler

import "sync"

// goroutines is the dispatcher of a queue's actors. The library's own starts a goroutine whenever a mailbox gets
// its first message, and a new goroutine spends more time on growing its stack than a job's messages take. This
// one lets a goroutine that is through with a mailbox take the next.
type goroutines struct {
	mu     sync.Mutex
	idle   []chan func() // the one that was used last is at the end
	spare  int           // the fewest that were idle since the last trim. Invariant: at most len(idle)
	closed bool
}

// Schedule implements actor.Dispatcher.
func (g *goroutines) Schedule(fn func()) {
	g.mu.Lock()
	n := len(g.idle) - 1
	if n < 0 {
		g.mu.Unlock()
		go g.work(fn)
		return
	}
	next := g.idle[n]
	g.idle[n] = nil
	g.idle = g.idle[:n]
	g.spare = min(g.spare, n)
	g.mu.Unlock()
	next <- fn
}

// Throughput implements actor.Dispatcher: how many messages a mailbox handles before it lets others run. It is
// the library's own number.
func (*goroutines) Throughput() int { return 300 }

func (g *goroutines) work(fn func()) {
	next := make(chan func(), 1)
	for fn != nil {
		fn()
		if !g.rest(next) {
			return
		}
		fn = <-next
	}
}

func (g *goroutines) rest(next chan func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.idle = append(g.idle, next)
	return true
}

// trim ends the goroutines that were not needed since the last trim.
func (g *goroutines) trim() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.end(g.spare)
	g.spare = len(g.idle)
}

// close ends all idle goroutines, and the others as soon as they are idle. The dispatcher goes on working.
func (g *goroutines) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed, g.spare = true, 0
	g.end(len(g.idle))
}

// end ends the n goroutines that were idle for longest.
func (g *goroutines) end(n int) {
	for _, next := range g.idle[:n] {
		next <- nil
	}
	rest := copy(g.idle, g.idle[n:])
	clear(g.idle[rest:])
	g.idle = g.idle[:rest]
}
