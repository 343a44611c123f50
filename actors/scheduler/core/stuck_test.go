package core

import (
	"testing"
	"time"

	"github.com/gendurable/gendurable/pg"
)

// TestATwinIsGivenBackAlone: it waits for the end of its own earlier run, which says nothing of the slots that the buffer waits for.
func TestATwinIsGivenBackAlone(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	now := begun.Add(stuck)
	c := New(Config{}, false, begun)
	buffered := &held{row: &pg.Claimed{ID: 2}, id: 2, since: now}
	c.buffer, c.buffered = []*held{buffered}, map[int64]*held{2: buffered}
	c.twins[1] = &held{row: &pg.Claimed{ID: 1}, id: 1, since: begun}
	c.giveBackStuck(now)
	if len(c.twins) != 0 || len(c.buffer) != 1 || len(c.buffered) != 1 {
		t.Errorf("left are %d twins and %d buffered rows", len(c.twins), len(c.buffer))
	}
	c.giveBackStuck(now.Add(stuck))
	if len(c.buffer) != 0 || len(c.buffered) != 0 {
		t.Errorf("%d rows are still buffered", len(c.buffer))
	}
}
