package core

import (
	"slices"
	"testing"
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// TestARowOfAnEarlierLifeReturnsWithoutASlot: a core that took over knows what runs, but not which of it gave up its slot. A row
// that asks for one has none: it must not run beside as many others as there are slots.
func TestARowOfAnEarlierLifeReturnsWithoutASlot(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := New(Config{Concurrency: 1}, true, now)
	c.On(Tick{}, now)
	if fx := c.On(Returning{ID: 1}, now); len(fx.Resume) > 0 {
		t.Fatal("a row that is not known was let run")
	}
	c.On(Running{IDs: []int64{1, 2}}, now)
	for range 2 { // it says it twice
		if fx := c.On(Returning{ID: 1}, now); len(fx.Resume) > 0 {
			t.Fatal("two rows run in one slot")
		}
	}
	if fx := c.On(ended(2), now); !slices.Equal(fx.Resume, []int64{1}) || c.Running() != 1 {
		t.Fatalf("resumed %v, %d run", fx.Resume, c.Running())
	}
	if fx := c.On(Returning{ID: 1}, now); len(fx.Resume) > 0 || c.Running() != 1 || c.Handed() != 0 {
		t.Fatalf("resumed again: %v, %d run, %d handed over", fx.Resume, c.Running(), c.Handed())
	}
	c.On(Handed{Rows: []HandedRow{{Row: &pg.Claimed{ID: 1}}}}, now)
	if c.Running() != 1 {
		t.Fatal("a row that has got its slot back has lost it again")
	}
	if c.On(ended(1), now); c.Running() != 0 || c.Handed() != 0 {
		t.Fatalf("%d run, %d handed over, and all have ended", c.Running(), c.Handed())
	}
}

// TestAReturningRowGoesFirst: also in a drain, and before rows that wait in the buffer.
func TestAReturningRowGoesFirst(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := New(Config{Concurrency: 1, MaxUncommitted: 1}, false, now)
	c.demand.perSecond, c.demand.lastEnd = 1000, now // so that rows are claimed ahead
	c.On(Tick{}, now)
	fx := c.On(ClaimResult{Rows: []pg.Claimed{{ID: 1}, {ID: 2}, {ID: 3}}}, now)
	expectStarts(t, fx, 1)
	first := fx.Start[0]
	fx = c.On(Handed{Rows: []HandedRow{{Row: first}}}, now)
	expectStarts(t, fx, 2)
	second := fx.Start[0]
	expectStarts(t, c.On(Returning{ID: 1}, now))
	expectStarts(t, c.On(Handed{Rows: []HandedRow{{Row: second}}}, now))
	if c.Running() != 1 || c.Handed() != 1 || c.Buffered() != 1 {
		t.Fatalf("%d run, %d are handed over, %d wait", c.Running(), c.Handed(), c.Buffered())
	}
	c.On(Drain{Timeout: time.Minute}, now)
	if fx := c.On(ended(1), now); fx.Drained {
		t.Fatal("the drain ended before the last commit")
	}
	c.On(ReleaseResult{}, now)
	if fx := c.On(ended(2), now); !fx.Drained && c.Running()+c.Handed() > 0 {
		t.Fatal("the drain did not end")
	}
}

func expectStarts(t *testing.T, fx *Effects, ids ...int64) {
	t.Helper()
	var got []int64
	for _, r := range fx.Start {
		got = append(got, r.ID)
	}
	if !slices.Equal(got, ids) {
		t.Fatalf("started %v, want %v", got, ids)
	}
}

func ended(id int64) Ended {
	return Ended{[]actors.StepEnded{{ID: id, Delay: -1, Took: time.Millisecond}}}
}
