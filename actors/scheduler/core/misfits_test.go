package core

import (
	"testing"
	"time"

	"github.com/gendurable/gendurable/pg"
)

// TestAStrikeCountsOnce: rows of a step that does not decode may be on their way while it is struck. What they bring while it is left
// out says nothing new; one that comes when it is tried again does.
func TestAStrikeCountsOnce(t *testing.T) {
	t.Parallel()
	now := time.Now()
	c := New(Config{}, false, now)
	step := pg.StepRef{Machine: "m", Version: 1, Step: "a"}
	c.strike(step, false, c.nextSeq(), now)
	m := c.misfits.steps[step]
	if m.pause != misfitFirst {
		t.Fatalf("left out for %v", m.pause)
	}
	until := m.until
	c.strike(step, false, c.nextSeq(), now.Add(time.Millisecond)) // claimed later than the strike, by a claim that was on its way
	if m.pause != misfitFirst || m.until != until {
		t.Errorf("left out for %v until %v, want %v until %v", m.pause, m.until, misfitFirst, until)
	}
	c.fits(&pg.Claimed{Machine: "m", Version: 1, Step: "a", CancelReason: new(string)})
	if m.pause == 0 {
		t.Error("the end of a cancelled row, whose state nobody has decoded, counts as one that fits")
	}
	c.strike(step, false, c.nextSeq(), until)
	if m.pause != 2*misfitFirst {
		t.Errorf("tried again in vain it is left out for %v", m.pause)
	}
}
