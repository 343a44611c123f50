package flusher

import (
	"slices"
	"sync"
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// entry is an outcome in the side lane.
type entry struct {
	outcome pg.Outcome
	waiter  waiter
	// slow: it is here because of a lock, not of its size.
	slow bool
	// alone: it is flushed by itself, because it is large or because nobody knows what it waits for.
	alone bool
	// blocked are the locked rows it needs, as far as known; they are counted in side.blocked.
	blocked []int64
	due     time.Time     // when to try; zero = at once
	pause   time.Duration // before the try after the next
	left    bool          // guarded by side.mu: its caller was answered
}

// side writes what would hold up the others, on a committer and a goroutine of its own. Entries whose rows
// are no longer locked are written together; one entry that is tried alone is written in each turn, so that
// a lock timeout of one holds up the rest for no longer than that.
type side struct {
	w    *writer
	wake chan struct{} // capacity 1: there is a new entry

	mu      sync.Mutex
	entries []*entry      // guarded by mu
	blocked map[int64]int // guarded by mu: locked row → entries that need it
	running bool          // guarded by mu: the goroutine exists
}

func newSide(w *writer) *side {
	return &side{w: w, wake: make(chan struct{}, 1), blocked: make(map[int64]int)}
}

// add takes over an entry and its caller.
func (s *side) add(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries = append(s.entries, e)
	s.count(e.blocked, 1)
	if !s.running {
		s.running = true
		go s.run()
		return
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *side) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.running
}

func (s *side) nothingBlocked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.blocked) == 0
}

// blockedBy returns the rows that the outcome needs and that are known to be locked.
func (s *side) blockedBy(o *pg.Outcome) []int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return intersect(o, s.blocked)
}

// count is called with mu held.
func (s *side) count(ids []int64, by int) {
	for _, id := range ids {
		if s.blocked[id] += by; s.blocked[id] == 0 {
			delete(s.blocked, id)
		}
	}
}

// run writes until nothing is left.
func (s *side) run() {
	for {
		together, single, next, ok := s.pick(time.Now())
		switch {
		case !ok:
			if s.w.root != nil {
				s.w.root.Send(s.w.self, sideIdle{})
			}
			return
		case s.w.ctx.Err() != nil:
			s.stop()
		case len(together) == 0 && single == nil:
			s.rest(time.Until(next))
		default:
			s.turn(together, single)
		}
	}
}

// pick drops entries nobody waits for, and returns those that are due: all that may go together and the one
// longest due of those that go alone; or else when the next will be due. Not ok: nothing is left and the
// goroutine must end.
func (s *side) pick(now time.Time) (together []*entry, single *entry, next time.Time, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries = slices.DeleteFunc(s.entries, func(e *entry) bool {
		if !e.waiter.left() {
			return false
		}
		s.w.Counters.Dropped.Add(1)
		s.release(e)
		e.waiter.answer(actors.Committed{Err: actors.ErrStopped})
		return true
	})
	if len(s.entries) == 0 {
		s.running = false
		return nil, nil, next, false
	}
	bytes := 0
	for _, e := range s.entries {
		switch {
		case e.due.After(now):
			if next.IsZero() || e.due.Before(next) {
				next = e.due
			}
		case !e.alone:
			bytes += weigh(&e.outcome)
			if len(together) < s.w.MaxBatch && (bytes <= s.w.MaxBytes || len(together) == 0) {
				together = append(together, e)
			}
		case single == nil || e.due.Before(single.due):
			single = e
		}
	}
	return together, single, next, true
}

// release is called with mu held when an entry leaves.
func (s *side) release(e *entry) {
	s.count(e.blocked, -1)
	e.blocked = nil
	if e.slow {
		s.w.Counters.SlowLaneNow.Add(-1)
	}
}

// leave takes answered entries out.
func (s *side) leave(gone []*entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range gone {
		s.release(e)
		e.left = true
	}
	s.entries = slices.DeleteFunc(s.entries, func(e *entry) bool { return e.left })
}

func (s *side) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		s.release(e)
		e.waiter.answer(actors.Committed{Err: actors.ErrStopped})
	}
	s.entries = nil
}

func (s *side) rest(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.wake:
	case <-s.w.ctx.Done():
	}
}

func (s *side) turn(together []*entry, single *entry) {
	if len(together) > 0 {
		if free := s.probe(together); len(free) > 0 {
			s.write(free)
		}
	}
	if single != nil {
		s.write([]*entry{single})
	}
}

// probe postpones the entries that are still locked and returns the others.
func (s *side) probe(list []*entry) (free []*entry) {
	var ids []int64
	for _, e := range list {
		touched(&e.outcome, func(id int64) { ids = append(ids, id) })
	}
	locked, err := s.w.locked(ids)
	if err != nil {
		for _, e := range list {
			s.postpone(e)
		}
		return nil
	}
	set := setOf(locked)
	for _, e := range list {
		still := intersect(&e.outcome, set)
		if still == nil {
			free = append(free, e)
			continue
		}
		s.mu.Lock()
		s.count(e.blocked, -1)
		s.count(still, 1)
		e.blocked = still
		s.mu.Unlock()
		s.postpone(e)
	}
	return free
}

// postpone sets the time of an entry's next try. Times are the goroutine's own.
func (s *side) postpone(e *entry) {
	if e.pause == 0 {
		e.pause = s.w.SlowBackoff
	}
	e.due = time.Now().Add(e.pause)
	e.pause = min(2*e.pause, s.w.MaxSlowBackoff)
}

// write flushes entries in one transaction. When several fail, each is tried alone from then on.
func (s *side) write(list []*entry) {
	outcomes := make([]pg.Outcome, len(list))
	waiters := make([]waiter, len(list))
	for i, e := range list {
		outcomes[i], waiters[i] = e.outcome, e.waiter
	}
	flushed, err := s.w.flush(s.w.Side, outcomes)
	if err == nil {
		// Out first, so that a caller that was answered finds its row not remembered as locked.
		s.leave(list)
		s.w.committed(outcomes, waiters, flushed)
		return
	}
	fault := s.w.fault(err)
	switch {
	case fault == Ended: // run sees it and answers all
	case fault == Away:
		s.w.noteAway(err)
		for _, e := range list {
			s.postpone(e)
		}
	case len(list) > 1:
		s.w.Counters.Splits.Add(1)
		for _, e := range list {
			e.alone, e.due = true, time.Time{}
		}
	case fault == Content:
		s.leave(list)
		s.w.refuse(&outcomes[0], waiters[0], err)
	default:
		s.postpone(list[0])
	}
}

func setOf(ids []int64) map[int64]int {
	set := make(map[int64]int, len(ids))
	for _, id := range ids {
		set[id] = 1
	}
	return set
}

// intersect returns the rows of the set that the outcome needs; nil = none.
func intersect(o *pg.Outcome, set map[int64]int) (ids []int64) {
	touched(o, func(id int64) {
		if set[id] > 0 {
			ids = append(ids, id)
		}
	})
	return ids
}
