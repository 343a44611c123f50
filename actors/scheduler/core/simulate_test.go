package core

import (
	"container/heap"
	"testing"
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// simulation plays a core against an imagined database with a backlog and steps of known length. Its clock is
// the event queue's, so that every run gives the same numbers.
type simulation struct {
	core    *Core
	now     time.Time
	events  timeline
	backlog int
	step    func(id int64) time.Duration
	claim   func(rows int) time.Duration

	wake       time.Time // of the tick that is armed
	nextID     int64
	done       int
	claims     int
	largest    int
	mostHeld   int
	idleSlots  time.Duration // slots × time without a row although there was a backlog
	slots      int
	lastChange time.Time
}

type moment struct {
	at time.Time
	ev Event
}

type timeline []moment

func (t timeline) Len() int           { return len(t) }
func (t timeline) Less(i, j int) bool { return t[i].at.Before(t[j].at) }
func (t timeline) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }
func (t *timeline) Push(x any)        { *t = append(*t, x.(moment)) }
func (t *timeline) Pop() any {
	old := *t
	m := old[len(old)-1]
	*t = old[:len(old)-1]
	return m
}

func (s *simulation) later(d time.Duration, e Event) { heap.Push(&s.events, moment{s.now.Add(d), e}) }

// run plays until the backlog is done.
func (s *simulation) run(t *testing.T) {
	t.Helper()
	total := s.backlog
	s.now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s.lastChange = s.now
	s.core = New(Config{Concurrency: s.slots}, false, s.now)
	s.on(Tick{})
	for n := 0; s.done < total; n++ {
		if n > 100*total+100_000 || s.events.Len() == 0 {
			t.Fatalf("stuck after %d of %d rows", s.done, total)
		}
		m := heap.Pop(&s.events).(moment)
		if s.backlog > 0 {
			s.idleSlots += time.Duration(s.slots-s.core.Running()) * m.at.Sub(s.now)
		}
		s.now = m.at
		s.on(m.ev)
		if s.core.Running() > s.slots {
			t.Fatalf("%d rows run in %d slots", s.core.Running(), s.slots)
		}
		s.mostHeld = max(s.mostHeld, s.core.Running()+s.core.Buffered())
	}
}

func (s *simulation) on(e Event) {
	if _, ok := e.(Ended); ok {
		s.done++
	}
	fx := s.core.On(e, s.now)
	for _, r := range fx.Start {
		s.later(s.step(r.ID), Ended{[]actors.StepEnded{{ID: r.ID, Delay: -1, Took: s.step(r.ID)}}})
	}
	if len(fx.Release) > 0 {
		s.backlog += len(fx.Release)
		s.later(time.Millisecond, ReleaseResult{})
	}
	if fx.Claim > 0 {
		n := min(fx.Claim, s.backlog)
		s.backlog -= n
		s.claims++
		s.largest = max(s.largest, n)
		rows := make([]pg.Claimed, n)
		for i := range rows {
			s.nextID++
			rows[i].ID = s.nextID
		}
		took := s.claim(n)
		s.later(took, ClaimResult{Rows: rows, Took: took})
	}
	if fx.AskRunning {
		var ids []int64
		for id := range s.core.running {
			ids = append(ids, id)
		}
		s.later(0, Running{IDs: ids})
	}
	if len(fx.Beat) > 0 {
		s.later(time.Millisecond, BeatResult{})
	}
	if at := later(fx.Wake, s.now); !fx.Wake.IsZero() && (!s.wake.After(s.now) || at.Before(s.wake)) {
		s.wake = at
		s.later(at.Sub(s.now), Tick{})
	}
}

func fixed(d time.Duration) func(int64) time.Duration { return func(int64) time.Duration { return d } }

// claimCost is about what a claim costs on one machine: a round trip and a little for each row.
func claimCost(rows int) time.Duration {
	return time.Millisecond + time.Duration(rows)*10*time.Microsecond
}

func TestFastJobsInFewSlotsAreClaimedInLargeBatches(t *testing.T) {
	t.Parallel()
	s := &simulation{backlog: 20_000, slots: 10, step: fixed(time.Millisecond), claim: claimCost}
	s.run(t)
	t.Logf("%d claims, largest %d, most held %d, idle %v", s.claims, s.largest, s.mostHeld, s.idleSlots)
	if s.largest < 50 {
		t.Errorf("the largest claim took %d rows", s.largest)
	}
	if s.claims > 400 {
		t.Errorf("%d claims for 20000 rows", s.claims)
	}
	whole := s.now.Sub(s.lastChange) * 10
	if s.idleSlots > whole/20 {
		t.Errorf("slots stood empty for %v of %v beside a backlog", s.idleSlots, whole)
	}
}

func TestManySlotsAreNotFilledOneByOne(t *testing.T) {
	t.Parallel()
	s := &simulation{backlog: 50_000, slots: 100, step: func(id int64) time.Duration {
		return time.Duration(10+id%20) * time.Millisecond
	}, claim: claimCost}
	s.run(t)
	t.Logf("%d claims, largest %d, most held %d, idle %v", s.claims, s.largest, s.mostHeld, s.idleSlots)
	if s.claims > 50_000/20 {
		t.Errorf("%d claims for 50000 rows", s.claims)
	}
	if whole := s.now.Sub(s.lastChange) * 100; s.idleSlots > whole/20 {
		t.Errorf("slots stood empty for %v of %v beside a backlog", s.idleSlots, whole)
	}
}

func TestSlowStepsTakeNoHostages(t *testing.T) {
	t.Parallel()
	s := &simulation{backlog: 500, slots: 10, step: func(id int64) time.Duration {
		return time.Duration(1+id%3) * time.Second
	}, claim: claimCost}
	s.run(t)
	if s.mostHeld > 10 {
		t.Errorf("%d rows were held by 10 slots of slow steps", s.mostHeld)
	}
}

func TestFreeSlotsDoNotStarveBehindLongSteps(t *testing.T) {
	t.Parallel()
	// Nine of ten slots are soon taken for an hour each: the tenth goes on at full speed.
	s := &simulation{backlog: 3000, slots: 10, claim: claimCost, step: func(id int64) time.Duration {
		if id < 10 {
			return time.Hour
		}
		return time.Millisecond
	}}
	s.run(t)
	if s.now.Sub(s.lastChange) > time.Hour+time.Minute {
		t.Errorf("it took %v", s.now.Sub(s.lastChange))
	}
	if whole := time.Hour; s.idleSlots > whole/1000*2 {
		t.Errorf("slots stood empty for %v beside a backlog", s.idleSlots)
	}
}
