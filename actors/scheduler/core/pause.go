package core

import "github.com/gendurable/gendurable/pg"

// pause is what is known of an operator's pause of the queue. It is knowledge, not the pause itself: that is in the
// database, where each claim reads it.
type pause struct {
	on  bool
	seq uint64 // of the last word of it; a claim that was asked before says nothing of it
}

// Paused reports whether the queue is paused, as far as this scheduler knows. It learns of the end by a claim that finds
// rows, so it may say yes for a while longer; the rows that are kept from going on meanwhile bring about that claim.
func (c *Core) Paused() bool { return c.pause.on }

func (c *Core) onPaused() {
	c.pause = pause{on: true, seq: c.nextSeq()}
	c.releaseBuffered()
}

// claimedInPause takes rows that a claim has brought: those of one that was asked before the pause go back.
func (c *Core) claimedInPause(asked uint64) (goBack bool) {
	if c.pause.on && asked < c.pause.seq {
		return true
	}
	c.pause.on = false
	return false
}

// giveBack releases rows that were claimed just now.
func (c *Core) giveBack(rows []pg.Claimed) {
	for i := range rows {
		id := rows[i].ID
		delete(c.left, id)
		if old := c.running[id]; old != nil {
			c.lose(old) // it came back although it runs here: see take
		}
		c.release(&rows[i])
	}
}
