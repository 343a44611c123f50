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
	row := &pg.Claimed{ID: 1}
	c := New(Config{Concurrency: 1}, true, now)
	c.On(Tick{}, now)
	if fx := c.On(wants(row, 1), now); len(fx.Resume) > 0 {
		t.Fatal("a row that is not known was let run")
	}
	c.On(Running{IDs: []int64{1, 2}}, now)
	for range 2 { // it says it twice
		if fx := c.On(wants(row, 1), now); len(fx.Resume) > 0 {
			t.Fatal("two rows run in one slot")
		}
	}
	if fx := c.On(ended(2), now); !slices.Equal(fx.Resume, []Resumed{{ID: 1, Turn: 1}}) || c.Running() != 1 {
		t.Fatalf("resumed %v, %d run", fx.Resume, c.Running())
	}
	if fx := c.On(wants(row, 1), now); len(fx.Resume) > 0 || c.Running() != 1 || c.Handed() != 0 {
		t.Fatalf("resumed again: %v, %d run, %d handed over", fx.Resume, c.Running(), c.Handed())
	}
	c.On(Handed{Rows: []HandedRow{{Row: row, Turn: 1, Took: time.Millisecond}}}, now)
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
	c := New(Config{Concurrency: 1, MaxUncommitted: 5}, false, now)
	c.demand.perSecond, c.demand.lastEnd = 1000, now // so that rows are claimed ahead
	c.On(Tick{}, now)
	fx := c.On(ClaimResult{Rows: []pg.Claimed{{ID: 1}, {ID: 2}, {ID: 3}}}, now)
	expectStarts(t, fx, 1)
	first := fx.Start[0]
	fx = c.On(Handed{Rows: []HandedRow{{Row: first, Turn: 1, Took: time.Millisecond}}}, now)
	expectStarts(t, fx, 2)
	second := fx.Start[0]
	expectStarts(t, c.On(wants(first, 1), now))
	expectStarts(t, c.On(Handed{Rows: []HandedRow{{Row: second, Turn: 1, Took: time.Millisecond}}}, now))
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

// TestAChainIsPutBack: its next step waits for a slot for a while, not at all in a drain or a pause, and an error handler as long as it
// takes. What is put back commits that without a slot.
func TestAChainIsPutBack(t *testing.T) {
	t.Parallel()
	for _, why := range []string{"late", "drain", "pause"} {
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		c := New(Config{Concurrency: 1, MaxUncommitted: 5}, false, now)
		c.demand.perSecond, c.demand.lastEnd = 1000, now
		c.On(Tick{}, now)
		fx := c.On(ClaimResult{Rows: []pg.Claimed{{ID: 1}, {ID: 2}, {ID: 3}, {ID: 4}}}, now)
		var rows []*pg.Claimed
		for id := int64(1); id < 4; id++ { // each gives up the slot, and the next one takes it
			expectStarts(t, fx, id)
			rows = append(rows, fx.Start[0])
			fx = c.On(Handed{Rows: []HandedRow{{Row: fx.Start[0], Turn: 1}}}, now)
		}
		expectStarts(t, fx, 4)
		c.On(wants(rows[0], 1), now)
		for range 2 {
			chains := Returning{[]ReturningRow{{Row: rows[1], Turn: 1, Chain: true}, {Row: rows[2], Turn: 1, Chain: true}}}
			if fx := c.On(chains, now); len(fx.Resume) > 0 || !fx.Wake.Equal(now.Add(returnPatience)) {
				t.Fatalf("%s: %v, the next look is in %v", why, fx.Resume, fx.Wake.Sub(now))
			}
		}
		switch why {
		case "late":
			now = now.Add(returnPatience - 1)
			if fx := c.On(Tick{}, now); len(fx.Resume) > 0 {
				t.Fatalf("too early: %v", fx.Resume)
			}
			now = now.Add(1)
			fx = c.On(Tick{}, now)
		case "drain":
			fx = c.On(Drain{Timeout: time.Minute}, now)
		case "pause":
			fx = c.On(Paused{}, now)
		}
		if want := []Resumed{{2, 1, true}, {3, 1, true}}; !slices.Equal(fx.Resume, want) || c.Handed() != 3 {
			t.Fatalf("%s: %v, %d without a slot", why, fx.Resume, c.Handed())
		}
		fx = c.On(ended(4), now)
		if want := []Resumed{{ID: 1, Turn: 1}}; !slices.Equal(fx.Resume, want) || c.Running() != 1 {
			t.Fatalf("%s: the handler got %v, %d run", why, fx.Resume, c.Running())
		}
	}
}

// TestAChainGivesUpItsSlotAgainAndAgain: each turn counts once, however late or often it is told, and a step in between is no row
// less to run.
func TestAChainGivesUpItsSlotAgainAndAgain(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := New(Config{Concurrency: 1, MaxUncommitted: 1}, false, now)
	c.On(Tick{}, now)
	row := c.On(ClaimResult{Rows: []pg.Claimed{{ID: 1}}}, now).Start[0]
	expect := func(running, handed int) {
		t.Helper()
		if c.Running() != running || c.Handed() != handed {
			t.Fatalf("%d run and %d are handed over, expected %d and %d", c.Running(), c.Handed(), running, handed)
		}
	}
	for turn := 1; turn < 4; turn++ {
		gives := Handed{Rows: []HandedRow{{Row: row, Turn: turn}}}
		if turn != 2 { // of that one the wish tells
			c.On(gives, now)
			expect(0, 1)
		}
		if fx := c.On(wants(row, turn), now); !slices.Equal(fx.Resume, []Resumed{{ID: 1, Turn: turn}}) {
			t.Fatalf("turn %d: %v", turn, fx.Resume)
		}
		expect(1, 0)
		c.On(gives, now)
		if fx := c.On(wants(row, turn), now); len(fx.Resume) > 0 {
			t.Fatalf("turn %d was answered twice", turn)
		}
		expect(1, 0)
	}
	if !c.demand.lastEnd.IsZero() {
		t.Error("a step of a chain counts as the end of a row")
	}
	c.On(Handed{Rows: []HandedRow{{Row: row, Turn: 4, Took: time.Second}}}, now)
	if c.demand.stepTook != time.Second {
		t.Errorf("the end of the chain counts as one of %v", c.demand.stepTook)
	}
	c.On(ended(1), now)
	expect(0, 0)
}

// TestAWishOfAnEarlierRunIsNotThatOfTheNext: it is told late, when the row was lost and runs here once more. That one's own wishes have the
// same turns.
func TestAWishOfAnEarlierRunIsNotThatOfTheNext(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := New(Config{Concurrency: 1, MaxUncommitted: 4}, false, now)
	c.On(Tick{}, now)
	first := c.On(ClaimResult{Rows: []pg.Claimed{{ID: 1, Claim: 1}}}, now).Start[0]
	c.On(Handed{Rows: []HandedRow{{Row: first, Turn: 1}}}, now)
	c.On(Ended{[]actors.StepEnded{{ID: 1, End: actors.EndStale, Delay: -1}}}, now)
	c.On(Poked{}, now)
	second := c.On(ClaimResult{Rows: []pg.Claimed{{ID: 1, Claim: 2}}}, now).Start[0]
	c.On(Handed{Rows: []HandedRow{{Row: first, Turn: 2}}}, now)
	if fx := c.On(wants(first, 2), now); len(fx.Resume) > 0 || c.Running() != 1 || c.Handed() != 0 {
		t.Fatalf("%v for the earlier run, %d run, %d handed over", fx.Resume, c.Running(), c.Handed())
	}
	c.On(Handed{Rows: []HandedRow{{Row: second, Turn: 1}}}, now)
	if fx := c.On(wants(second, 1), now); !slices.Equal(fx.Resume, []Resumed{{ID: 1, Turn: 1}}) {
		t.Fatalf("the next run got %v", fx.Resume)
	}
}

// TestAWishThatIsToldTwiceIsGrantedOnce: to a core that took over, a wish that was granted before may be told as well, and the row asks
// anew before there is a slot.
func TestAWishThatIsToldTwiceIsGrantedOnce(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := New(Config{Concurrency: 2, MaxUncommitted: 8}, true, now)
	c.On(Tick{}, now)
	c.On(Running{IDs: []int64{1, 2, 3}}, now)
	for turn := 3; turn < 5; turn++ {
		c.On(wants(&pg.Claimed{ID: 1}, turn), now)
	}
	fx := c.On(Ended{[]actors.StepEnded{{ID: 2, Delay: -1}, {ID: 3, Delay: -1}}}, now)
	if !slices.Equal(fx.Resume, []Resumed{{ID: 1, Turn: 4}}) || c.Running() != 1 || c.Handed() != 0 {
		t.Fatalf("%v, %d run, %d handed over", fx.Resume, c.Running(), c.Handed())
	}
	if c.On(ended(1), now); c.Running() != 0 || c.Handed() != 0 {
		t.Fatalf("nothing runs, and %d run, %d handed over", c.Running(), c.Handed())
	}
}

// TestAChainThatIsPutBackCounts as a row that has ended, once, as does one that told of its end.
func TestAChainThatIsPutBackCounts(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := New(Config{Concurrency: 2, MaxUncommitted: 4}, false, now)
	c.On(Tick{}, now)
	fx := c.On(ClaimResult{Rows: []pg.Claimed{{ID: 1}, {ID: 2}}}, now)
	c.On(Handed{Rows: []HandedRow{{Row: fx.Start[0], Turn: 1}, {Row: fx.Start[1], Turn: 1, Took: time.Second}}}, now)
	if c.demand.windowEnds != 1 {
		t.Fatalf("%d rows have ended, one has said so", c.demand.windowEnds)
	}
	c.On(ended(1), now)
	if c.On(ended(2), now); c.demand.windowEnds != 2 {
		t.Errorf("%d rows have ended of two", c.demand.windowEnds)
	}
}

func wants(row *pg.Claimed, turn int) Returning {
	return Returning{[]ReturningRow{{Row: row, Turn: turn}}}
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
